// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_BUDGET_H
#define WORKER_STEP_BUDGET_H

#include "worker/engine.h"

// The tokens of a step that `--max-num-batched-tokens auto` stands for.
//
// The idea: more tokens in a step make prompts faster and its buffers larger, and what buffers take
// KV lacks. The rule: the most tokens with which the plan fits and the workspace stays within its
// budget. Without --workspace-budget that is one part in 32 of the device, at most 2 GiB: 768 MiB
// of 24 GiB, 2 GiB from 64 GiB on. Each candidate is a whole plan; nothing is computed here.
//
//   Owns       nothing.
//   Thread     one at a time.
//   Allocates  while planning.
//   Fails      as engine_plan, but never EXHAUSTED: when nothing fits, the fewest tokens that serve
//              every sequence are the answer, and the plan with them says what is missing.

// `options->step_tokens` is not looked at. `weights`: an open model, kept by the caller.
enum status step_budget_find(const struct engine_options *options, struct weights *weights,
                             uint32_t *tokens, struct error *err) MUST_USE;

#endif
