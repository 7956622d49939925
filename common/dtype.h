// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_DTYPE_H
#define COMMON_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Element types of tensors and what a stored block of them costs.
//
// The idea: one table. Quantised types store `block_elements` values in `block_bytes`; plain types
// have blocks of one. Layouts are those of GGUF (see the comment beside each scalar decoder).
//
//   Owns nothing.  Thread any.  Allocates never.  Fails: dtype_row_bytes returns false.

// name, text, elements per block, bytes per block, GGUF type number (-1: none)
#define DTYPE_TABLE(X)                                                                             \
    X(F32, "F32", 1, 4, 0)                                                                         \
    X(F16, "F16", 1, 2, 1)                                                                         \
    X(BF16, "BF16", 1, 2, 30)                                                                      \
    X(Q4_0, "Q4_0", 32, 18, 2)                                                                     \
    X(Q4_1, "Q4_1", 32, 20, 3)                                                                     \
    X(Q5_0, "Q5_0", 32, 22, 6)                                                                     \
    X(Q5_1, "Q5_1", 32, 24, 7)                                                                     \
    X(Q8_0, "Q8_0", 32, 34, 8)                                                                     \
    X(Q4_K, "Q4_K", 256, 144, 12)                                                                  \
    X(Q5_K, "Q5_K", 256, 176, 13)                                                                  \
    X(Q6_K, "Q6_K", 256, 210, 14)

enum dtype {
#define X(name, text, elements, bytes, gguf) DTYPE_##name,
    DTYPE_TABLE(X)
#undef X
        DTYPE_COUNT
};

const char *dtype_name(enum dtype dtype);
uint32_t dtype_block_elements(enum dtype dtype);
uint32_t dtype_block_bytes(enum dtype dtype);
bool dtype_from_gguf(uint32_t gguf_type, enum dtype *out);

// Bytes of `elements` values in a row; false when they do not fill whole blocks or overflow.
bool dtype_row_bytes(enum dtype dtype, uint64_t elements, uint64_t *out);

// Decodes whole blocks to float32, exactly. `elements` is a multiple of the block. This is the
// reference meaning of every type.
void dtype_decode(enum dtype dtype, const void *blocks, uint64_t elements, float *out);

float dtype_f16_to_f32(uint16_t half);
uint16_t dtype_f32_to_f16(float value);    // round to nearest even
float dtype_bf16_to_f32(uint16_t half);
uint16_t dtype_f32_to_bf16(float value);    // round to nearest even, NaN stays NaN

#endif
