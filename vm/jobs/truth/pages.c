// Memory in many pages: MIB registered at once, in pages of 4 KiB that lie anywhere, and the RDMA of another process over all of it.
//
//   pages DEVICE GID_INDEX MIB
//
// One process registers. The other one WRITEs all of it; the first compares each word, and writes others, which the second
// one READs and compares.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "ends.h"

enum { PAGE = 4096, CHUNK = 1 << 20 };

struct told {
    struct address address;
    uint64_t at;
    uint32_t rkey;
};

// No two words are the same, and none tells of its neighbours.
static uint64_t word(uint64_t n, uint64_t round) { return (n + 1) * 0x9e3779b97f4a7c15u ^ round; }

static void say(int to, const void *bytes, size_t len) {
    if (write(to, bytes, len) != (ssize_t)len) die("the other process does not listen");
}

static void hear(int from, void *bytes, size_t len) {
    if (recv(from, bytes, len, MSG_WAITALL) != (ssize_t)len) die("the other process is gone");
}

static void compare(const uint64_t *bytes, uint64_t first, uint64_t count, uint64_t round, const char *what) {
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != word(first + i, round))
            die("%s: word %" PRIu64 " is %" PRIx64 ", not %" PRIx64, what, first + i, bytes[i], word(first + i, round));
}

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_qp *pair;

static void open_end(char **arguments) {
    device = open_by_name(arguments[1]);
    pd = some(ibv_alloc_pd(device), "ibv_alloc_pd");
    pair = reliable_pair(pd, some(ibv_create_cq(device, 64, NULL, NULL, 0), "ibv_create_cq"), 16);
}

static void owner(char **arguments, uint64_t len, int other) {
    int gid_index = atoi(arguments[2]);
    uint64_t pages = len / PAGE;
    uint64_t *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) die("mmap: %s", strerror(errno));
    well(madvise(bytes, len, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
    // Touched in an order that has nothing to do with that of their addresses: neighbours lie anywhere in the machine's memory.
    for (uint64_t i = 0; i < pages; i++) bytes[(i * 7919 % pages) * (PAGE / 8)] = i;
    open_end(arguments);
    struct ibv_mr *mr = some(ibv_reg_mr(pd, bytes, len, ALL_RIGHTS), "ibv_reg_mr");
    struct told me = {address_of(pair, gid_index), (uintptr_t)bytes, mr->rkey}, they;
    say(other, &me, sizeof me);
    hear(other, &they, sizeof they);
    connect_pair(pair, they.address, gid_index);
    say(other, "c", 1);
    char go;
    hear(other, &go, 1);
    compare(bytes, 0, len / 8, 1, "written by the other process");
    for (uint64_t i = 0; i < len / 8; i++) bytes[i] = word(i, 2);
    say(other, "w", 1);
    hear(other, &go, 1);
    well(ibv_dereg_mr(mr), "ibv_dereg_mr");
}

static void user(char **arguments, uint64_t len, int other) {
    int gid_index = atoi(arguments[2]);
    uint64_t *bytes = some(aligned_alloc(PAGE, CHUNK), "memory");
    char go;
    open_end(arguments);
    struct ibv_mr *mr = some(ibv_reg_mr(pd, bytes, CHUNK, ALL_RIGHTS), "ibv_reg_mr");
    struct told me = {address_of(pair, gid_index), 0, 0}, they;
    hear(other, &they, sizeof they);
    connect_pair(pair, they.address, gid_index);
    say(other, &me, sizeof me);
    hear(other, &go, 1);
    for (uint64_t at = 0; at < len; at += CHUNK) {
        for (uint64_t i = 0; i < CHUNK / 8; i++) bytes[i] = word(at / 8 + i, 1);
        carry_out_well(pair, IBV_WR_RDMA_WRITE, mr, bytes, CHUNK, they.at + at, they.rkey);
    }
    say(other, "r", 1);
    hear(other, &go, 1);
    for (uint64_t at = 0; at < len; at += CHUNK) {
        carry_out_well(pair, IBV_WR_RDMA_READ, mr, bytes, CHUNK, they.at + at, they.rkey);
        compare(bytes, at / 8, CHUNK / 8, 2, "read from the other process");
    }
    say(other, "d", 1);
}

int main(int argc, char **argv) {
    int talk[2], status;
    if (argc != 4) die("usage: pages DEVICE GID_INDEX MIB");
    uint64_t len = strtoull(argv[3], NULL, 10) << 20;
    well(socketpair(AF_UNIX, SOCK_STREAM, 0, talk), "socketpair");
    pid_t child = fork();
    if (child < 0) die("fork: %s", strerror(errno));
    close(talk[child != 0]);
    if (child == 0) return owner(argv, len, talk[1]), 0;
    user(argv, len, talk[0]);
    waitpid(child, &status, 0);
    if (status) die("the process that registered failed");
    printf("%" PRIu64 " pages of 4 KiB, written, compared, read and compared\n", len / PAGE);
    return 0;
}
