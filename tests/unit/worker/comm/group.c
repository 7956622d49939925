// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/comm/group.h"

#include "common/bounds.h"
#include "common/rng.h"
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_US = 20 * 1000 * 1000 };

void group_id(char out[COLLECTIVE_ID_BYTES]) {
    uint8_t bytes[(COLLECTIVE_ID_BYTES - 1) / 2];
    ck_assert_int_eq(getrandom(bytes, sizeof bytes, 0), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
}

// What rank `rank` says in message `message`: any rank can make it, so each can check the others.
static void fill(float *out, size_t count, uint64_t seed, uint32_t message, uint32_t rank) {
    struct rng rng;
    rng_init(&rng, seed * 1000003 + message * 16 + rank);
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)((double)rng_below(&rng, 1u << 24) / 1024.0 - 8192.0) *
                 ((i & 7) == 0 ? 1e-6f : 1.0f);
    }
}

// The definition, element by element.
static float sum_at(float *const *part, uint32_t world, size_t i) {
    if (world == 2) {
        return part[0][i] + part[1][i];
    }
    if (world == 4) {
        return (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
    }
    if (world == 8) {
        return ((part[0][i] + part[1][i]) + (part[2][i] + part[3][i])) +
               ((part[4][i] + part[5][i]) + (part[6][i] + part[7][i]));
    }
    float sum = part[0][i];
    for (uint32_t rank = 1; rank < world; rank++) {
        sum = sum + part[rank][i];
    }
    return sum;
}

struct work {
    struct collective *collective;
    const struct group_rank *rank;
    uint32_t message;
    struct rng rng;
    float *part[BOUND_RANKS];    // of every rank
    float *y;
    float *before;
};

static bool same(const float *a, const float *b, size_t count) {
    return memcmp(a, b, count * sizeof *a) == 0;
}

// Random shapes: small ones, odd ones, and some beyond a chunk.
static void shape(struct work *work, uint32_t *rows, uint32_t *cols) {
    size_t most = work->rank->floats_max;
    size_t count = rng_below(&work->rng, 3) == 0 ? 1 + rng_below(&work->rng, 40)
                                                 : 1 + rng_below(&work->rng, (uint32_t)most);
    *rows = 1 + (uint32_t)rng_below(&work->rng, 17);
    *cols = (uint32_t)(count / *rows);
    *cols = *cols > 0 ? *cols : 1;
}

static void fill_parts(struct work *work, size_t count) {
    for (uint32_t rank = 0; rank < work->rank->world; rank++) {
        fill(work->part[rank], count, work->rank->seed, work->message, rank);
    }
    fill(work->before, count, work->rank->seed, work->message, BOUND_RANKS);
    memcpy(work->y, work->before, count * sizeof *work->y);
}

static bool check_sum(struct work *work, bool scatter) {
    uint32_t rows, cols;
    shape(work, &rows, &cols);
    fill_parts(work, (size_t)rows * cols);
    uint32_t me = work->rank->rank, world = work->rank->world;
    struct collective_rows own = collective_share(rows, me, world);
    if (scatter) {
        collective_reduce_scatter_add(work->collective, work->part[me], work->y, rows, cols);
    } else {
        own = (struct collective_rows){0, rows};
        collective_all_reduce_add(work->collective, work->part[me], work->y, rows, cols);
    }
    if (collective_broken(work->collective)) {
        return true;
    }
    for (size_t i = 0; i < (size_t)own.count * cols; i++) {
        float sum = sum_at(work->part, world, (size_t)own.first * cols + i);
        float want = work->before[i] + sum;
        if (!same(&work->y[i], &want, 1)) {
            return false;
        }
    }
    return true;
}

static bool check_gather(struct work *work) {
    uint32_t rows, cols;
    shape(work, &rows, &cols);
    uint32_t world = work->rank->world;
    cols = cols / world > 0 ? cols / world : 1;
    uint32_t padding = (uint32_t)rng_below(&work->rng, cols < 3 ? cols : 3);
    uint32_t y_cols = cols * world - padding;
    fill_parts(work, (size_t)rows * cols);
    collective_all_gather(work->collective,
                          &(struct collective_gather){.x = work->part[work->rank->rank],
                                                      .y = work->y,
                                                      .row_count = rows,
                                                      .x_cols = cols,
                                                      .y_cols = y_cols});
    for (uint32_t i = 0; i < rows * y_cols && !collective_broken(work->collective); i++) {
        uint32_t row = i / y_cols, col = i % y_cols;
        if (!same(&work->y[i], &work->part[col / cols][row * cols + col % cols], 1)) {
            return false;
        }
    }
    return true;
}

static bool check_broadcast(struct work *work) {
    uint32_t rows, cols;
    shape(work, &rows, &cols);
    uint32_t root = (uint32_t)rng_below(&work->rng, work->rank->world);
    size_t bytes = (size_t)rows * cols * sizeof(float) - rng_below(&work->rng, 4);
    fill_parts(work, (size_t)rows * cols);
    float *own = work->rank->rank == root ? work->part[root] : work->y;
    collective_broadcast(work->collective, root, own, bytes);
    return collective_broken(work->collective) || memcmp(own, work->part[root], bytes) == 0;
}

// A letter from one rank to the next, all around: even ranks send first.
static bool check_letters(struct work *work) {
    uint32_t rows, cols, world = work->rank->world, me = work->rank->rank;
    shape(work, &rows, &cols);
    size_t bytes = (size_t)rows * cols * sizeof(float);
    fill_parts(work, (size_t)rows * cols);
    if (world == 1) {
        return true;
    }
    uint32_t next = (me + 1) % world, last = (me + world - 1) % world;
    for (int turn = 0; turn < 2; turn++) {
        if ((me % 2 == 0) == (turn == 0)) {
            collective_send(work->collective, next, work->part[me], bytes);
        } else {
            collective_receive(work->collective, last, work->y, bytes);
        }
    }
    return collective_broken(work->collective) || memcmp(work->y, work->part[last], bytes) == 0;
}

static bool check_message(struct work *work) {
    switch (rng_below(&work->rng, 6)) {
    case 0:
        return check_gather(work);
    case 1:
        return check_sum(work, true);
    case 2:
        return check_broadcast(work);
    case 3:
        return check_letters(work);
    default:
        return check_sum(work, false);
    }
}

enum group_end group_exchange(struct collective *collective, const struct group_rank *rank) {
    struct work work = {.collective = collective, .rank = rank};
    rng_init(&work.rng, rank->seed);
    // A gathered message has up to a row more of every rank.
    size_t bytes = (rank->floats_max + 64 * BOUND_RANKS) * sizeof(float);
    for (uint32_t i = 0; i < rank->world; i++) {
        work.part[i] = malloc(bytes);
    }
    work.y = malloc(bytes);
    work.before = malloc(bytes);
    enum group_end end = GROUP_END_OK;
    while (end == GROUP_END_OK &&
           (rank->message_count == 0 || work.message < rank->message_count)) {
        end = check_message(&work) ? GROUP_END_OK : GROUP_END_WRONG;
        if (collective_broken(collective)) {
            end = GROUP_END_BROKEN;
        }
        work.message++;
        if (rank->done != NULL) {
            atomic_fetch_add(rank->done, 1);
        }
    }
    for (uint32_t i = 0; i < rank->world; i++) {
        free(work.part[i]);
    }
    free(work.y);
    free(work.before);
    return end;
}

enum group_end group_rank_run(const struct group_rank *rank) {
    struct collective_options options = {.name = "shm", .rank = rank->rank, .world = rank->world};
    struct collective_epoch epoch = {.epoch = rank->epoch,
                                     .comm_id = rank->comm_id,
                                     .buffer_bytes = rank->buffer_bytes,
                                     .patience_us = PATIENCE_US};
    struct collective *collective = NULL;
    struct error err = {0};
    if (collective_create(&options, &collective, &err) != STATUS_OK) {
        return GROUP_END_ABSENT;
    }
    enum group_end end = GROUP_END_ABSENT;
    if (collective_attach(collective, &epoch, &err) == STATUS_OK) {
        end = group_exchange(collective, rank);
        // Who leaves breaks the group: nobody before all have looked at their last message.
        float one = 1.0f, sum = 0.0f;
        collective_all_reduce_add(collective, &one, &sum, 1, 1);
    }
    collective_destroy(collective);
    return end;
}

// ---- all ranks ---------------------------------------------------------------------------------

struct thread {
    pthread_t id;
    struct group_rank rank;
    enum group_end end;
};

static void *run_thread(void *arg) {
    struct thread *thread = arg;
    thread->end = group_rank_run(&thread->rank);
    return NULL;
}

enum group_end group_threads(const struct group_rank *rank) {
    struct thread threads[BOUND_RANKS];
    for (uint32_t i = 0; i < rank->world; i++) {
        threads[i].rank = *rank;
        threads[i].rank.rank = i;
        ck_assert_int_eq(pthread_create(&threads[i].id, NULL, run_thread, &threads[i]), 0);
    }
    enum group_end worst = GROUP_END_OK;
    for (uint32_t i = 0; i < rank->world; i++) {
        pthread_join(threads[i].id, NULL);
        worst = threads[i].end > worst ? threads[i].end : worst;
    }
    return worst;
}

enum group_end group_processes(const struct group_rank *rank) {
    pid_t pids[BOUND_RANKS];
    for (uint32_t i = 0; i < rank->world; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0) {
            struct group_rank own = *rank;
            own.rank = i;
            _exit((int)group_rank_run(&own));
        }
    }
    enum group_end worst = GROUP_END_OK;
    for (uint32_t i = 0; i < rank->world; i++) {
        int status = 0;
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert(WIFEXITED(status));
        enum group_end end = (enum group_end)WEXITSTATUS(status);
        worst = end > worst ? end : worst;
    }
    return worst;
}

bool group_file_exists(const char *id) {
    char path[128];
    snprintf(path, sizeof path, "/dev/shm/tare-group-%s", id);
    return access(path, F_OK) == 0;
}
