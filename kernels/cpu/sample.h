// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_SAMPLE_H
#define KERNELS_CPU_SAMPLE_H

#include "kernels/ops.h"

// Sampling: from a row of logits to one token and, where asked, log-probabilities.
//
// The idea: nothing is sorted. A pass turns logits into weights exp((logit - max) / temperature); a
// second one gathers the few tokens above a floor; top-k and top-p then shrink to a threshold by
// halving the range of the values' bits, keeping ascending token order. The draw walks the
// remaining weights in token order. Ties at a threshold go to the smaller ids, so the result is a
// function of the logits and the row's parameters.
//
//   Owns       nothing; all memory is the caller's scratch.
//   Thread     as the operation table says; one task per row.
//   Allocates  never.
//   Fails      never. NaN logits weigh nothing; when no logit is finite the first largest wins.

enum { SAMPLE_BLOCK = 256 };    // tokens whose weights are summed in float32 before double

// Passes over a whole row, one set per instruction set.
struct sample_kernels {
    // Smallest index of the largest value, NaN left out; 0 when all are NaN or -inf.
    uint32_t (*argmax)(const float *values, uint32_t count);
    // weight[i] = exp((logit[i] - max) * inverse_temperature), 0 for NaN. block_sum[b] covers
    // weights [256 b, 256 b + 256): 8 lanes (i mod 8), folded. Returns the blocks' sum in order.
    double (*weights)(const float *logits, uint32_t count, float max, float inverse_temperature,
                      float *weight, double *block_sum);
    // Indices and values of values[i] >= floor, ascending; returns how many.
    uint32_t (*gather)(const float *values, uint32_t count, float floor, uint32_t *index,
                       float *value);
    // Values that come before values[token] in the order (value descending, index ascending).
    uint32_t (*count_before)(const float *values, uint32_t count, uint32_t token);
};

extern const struct sample_kernels sample_kernels_scalar;
extern const struct sample_kernels sample_kernels_avx2;

size_t sample_scratch(const struct op_ctx *ctx, const struct op_sample_args *args);
void sample_run(const struct op_ctx *ctx, const struct op_sample_args *args,
                const struct sample_kernels *kernels);

// A list in ascending token order that the filters shrink.
struct sample_list {
    uint32_t *index;
    float *value;
    uint32_t count;
};

// Both may write list->count values to each of `work`.
// Keeps the `keep` largest (ties: smaller index).
void sample_keep_top(struct sample_list *list, uint32_t keep, float *work[2]);
// Keeps the shortest run of largest values whose sum reaches `mass`; at least one.
void sample_keep_mass(struct sample_list *list, double mass, float *work[2]);

#endif
