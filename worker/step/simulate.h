// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_STEP_SIMULATE_H
#define WORKER_STEP_SIMULATE_H

#include "worker/model/model.h"

// How long a step would take on a device that does not compute.
//
// The idea: the forward function is run over operations that add up what they would cost
// (kernels/sim), with the positions of a real step and no memory behind the addresses.
//
//   Owns       nothing.
//   Thread     one at a time.
//   Allocates  the step's arrays, for the time of the call.
//   Fails      EXHAUSTED for these.

// `seqs` sequences with `rows_each` rows, the last of them at position `context` - 1; each draws a
// token.
struct simulate_shape {
    uint32_t seqs, rows_each, context;
};

struct simulate_result {
    double us;    // of the operations, launches included
    double bytes, flops;
    uint64_t message_bytes;    // between the ranks
    uint32_t message_count;
};

// `ctx`: of a simulated device, whose meter says for which machine.
enum status simulate_step(const struct model *model, const struct ops *ops,
                          const struct op_ctx *ctx, const struct op_kv_layout *kv,
                          const struct tiles *tiles, const struct simulate_shape *shape,
                          struct simulate_result *out, struct error *err) MUST_USE;

#endif
