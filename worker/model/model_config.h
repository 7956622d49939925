// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MODEL_MODEL_CONFIG_H
#define WORKER_MODEL_MODEL_CONFIG_H

#include "common/bounds.h"
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
    char arch[MODEL_ARCH_BYTES];    // "llama", "qwen3", "qwen3_moe", "qwen3moe" (GGUF)
    uint32_t hidden;
    uint32_t inter;    // of dense layers; 0 where there are none
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
    // Mixture of experts; all 0 in a dense model.
    uint32_t expert_count;
    uint32_t expert_used;     // experts of one token
    uint32_t expert_inter;    // inner size of one expert
    bool expert_normalise;    // shares of a token's experts are divided by their sum
    uint32_t shared_inter;    // inner size of an expert that every token goes to; 0: none
    uint64_t dense_layers[BOUND_LAYERS / 64];    // bit i: layer i has no experts
};

// Whether a layer's second half is a mixture of experts.
static inline bool model_config_has_experts(const struct model_config *config, uint32_t layer) {
    return config->expert_count > 0 && (config->dense_layers[layer / 64] >> (layer % 64)) % 2 == 0;
}
bool model_config_has_dense(const struct model_config *config);    // any layer without experts

enum status model_config_read(const struct weights *weights, struct model_config *out,
                              struct error *err) MUST_USE;

// Inverse frequencies after scaling, [dims / 2], and the factor on cos and sin.
// `divisors` is NULL, or [dims / 2] for ROPE_SCALING_TABLE.
void rope_frequencies(const struct rope_config *rope, const float *divisors, double *inv_freq,
                      double *amplitude);

#endif
