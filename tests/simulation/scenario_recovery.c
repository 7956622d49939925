// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"

// Groups whose ranks die, differ or fall silent, under load.

enum { SECOND_US = 1000 * 1000, GROUPS = 8, RANKS = 8, FIRST_US = 1000 * 1000 };

static struct sim_world *create(const struct scenario_run *run, const struct sim_faults *faults) {
    const struct scenario_machine machine = {32, 1024, 4096, 16, 4096};
    struct sim_world_options options = {
        .seed = run->seed,
        .groups = GROUPS,
        .ranks = RANKS,
        .waiting_max = 1024,
        .depth = 2,
        .machine = scenario_limits(&machine),
        .cost = scenario_cost(1.0),
        .link_us = 50,
        .tick_us = 100 * 1000,
        .faults = *faults,
        .faults_until_us = 60ull * SECOND_US,
        .audit_every = 50,
    };
    struct sim_world *world = sim_world_create(&options);
    for (uint32_t i = 0; i < 600; i++) {
        struct sim_spec spec =
            scenario_client(FIRST_US + i * 50 * 1000, 200 + i % 400, 100 + i % 200);
        sim_world_submit(world, &spec);
    }
    return world;
}

static void finish(struct scenario_run *run, struct sim_world *world, double failed_max) {
    sim_world_drain(world, 600ull * SECOND_US);
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    scenario_figure(run, "losses", (double)state.losses);
    scenario_figure(run, "recomputed_tokens", (double)state.recomputed);
    uint32_t failed = world->clients.ended[SIM_END_FAULT];
    scenario_at_most(run, "failed", failed, failed_max);
    scenario_at_least(run, "ended", world->clients.ended[SIM_END_LENGTH] + failed, 600);
    double gap_s = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_GAP, SIM_NEVER, 0.99);
    scenario_at_most(run, "longest_gap_p99_s", gap_s / SECOND_US, 10);
    scenario_add(run, world);
}

// A rank of some group dies every 0.3 s and is back within 0.2 to 0.6 s, with the KV in its holder:
// everybody ends with the tokens it would have had, and no computed position is computed again.
void scenario_rank_deaths(struct scenario_run *run) {
    struct sim_world *world = create(run, &(struct sim_faults){.kv_lost = 0});
    struct rng rng;
    rng_init(&rng, run->seed + 1);
    for (uint64_t at = 2 * SECOND_US; at < 45ull * SECOND_US; at += 300 * 1000) {
        sim_world_run(world, at);
        world->faults++;
        uint32_t group = (uint32_t)rng_below(&rng, GROUPS);
        if (world->groups[group].state == SIM_GROUP_UP) {
            sim_world_kill(world, group, 200 * 1000 + rng_below(&rng, 400 * 1000), 4096);
        }
    }
    finish(run, world, 0);
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    scenario_at_most(run, "recomputed", (double)state.recomputed, 0);
    double gap_s = (double)sim_clients_quantile(&world->clients, SIM_MEASURE_GAP, SIM_NEVER, 1.0);
    scenario_at_most(run, "longest_gap_s", gap_s / SECOND_US, 2.0);
    sim_world_destroy(world);
}

// Ranks that draw something else, whose answers get lost, that stall or die with their KV, a fault
// each second: nobody receives a wrong token, and everybody ends. One in a hundred may fail, whose
// group was lost at the same point of it, its beginning for example, more often than a request
// survives.
void scenario_rank_faults(struct scenario_run *run) {
    const struct sim_faults faults = {.death_s = 8,
                                      .stall_s = 20,
                                      .lost_plan_s = 10,
                                      .diverge_s = 3,
                                      .mute_s = 3,
                                      .doubled = 0.01,
                                      .kv_lost = 0.3};
    struct sim_world *world = create(run, &faults);
    sim_world_run(world, 60ull * SECOND_US);
    finish(run, world, 6);
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    scenario_at_least(run, "divergences", (double)state.divergences, 1);
    sim_world_destroy(world);
}
