// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_group.h"

#include "common/bounds.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct rank {
    struct collective collective;    // first: what callers hold points here
    struct thread_group *group;
    const float *shown;
    uint64_t said;
};

struct thread_group {
    uint32_t world;
    struct rank ranks[BOUND_RANKS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t waiting;
    uint64_t round;
    uint64_t break_at;
    bool broken;
};

// False when the group broke.
static bool meet(struct thread_group *group) {
    pthread_mutex_lock(&group->lock);
    uint64_t round = group->round;
    if (++group->waiting == group->world) {
        group->waiting = 0;
        group->round++;
        pthread_cond_broadcast(&group->changed);
    }
    while (group->round == round && !group->broken) {
        pthread_cond_wait(&group->changed, &group->lock);
    }
    bool good = !group->broken;
    pthread_mutex_unlock(&group->lock);
    return good;
}

static struct rank *rank_of(struct collective *collective) {
    return (struct rank *)(void *)collective;
}

// Shows `mine` to all and waits until all have shown theirs.
static bool show(struct rank *rank, const float *mine) {
    struct thread_group *group = rank->group;
    pthread_mutex_lock(&group->lock);
    if (rank->said++ >= group->break_at) {
        group->broken = true;
        pthread_cond_broadcast(&group->changed);
    }
    pthread_mutex_unlock(&group->lock);
    rank->shown = mine;
    return meet(group);
}

static float sum_of(const struct thread_group *group, uint32_t first, uint32_t count, size_t at) {
    if (count == 1) {
        return group->ranks[first].shown[at];
    }
    return sum_of(group, first, count / 2, at) + sum_of(group, first + count / 2, count / 2, at);
}

static void all_reduce_add(struct collective *collective, const float *part, float *y,
                           uint32_t rows, uint32_t cols) {
    struct rank *rank = rank_of(collective);
    const struct thread_group *group = rank->group;
    if (!show(rank, part)) {
        return;
    }
    bool by_pairs = (group->world & (group->world - 1)) == 0;
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        float sum = by_pairs ? sum_of(group, 0, group->world, i) : group->ranks[0].shown[i];
        for (uint32_t r = 1; r < group->world && !by_pairs; r++) {
            sum += group->ranks[r].shown[i];
        }
        y[i] += sum;
    }
    meet(rank->group);    // parts may change again
}

static void all_gather(struct collective *collective, const struct collective_gather *args) {
    struct rank *rank = rank_of(collective);
    if (!show(rank, args->x)) {
        return;
    }
    for (uint32_t row = 0; row < args->row_count; row++) {
        for (uint32_t c = 0; c < args->y_cols; c++) {
            const float *x = rank->group->ranks[c / args->x_cols].shown;
            args->y[(size_t)row * args->y_cols + c] =
                x[(size_t)row * args->x_cols + c % args->x_cols];
        }
    }
    meet(rank->group);
}

static bool broken(const struct collective *collective) {
    const struct rank *rank = (const struct rank *)(const void *)collective;
    pthread_mutex_lock(&rank->group->lock);
    bool is = rank->group->broken;
    pthread_mutex_unlock(&rank->group->lock);
    return is;
}

static const struct collective_table table = {.name = "threads",
                                              .broken = broken,
                                              .all_reduce_add = all_reduce_add,
                                              .all_gather = all_gather};

struct thread_group *thread_group_create(uint32_t world) {
    struct thread_group *group = calloc(1, sizeof *group);
    if (group == NULL || world > BOUND_RANKS) {
        abort();
    }
    group->world = world;
    group->break_at = UINT64_MAX;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->changed, NULL);
    for (uint32_t r = 0; r < world; r++) {
        group->ranks[r] = (struct rank){.collective = {.table = &table, .rank = r, .world = world},
                                        .group = group};
    }
    return group;
}

void thread_group_destroy(struct thread_group *group) {
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
    free(group);
}

struct collective *thread_group_rank(struct thread_group *group, uint32_t rank) {
    return &group->ranks[rank].collective;
}

void thread_group_break(struct thread_group *group) {
    pthread_mutex_lock(&group->lock);
    group->broken = true;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

void thread_group_break_at(struct thread_group *group, uint64_t count) {
    pthread_mutex_lock(&group->lock);
    group->break_at = count;
    pthread_mutex_unlock(&group->lock);
}
