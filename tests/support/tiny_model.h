// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUPPORT_TINY_MODEL_H
#define TESTS_SUPPORT_TINY_MODEL_H

#include <stdint.h>

// Small models with random weights, written as GGUF files for tests.
//
//   Owns nothing; the caller removes the file.  Thread one.  Allocates while writing.
//   Fails by ending the process with what could not be written.

struct tiny_model {
    const char *arch;    // "llama" or "qwen3"
    uint32_t layers;
    uint32_t hidden;
    uint32_t inter;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t vocabulary;
    uint32_t context;
};

void tiny_model_write(const struct tiny_model *model, const char *path);

#endif
