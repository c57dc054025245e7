// Signaled WRITEs of 8 bytes, posted one by one and polled one by one, by a C program on libibverbs.
//   ibv ROUNDS
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 64 };

static void need(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static __attribute__((noinline)) void counted_post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    need(ibv_post_send(qp, wr, &bad) == 0, "ibv_post_send");
}

static __attribute__((noinline)) int counted_poll(struct ibv_cq *cq, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, 1, wc);
}

static void connect_to(struct ibv_context *context, struct ibv_qp *qp, struct ibv_qp *peer)
{
    union ibv_gid gid;
    need(ibv_query_gid(context, 1, 1, &gid) == 0, "ibv_query_gid");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    need(ibv_modify_qp(qp, &attr, init) == 0, "INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qp_num;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.hop_limit = 1;
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    need(ibv_modify_qp(qp, &attr, rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
    need(ibv_modify_qp(qp, &attr, rts | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : BATCH;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    need(devices && devices[0], "ibv_get_device_list");
    struct ibv_context *context = ibv_open_device(devices[0]);
    need(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 2 * BATCH, NULL, NULL, 0);
    need(pd && cq, "ibv_create_cq");
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
    init.cap = (struct ibv_qp_cap){ .max_send_wr = BATCH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
    struct ibv_qp *qp = ibv_create_qp(pd, &init), *peer = ibv_create_qp(pd, &init);
    need(qp && peer, "ibv_create_qp");
    connect_to(context, qp, peer);
    connect_to(context, peer, qp);
    static volatile uint64_t memory[2];
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *)memory, sizeof memory, rights);
    need(mr != NULL, "ibv_reg_mr");
    struct ibv_sge entry = { .addr = (uintptr_t)&memory[0], .length = 8, .lkey = mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &entry, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = (uintptr_t)&memory[1];
    wr.wr.rdma.rkey = mr->rkey;
    for (int posted = 0, polled = 0; polled < rounds;) {
        for (int i = 0; i < BATCH; i++) {
            memory[0] = ++posted;
            wr.wr_id = posted;
            counted_post(qp, &wr);
        }
        while (memory[1] != (uint64_t)posted)
            usleep(1000);
        // Completions come behind what is written.
        usleep(5000);
        while (polled < posted) {
            struct ibv_wc wc;
            int got = counted_poll(cq, &wc);
            need(got == 0 || (got == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)polled + 1), "poll");
            polled += got;
            if (got == 0)
                usleep(1000);
        }
    }
    need(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0, "ibv_destroy_qp");
    need(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0, "ibv_dereg_mr");
    need(ibv_close_device(context) == 0, "ibv_close_device");
    ibv_free_device_list(devices);
    return 0;
}
