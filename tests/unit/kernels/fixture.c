// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/fixture.h"

#include "common/memory.h"

#include <check.h>
#include <string.h>

enum { GUARD_BYTES = 64, GUARD_VALUE = 0xA5 };

void fixture_init(struct fixture *fixture, uint64_t seed) {
    memset(fixture, 0, sizeof *fixture);
    rng_init(&fixture->rng, seed);
    for (uint32_t i = 0; i < FIXTURE_POOLS; i++) {
        struct error err = {0};
        ck_assert_int_eq(thread_pool_create(i + 1, &fixture->pools[i], &err), STATUS_OK);
    }
}

void fixture_release(struct fixture *fixture, uint32_t first) {
    while (fixture->buffer_count > first) {
        uint32_t last = --fixture->buffer_count;
        const uint8_t *guard =
            (const uint8_t *)fixture->buffers[last] + fixture->buffer_bytes[last];
        for (int j = 0; j < GUARD_BYTES; j++) {
            ck_assert_uint_eq(guard[j], GUARD_VALUE);
        }
        memory_free(fixture->buffers[last]);
    }
}

void fixture_deinit(struct fixture *fixture) {
    fixture_release(fixture, 0);
    for (uint32_t i = 0; i < FIXTURE_POOLS; i++) {
        thread_pool_destroy(fixture->pools[i]);
    }
}

void *fixture_alloc(struct fixture *fixture, size_t bytes) {
    ck_assert_uint_lt(fixture->buffer_count, FIXTURE_BUFFERS);
    uint8_t *memory = memory_aligned(64, bytes + GUARD_BYTES);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0xFF, bytes);
    memset(memory + bytes, GUARD_VALUE, GUARD_BYTES);
    fixture->buffers[fixture->buffer_count] = memory;
    fixture->buffer_bytes[fixture->buffer_count++] = bytes;
    return memory;
}

float fixture_float(struct fixture *fixture, float scale) {
    return (float)(rng_unit(&fixture->rng) * 2.0 - 1.0) * scale;
}

float *fixture_floats(struct fixture *fixture, size_t count, float scale) {
    float *values = fixture_alloc(fixture, count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = fixture_float(fixture, scale);
    }
    return values;
}

static void put_half(uint8_t *at, float value) {
    uint16_t half = dtype_f32_to_f16(value);
    memcpy(at, &half, sizeof half);
}

// The float16 fields of a block lie at fixed places; everything else may be any bits.
static void fill_block(struct fixture *fixture, enum dtype dtype, uint8_t *block) {
    for (uint32_t i = 0; i < dtype_block_bytes(dtype); i++) {
        block[i] = (uint8_t)rng_below(&fixture->rng, 256);
    }
    float d = fixture_float(fixture, 0.05f);
    float m = fixture_float(fixture, 0.2f);
    if (dtype == DTYPE_Q6_K) {
        put_half(block + 208, d * 0.02f);
        return;
    }
    bool k_type = dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
    put_half(block, k_type ? d * 0.05f : d);
    if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || k_type) {
        put_half(block + 2, k_type ? m * 0.02f : m);
    }
}

void *fixture_source(struct fixture *fixture, enum dtype dtype, uint32_t rows, uint32_t cols) {
    uint64_t row_bytes = 0;
    ck_assert(dtype_row_bytes(dtype, cols, &row_bytes));
    uint8_t *source = fixture_alloc(fixture, row_bytes * rows);
    uint32_t block_bytes = dtype_block_bytes(dtype);
    for (uint64_t at = 0; at < row_bytes * rows; at += block_bytes) {
        float value = fixture_float(fixture, 0.3f);
        uint16_t half = dtype == DTYPE_F16 ? dtype_f32_to_f16(value) : dtype_f32_to_bf16(value);
        if (dtype == DTYPE_F32) {
            memcpy(source + at, &value, sizeof value);
        } else if (dtype == DTYPE_F16 || dtype == DTYPE_BF16) {
            memcpy(source + at, &half, sizeof half);
        } else {
            fill_block(fixture, dtype, source + at);
        }
    }
    return source;
}

struct op_weight fixture_pack(struct fixture *fixture, const struct ops *ops, enum dtype dtype,
                              uint32_t rows, uint32_t cols, const void *source) {
    ck_assert(ops->weight_supported(dtype, rows, cols));
    struct op_weight weight = {.dtype = dtype, .rows = rows, .cols = cols};
    void *packed = fixture_alloc(fixture, ops->weight_bytes(dtype, rows, cols));
    uint64_t row_bytes = 0;
    ck_assert(dtype_row_bytes(dtype, cols, &row_bytes));
    const struct op_source from = {source, row_bytes, rows};
    ops->weight_pack(&weight, &from, packed, 0, rows);
    weight.data = packed;
    return weight;
}

struct op_ctx fixture_ctx(struct fixture *fixture, uint32_t thread_count, size_t scratch_bytes) {
    ck_assert_uint_ge(thread_count, 1);
    ck_assert_uint_le(thread_count, FIXTURE_POOLS);
    return (struct op_ctx){
        .parallel = thread_pool_run,
        .pool = fixture->pools[thread_count - 1],
        .thread_count = thread_count,
        .scratch = fixture_alloc(fixture, scratch_bytes),
        .scratch_bytes = scratch_bytes,
    };
}

void fixture_matmul(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                    const struct op_matmul_args *args) {
    uint32_t first = fixture->buffer_count;
    struct op_ctx ask = {.thread_count = thread_count};
    struct op_ctx ctx = fixture_ctx(fixture, thread_count, ops->matmul_scratch(&ask, args));
    ops->matmul(&ctx, args);
    fixture_release(fixture, first);
}

void fixture_attention(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                       const struct op_attention_args *args) {
    uint32_t first = fixture->buffer_count;
    struct op_ctx ask = {.thread_count = thread_count};
    struct op_ctx ctx = fixture_ctx(fixture, thread_count, ops->attention_scratch(&ask, args));
    ops->attention(&ctx, args);
    fixture_release(fixture, first);
}

void fixture_sample(struct fixture *fixture, const struct ops *ops, uint32_t thread_count,
                    struct op_sample_row *rows, uint32_t row_count, uint32_t vocabulary) {
    struct op_sample_args args = {.row = rows, .rows.most = row_count, .vocabulary = vocabulary};
    uint32_t first = fixture->buffer_count;
    struct op_ctx ask = {.thread_count = thread_count};
    struct op_ctx ctx = fixture_ctx(fixture, thread_count, ops->sample_scratch(&ask, &args));
    ops->sample(&ctx, &args);
    fixture_release(fixture, first);
}
