// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include <math.h>

enum { SECOND_US = 1000 * 1000 };

// ---- a group that stays away -------------------------------------------------------------------

// Both groups fail; one is back after five seconds, the other after a quarter of an hour. Whoever
// ran or waited at the second is served by the first.
void scenario_group_away(struct scenario_run *run) {
    const struct scenario_machine machine = {16, 512, 4096, 16, 1024};
    enum { CLIENTS = 60 };
    struct sim_world_options options = {
        .seed = run->seed,
        .groups = 2,
        .waiting_max = 1024,
        .depth = 2,
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = 100 * 1000,
    };
    struct sim_world *world = sim_world_create(&options);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct sim_spec spec = scenario_client(1000 + i * 10 * 1000, 400, 400);
        sim_world_submit(world, &spec);
    }
    sim_world_run(world, 2 * SECOND_US);
    world->faults++;
    sim_world_kill(world, 0, 900ull * SECOND_US, machine.kv_blocks);
    sim_world_kill(world, 1, 5ull * SECOND_US, machine.kv_blocks);
    uint64_t bound_us = sim_world_serial_us(world);
    while (world->clients.live > 0) {
        SIM_CHECK(world->now_us < bound_us && world->groups[0].state != SIM_GROUP_UP,
                  "%u requests wait for a group that is away", world->clients.live);
        sim_world_step(world);
    }
    scenario_at_most(run, "all_served_s", (double)world->now_us / SECOND_US,
                     (double)bound_us / SECOND_US);
    scenario_at_least(run, "ended", world->clients.ended[SIM_END_LENGTH], CLIENTS);
    sim_world_drain(world, 1000ull * SECOND_US);
    scenario_add(run, world);
    sim_world_destroy(world);
}

// ---- recorded conversations --------------------------------------------------------------------

// What a cache without end would find: of all pieces, those of a beginning that came before.
static double ideal_share(const struct sim_trace *trace) {
    uint32_t ids = 0;
    for (uint32_t i = 0; i < trace->id_count; i++) {
        ids = trace->ids[i] >= ids ? trace->ids[i] + 1 : ids;
    }
    bool *seen = memory_array((size_t)ids + 1, sizeof *seen);
    SIM_CHECK(seen != NULL, "no memory for a trace");
    uint64_t pieces = 0, found = 0;
    for (uint32_t i = 0; i < trace->id_count; i++) {
        found += seen[trace->ids[i]] ? 1 : 0;
        seen[trace->ids[i]] = true;
        pieces++;
    }
    memory_free(seen);
    return (double)found / (double)pieces;
}

// Variation of the time that groups were busy.
static double load_variation(const struct sim_world *world) {
    double sum = 0, squares = 0;
    uint32_t groups = world->options.groups;
    for (uint32_t i = 0; i < groups; i++) {
        double busy = (double)world->groups[i].busy_us;
        sum += busy;
        squares += busy * busy;
    }
    double mean = sum / groups;
    return sqrt(fmax(squares / groups - mean * mean, 0)) / mean;
}

// Pieces of 512 tokens that lie in what was found at admission.
static double found_share(const struct sim_world *world, const struct sim_trace *trace) {
    uint64_t found = 0;
    for (uint32_t i = 0; i < world->clients.count; i++) {
        found += sim_client_at(&world->clients, i)->found / SIM_TRACE_PIECE;
    }
    return (double)found / (double)trace->id_count;
}

static struct sim_world *replay(struct scenario_run *run, struct sim_trace *trace,
                                uint32_t groups) {
    // 4.2 million tokens of KV per node.
    const struct scenario_machine machine = {256, 8192, 131072, 64, 65536};
    struct sim_world_options options = {
        .seed = run->seed,
        .groups = groups,
        .waiting_max = BOUND_WAITING,
        .depth = 2,
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = SECOND_US,
        .audit_every = 100000,
    };
    scenario_trace(run, "mooncake_conversation.jsonl", trace);
    struct sim_replay replayed;
    struct sim_source source =
        sim_replay_source(&replayed, &(struct sim_replay_options){.trace = trace,
                                                                  .speed = 1.0,
                                                                  .output_max = 2048,
                                                                  .length_max = 131072,
                                                                  .cache = true,
                                                                  .until_us = UINT64_MAX});
    struct sim_world *world = sim_world_create(&options);
    sim_world_source(world, &source);
    sim_world_run(world, trace->rows[trace->row_count - 1].at_us);
    sim_world_drain(world, sim_world_serial_us(world));
    return world;
}

static void tell_ttft(struct scenario_run *run, const struct sim_world *world) {
    scenario_figure(
        run, "ttft_p50_s",
        (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, SIM_NEVER, 0.5) / 1e6);
    scenario_figure(
        run, "ttft_p99_s",
        (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, SIM_NEVER, 0.99) / 1e6);
}

// Groups are chosen by what they have cached, by free blocks and by load: most of what could be
// found is found, and no group has more to do than the others.
void scenario_fleet_cache(struct scenario_run *run) {
    struct sim_trace trace;
    struct sim_world *world = replay(run, &trace, 8);
    double ideal = ideal_share(&trace);
    double found = found_share(world, &trace);
    scenario_figure(run, "ideal_share", ideal);
    scenario_figure(run, "found_share", found);
    scenario_at_least(run, "found_of_ideal", found / ideal, 0.85);
    if (trace.row_count > 5000) {
        scenario_at_most(run, "load_variation", load_variation(world), 0.10);
    } else {    // it ends before all have had their turn
        scenario_figure(run, "load_variation", load_variation(world));
    }
    tell_ttft(run, world);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
    sim_trace_deinit(&trace);
}

void scenario_fleet_nodes(struct scenario_run *run) {
    struct sim_trace trace;
    struct sim_world *world = replay(run, &trace, 64);
    scenario_figure(run, "nodes", 64);
    scenario_figure(run, "found_of_ideal", found_share(world, &trace) / ideal_share(&trace));
    scenario_figure(run, "load_variation", load_variation(world));
    tell_ttft(run, world);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
    sim_trace_deinit(&trace);
}
