// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_link.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include <string.h>

// ---- messages ----------------------------------------------------------------------------------

struct sim_message *sim_link_message(struct sim_world *world, struct sim_group *group) {
    struct sim_message *message = world->free_messages;
    if (message != NULL) {
        world->free_messages = message->next;
    } else {
        uint32_t rows = sim_worker_rows_max(group->worker);
        message = memory_alloc(sizeof *message + rows * sizeof message->rows[0]);
        SIM_CHECK(message != NULL, "no memory for a message");
    }
    message->group = group->index;
    message->connection = group->connection;
    return message;
}

static void free_message(struct sim_world *world, struct sim_message *message) {
    message->next = world->free_messages;
    world->free_messages = message;
}

static struct sim_message *copy_message(struct sim_world *world, struct sim_group *group,
                                        const struct sim_message *message) {
    struct sim_message *copy = sim_link_message(world, group);
    uint32_t rows = message->result.row_count;
    memcpy(copy, message, sizeof *message + rows * sizeof message->rows[0]);
    copy->result.rows = copy->rows;
    copy->resized = false;
    copy->completes = false;
    return copy;
}

void sim_link_deliver(struct sim_world *world, struct sim_message *message) {
    message->next = world->delivered;
    world->delivered = message;
}

void sim_link_delivered(struct sim_world *world) {
    while (world->delivered != NULL) {
        struct sim_message *message = world->delivered;
        world->delivered = message->next;
        free_message(world, message);
    }
}

static void free_list(struct sim_message *list) {
    while (list != NULL) {
        struct sim_message *next = list->next;
        memory_free(list);
        list = next;
    }
}

void sim_link_deinit(struct sim_world *world) {
    uint64_t at;
    while (sim_events_next(&world->events, &at)) {
        struct sim_event event = sim_events_take(&world->events);
        memory_free(event.kind == SIM_EVENT_RESULT ? event.data : NULL);
    }
    for (uint32_t i = 0; i < world->options.groups; i++) {
        for (uint32_t k = 0; k < SIM_GHOSTS; k++) {
            memory_free(world->groups[i].ghosts[k]);
        }
    }
    free_list(world->free_messages);
    free_list(world->delivered);
}

// ---- on the way --------------------------------------------------------------------------------

// What an earlier epoch said to a plan of this number comes now, before the true result; by the
// connection of then or, where the worker only began again, by the same.
static void haunt(struct sim_world *world, struct sim_group *group,
                  const struct sim_message *message) {
    struct sim_message **ghost = &group->ghosts[message->result.seq % SIM_GHOSTS];
    if (*ghost != NULL && (*ghost)->result.seq == message->result.seq &&
        (*ghost)->result.epoch < message->result.epoch) {
        if (rng_below(&world->rng, 2) == 0) {
            (*ghost)->connection = group->connection;
        }
        sim_events_add(&world->events, world->now_us + world->options.link_us, SIM_EVENT_RESULT,
                       group->index, *ghost);
        *ghost = NULL;
    }
    if (*ghost == NULL) {
        *ghost = copy_message(world, group, message);
    } else if ((*ghost)->result.epoch < message->result.epoch && message->result.seq < 64) {
        free_message(world, *ghost);
        *ghost = copy_message(world, group, message);
    }
}

// Every rank's part, one after the other, in any order; only rank 0 has rows. The time of the last.
static uint64_t send_ranks(struct sim_world *world, struct sim_group *group,
                           struct sim_message *message, uint64_t arrival) {
    uint32_t ranks = world->options.ranks;
    uint32_t first = (uint32_t)rng_below(&world->rng, ranks);
    bool diverges = group->diverged && message->result.status == RESULT_STATUS_OK;
    uint32_t lost = group->mute ? (uint32_t)rng_below(&world->rng, ranks) : ranks;
    uint32_t diverged = diverges ? (uint32_t)rng_below(&world->rng, ranks) : ranks;
    bool resized = message->resized;
    for (uint32_t i = 0; i < ranks; i++) {
        uint32_t rank = (first + i) % ranks;
        if (rank == lost) {
            continue;
        }
        struct sim_message *part = copy_message(world, group, message);
        part->result.row_count = rank == 0 ? message->result.row_count : 0;
        part->rank = rank;
        part->completes = i + 1 == ranks && !group->mute && !diverges;
        part->resized = resized && part->completes;
        part->result.digest ^= rank == diverged ? 1 : 0;
        sim_events_add(&world->events, arrival, SIM_EVENT_RESULT, group->index, part);
        arrival += ranks > 1 ? rng_below(&world->rng, 200) : 0;
    }
    group->silent = group->silent || group->mute || diverges;
    group->mute = false;
    group->diverged = group->diverged && !diverges;
    return arrival;
}

void sim_link_send(struct sim_world *world, struct sim_group *group, struct sim_message *message) {
    uint64_t start = world->now_us + world->options.link_us;
    start = start < group->busy_until ? group->busy_until : start;
    start = start < group->stall_until ? group->stall_until : start;
    group->busy_until = start + message->result.step_us;
    group->busy_us += message->result.step_us;
    uint64_t arrival = group->busy_until + world->options.link_us;
    arrival = arrival < group->last_arrival ? group->last_arrival : arrival;
    bool whole = !group->mute && !group->diverged;
    arrival = send_ranks(world, group, message, arrival);
    group->last_arrival = arrival;
    if (whole && rng_unit(&world->rng) < world->options.faults.doubled) {
        arrival += rng_below(&world->rng, 5 * 1000 * 1000);
        sim_events_add(&world->events, arrival, SIM_EVENT_RESULT, group->index,
                       copy_message(world, group, message));
        haunt(world, group, message);
    }
    free_message(world, message);
}
