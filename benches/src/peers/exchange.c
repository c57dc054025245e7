/* Two MPI processes: messages there and back, or one way.
 *
 * exchange latency|stream BYTES COUNT CPU CPU
 *
 * Rank 0 prints the half round trip in ns (the median of batches), or messages a second. Each process binds itself to its
 * CPU, and ends with the one that started it. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { ROUNDS = 16, WINDOW = 64 };

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(int rank, char *there, char *back, int bytes, long batches) {
    double *took = malloc(sizeof(double) * (size_t)batches);
    for (long b = -batches / 10 - 1; b < batches; b++) {
        double begin = now_ns();
        for (int i = 0; i < ROUNDS; i++) {
            if (rank == 0) {
                MPI_Send(there, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
                MPI_Recv(back, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(back, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(there, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
            }
        }
        if (b >= 0) took[b] = (now_ns() - begin) / (2 * ROUNDS);
    }
    qsort(took, (size_t)batches, sizeof(double), by_value);
    if (rank == 0) printf("%.3f\n", took[batches / 2]);
}

static void window(int rank, char *buf, int bytes) {
    MPI_Request requests[WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        if (rank == 0)
            MPI_Isend(buf, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Irecv(buf, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
}

static void stream(int rank, char *buf, int bytes, long windows) {
    char word = 0;
    for (long w = 0; w < windows / 10 + 1; w++) window(rank, buf, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_ns();
    for (long w = 0; w < windows; w++) window(rank, buf, bytes);
    /* The last window has arrived when the other side says so. */
    if (rank == 0) {
        MPI_Recv(&word, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        printf("%.3f\n", (double)windows * WINDOW / (now_ns() - begin) * 1e9);
    } else {
        MPI_Send(&word, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    int rank;
    cpu_set_t set;
    if (argc != 6) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[rank == 0 ? 4 : 5]), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) return 1;
    int bytes = atoi(argv[2]);
    long count = atol(argv[3]);
    char *there = aligned_alloc(4096, ((size_t)bytes + 4095) / 4096 * 4096);
    char *back = aligned_alloc(4096, ((size_t)bytes + 4095) / 4096 * 4096);
    if (!there || !back) return 1;
    memset(there, 5, (size_t)bytes);
    memset(back, 5, (size_t)bytes);
    if (strcmp(argv[1], "latency") == 0)
        latency(rank, there, back, bytes, count / ROUNDS + 1);
    else
        stream(rank, there, bytes, count / WINDOW + 1);
    MPI_Finalize();
    return 0;
}
