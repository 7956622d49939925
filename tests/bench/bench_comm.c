// SPDX-License-Identifier: Apache-2.0
// What a sum over the ranks costs in shared memory: processes add messages of 8 KiB to 8 MiB, next
// to every rank copying as many bytes at the same time, in the same run, in turn. One JSON object
// per world and size: medians over the rounds, in microseconds; the ratio is sum by copy.
//
//   bench_comm [ROUNDS]
#include "common/clock.h"
#include "common/log.h"
#include "worker/comm/collective.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ROUNDS = 15,
    ROUNDS_MAX = 101,
    BYTES_MIN = 8 * 1024,
    BYTES_MAX = 8 * 1024 * 1024,
    WORK_BYTES = 16 * 1024 * 1024,    // of one round, so that small messages are many
    PATIENCE_US = 10 * 1000 * 1000,
};

struct rank {
    struct collective *collective;
    float *part, *y, *copy;
    int rounds;
};

static void die(const char *what) {
    fprintf(stderr, "bench_comm: %s\n", what);
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

// All ranks begin together.
static void line_up(struct rank *rank) {
    float one = 1, sum = 0;
    collective_all_reduce_add(rank->collective, &one, &sum, 1, 1);
}

static double time_sums(struct rank *rank, size_t bytes, int repeats) {
    line_up(rank);
    uint64_t begin_ns = clock_monotonic_ns();
    for (int i = 0; i < repeats; i++) {
        collective_all_reduce_add(rank->collective, rank->part, rank->y, 1,
                                  (uint32_t)(bytes / sizeof(float)));
    }
    return (double)(clock_monotonic_ns() - begin_ns) / 1000.0 / repeats;
}

// Until the last rank is through.
static double time_copies(struct rank *rank, size_t bytes, int repeats) {
    line_up(rank);
    uint64_t begin_ns = clock_monotonic_ns();
    for (int i = 0; i < repeats; i++) {
        memcpy(rank->copy, i % 2 == 0 ? rank->part : rank->y, bytes);
    }
    line_up(rank);
    return (double)(clock_monotonic_ns() - begin_ns) / 1000.0 / repeats;
}

static void measure(struct rank *rank, size_t bytes) {
    double sums[ROUNDS_MAX], copies[ROUNDS_MAX];
    int repeats = (int)(WORK_BYTES / bytes);
    time_sums(rank, bytes, 1);
    for (int round = 0; round < rank->rounds; round++) {
        sums[round] = time_sums(rank, bytes, repeats);
        copies[round] = time_copies(rank, bytes, repeats);
    }
    if (collective_broken(rank->collective)) {
        die("the group broke");
    }
    if (rank->collective->rank == 0) {
        double sum = median(sums, rank->rounds), copy = median(copies, rank->rounds);
        printf("{\"bench\":\"comm_all_reduce\",\"world\":%u,\"bytes\":%zu,\"us\":%.1f,"
               "\"copy_us\":%.1f,\"ratio\":%.2f}\n",
               rank->collective->world, bytes, sum, copy, sum / copy);
        fflush(stdout);
    }
}

static void run_rank(uint32_t index, uint32_t world, const char *id, int rounds) {
    struct rank rank = {.rounds = rounds};
    struct collective_options options = {.name = "shm", .rank = index, .world = world};
    struct collective_epoch epoch = {
        .epoch = 1, .comm_id = id, .buffer_bytes = 2 * BYTES_MAX, .patience_us = PATIENCE_US};
    struct error err = {0};
    if (collective_create(&options, &rank.collective, &err) != STATUS_OK ||
        collective_attach(rank.collective, &epoch, &err) != STATUS_OK) {
        die(err.message);
    }
    rank.part = calloc(1, BYTES_MAX);
    rank.y = calloc(1, BYTES_MAX);
    rank.copy = calloc(1, BYTES_MAX);
    if (rank.part == NULL || rank.y == NULL || rank.copy == NULL) {
        die("no memory");
    }
    for (size_t i = 0; i < BYTES_MAX / sizeof(float); i++) {
        rank.part[i] = (float)(i % 1000) * 1e-3f;
    }
    for (size_t bytes = BYTES_MIN; bytes <= BYTES_MAX; bytes *= 2) {
        measure(&rank, bytes);
    }
    collective_destroy(rank.collective);
}

static void run_world(uint32_t world, int rounds) {
    uint8_t bytes[16];
    char id[COLLECTIVE_ID_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        die("no random id");
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(id + 2 * i, 3, "%02x", bytes[i]);
    }
    for (uint32_t i = 0; i < world; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            die("no process");
        }
        if (pid == 0) {
            run_rank(i, world, id, rounds);
            exit(0);
        }
    }
    int status = 0;
    while (wait(&status) > 0) {
        if (status != 0) {
            die("a rank failed");
        }
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        die("rounds: 1 to 101");
    }
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_TEXT);
    run_world(2, rounds);
    run_world(8, rounds);
    return 0;
}
