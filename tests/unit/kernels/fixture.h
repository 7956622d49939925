// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_KERNELS_FIXTURE_H
#define TESTS_UNIT_KERNELS_FIXTURE_H

#include "common/rng.h"
#include "kernels/ops.h"
#include "worker/device/thread_pool.h"

// What the kernel tests share: seeded data, packed weights, a context with exact scratch.
//
// The idea: every buffer an operation may write is exactly as large as the operation asked for and
// is followed by guard bytes, so a kernel that strays is caught in every build.
//
//   Owns       what it hands out until fixture_deinit.
//   Thread     the test.
//   Allocates  yes.
//   Fails      by check's assertions.

enum { FIXTURE_POOLS = 3, FIXTURE_BUFFERS = 256 };

struct fixture {
    struct rng rng;
    struct thread_pool *pools[FIXTURE_POOLS];    // 1, 2 and 3 threads
    void *buffers[FIXTURE_BUFFERS];
    size_t buffer_bytes[FIXTURE_BUFFERS];
    uint32_t buffer_count;
};

void fixture_init(struct fixture *fixture, uint64_t seed);
void fixture_deinit(struct fixture *fixture);    // checks every guard

void *fixture_alloc(struct fixture *fixture, size_t bytes);    // 64-byte aligned, 0xFF bytes
// Checks and frees the buffers handed out since fixture->buffer_count was `first`.
void fixture_release(struct fixture *fixture, uint32_t first);
float *fixture_floats(struct fixture *fixture, size_t count, float scale);    // uniform, +-scale
float fixture_float(struct fixture *fixture, float scale);

// File rows of random values for a type: finite scales, all bit patterns of the integers.
void *fixture_source(struct fixture *fixture, enum dtype dtype, uint32_t rows, uint32_t cols);
struct op_weight fixture_pack(struct fixture *fixture, const struct ops *ops, enum dtype dtype,
                              uint32_t rows, uint32_t cols, const void *source);

// A context with `thread_count` 1..3 and exactly `scratch_bytes` of scratch.
struct op_ctx fixture_ctx(struct fixture *fixture, uint32_t thread_count, size_t scratch_bytes);

void fixture_matmul(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                    const struct op_matmul_args *args);
void fixture_attention(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                       const struct op_attention_args *args);
void fixture_sample(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                    struct op_sample_row *rows, uint32_t row_count, uint32_t vocabulary);

#endif
