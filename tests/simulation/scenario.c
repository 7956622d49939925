// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include "tests/simulation/sim_fail.h"
#include <stdio.h>
#include <string.h>

const struct scenario scenarios[] = {
    {"swarm", scenario_swarm, "random machines, clients and faults: every check holds", false},
    {"preemption_thrash", scenario_preemption_thrash,
     "a prompt that does not fit beside four others waits, and costs them nothing", false},
    {"deferred_frees", scenario_deferred_frees,
     "blocks behind a fence stop nobody: steps go on, nothing is evicted", false},
    {"parked", scenario_parked, "paused sequences always end, and then the head of the line starts",
     false},
    {"client_gone", scenario_client_gone,
     "whenever a client leaves, its memory is free when the next plan is done", false},
    {"prompt_alone", scenario_prompt_alone, "a prompt that nobody waits beside has whole steps",
     false},
    {"cache_cold", scenario_cache_cold, "prompts that nothing is cached of wait as long as others",
     false},
    {"head_of_line", scenario_head_of_line,
     "a short request and a stream beside a prompt of 600,000 tokens", false},
    {"priority", scenario_priority, "who is served first takes blocks from best effort at once",
     false},
    {"priority_slots", scenario_priority_slots, "and slots", false},
    {"group_away", scenario_group_away,
     "who waited for a group that stays away is served by another", false},
    {"fleet_cache", scenario_fleet_cache,
     "cached beginnings are found across eight groups, and load is even", false},
    {"fleet_nodes", scenario_fleet_nodes, "one hour of a recorded trace on 64 nodes", false},
    {"rank_deaths", scenario_rank_deaths,
     "64 ranks that die and come back with their KV: nobody is lost, nothing computed again",
     false},
    {"rank_faults", scenario_rank_faults,
     "64 ranks that differ, fall silent, stall or lose their KV: no token is wrong", false},
    {"overload", scenario_overload,
     "who would be served too late is refused before; who is served is served in time", false},
    {"policy_azure", scenario_policy_azure,
     "more decode tokens per step than reservation, nothing evicted or computed again", false},
    {"policy_mooncake", scenario_policy_mooncake,
     "more decode tokens per step than reservation, nothing evicted or computed again", false},
};
const uint32_t scenario_count = sizeof scenarios / sizeof scenarios[0];

const struct scenario *scenario_find(const char *name) {
    for (uint32_t i = 0; i < scenario_count; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            return &scenarios[i];
        }
    }
    return NULL;
}

void scenario_figure(struct scenario_run *run, const char *name, double value) {
    SIM_CHECK(run->figure_count < SCENARIO_FIGURES, "more figures than a run has");
    run->figures[run->figure_count++] = (struct scenario_figure){.name = name, .value = value};
}

void scenario_add(struct scenario_run *run, const struct sim_world *world) {
    run->digest = sim_fold(run->digest, world->digest);
    run->group_hours += (double)world->now_us * world->options.groups / 3600e6;
    run->ticks += world->ticks;
    run->faults += world->faults;
    run->clients += world->clients.count;
    run->tokens += world->tokens;
}

struct plan_limits scenario_limits(const struct scenario_machine *machine) {
    uint32_t blocks_per_seq =
        (machine->seq_tokens + machine->block_tokens - 1) / machine->block_tokens;
    return (struct plan_limits){
        .envelope = {.tokens = machine->step_tokens,
                     .seqs = machine->seqs,
                     .seq_tokens = machine->seq_tokens,
                     .logit_rows = machine->step_tokens + machine->seqs,
                     .prompt_logit_rows = machine->step_tokens,
                     .blocks_per_seq = blocks_per_seq,
                     .logprob_rows = machine->step_tokens + machine->seqs,
                     .attended_tokens_max = machine->seq_tokens,
                     .attended_tokens = (uint64_t)machine->seqs * machine->seq_tokens},
        .block_tokens = machine->block_tokens,
        .kv_blocks = machine->kv_blocks,
        .vocabulary = SIM_VOCABULARY,
    };
}

struct sim_cost scenario_cost(double scale) {
    return (struct sim_cost){
        .step_us = 8000 * scale,
        .prefill_token_us = 20 * scale,
        .decode_row_us = 40 * scale,
        .prefill_pair_us = 2e-4 * scale,
        .decode_context_us = 1e-3 * scale,
        .noise = 0.05,
    };
}

struct sim_spec scenario_client(uint64_t at_us, uint32_t prompt_count, uint32_t outputs) {
    return (struct sim_spec){
        .at_us = at_us,
        .class_ = SIM_STANDARD,
        .prompt_count = prompt_count,
        .output_max = outputs,
        .cancel_outputs = SIM_NEVER,
        .stop_outputs = SIM_NEVER,
        .fill = sim_fill_shared,
        .key = at_us + 1,
    };
}

static void add_bounded(struct scenario_run *run, const char *name, double value, double bound) {
    scenario_figure(run, name, value);
    run->figures[run->figure_count - 1].bounded = true;
    run->figures[run->figure_count - 1].bound = bound;
}

void scenario_at_most(struct scenario_run *run, const char *name, double value, double bound) {
    SIM_CHECK(value <= bound, "%s is %g, and may be %g at most", name, value, bound);
    add_bounded(run, name, value, bound);
}

void scenario_at_least(struct scenario_run *run, const char *name, double value, double bound) {
    SIM_CHECK(value >= bound, "%s is %g, and must be %g at least", name, value, bound);
    add_bounded(run, name, value, bound);
}

void scenario_no_recompute(struct scenario_run *run, const struct sim_world *world) {
    struct sim_core_state state;
    sim_core_state(world->core, world->now_us, &state);
    scenario_at_most(run, "evictions", (double)state.preemptions, 0);
    scenario_at_most(run, "recomputed_tokens", (double)state.recomputed, 0);
}

void scenario_trace(const struct scenario_run *run, const char *name, struct sim_trace *out) {
    char path[4096];
    struct error err = {0};
    int bytes = snprintf(path, sizeof path, "%s/%s", run->traces, name);
    SIM_CHECK(bytes > 0 && (size_t)bytes < sizeof path, "a path that is too long");
    SIM_CHECK(sim_trace_load(path, out, &err) == STATUS_OK, "%s", err.message);
}
