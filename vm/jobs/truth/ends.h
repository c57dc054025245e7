// What the programs of this job have in common: an adapter by its name, and connected queue pairs within it.
//
// Each is called with DEVICE and the index of a GID of its port, -1 on an InfiniBand port; they end with 0 if all was as it
// should be, and with 1 after a line that tells what was not.
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, WAIT_SECONDS = 120 };

static inline void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(1);
}

// A call that gives an errno, or sets it and gives -1.
static inline void well(int result, const char *what) {
    if (result) die("%s: %s", what, strerror(result > 0 ? result : errno));
}

static inline void *some(void *made, const char *what) {
    if (!made) die("%s: %s", what, strerror(errno));
    return made;
}

static inline struct ibv_context *open_by_name(const char *name) {
    int count;
    struct ibv_device **list = some(ibv_get_device_list(&count), "the list of devices");
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) {
            struct ibv_context *context = some(ibv_open_device(list[i]), "ibv_open_device");
            ibv_free_device_list(list);
            return context;
        }
    die("no device %s", name);
    return NULL;
}

// What the other end of a connection has to know.
struct address {
    uint32_t number;
    uint16_t lid;
    union ibv_gid gid;
};

static inline struct address address_of(struct ibv_qp *pair, int gid_index) {
    struct ibv_port_attr port;
    struct address address = {.number = pair->qp_num};
    well(ibv_query_port(pair->context, 1, &port), "ibv_query_port");
    address.lid = port.lid;
    if (gid_index >= 0) well(ibv_query_gid(pair->context, 1, gid_index, &address.gid), "ibv_query_gid");
    return address;
}

static inline struct ibv_qp *reliable_pair(struct ibv_pd *pd, struct ibv_cq *cq, int depth) {
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = (uint32_t)depth, .max_recv_wr = (uint32_t)depth, .max_send_sge = 1, .max_recv_sge = 1}};
    return some(ibv_create_qp(pd, &attr), "ibv_create_qp");
}

static inline void connect_pair(struct ibv_qp *pair, struct address to, int gid_index) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_RIGHTS};
    well(ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to.number, .rq_psn = 1,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = {.dlid = to.lid, .port_num = 1}};
    if (gid_index >= 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh = (struct ibv_global_route){.dgid = to.gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64};
    }
    well(ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
    // A machine may stand still for seconds: 7 times 4 s.
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 1, .max_rd_atomic = 4};
    well(ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
        IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");
}

// The next completion, whatever its status.
static inline struct ibv_wc completion(struct ibv_cq *cq) {
    struct ibv_wc done;
    time_t end = time(NULL) + WAIT_SECONDS;
    for (;;) {
        int count = ibv_poll_cq(cq, 1, &done);
        if (count < 0) die("ibv_poll_cq");
        if (count) return done;
        if (time(NULL) > end) die("no completion within %d s", WAIT_SECONDS);
    }
}

static inline enum ibv_wc_status carry_out(struct ibv_qp *pair, enum ibv_wr_opcode opcode, struct ibv_mr *mr, void *at, uint32_t len,
    uint64_t remote, uint32_t rkey) {
    struct ibv_sge piece = {.addr = (uintptr_t)at, .length = len, .lkey = mr->lkey};
    struct ibv_send_wr request = {.sg_list = &piece, .num_sge = 1, .opcode = opcode,
        .wr.rdma = {.remote_addr = remote, .rkey = rkey}}, *bad;
    well(ibv_post_send(pair, &request, &bad), "ibv_post_send");
    return completion(pair->send_cq).status;
}

static inline void carry_out_well(struct ibv_qp *pair, enum ibv_wr_opcode opcode, struct ibv_mr *mr, void *at, uint32_t len,
    uint64_t remote, uint32_t rkey) {
    enum ibv_wc_status status = carry_out(pair, opcode, mr, at, len, remote, rkey);
    if (status) die("%s of %" PRIu32 " bytes: %s", opcode == IBV_WR_RDMA_READ ? "a READ" : "a WRITE", len, ibv_wc_status_str(status));
}
