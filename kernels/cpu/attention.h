// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/ops.h"

// Causal attention over paged keys and values: the driver that cuts it into tasks, and the inner
// pieces each instruction set supplies.
//
// The idea: positions are cut into chunks of 256, anchored at position 0. A chunk gives each query
// its largest score m, the sum l of exp(score - m) and the sum o of exp(score - m) * value; chunks
// are merged in ascending order with the usual rescaling. So the bits of a query depend on its own
// position only: not on its neighbours in the tile, nor on whether its chunks were computed one
// after the other or by several threads. Inside a chunk:
//
//   score    one fused chain over head_dim per position, then times scale
//   l        16 lanes (position mod 16), each in ascending order, folded at the end
//   o        one fused chain over positions per dimension
//
// The query heads that share a KV head, and neighbouring rows of one sequence, form a tile: a key
// or value is loaded once for all of them.
//
//   Owns       nothing; all memory is the caller's scratch.
//   Thread     as the operation table says.
//   Allocates  never.
//   Fails      never.

enum {
    ATTENTION_CHUNK = 256,          // positions
    ATTENTION_TILE_QUERIES = 48,    // rows x query heads of one KV head; more heads: one row
};

// A tile: rows [row_begin, row_end) of one sequence and the query heads of one KV head. Query
// (row - row_begin) * group + h belongs to query head kv_head * group + h.
struct attention_tile {
    const struct op_attention_args *args;
    uint32_t seq;
    uint32_t kv_head;
    uint32_t group;    // query heads per KV head
    uint32_t row_begin, row_end;
    uint8_t *scratch;    // this thread's, 64-byte aligned
};

// Per query: m, l and o[head_dim]. The arrays are [query_count] and [query_count, head_dim].
struct attention_part {
    float *m;
    float *l;
    float *o;
};

struct attention_kernels {
    // Positions of one chunk, for each query whose row reaches into it; others are left unwritten.
    void (*chunk)(const struct attention_tile *tile, uint32_t chunk_index,
                  const struct attention_part *out);
    // sum += part for one query.
    void (*merge)(float *sum_m, float *sum_l, float *sum_o, float part_m, float part_l,
                  const float *part_o, uint32_t head_dim);
    // y = o / l for one query.
    void (*finish)(float l, const float *o, float *y, uint32_t head_dim);
    // Scratch of one thread for tiles of at most `query_count` queries.
    size_t (*thread_scratch_bytes)(uint32_t query_count, uint32_t head_dim);
};

extern const struct attention_kernels attention_kernels_scalar;
extern const struct attention_kernels attention_kernels_avx2;
extern const struct attention_kernels attention_kernels_avx512;

size_t attention_scratch(const struct op_ctx *ctx, const struct op_attention_args *args,
                         const struct attention_kernels *kernels);
void attention_run(const struct op_ctx *ctx, const struct op_attention_args *args,
                   const struct attention_kernels *kernels);

// Where the first `span_count` spans of 16 positions of a chunk lie in the pool: keys
// [head_dim][16], values [16][head_dim].
void attention_find_spans(const struct attention_tile *tile, uint32_t chunk_index,
                          uint32_t span_count, const uint8_t **key, const uint8_t **value);

// The query vector and the output row of query `index` of a tile.
static inline size_t attention_query_offset(const struct attention_tile *tile, uint32_t index) {
    size_t row = tile->row_begin + index / tile->group;
    size_t head = tile->kv_head * tile->group + index % tile->group;
    return (row * tile->args->q_head_count + head) * tile->args->kv->head_dim;
}

// Positions of the chunk that query `index` attends to: 0 when its row ends before the chunk.
static inline uint32_t attention_query_limit(const struct attention_tile *tile, uint32_t index,
                                             uint32_t chunk_index) {
    uint32_t position = tile->args->step->position[tile->row_begin + index / tile->group];
    uint32_t begin = chunk_index * ATTENTION_CHUNK;
    if (position < begin) {
        return 0;
    }
    uint32_t count = position - begin + 1;
    return count < ATTENTION_CHUNK ? count : ATTENTION_CHUNK;
}

#endif
