// SPDX-License-Identifier: Apache-2.0
#include "worker/model/reader.h"

#include "common/invariant.h"
#include <string.h>

// Under measure and simulate, addresses are offsets from here; they are compared and subtracted,
// never read.
static const uintptr_t MEASURE_BASE = (uintptr_t)1 << 30;

static void init(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx) {
    memset(reader, 0, sizeof *reader);
    reader->ops = ops;
    reader->ctx = ctx;
}

void reader_init_measure(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx) {
    init(reader, ops, ctx);
    reader->arena_bytes = SIZE_MAX;
}

void reader_init_run(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx,
                     uint8_t *arena, size_t arena_bytes) {
    INVARIANT((uintptr_t)arena % READER_ALIGNMENT == 0);
    init(reader, ops, ctx);
    reader->executes = true;
    reader->arena = arena;
    reader->arena_bytes = arena_bytes;
}

void reader_init_simulate(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx) {
    init(reader, ops, ctx);
    reader->executes = true;
    reader->simulates = true;
    reader->arena_bytes = SIZE_MAX;
}

size_t reader_peak_bytes(const struct reader *reader) {
    return reader->peak_bytes;
}

uint32_t reader_launch_count(const struct reader *reader) {
    return reader->launch_count;
}

static uintptr_t base_of(const struct reader *reader) {
    return reader->arena != NULL ? (uintptr_t)reader->arena : MEASURE_BASE;
}

void *reader_take(struct reader *reader, size_t bytes) {
    INVARIANT(reader->live_count < READER_LIVE_MAX);
    size_t need = (bytes + READER_ALIGNMENT - 1) & ~(size_t)(READER_ALIGNMENT - 1);
    if (need == 0) {
        need = READER_ALIGNMENT;
    }
    // Lowest gap that fits: before, between or after the live ranges.
    size_t begin = 0;
    uint32_t at = 0;
    while (at < reader->live_count && reader->live[at].begin - begin < need) {
        begin = reader->live[at].end;
        at++;
    }
    INVARIANT(need <= reader->arena_bytes);
    INVARIANT(begin <= reader->arena_bytes - need);
    memmove(&reader->live[at + 1], &reader->live[at],
            (reader->live_count - at) * sizeof reader->live[0]);
    reader->live[at] = (struct reader_range){begin, begin + need};
    reader->live_count++;
    if (begin + need > reader->peak_bytes) {
        reader->peak_bytes = begin + need;
    }
    return (void *)(base_of(reader) + begin);
}

float *reader_take_f32(struct reader *reader, size_t count) {
    INVARIANT(count <= SIZE_MAX / sizeof(float));
    return reader_take(reader, count * sizeof(float));
}

void reader_drop(struct reader *reader, const void *memory) {
    size_t begin = (uintptr_t)memory - base_of(reader);
    for (uint32_t i = 0; i < reader->live_count; i++) {
        if (reader->live[i].begin == begin) {
            reader->live_count--;
            memmove(&reader->live[i], &reader->live[i + 1],
                    (reader->live_count - i) * sizeof reader->live[0]);
            return;
        }
    }
    UNREACHABLE();
}

// Counts the launch; true when it is to be made.
static bool launches(struct reader *reader) {
    reader->launch_count++;
    return reader->executes;
}

// The context with this operation's scratch, taken for as long as the operation runs.
static struct op_ctx with_scratch(struct reader *reader, size_t bytes) {
    struct op_ctx ctx = *reader->ctx;
    ctx.scratch = reader_take(reader, bytes);
    ctx.scratch_bytes = bytes;
    return ctx;
}

// ---- messages ----------------------------------------------------------------------------------

static void carry_sum(const struct op_exchange_args *args, uint32_t rows) {
    struct collective *const *carrier = args->carrier;
    collective_all_reduce_add(*carrier, args->x, args->y, rows, args->y_cols);
}

static void carry_columns(const struct op_exchange_args *args, uint32_t rows) {
    struct collective *const *carrier = args->carrier;
    collective_all_gather(*carrier, &(struct collective_gather){.x = args->x,
                                                                .y = args->y,
                                                                .row_count = rows,
                                                                .x_cols = args->x_cols,
                                                                .y_cols = args->y_cols});
}

static void exchange(struct reader *reader, const struct op_exchange_args *args) {
    if (reader->collective != NULL) {
        collective_note(reader->collective,
                        (uint64_t)args->rows.most * args->y_cols * sizeof *args->x);
    }
    if (launches(reader)) {
        INVARIANT(args->carrier != NULL || reader->simulates);
        reader->ops->exchange(reader->ctx, args);
    }
}

void reader_all_reduce_add(struct reader *reader, const float *part, float *y, struct op_rows rows,
                           uint32_t cols) {
    exchange(reader,
             &(struct op_exchange_args){carry_sum, reader->carrier, part, y, rows, cols, cols});
}

void reader_all_gather(struct reader *reader, const float *x, float *y, struct op_rows rows,
                       uint32_t x_cols, uint32_t y_cols) {
    exchange(reader, &(struct op_exchange_args){carry_columns, reader->carrier, x, y, rows, x_cols,
                                                y_cols});
}

// ---- operations --------------------------------------------------------------------------------

void reader_embed(struct reader *reader, const struct op_embed_args *args) {
    if (launches(reader)) {
        reader->ops->embed(reader->ctx, args);
    }
}

void reader_matmul(struct reader *reader, const struct op_matmul_args *args) {
    struct op_ctx ctx = with_scratch(reader, reader->ops->matmul_scratch(reader->ctx, args));
    if (launches(reader)) {
        reader->ops->matmul(&ctx, args);
    }
    reader_drop(reader, ctx.scratch);
}

void reader_route(struct reader *reader, const struct op_route_args *args) {
    if (launches(reader)) {
        reader->ops->route(reader->ctx, args);
    }
}

void reader_experts(struct reader *reader, const struct op_experts_args *args) {
    struct op_ctx ctx = with_scratch(reader, reader->ops->experts_scratch(reader->ctx, args));
    if (launches(reader)) {
        reader->ops->experts(&ctx, args);
    }
    reader_drop(reader, ctx.scratch);
}

void reader_rope_append(struct reader *reader, const struct op_rope_append_args *args) {
    if (launches(reader)) {
        reader->ops->rope_append(reader->ctx, args);
    }
}

void reader_attention(struct reader *reader, const struct op_attention_args *args) {
    struct op_ctx ctx = with_scratch(reader, reader->ops->attention_scratch(reader->ctx, args));
    if (launches(reader)) {
        reader->ops->attention(&ctx, args);
    }
    reader_drop(reader, ctx.scratch);
}

void reader_sample(struct reader *reader, const struct op_sample_args *args) {
    struct op_ctx ctx = with_scratch(reader, reader->ops->sample_scratch(reader->ctx, args));
    if (launches(reader)) {
        reader->ops->sample(&ctx, args);
    }
    reader_drop(reader, ctx.scratch);
}
