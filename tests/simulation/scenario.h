// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SCENARIO_H
#define TESTS_SIMULATION_SCENARIO_H

#include "tests/simulation/sim_traffic.h"

// A scenario: a world with its clients and faults, a claim with its bound, and the figures of the
// run. The table of all of them is in scenario.c; tests/simulation/README.md says what each stands
// for.

struct scenario_figure {
    const char *name;
    double value;
    bool bounded;
    double bound;
};
enum { SCENARIO_FIGURES = 32 };

struct scenario_run {
    uint64_t seed;
    bool full_rate;        // steps of their real length; else 200 ms steps
    double hours;          // of the random scenarios, in virtual time
    const char *traces;    // folder of the recorded traces, or of the small ones
    // Filled by the scenario.
    uint64_t digest;
    double group_hours;
    uint64_t ticks, faults, clients, tokens;
    struct scenario_figure figures[SCENARIO_FIGURES];
    uint32_t figure_count;
};

struct scenario {
    const char *name;
    void (*run)(struct scenario_run *run);
    const char *claim;
    bool open;    // it does not hold yet: run by name only
};

extern const struct scenario scenarios[];
extern const uint32_t scenario_count;
const struct scenario *scenario_find(const char *name);

// What the scenarios share.
void scenario_figure(struct scenario_run *run, const char *name, double value);
// Adds a world's digest and sums to the run; the world lives on.
void scenario_add(struct scenario_run *run, const struct sim_world *world);
// A machine of this size with an envelope that holds everything it says.
struct scenario_machine {
    uint32_t seqs, step_tokens, seq_tokens, block_tokens, kv_blocks;
};
struct plan_limits scenario_limits(const struct scenario_machine *machine);
// A machine like an H200 with a model of some ten billion parameters; times `scale`.
struct sim_cost scenario_cost(double scale);
// A client that wants this and gets all of it.
struct sim_spec scenario_client(uint64_t at_us, uint32_t prompt_count, uint32_t outputs);
// Fails unless value <= bound (or >= with scenario_at_least); both become figures.
void scenario_at_most(struct scenario_run *run, const char *name, double value, double bound);
void scenario_at_least(struct scenario_run *run, const char *name, double value, double bound);
// No request of a guaranteed class was evicted or computed again.
void scenario_no_recompute(struct scenario_run *run, const struct sim_world *world);
// Loads NAME of the run's traces; ends the process with the reason.
void scenario_trace(const struct scenario_run *run, const char *name, struct sim_trace *out);

// The scenarios, by file.
void scenario_swarm(struct scenario_run *run);
// scenario_memory.c: what happens where memory is short
void scenario_preemption_thrash(struct scenario_run *run);
void scenario_deferred_frees(struct scenario_run *run);
void scenario_parked(struct scenario_run *run);
void scenario_client_gone(struct scenario_run *run);
// scenario_prefill.c: who waits for whose prompt
void scenario_prompt_alone(struct scenario_run *run);
void scenario_cache_cold(struct scenario_run *run);
void scenario_head_of_line(struct scenario_run *run);
// scenario_class.c: who gives way to whom
void scenario_priority(struct scenario_run *run);
void scenario_priority_slots(struct scenario_run *run);
// scenario_fleet.c: several groups
void scenario_group_away(struct scenario_run *run);
void scenario_fleet_cache(struct scenario_run *run);
void scenario_fleet_nodes(struct scenario_run *run);
// scenario_recovery.c: groups whose ranks fail
void scenario_rank_deaths(struct scenario_run *run);
void scenario_rank_faults(struct scenario_run *run);
// scenario_overload.c: more than can be served
void scenario_overload(struct scenario_run *run);
// scenario_policy.c: beside other policies, on recorded traffic
void scenario_policy_azure(struct scenario_run *run);
void scenario_policy_mooncake(struct scenario_run *run);

#endif
