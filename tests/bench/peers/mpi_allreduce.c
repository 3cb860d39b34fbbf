/* How long allreduces take, by MPI's own choice of how: mpi_allreduce BYTES ROUNDS
 *
 * Rank 0 prints the seconds of each round at the slowest rank, and checks the sums. It knows nothing of Hoplite, nor of the network.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long size_bytes = argc == 3 ? atol(argv[1]) : 0, rounds = argc == 3 ? atol(argv[2]) : 0;
    if (size_bytes < (long)sizeof(float) || rounds < 1) {
        fprintf(stderr, "usage: mpi_allreduce BYTES ROUNDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int elements = (int)(size_bytes / (long)sizeof(float));
    float *source = malloc(elements * sizeof(float)), *sum = malloc(elements * sizeof(float));
    if (source == NULL || sum == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int index = 0; index < elements; index++) source[index] = (float)(rank + index % 8);
    for (long round = 0; round < rounds; round++) {
        for (int index = 0; index < elements; index++) sum[index] = -1;
        MPI_Barrier(MPI_COMM_WORLD);
        double started = MPI_Wtime();
        MPI_Allreduce(source, sum, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = MPI_Wtime() - started, slowest;
        for (int index = 0; index < elements; index++) {
            if (sum[index] == (float)(ranks * (ranks - 1) / 2 + ranks * (index % 8))) continue;
            fprintf(stderr, "rank %d: element %d is %f\n", rank, index, sum[index]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("%.6f\n", slowest);
    }
    MPI_Finalize();
    return 0;
}
