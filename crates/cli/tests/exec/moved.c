// Registered memory that peers can map: it keeps its address and its bytes, a peer reaches it while its owner stands
// still, a forked child has a copy, and it is memory of the process alone again once it is registered no more.
//   moved       ends with "moved, and as before"
//   moved keep  under HCA_KEEP_MEMORY=1: ends with "stayed"
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moved.h"

enum { PAGE = 4096, LEN = 16 * PAGE, MEETING = 2000, DIRECT = 100, SECONDS = 60 };
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/// An end of a connection, with a completion queue of its own.
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};
/// What an end tells the other one.
struct told {
    uint32_t qpn, rkey;
    uint64_t addr;
    union ibv_gid gid;
};

static struct end open_end(void)
{
    struct end end;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    NEED(devices && devices[0]);
    NEED((end.context = ibv_open_device(devices[0])) != NULL);
    NEED((end.pd = ibv_alloc_pd(end.context)) != NULL);
    NEED((end.cq = ibv_create_cq(end.context, 16, NULL, NULL, 0)) != NULL);
    struct ibv_qp_init_attr attr = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
    attr.cap = (struct ibv_qp_cap){ .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
    NEED((end.qp = ibv_create_qp(end.pd, &attr)) != NULL);
    return end;
}
static void connect_to(struct end *end, const struct told *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = RIGHTS };
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    NEED(ibv_modify_qp(end->qp, &attr, init) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qpn;
    attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1 };
    attr.ah_attr.grh = (struct ibv_global_route){ .dgid = peer->gid, .sgid_index = 1, .hop_limit = 1 };
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    NEED(ibv_modify_qp(end->qp, &attr, rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
    NEED(ibv_modify_qp(end->qp, &attr, rts | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}
static struct told tell(struct end *end, struct ibv_mr *mr)
{
    struct told told = { .qpn = end->qp->qp_num, .rkey = mr->rkey, .addr = (uintptr_t)mr->addr };
    NEED(ibv_query_gid(end->context, 1, 1, &told.gid) == 0);
    return told;
}
static void put(int to, const void *bytes, size_t len) { NEED(write(to, bytes, len) == (ssize_t)len); }
static void take(int from, void *bytes, size_t len) { NEED(read(from, bytes, len) == (ssize_t)len); }

/// The peer, a process of its own: it goes on with the owner's memory while the owner is stopped.
static void peer(int from_owner, int to_owner)
{
    struct end end = open_end();
    static uint64_t word[2] __attribute__((aligned(64)));
    struct ibv_mr *mr = ibv_reg_mr(end.pd, word, sizeof word, RIGHTS);
    NEED(mr != NULL);
    struct told own = tell(&end, mr), owner;
    put(to_owner, &own, sizeof own);
    take(from_owner, &owner, sizeof owner);
    connect_to(&end, &owner);
    char go;
    take(from_owner, &go, 1);
    enum ibv_wr_opcode kinds[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
    for (uint64_t i = 0; i < MEETING + DIRECT; i++) {
        if (i == MEETING)
            NEED(kill(getppid(), SIGSTOP) == 0);
        for (int kind = 0; kind < 3; kind++) {
            struct ibv_sge sge = { .addr = (uintptr_t)&word[kind != 0], .length = 8, .lkey = mr->lkey };
            struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = kinds[kind] }, *bad;
            if (kind < 2) {
                wr.wr.rdma.remote_addr = owner.addr + PAGE;
                wr.wr.rdma.rkey = owner.rkey;
            } else {
                wr.wr.atomic.remote_addr = owner.addr + 2 * PAGE;
                wr.wr.atomic.rkey = owner.rkey;
                wr.wr.atomic.compare_add = 1;
            }
            word[0] = i + 1;
            NEED(ibv_post_send(end.qp, &wr, &bad) == 0);
            struct ibv_wc wc;
            while (ibv_poll_cq(end.cq, 1, &wc) == 0)
                ;
            NEED(wc.status == IBV_WC_SUCCESS);
            NEED(kind == 0 || word[1] == (kind == 1 ? i + 1 : i));
        }
    }
    NEED(kill(getppid(), SIGCONT) == 0);
    exit(0);
}

static char *pages(void *at)
{
    int how = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
    char *made = mmap(at, LEN, PROT_READ | PROT_WRITE, how, -1, 0);
    NEED(made != MAP_FAILED);
    for (int i = 0; i < LEN; i++)
        made[i] = (char)(i % 251);
    return made;
}
static int is_filled(const char *at, int len)
{
    for (int i = 0; i < len; i++)
        if (at[i] != (char)(i % 251))
            return 0;
    return 1;
}

static void *wait_for_the_lock(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}
static nlink_t threads(void)
{
    struct stat tasks;
    NEED(stat("/proc/self/task", &tasks) == 0);
    return tasks.st_nlink;
}

/// A forked child has the bytes of the time of the fork, and neither sees what the other writes later.
static void child_has_a_copy(char *memory)
{
    int to_child[2];
    NEED(pipe(to_child) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        char go;
        take(to_child[0], &go, 1);
        int is_same = is_filled(memory, LEN) && !is_moved(memory);
        memset(memory, 'c', PAGE);
        _exit(!is_same);
    }
    memset(memory + LEN - PAGE, 'p', PAGE);
    put(to_child[1], "g", 1);
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 0);
    NEED(is_filled(memory, LEN - PAGE) && memory[LEN - 1] == 'p');
    munmap(memory, LEN);
    close(to_child[0]);
    close(to_child[1]);
}

int main(int count, char **arguments)
{
    int keeps = count > 1 && strcmp(arguments[1], "keep") == 0;
    alarm(SECONDS);
    int to_peer[2], to_owner[2];
    NEED(pipe(to_peer) == 0 && pipe(to_owner) == 0);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        alarm(SECONDS);
        peer(to_peer[0], to_owner[1]);
    }

    struct end end = open_end();
    char *memory = pages(NULL);
    struct ibv_mr *mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS);
    NEED(mr != NULL && is_filled(memory, LEN));
    if (keeps) {
        NEED(!is_moved(memory) && kill(child, SIGKILL) == 0);
        return puts("stayed") < 0;
    }
    NEED(is_moved(memory) && is_moved(memory + LEN - 1));
    struct told own = tell(&end, mr), other;
    take(to_owner[0], &other, sizeof other);
    put(to_peer[1], &own, sizeof own);
    connect_to(&end, &other);
    uint64_t zero = 0;
    memcpy(memory + 2 * PAGE, &zero, sizeof zero);
    put(to_peer[1], "g", 1);
    // No call of verbs: the memory alone is looked at, and for a while this process is stopped.
    volatile uint64_t *written = (uint64_t *)(memory + PAGE), *added = (uint64_t *)(memory + 2 * PAGE);
    while (*written != MEETING + DIRECT || *added != MEETING + DIRECT)
        sched_yield();
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 0);

    // Its end: the same bytes, of this process alone, which the kernel drops when it is told so.
    NEED(ibv_dereg_mr(mr) == 0);
    NEED(!is_moved(memory) && *written == MEETING + DIRECT && is_filled(memory, PAGE));
    NEED(madvise(memory, LEN, MADV_DONTNEED) == 0 && *written == 0);
    munmap(memory, LEN);

    memory = pages(NULL);
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    child_has_a_copy(memory);
    NEED(ibv_dereg_mr(mr) == 0);

    // Parts of pages stay where they are, as do pages of malloc beside them.
    memory = pages(NULL);
    NEED((mr = ibv_reg_mr(end.pd, memory + 64, LEN - 64, RIGHTS)) != NULL && !is_moved(memory + PAGE));
    // Bytes that another region has stay, too.
    struct ibv_mr *second = ibv_reg_mr(end.pd, memory, LEN, RIGHTS);
    NEED(second != NULL && !is_moved(memory));
    NEED(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(second) == 0);

    // Two regions of the same memory: the last one ends it.
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    NEED((second = ibv_reg_mr(end.pd, memory + 64, 64, RIGHTS)) != NULL);
    NEED(ibv_dereg_mr(mr) == 0 && is_moved(memory));
    NEED(ibv_dereg_mr(second) == 0 && !is_moved(memory) && is_filled(memory, LEN));

    // Another thread of the program may write meanwhile: memory stays as it is, in either state.
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    nlink_t before = threads();
    pthread_mutex_lock(&lock);
    NEED(pthread_create(&thread, NULL, wait_for_the_lock, &lock) == 0);
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && !is_moved(memory));
    pthread_mutex_unlock(&lock);
    NEED(pthread_join(thread, NULL) == 0 && ibv_dereg_mr(mr) == 0);
    while (threads() != before)
        sched_yield();
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    // What such a region leaves is moved again, unless the program has unmapped it since.
    for (int unmaps = 0; unmaps < 2; unmaps++) {
        pthread_mutex_lock(&lock);
        NEED(pthread_create(&thread, NULL, wait_for_the_lock, &lock) == 0);
        NEED(ibv_dereg_mr(mr) == 0 && is_moved(memory) && is_filled(memory, LEN));
        pthread_mutex_unlock(&lock);
        NEED(pthread_join(thread, NULL) == 0);
        while (threads() != before)
            sched_yield();
        if (unmaps)
            NEED(munmap(memory, LEN) == 0 && pages(memory) == memory);
        NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    }
    NEED(ibv_dereg_mr(mr) == 0 && !is_moved(memory) && is_filled(memory, LEN));

    // The program unmaps a region's memory, and has other memory there.
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    NEED(munmap(memory, LEN) == 0 && pages(memory) == memory);
    NEED((second = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && !is_moved(memory));
    NEED(ibv_dereg_mr(mr) == 0 && !is_moved(memory) && is_filled(memory, LEN));
    NEED(ibv_dereg_mr(second) == 0 && is_filled(memory, LEN));
    NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL && is_moved(memory));
    NEED(munmap(memory + PAGE, PAGE) == 0 && ibv_dereg_mr(mr) == 0);
    NEED(!is_moved(memory) && !is_moved(memory + 2 * PAGE) && is_filled(memory, PAGE));

    // Memory that others have, too.
    char *shared = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED && (mr = ibv_reg_mr(end.pd, shared, LEN, RIGHTS)) != NULL);
    NEED(!is_moved(shared) && ibv_dereg_mr(mr) == 0);

    // Aligned memory of malloc, and a stack, which stays.
    char *block = NULL, stack[3 * PAGE];
    NEED(posix_memalign((void **)&block, PAGE, 2 * PAGE) == 0);
    memset(block, 'b', 2 * PAGE);
    NEED((mr = ibv_reg_mr(end.pd, block, 2 * PAGE, RIGHTS)) != NULL && is_moved(block));
    NEED(ibv_dereg_mr(mr) == 0 && !is_moved(block));
    free(block);
    block = stack + PAGE - (uintptr_t)stack % PAGE;
    NEED((mr = ibv_reg_mr(end.pd, block, PAGE, RIGHTS)) != NULL && !is_moved(block));
    NEED(ibv_dereg_mr(mr) == 0);

    // Regions that live shortly do not pay: their memory stays after some of them.
    memory = pages(NULL);
    int rounds = 0;
    for (int is = 1; is; rounds++) {
        NEED((mr = ibv_reg_mr(end.pd, memory, LEN, RIGHTS)) != NULL);
        is = is_moved(memory);
        NEED(ibv_dereg_mr(mr) == 0 && rounds < 100000);
    }
    NEED(rounds > 8 && is_filled(memory, LEN));

    NEED(ibv_destroy_qp(end.qp) == 0 && ibv_destroy_cq(end.cq) == 0 && ibv_dealloc_pd(end.pd) == 0);
    NEED(ibv_close_device(end.context) == 0);
    return puts("moved, and as before") < 0;
}
