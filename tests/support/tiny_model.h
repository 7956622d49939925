// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUPPORT_TINY_MODEL_H
#define TESTS_SUPPORT_TINY_MODEL_H

#include "common/dtype.h"
#include <stdint.h>

// Small models with random weights, written as GGUF files for tests.
//
//   Owns nothing; the caller removes the file.  Thread one.  Allocates while writing.
//   Fails by ending the process with what could not be written.

struct tiny_model {
    const char *arch;    // "llama", "qwen3" or "qwen3moe"
    uint32_t layers;
    uint32_t hidden;
    uint32_t inter;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t vocabulary;
    uint32_t context;
};

// What else a model may have.
struct tiny_form {
    enum dtype dtype;         // of matrices: DTYPE_F32 (0) or DTYPE_Q8_0; routers and norms are F32
    uint32_t experts;         // qwen3moe only: of each layer
    uint32_t experts_used;    // by one token
    uint32_t expert_inter;
    uint32_t shared_inter;    // of an expert that every token goes to, 0: none
};

void tiny_model_write(const struct tiny_model *model, const char *path);
void tiny_model_write_as(const struct tiny_model *model, const struct tiny_form *form,
                         const char *path);

#endif
