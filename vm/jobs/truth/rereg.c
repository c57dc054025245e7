// What ibv_rereg_mr changes, an adapter keeps to: rights, memory, protection domain; one by one, and all of them at once.
//
//   rereg DEVICE GID_INDEX
#include "ends.h"

enum { LEN = 64 << 10, PIECE = 8192 };

static int gid_index;
static struct ibv_context *device;
static struct ibv_cq *cq;

// Two ends of a connection within the adapter: the requester's is of the first domain.
static struct ibv_qp *requester(struct ibv_pd *from, struct ibv_pd *to) {
    struct ibv_qp *one = reliable_pair(from, cq, 16), *other = reliable_pair(to, cq, 16);
    connect_pair(one, address_of(other, gid_index), gid_index);
    connect_pair(other, address_of(one, gid_index), gid_index);
    return one;
}

// A WRITE through the region, of bytes of that value; and whether it should arrive.
static void try_write(struct ibv_pd *mine, struct ibv_pd *theirs, struct ibv_mr *mr, uint8_t *memory, uint8_t value, int arrives,
    const char *what) {
    static uint8_t bytes[PIECE];
    struct ibv_mr *own = some(ibv_reg_mr(mine, bytes, PIECE, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    struct ibv_qp *pair = requester(mine, theirs);
    uint8_t before = memory[PIECE];
    memset(bytes, value, PIECE);
    enum ibv_wc_status status = carry_out(pair, IBV_WR_RDMA_WRITE, own, bytes, PIECE, (uintptr_t)memory + PIECE, mr->rkey);
    if (status != (arrives ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR)) die("%s: %s", what, ibv_wc_status_str(status));
    for (int i = 0; i < PIECE; i++)
        if (memory[PIECE + i] != (arrives ? value : before)) die("%s: byte %d is %#x", what, i, memory[PIECE + i]);
    printf("%s: %s\n", what, arrives ? "arrives" : "is refused");
}

static void change(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *at, int rights, const char *what) {
    int result = ibv_rereg_mr(mr, flags, pd, at, at ? LEN : 0, rights);
    if (result) die("ibv_rereg_mr, %s: %d, %s", what, result, strerror(errno));
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage: rereg DEVICE GID_INDEX");
    gid_index = atoi(argv[2]);
    device = open_by_name(argv[1]);
    cq = some(ibv_create_cq(device, 1024, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_pd *mine = some(ibv_alloc_pd(device), "ibv_alloc_pd"), *first = some(ibv_alloc_pd(device), "ibv_alloc_pd"),
        *second = some(ibv_alloc_pd(device), "ibv_alloc_pd");
    uint8_t *one = some(aligned_alloc(4096, LEN), "memory"), *other = some(aligned_alloc(4096, LEN), "memory");
    memset(one, 1, LEN);
    memset(other, 2, LEN);
    struct ibv_mr *mr = some(ibv_reg_mr(first, one, LEN, ALL_RIGHTS), "ibv_reg_mr");
    try_write(mine, first, mr, one, 10, 1, "a WRITE before");
    change(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, "rights");
    try_write(mine, first, mr, one, 11, 0, "a WRITE without the right");
    change(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, ALL_RIGHTS, "rights back");
    try_write(mine, first, mr, one, 12, 1, "a WRITE with the right again");
    change(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 0, "memory");
    try_write(mine, first, mr, other, 13, 1, "a WRITE to other memory");
    try_write(mine, first, mr, one, 14, 0, "a WRITE to memory that it was");
    change(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, "domain");
    try_write(mine, second, mr, other, 15, 1, "a WRITE in the other domain");
    try_write(mine, first, mr, other, 16, 0, "a WRITE in the domain that it was of");
    change(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, first, one, ALL_RIGHTS, "all");
    try_write(mine, first, mr, one, 17, 1, "a WRITE after all was changed");
    well(ibv_dereg_mr(mr), "ibv_dereg_mr");
    return 0;
}
