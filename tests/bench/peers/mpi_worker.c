/* One rank's part in the benchmarks, for any MPI. The protocol is that of hoplite-bench-worker.
 *
 * Between rounds a rank waits in read(), so that an MPI that polls does not disturb the rounds of others.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { STRIDE = 61 };

static int rank, ranks;
static char workload[32];
/* Of one object, or of one part where hosts have or get equal parts. */
static size_t elements;
static long round_number;
static int steps;
static long long compute_ns;
static float *source, *result;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void sleep_until(long long at) {
    struct timespec time = {at / 1000000000LL, at % 1000000000LL};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {}
}

static float factor(int of) { return (float)((of + round_number) % 16 + 1); }

static int is(const char *name) { return strcmp(workload, name) == 0; }

/* A step of the synchronous parameter server, to whose sum the server, rank 0, adds nothing. What is computed takes as long
 * as in the workers of the other systems. */
static void step(int number) {
    if (rank == 0) memset(source, 0, elements * sizeof(float));
    else sleep_until(now() + compute_ns * (4 + (5 * rank + 2 * number) % 9) / 8);
    MPI_Allreduce(source, result, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int is_gather(void) { return is("gather"); }

static int is_split(void) { return is("allgather") || is("reduce_scatter") || is("all_to_all"); }

/* How many a rank has, and gets. */
static size_t given(void) { return is("reduce_scatter") || is("all_to_all") ? (size_t)ranks : 1; }

static size_t taken(void) {
    if (is_gather()) return rank == 0 ? (size_t)ranks : 0;
    return is("allgather") || is("all_to_all") ? (size_t)ranks : 1;
}

/* Makes the buffers, and touches their pages: MPI's users have theirs ready, as Hoplite's stores do. */
static void prepare(size_t size_bytes) {
    free(source);
    free(result);
    elements = size_bytes / sizeof(float) / (is_split() ? (size_t)ranks : 1);
    size_t received = elements * taken();
    source = malloc(elements * given() * sizeof(float) + 1);
    result = malloc(received * sizeof(float) + 1);
    if (source == NULL || result == NULL) {
        fprintf(stderr, "out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(result, 0, received * sizeof(float) + 1);
    for (size_t part = 0; part < given(); part++)
        for (size_t index = 0; index < elements; index++)
            source[part * elements + index] = factor(rank) * (float)(part + 1) * (float)(index % 8 + 1);
}

static void run(void) {
    int count = (int)elements;
    if (is("round_trip")) {
        if (rank == 0) {
            MPI_Send(source, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(result, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(result, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(source, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        }
    } else if (is("broadcast") || is("broadcast_late")) {
        MPI_Bcast(rank == 0 ? source : result, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (is_gather()) {
        MPI_Gather(source, count, MPI_FLOAT, result, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (is("reduce") || is("reduce_late")) {
        MPI_Reduce(source, result, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    } else if (is("allreduce") || is("allreduce_late")) {
        MPI_Allreduce(source, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (is("allgather")) {
        MPI_Allgather(source, count, MPI_FLOAT, result, count, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (is("reduce_scatter")) {
        MPI_Reduce_scatter_block(source, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (is("all_to_all")) {
        MPI_Alltoall(source, count, MPI_FLOAT, result, count, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (is("ps_sync")) {
        for (int number = 0; number < steps; number++) step(number);
    }
}

static int differs(const float *found, float expected) {
    for (size_t index = 0; index < elements; index += STRIDE)
        if (found[index] != expected * (float)(index % 8 + 1)) return 1;
    return elements > 0 && found[elements - 1] != expected * (float)((elements - 1) % 8 + 1);
}

static int is_wrong(void) {
    float sum = 0;
    for (int other = 0; other < ranks; other++) sum += factor(other);
    if (is("round_trip")) return rank < 2 && differs(result, factor(1 - rank));
    if (is("broadcast") || is("broadcast_late")) return rank > 0 && differs(result, factor(0));
    if (is("allreduce") || is("allreduce_late")) return differs(result, sum);
    if (is("ps_sync")) return differs(result, sum - factor(0));
    if (is("reduce_scatter")) return differs(result, sum * (float)(rank + 1));
    if (is("reduce") || is("reduce_late")) return rank == 0 && differs(result, sum);
    float part = is("all_to_all") ? (float)(rank + 1) : 1;
    for (size_t other = 0; other < taken(); other++)
        if (differs(result + other * elements, factor((int)other) * part)) return 1;
    return 0;
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return fd;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 2) {
        fprintf(stderr, "usage: mpi_worker SOCKET\n");
        return 2;
    }
    int fd = connect_to(argv[1]);
    FILE *commands = fdopen(fd, "r"), *answers = fdopen(dup(fd), "w");
    fprintf(answers, "hello %d\n", rank);
    fflush(answers);
    char line[256];
    while (fgets(line, sizeof line, commands) != NULL) {
        size_t size_bytes;
        long long at;
        if (sscanf(line, "prepare %31s %zu %ld %d %lld", workload, &size_bytes, &round_number, &steps, &compute_ns) == 5) {
            prepare(size_bytes);
            fprintf(answers, "ok\n");
        } else if (sscanf(line, "run %lld", &at) == 1) {
            sleep_until(at);
            long long started = now();
            run();
            long long ended = now();
            /* Not measured: what a rank has still to send, it sends only while it is in a call. */
            MPI_Barrier(MPI_COMM_WORLD);
            fprintf(answers, "done %lld %lld\n", started, ended);
        } else if (strcmp(line, "check\n") == 0 && is_wrong()) {
            fprintf(answers, "error wrong result\n");
        } else {
            fprintf(answers, "ok\n");
        }
        fflush(answers);
    }
    MPI_Finalize();
    return 0;
}
