// SO_TIMESTAMPING by two network interfaces: each datagram from one to the other has a time stamp of the adapter that sent it,
// and one of the adapter that received it. Both are between two looks at the PTP clock of that adapter, before and after.
//
//   frame_stamps INTERFACE ADDRESS NAMESPACE INTERFACE ADDRESS     the second ones are in the network namespace of that file
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ends.h"

#include "clocks.h"

enum { DATAGRAMS = 32, PORT = 7000 };

struct end {
    const char *interface;
    struct sockaddr_in address;
    int socket;
    clockid_t ptp;
    int64_t last_sent, last_received;
};

static void request(struct end *end, unsigned long what, void *data) {
    struct ifreq request = {.ifr_data = data};
    strncpy(request.ifr_name, end->interface, IFNAMSIZ - 1);
    if (ioctl(end->socket, what, &request)) die("%s, ioctl %#lx: %s", end->interface, what, strerror(errno));
}

static void open_end(struct end *end, const char *interface, const char *address) {
    int flags = SOF_TIMESTAMPING_TX_HARDWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_OPT_TSONLY;
    char clock[32];
    end->interface = interface;
    end->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (inet_pton(AF_INET, address, &end->address.sin_addr) != 1) die("no address: %s", address);
    end->socket = socket(AF_INET, SOCK_DGRAM, 0);
    if (end->socket < 0) die("socket: %s", strerror(errno));
    struct ethtool_ts_info info = {.cmd = ETHTOOL_GET_TS_INFO};
    request(end, SIOCETHTOOL, &info);
    printf("%s: flags %#x, clock %d, of sending %#x, of receiving %#x\n", interface, info.so_timestamping, info.phc_index, info.tx_types,
        info.rx_filters);
    if (!(info.so_timestamping & SOF_TIMESTAMPING_RAW_HARDWARE) || info.phc_index < 0) die("%s announces no time stamps", interface);
    snprintf(clock, sizeof clock, "/dev/ptp%d", info.phc_index);
    int file = open(clock, O_RDONLY);
    if (file < 0) die("%s: %s", clock, strerror(errno));
    end->ptp = (~(clockid_t)file << 3) | 3;
    struct hwtstamp_config config = {.tx_type = HWTSTAMP_TX_ON, .rx_filter = HWTSTAMP_FILTER_ALL};
    request(end, SIOCSHWTSTAMP, &config);
    well(bind(end->socket, (struct sockaddr *)&end->address, sizeof end->address), "bind");
    well(setsockopt(end->socket, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags), "SO_TIMESTAMPING");
}

static void enter(const char *name) {
    int file = open(name, O_RDONLY);
    if (file < 0 || setns(file, CLONE_NEWNET)) die("namespace %s: %s", name, strerror(errno));
    close(file);
}

// The stamp of what the socket has, a datagram or the fate of one.
static int64_t stamp(struct end *end, int flags, const char *what) {
    uint8_t bytes[64];
    union {
        char bytes[512];
        struct cmsghdr align;
    } control;
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    struct pollfd waits = {.fd = end->socket, .events = flags ? 0 : POLLIN};
    if (poll(&waits, 1, WAIT_SECONDS * 1000) != 1) die("%s: nothing %s within %d s", end->interface, what, WAIT_SECONDS);
    if (recvmsg(end->socket, &message, flags) < 0) die("%s: recvmsg: %s", end->interface, strerror(errno));
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SO_TIMESTAMPING) {
            struct scm_timestamping stamps;
            memcpy(&stamps, CMSG_DATA(each), sizeof stamps);
            if (stamps.ts[2].tv_sec || stamps.ts[2].tv_nsec) return stamps.ts[2].tv_sec * INT64_C(1000000000) + stamps.ts[2].tv_nsec;
        }
    die("%s: a datagram %s without a time stamp of the adapter", end->interface, what);
    return 0;
}

static void check(int64_t stamp, int64_t before, int64_t after, int64_t *last, const char *interface, const char *what) {
    if (stamp < before || stamp > after)
        die("%s, %s: %" PRId64 ", beyond %" PRId64 " to %" PRId64, interface, what, stamp, before, after);
    if (stamp < *last) die("%s, %s: %" PRId64 " after %" PRId64, interface, what, stamp, *last);
    *last = stamp;
}

static void send_one(struct end *from, struct end *to) {
    uint8_t bytes[64] = {0};
    int64_t before_sent = nanoseconds(from->ptp), before_received = nanoseconds(to->ptp);
    if (sendto(from->socket, bytes, sizeof bytes, 0, (struct sockaddr *)&to->address, sizeof to->address) != sizeof bytes)
        die("%s: sendto: %s", from->interface, strerror(errno));
    int64_t received = stamp(to, 0, "received"), after_received = nanoseconds(to->ptp);
    int64_t sent = stamp(from, MSG_ERRQUEUE, "sent"), after_sent = nanoseconds(from->ptp);
    check(sent, before_sent, after_sent, &from->last_sent, from->interface, "sent");
    check(received, before_received, after_received, &to->last_received, to->interface, "received");
}

int main(int argc, char **argv) {
    static struct end one, other;
    if (argc != 6) die("usage: frame_stamps INTERFACE ADDRESS NAMESPACE INTERFACE ADDRESS");
    open_end(&one, argv[1], argv[2]);
    enter(argv[3]);
    open_end(&other, argv[4], argv[5]);
    for (int i = 0; i < DATAGRAMS; i++) {
        send_one(&one, &other);
        send_one(&other, &one);
    }
    printf("%d datagrams each way\n", DATAGRAMS);
    return 0;
}
