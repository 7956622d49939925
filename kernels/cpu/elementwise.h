// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_ELEMENTWISE_H
#define KERNELS_CPU_ELEMENTWISE_H

#include "kernels/ops.h"

// Embedding look-up and the stand-alone RMS norm: row by row, rows shared out over the threads.
//
// The idea: these touch each value once, so they are bound by memory and one plain form serves all
// tables; only the norm has a vector form, since its sum has a fixed shape (arith.h).
//
//   Owns nothing.  Thread as the operation table says.  Allocates never.  Fails never.

typedef void (*rms_norm_row_fn)(const float *x, const float *weight, float *y, uint32_t cols,
                                float eps);

void elementwise_embed(const struct op_ctx *ctx, const struct op_embed_args *args);
void elementwise_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args,
                          rms_norm_row_fn row);

void rms_norm_row_scalar(const float *x, const float *weight, float *y, uint32_t cols, float eps);
void rms_norm_row_avx2(const float *x, const float *weight, float *y, uint32_t cols, float eps);

#endif
