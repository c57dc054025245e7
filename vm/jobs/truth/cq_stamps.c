// Time stamps of completions, if the adapter announces them: each is of the time between its request and the poll that found
// it, they never go back within a queue, and the clock that they are of goes as fast as the machine's.
//
//   cq_stamps DEVICE GID_INDEX
//
// Ends with 2 where they are not announced, and a queue that wants them is refused.
#include "ends.h"

#include "clocks.h"

enum { MESSAGES = 64, LEN = 64 };

static struct ibv_context *device;
static uint64_t clock_khz;

static uint64_t ticks(void) {
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    well(ibv_query_rt_values_ex(device, &values), "ibv_query_rt_values_ex");
    if (!(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK)) die("ibv_query_rt_values_ex gives no raw clock");
    // All of the counter stands in the nanoseconds.
    return (uint64_t)values.raw_clock.tv_nsec;
}

static int64_t core_clock(void) { return (int64_t)((double)ticks() * 1e6 / (double)clock_khz); }

static uint64_t stamp_of(struct ibv_cq_ex *cq, int wall) {
    return wall ? ibv_wc_read_completion_wallclock_ns(cq) : ibv_wc_read_completion_ts(cq);
}

static uint64_t now(int wall) { return wall ? (uint64_t)nanoseconds(CLOCK_REALTIME) : ticks(); }

// Messages from one queue pair of the adapter to another; both ends complete in one queue.
static void stamps(int gid_index, int wall) {
    static uint8_t bytes[2 * LEN];
    const char *what = wall ? "stamps of the time of day" : "stamps";
    struct ibv_cq_init_attr_ex attr = {.cqe = 256,
        .wc_flags = IBV_WC_STANDARD_FLAGS | (wall ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK : IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)};
    struct ibv_cq_ex *cq = some(ibv_create_cq_ex(device, &attr), what);
    struct ibv_pd *pd = some(ibv_alloc_pd(device), "ibv_alloc_pd");
    struct ibv_mr *mr = some(ibv_reg_mr(pd, bytes, sizeof bytes, ALL_RIGHTS), "ibv_reg_mr");
    struct ibv_qp *one = reliable_pair(pd, ibv_cq_ex_to_cq(cq), 16), *other = reliable_pair(pd, ibv_cq_ex_to_cq(cq), 16);
    connect_pair(one, address_of(other, gid_index), gid_index);
    connect_pair(other, address_of(one, gid_index), gid_index);
    // The time of day was set when the driver came, and goes its own way since.
    uint64_t slack = wall ? UINT64_C(60000000000) : 0, last = 0, first = 0;
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge from = {(uintptr_t)bytes, LEN, mr->lkey}, to = {(uintptr_t)bytes + LEN, LEN, mr->lkey};
        struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_receive;
        struct ibv_send_wr send = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
        well(ibv_post_recv(other, &receive, &bad_receive), "ibv_post_recv");
        uint64_t before = now(wall), seen[2];
        well(ibv_post_send(one, &send, &bad), "ibv_post_send");
        time_t end = time(NULL) + WAIT_SECONDS;
        for (int found = 0; found < 2;) {
            struct ibv_poll_cq_attr none = {0};
            int result = ibv_start_poll(cq, &none);
            if (result == ENOENT) {
                if (time(NULL) > end) die("no completion within %d s", WAIT_SECONDS);
                continue;
            }
            well(result, "ibv_start_poll");
            if (cq->status) die("a completion: %s", ibv_wc_status_str(cq->status));
            seen[found++] = stamp_of(cq, wall);
            ibv_end_poll(cq);
        }
        uint64_t after = now(wall);
        for (int k = 0; k < 2; k++) {
            if (seen[k] + slack < before || seen[k] > after + slack)
                die("%s, message %d: %" PRIu64 ", and it was sent and polled from %" PRIu64 " to %" PRIu64, what, i, seen[k], before, after);
            if (seen[k] < last) die("%s, message %d: %" PRIu64 " after %" PRIu64, what, i, seen[k], last);
            last = seen[k];
        }
        if (!first) first = seen[0];
    }
    if (last == first) die("%s: all are %" PRIu64, what, last);
    printf("%s: %d from %" PRIu64 " to %" PRIu64 "\n", what, 2 * MESSAGES, first, last);
}

int main(int argc, char **argv) {
    struct ibv_device_attr_ex attr;
    if (argc != 3) die("usage: cq_stamps DEVICE GID_INDEX");
    device = open_by_name(argv[1]);
    well(ibv_query_device_ex(device, NULL, &attr), "ibv_query_device_ex");
    clock_khz = attr.hca_core_clock;
    printf("mask %#" PRIx64 ", %" PRIu64 " kHz\n", attr.completion_timestamp_mask, clock_khz);
    if (!attr.completion_timestamp_mask) {
        struct ibv_cq_init_attr_ex wish = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
        if (ibv_create_cq_ex(device, &wish)) die("no stamps are announced, and a queue that wants them is made");
        return 2;
    }
    if (!clock_khz) die("stamps are announced, and the clock that they are of is not");
    check_rate(core_clock, "the clock of stamps");
    stamps(atoi(argv[2]), 0);
    stamps(atoi(argv[2]), 1);
    return 0;
}
