// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_fail.h"
#include "tests/simulation/sim_world.h"

#include <math.h>

// The menu of faults. Each kind comes at random times with the mean distance that the options say.

enum fault {
    FAULT_DEATH,
    FAULT_STALL,
    FAULT_LOST_PLAN,
    FAULT_SLOW,
    FAULT_NARROW,
    FAULT_RESIZE,
    FAULT_STORM,
    FAULT_DIVERGE,
    FAULT_MUTE,
    FAULT_COUNT,
    FAULT_CALM = 1000,    // and the group: it is as it was again
};

static double mean_s(const struct sim_world *world, uint32_t kind) {
    const struct sim_faults *faults = &world->options.faults;
    const double means[FAULT_COUNT] = {
        faults->death_s,  faults->stall_s, faults->lost_plan_s, faults->slow_s, faults->narrow_s,
        faults->resize_s, faults->storm_s, faults->diverge_s,   faults->mute_s,
    };
    return means[kind];
}

static uint64_t seconds(double s) {
    return (uint64_t)(s * 1e6);
}

static void plan_next(struct sim_world *world, uint32_t kind) {
    double mean = mean_s(world, kind);
    if (mean <= 0.0) {
        return;
    }
    double wait = -mean * log(1.0 - rng_unit(&world->rng));
    uint64_t at = world->now_us + seconds(wait) + 1;
    if (at < world->options.faults_until_us) {
        sim_events_add(&world->events, at, SIM_EVENT_FAULT, kind, NULL);
    }
}

void sim_fault_start(struct sim_world *world) {
    for (uint32_t kind = 0; kind < FAULT_COUNT; kind++) {
        plan_next(world, kind);
    }
}

static double between(struct sim_world *world, double low, double high) {
    return low + (high - low) * rng_unit(&world->rng);
}

static void death(struct sim_world *world, struct sim_group *group) {
    bool slow = rng_unit(&world->rng) < world->options.faults.slow_join;
    uint64_t away_us = seconds(slow ? between(world, 50, 90) : between(world, 0.005, 15));
    uint32_t blocks = sim_worker_capacity(group->worker)->kv_blocks;
    uint32_t most = world->options.machine.kv_blocks;
    if (rng_below(&world->rng, 8) == 0) {    // on another machine
        blocks = most / 2 + (uint32_t)rng_below(&world->rng, most - most / 2 + 1);
    }
    sim_world_kill(world, group->index, away_us, blocks);
}

// The pool is asked for some size between a quarter and all of it.
static void resize(struct sim_world *world, uint32_t group) {
    uint32_t most = world->options.machine.kv_blocks;
    uint32_t least = most / 4 + 1;
    sim_world_resize(world, group, least + (uint32_t)rng_below(&world->rng, most - least + 1));
}

static void storm(struct sim_world *world) {
    uint32_t count = world->clients.count;
    uint32_t first = count > 512 ? count - 512 : 0;
    for (uint32_t i = first; i < count && !sim_core_full(world->core); i++) {
        if (rng_below(&world->rng, 2) == 0) {
            sim_world_cancel(world, i);
        }
    }
}

static void odd(struct sim_world *world, struct sim_group *group, double until_s) {
    group->odd = true;
    sim_events_add(&world->events, world->now_us + seconds(until_s), SIM_EVENT_FAULT,
                   FAULT_CALM + group->index, NULL);
}

static void calm(struct sim_world *world, struct sim_group *group) {
    sim_worker_slow(group->worker, 1.0);
    sim_worker_narrow(group->worker, 0);
    group->odd = false;
    world->fault_us = world->now_us;
}

void sim_fault_event(struct sim_world *world, uint32_t kind) {
    if (kind >= FAULT_CALM) {
        calm(world, &world->groups[kind - FAULT_CALM]);
        return;
    }
    if (world->now_us >= world->options.faults_until_us) {
        return;
    }
    struct sim_group *group = &world->groups[rng_below(&world->rng, world->options.groups)];
    uint32_t rows = world->options.machine.envelope.tokens;
    world->faults++;
    world->fault_us = world->now_us;
    switch (kind) {
    case FAULT_DEATH:
        death(world, group);
        break;
    case FAULT_STALL:
        group->stall_until = world->now_us + seconds(between(world, 0.5, 40));
        break;
    case FAULT_LOST_PLAN:
        group->deaf = true;
        break;
    case FAULT_SLOW:
        sim_worker_slow(group->worker, between(world, 1.5, 20));
        odd(world, group, between(world, 1, 60));
        break;
    case FAULT_NARROW:
        sim_worker_narrow(group->worker, 1 + (uint32_t)rng_below(&world->rng, rows));
        odd(world, group, between(world, 1, 20));
        break;
    case FAULT_RESIZE:
        resize(world, group->index);
        break;
    case FAULT_STORM:
        storm(world);
        break;
    case FAULT_DIVERGE:
        group->diverged = world->options.ranks > 1;
        break;
    case FAULT_MUTE:
        group->mute = true;
        break;
    default:
        sim_fail("fault %u", kind);
    }
    plan_next(world, kind);
}

void sim_fault_end(struct sim_world *world) {
    world->options.faults_until_us = world->now_us;
    for (uint32_t i = 0; i < world->options.groups; i++) {
        struct sim_group *group = &world->groups[i];
        calm(world, group);
        group->deaf = false;
        group->mute = false;
        group->diverged = false;
        if (group->stall_until > world->now_us) {
            group->stall_until = world->now_us;
        }
        if (group->state == SIM_GROUP_AWAY && group->join_us > world->now_us + 1000 * 1000) {
            group->join_us = world->now_us + 1000 * 1000;
            sim_events_add(&world->events, group->join_us, SIM_EVENT_JOIN, i, NULL);
        }
    }
}
