// A relay between two interfaces that gives FLUSH requests the ICRC that their receiver expects.
//
//   flush_relay RXE US           carries all frames from each interface to the other, until it is killed
//
// rxe's table of opcodes has no offset of a payload for FLUSH, so rxe takes the whole packet for its payload: its ICRC goes
// on over the BTH, the FETH and the RETH once more, as they stand in the packet. Other adapters drop such packets, as rxe
// drops those of others. The relay appends these bytes to the ICRC of a FLUSH for rxe, and takes them out of the ICRC of a
// FLUSH by rxe. It computes no ICRC anew, so a packet that is damaged stays so.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROCE = 4791, FLUSH = 0x1c, HEADERS = 12 + 4 + 16, ICRC = 4, FRAME = 65536 };
static const uint32_t POLYNOMIAL = 0xedb88320;

static void die(const char *what) {
    perror(what);
    exit(1);
}

// The state of a CRC behind `bytes`, from the one before them.
static uint32_t behind(uint32_t crc, const uint8_t *bytes, size_t len) {
    while (len--) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
    }
    return crc;
}
// The state before `bytes`, from the one behind them.
static uint32_t before(uint32_t crc, const uint8_t *bytes, size_t len) {
    while (len--) {
        for (int bit = 0; bit < 8; bit++) crc = crc >> 31 ? (crc ^ POLYNOMIAL) << 1 | 1 : crc << 1;
        crc ^= bytes[len];
    }
    return crc;
}

static uint32_t sum(const uint8_t *bytes, size_t len) {
    uint32_t sum = 0;
    for (size_t i = 0; i < len; i++) sum += i & 1 ? bytes[i] : bytes[i] << 8;
    return sum;
}
// Sets the checksum of a UDP datagram; `addresses` are those of its IP header.
static void set_checksum(uint8_t *udp, size_t len, const uint8_t *addresses, size_t addresses_len) {
    udp[6] = udp[7] = 0;
    uint32_t total = sum(udp, len) + sum(addresses, addresses_len) + IPPROTO_UDP + len;
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    uint16_t checksum = htons(total == 0xffff ? total : ~total);
    memcpy(udp + 6, &checksum, 2);
}

// Changes the ICRC of a FLUSH. Returns whether the packet is one.
static int change(uint8_t *udp, size_t len, int for_rxe) {
    uint8_t *bth = udp + 8, *at = udp + len - ICRC;
    if (len != 8 + HEADERS + ICRC || (udp[2] << 8 | udp[3]) != ROCE || *bth != FLUSH) return 0;
    uint32_t icrc = at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
    icrc = ~(for_rxe ? behind : before)(~icrc, bth, HEADERS);
    for (int i = 0; i < ICRC; i++) at[i] = icrc >> 8 * i;
    return 1;
}

static int carry(int from, int to, int for_rxe) {
    static uint8_t frame[FRAME];
    ssize_t len = recv(from, frame, sizeof frame, 0);
    if (len < 0) return errno == EINTR || errno == ENETDOWN ? 0 : (die("recv"), 0);
    int changed = 0;
    uint8_t *ip = frame + ETH_HLEN, *addresses = NULL;
    size_t in_ip = len - ETH_HLEN, header = 0, addresses_len = 0;
    int type = len > ETH_HLEN ? frame[12] << 8 | frame[13] : 0;
    if (type == ETH_P_IP && in_ip >= 20 && ip[9] == IPPROTO_UDP && !((ip[6] & 0x3f) | ip[7])) {
        header = 4 * (ip[0] & 15), addresses = ip + 12, addresses_len = 8;
    } else if (type == ETH_P_IPV6 && in_ip >= 40 && ip[6] == IPPROTO_UDP) {
        header = 40, addresses = ip + 8, addresses_len = 32;
    }
    if (addresses && in_ip >= header + 8) {
        uint8_t *udp = ip + header;
        size_t udp_len = udp[4] << 8 | udp[5];
        if (udp_len >= 8 && header + udp_len <= in_ip) {
            changed = change(udp, udp_len, for_rxe);
            // A veth leaves checksums to be filled in by a wire.
            if (udp[6] || udp[7]) set_checksum(udp, udp_len, addresses, addresses_len);
        }
    }
    if (send(to, frame, len, 0) < 0 && errno != ENOBUFS && errno != ENETDOWN) die("send");
    return changed;
}

static int interface(const char *name) {
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
    int s = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    if (s < 0 || !at.sll_ifindex) die(name);
    if (setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on)) die("PACKET_IGNORE_OUTGOING");
    if (bind(s, (struct sockaddr *)&at, sizeof at)) die("bind");
    return s;
}

int main(int count, char **names) {
    if (count != 3) return fprintf(stderr, "flush_relay RXE US\n"), 2;
    struct pollfd both[2] = {{interface(names[1]), POLLIN, 0}, {interface(names[2]), POLLIN, 0}};
    const char *const of[2] = {"rxe", "us"};
    int told[2] = {0, 0};
    puts("ready"), fflush(stdout);
    for (;;) {
        if (poll(both, 2, -1) < 0 && errno != EINTR) die("poll");
        for (int i = 0; i < 2; i++) {
            // Once for each side, so that a run tells that it was needed.
            if (both[i].revents && carry(both[i].fd, both[!i].fd, i == 1) && !told[i]++) printf("a FLUSH by %s\n", of[i]), fflush(stdout);
        }
    }
}
