/* Each rank sends to each other one, by messages and by one-sided puts; every number is checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int c, char **v) {
    MPI_Init(&c, &v);
    int rank, size; MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &size);
    long wrong = 0;
    for (int n = 1; n <= 1 << 16; n *= 16) {
        int *out = malloc(sizeof(int) * n * size), *in = malloc(sizeof(int) * n * size);
        for (int p = 0; p < size; p++) for (int i = 0; i < n; i++) out[p * n + i] = rank * 1000003 + p * 1009 + i;
        MPI_Alltoall(out, n, MPI_INT, in, n, MPI_INT, MPI_COMM_WORLD);
        for (int p = 0; p < size; p++) for (int i = 0; i < n; i++) wrong += in[p * n + i] != p * 1000003 + rank * 1009 + i;
        free(out); free(in);
    }
    long sum = rank, all; MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    wrong += all != (long)size * (size - 1) / 2;
    MPI_Win w; long *mem; MPI_Win_allocate(8 * size, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &mem, &w);
    for (int p = 0; p < size; p++) mem[p] = -1;
    MPI_Win_fence(0, w); long mine = rank * 7;
    for (int p = 0; p < size; p++) MPI_Put(&mine, 1, MPI_LONG, p, rank, 1, MPI_LONG, w);
    MPI_Win_fence(0, w);
    for (int p = 0; p < size; p++) wrong += mem[p] != p * 7;
    MPI_Win_free(&w);
    long total; MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf("%d ranks, %ld wrong\n", size, total);
    MPI_Finalize(); return total != 0 && !rank;
}
