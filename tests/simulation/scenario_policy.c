// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"
#include "tests/simulation/sim_policy.h"
#include <stdio.h>

// The core's safe states beside models of full reservation and of optimistic admission with
// eviction, on one machine and one recorded traffic, without a prefix cache.

struct comparison {
    const char *trace;
    struct scenario_machine machine;
    double speed;
    uint32_t output_max;
    uint64_t until_us;
};

static struct sim_replay_options replay_of(const struct comparison *c,
                                           const struct sim_trace *trace) {
    return (struct sim_replay_options){
        .trace = trace,
        .speed = c->speed,
        .output_max = c->output_max,
        .length_max = c->machine.seq_tokens,
        .until_us = c->until_us,
    };
}

static void figure(struct scenario_run *run, const char *policy, const char *name, double value) {
    static char names[SCENARIO_FIGURES][48];
    char *text = names[run->figure_count];
    snprintf(text, sizeof names[0], "%s_%s", policy, name);
    scenario_figure(run, text, value);
}

static double decode_rate(uint64_t rows, uint64_t steps) {
    return steps > 0 ? (double)rows / (double)steps : 0.0;
}

static double run_model(struct scenario_run *run, const struct comparison *c,
                        const struct sim_trace *trace, enum sim_policy policy, const char *name) {
    struct sim_replay replay;
    struct sim_replay_options options = replay_of(c, trace);
    struct sim_source source = sim_replay_source(&replay, &options);
    struct sim_policy_result result;
    sim_policy_run(&(struct sim_policy_options){.policy = policy,
                                                .machine = scenario_limits(&c->machine),
                                                .cost = scenario_cost(1.0),
                                                .beside_us = 100e3,
                                                .alone_us = 500e3,
                                                .until_us = c->until_us},
                   &source, &result);
    double rate = decode_rate(result.decode_rows, result.steps);
    figure(run, name, "decode_per_step", rate);
    figure(run, name, "recomputed_share",
           decode_rate(result.recomputed_tokens, result.prefill_tokens));
    figure(run, name, "evictions", (double)result.evictions);
    figure(run, name, "ttft_p99_s", (double)result.ttft_p99_us / 1e6);
    figure(run, name, "finished", (double)result.finished);
    return rate;
}

static double run_core(struct scenario_run *run, const struct comparison *c,
                       const struct sim_trace *trace) {
    struct sim_replay replay;
    struct sim_replay_options replayed = replay_of(c, trace);
    struct sim_source source = sim_replay_source(&replay, &replayed);
    struct sim_world_options options = {
        .seed = run->seed,
        .groups = 1,
        .waiting_max = BOUND_WAITING,
        .depth = 1,    // as in the models, which have no link
        .machine = scenario_limits(&c->machine),
        .cost = scenario_cost(1.0),
        .link_us = 1,
        .tick_us = 1000 * 1000,
        .audit_every = 256,
    };
    struct sim_world *world = sim_world_create(&options);
    sim_world_source(world, &source);
    sim_world_run(world, c->until_us);
    double rate = decode_rate(world->groups[0].decode_rows, world->groups[0].steps);
    figure(run, "core", "decode_per_step", rate);
    figure(run, "core", "ttft_p99_s",
           (double)sim_clients_quantile(&world->clients, SIM_MEASURE_TTFT, SIM_NEVER, 0.99) / 1e6);
    figure(run, "core", "finished",
           world->clients.ended[SIM_END_STOP] + world->clients.ended[SIM_END_LENGTH]);
    scenario_no_recompute(run, world);
    scenario_add(run, world);
    sim_world_destroy(world);
    return rate;
}

static void compare(struct scenario_run *run, const struct comparison *c) {
    struct sim_trace trace;
    scenario_trace(run, c->trace, &trace);
    double core = run_core(run, c, &trace);
    double reserved = run_model(run, c, &trace, SIM_POLICY_RESERVATION, "reservation");
    double optimistic = run_model(run, c, &trace, SIM_POLICY_OPTIMISTIC, "optimistic");
    double safe = run_model(run, c, &trace, SIM_POLICY_SAFE, "safe_model");
    (void)safe;
    SIM_CHECK(core >= reserved, "safe states decode less per step than reservation: %g, %g", core,
              reserved);
    scenario_at_least(run, "core_of_optimistic", core / optimistic, 0.5);
    sim_trace_deinit(&trace);
}

void scenario_policy_azure(struct scenario_run *run) {
    compare(run, &(struct comparison){.trace = "azure2023_conv.csv",
                                      .machine = {256, 8192, 32768, 64, 300},
                                      .speed = 1.0,
                                      .output_max = 4096,
                                      .until_us = 3600ull * 1000 * 1000});
}

void scenario_policy_mooncake(struct scenario_run *run) {
    compare(run, &(struct comparison){.trace = "mooncake_conversation.jsonl",
                                      .machine = {256, 8192, 163840, 64, 2300},
                                      .speed = 0.15,
                                      .output_max = 16384,
                                      .until_us = 3600ull * 1000 * 1000});
}
