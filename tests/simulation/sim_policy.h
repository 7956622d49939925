// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_POLICY_H
#define TESTS_SIMULATION_SIM_POLICY_H

#include "tests/simulation/sim_traffic.h"

// Models of other admission policies, on the same machine and the same traffic, to compare with.
//
// The idea: a small scheduler that counts blocks and has no identities: decodes first, then prompts
// in order of admission with the rest of the step, then the line in order of arrival. Only the
// rule of admission, and what happens when no block is left, differ between policies. It is a model
// of ideas, not of any engine's code. The safe-state rule is among them to show how far the model
// itself is from the core.
//
//   Owns       its lists.
//   Thread     one.
//   Allocates  as clients come.
//   Fails      by sim_fail.

enum sim_policy {
    SIM_POLICY_RESERVATION,    // prompt and output_max are set aside at admission
    SIM_POLICY_OPTIMISTIC,     // the prompt must fit; when none is left the last admitted is
                               // evicted and computed again from its start, outputs included
    SIM_POLICY_SAFE,           // banker's rule: what runs can end in some order; else it pauses
    SIM_POLICY_COUNT,
};

struct sim_policy_options {
    enum sim_policy policy;
    struct plan_limits machine;
    struct sim_cost cost;
    double beside_us, alone_us;    // a step with decoding rows may take, and one of prompts alone
    uint64_t until_us;
};

struct sim_policy_result {
    uint64_t steps, decode_rows, prefill_tokens, recomputed_tokens;
    uint64_t evictions, finished, started;
    double paused_share;    // of decoding sequences in steps
    uint64_t ttft_p50_us, ttft_p99_us;
};

void sim_policy_run(const struct sim_policy_options *options, const struct sim_source *source,
                    struct sim_policy_result *out);

#endif
