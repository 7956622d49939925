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
};
enum { SCENARIO_FIGURES = 24 };

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
// Loads NAME of the run's traces; ends the process with the reason.
void scenario_trace(const struct scenario_run *run, const char *name, struct sim_trace *out);

// The scenarios, by file.
void scenario_swarm(struct scenario_run *run);

#endif
