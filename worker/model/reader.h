// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_MODEL_READER_H
#define WORKER_MODEL_READER_H

#include "kernels/ops.h"
#include "worker/comm/collective.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A reader of forward functions: what happens when a model asks for memory and operations.
//
// The idea: a model family writes its layers once, as calls on a reader. The *measure* reader only
// follows the memory that the function takes and drops, and so finds the exact workspace peak of a
// step shape; the *run* reader gives real addresses inside the arena and executes. Both place
// memory by the same rule (lowest offset that fits among what is alive), so they cannot disagree.
// The *capture* reader is the run reader over a device's recording operations (device.h): the same
// calls with the same addresses become a list that is replayed without the forward function.
// The *simulate* reader executes operations that have no arithmetic (kernels/sim), at addresses
// without memory, so that they add up what a step would cost.
// The scratch of an operation comes from its own question and lives only while the operation runs.
//
//   Owns       nothing; keeps the arena, the operations and the context it was given.
//   Thread     the step thread.
//   Allocates  never.
//   Fails      never: a run reader whose arena is too small is our bug (INVARIANT), since the arena
//              was measured with the same function.

enum { READER_LIVE_MAX = 32, READER_ALIGNMENT = 64 };

struct reader_range {
    size_t begin, end;
};

struct reader {
    const struct ops *ops;
    const struct op_ctx *ctx;    // parallel, pool, thread_count; scratch is set per operation
    bool executes;
    bool simulates;
    uint8_t *arena;    // run only
    size_t arena_bytes;
    size_t peak_bytes;    // highest end of any range so far
    uint32_t launch_count;
    uint32_t live_count;
    struct reader_range live[READER_LIVE_MAX];    // sorted by begin
    // NULL in a group of one, and both set by the caller after init. Messages are noted in
    // `collective` as they are asked for. Where the reader executes, `carrier` points at who
    // carries them when the step runs; it is read then, so that captured steps follow when it
    // changes.
    struct collective *collective;
    struct collective *const *carrier;
};

void reader_init_measure(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx);
void reader_init_run(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx,
                     uint8_t *arena, size_t arena_bytes);
void reader_init_simulate(struct reader *reader, const struct ops *ops, const struct op_ctx *ctx);
size_t reader_peak_bytes(const struct reader *reader);
uint32_t reader_launch_count(const struct reader *reader);    // operations asked for so far

// Workspace memory, 64-byte aligned, contents undefined. Under measure the address must not be
// read.
void *reader_take(struct reader *reader, size_t bytes);
float *reader_take_f32(struct reader *reader, size_t count);
void reader_drop(struct reader *reader, const void *memory);

// Between the ranks of a group of more than one, [rows, cols] each: y += the sum over the ranks of
// their parts; and everybody's columns side by side (collective.h).
void reader_all_reduce_add(struct reader *reader, const float *part, float *y, struct op_rows rows,
                           uint32_t cols);
void reader_all_gather(struct reader *reader, const float *x, float *y, struct op_rows rows,
                       uint32_t x_cols, uint32_t y_cols);

// Operations: args as in kernels/ops.h.
void reader_embed(struct reader *reader, const struct op_embed_args *args);
void reader_matmul(struct reader *reader, const struct op_matmul_args *args);
void reader_route(struct reader *reader, const struct op_route_args *args);
void reader_experts(struct reader *reader, const struct op_experts_args *args);
void reader_rope_append(struct reader *reader, const struct op_rope_append_args *args);
void reader_attention(struct reader *reader, const struct op_attention_args *args);
void reader_sample(struct reader *reader, const struct op_sample_args *args);

#endif
