// A program that opens its device often: COUNT times at once, each with a protection domain, a completion queue, a region and
// a queue pair; and again, when all is closed.
//
//   opens DEVICE COUNT ROUNDS
#include "ends.h"

struct opened {
    struct ibv_context *device;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *pair;
};

int main(int argc, char **argv) {
    static uint8_t bytes[4096];
    if (argc != 4) die("usage: opens DEVICE COUNT ROUNDS");
    int count = atoi(argv[2]), rounds = atoi(argv[3]);
    struct opened *all = some(calloc((size_t)count, sizeof *all), "memory");
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            char what[64];
            struct opened *one = &all[i];
            snprintf(what, sizeof what, "opening %d, round %d", i + 1, round + 1);
            one->device = open_by_name(argv[1]);
            one->pd = some(ibv_alloc_pd(one->device), what);
            one->cq = some(ibv_create_cq(one->device, 16, NULL, NULL, 0), what);
            one->mr = some(ibv_reg_mr(one->pd, bytes, sizeof bytes, ALL_RIGHTS), what);
            one->pair = reliable_pair(one->pd, one->cq, 4);
        }
        for (int i = 0; i < count; i++) {
            struct opened *one = &all[i];
            well(ibv_destroy_qp(one->pair), "ibv_destroy_qp");
            well(ibv_dereg_mr(one->mr), "ibv_dereg_mr");
            well(ibv_destroy_cq(one->cq), "ibv_destroy_cq");
            well(ibv_dealloc_pd(one->pd), "ibv_dealloc_pd");
            well(ibv_close_device(one->device), "ibv_close_device");
        }
    }
    printf("opened %d times at once, %d rounds\n", count, rounds);
    return 0;
}
