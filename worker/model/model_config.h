// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MODEL_MODEL_CONFIG_H
#define WORKER_MODEL_MODEL_CONFIG_H

#include "common/status.h"
#include "kernels/ops.h"
#include "worker/weights/weights.h"
#include <stdbool.h>
#include <stdint.h>

// What a model is, in numbers: read from GGUF metadata or config.json, checked, frozen.
//
// The idea: both containers say the same things under different names. After reading, nothing else
// looks at metadata, and every number lies within common/bounds.h.
//
//   Owns nothing.  Thread any.  Allocates never.
//   Fails      CORRUPT or UNSUPPORTED naming the key.

enum rope_scaling {
    ROPE_SCALING_NONE,
    ROPE_SCALING_LINEAR,
    ROPE_SCALING_LLAMA3,
    ROPE_SCALING_YARN,
    ROPE_SCALING_TABLE,    // per-frequency divisors from the file (GGUF rope_freqs.weight)
};

struct rope_config {
    double theta;
    uint32_t dims;    // rotated dimensions
    enum op_rope_pairing pairing;
    enum rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor;    // llama3
    double original_context;                     // llama3, yarn
    double beta_fast, beta_slow;                 // yarn
    double attention_factor;                     // yarn; 0: from `factor`
};

enum { MODEL_ARCH_BYTES = 32 };

struct model_config {
    char arch[MODEL_ARCH_BYTES];    // "llama", "qwen3"
    uint32_t hidden;
    uint32_t inter;
    uint32_t layer_count;
    uint32_t q_head_count;
    uint32_t kv_head_count;
    uint32_t head_dim;
    uint32_t vocabulary;    // rows of the embedding matrix
    uint32_t context;       // the model's own limit, tokens
    float rms_eps;
    bool tied_embeddings;
    enum dtype dtype;    // of the tensors of a model of shapes only (weights.h)
    struct rope_config rope;
};

enum status model_config_read(const struct weights *weights, struct model_config *out,
                              struct error *err) MUST_USE;

// Inverse frequencies after scaling, [dims / 2], and the factor on cos and sin.
// `divisors` is NULL, or [dims / 2] for ROPE_SCALING_TABLE.
void rope_frequencies(const struct rope_config *rope, const float *divisors, double *inv_freq,
                      double *amplitude);

#endif
