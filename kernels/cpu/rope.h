// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_ROPE_H
#define KERNELS_CPU_ROPE_H

#include "kernels/ops.h"

// Rotary embedding of q and k, and the write of k and v into the KV pool.
//
// The idea: one pass over a row while it is in the first-level cache. A pair (a, b) with angle phi
// becomes (a cos - b sin, b cos + a sin), written fma(a, cos, -(b sin)) and fma(b, cos, a sin).
//
//   Owns nothing.  Thread as the operation table says.  Allocates never.  Fails never.

typedef void (*rope_row_fn)(const struct op_rope_append_args *args, uint32_t row);

void rope_append_run(const struct op_ctx *ctx, const struct op_rope_append_args *args,
                     rope_row_fn row);
void rope_row_scalar(const struct op_rope_append_args *args, uint32_t row);
void rope_row_avx2(const struct op_rope_append_args *args, uint32_t row);

#endif
