// SPDX-License-Identifier: Apache-2.0
// Attention on AVX-512. Scores: a vector is the 16 positions of a key span, shared by up to twelve
// queries. Output: lanes are dimensions, up to six queries share each value vector.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/kv_page.h"

enum {
    LANES = 16,
    SPANS = ATTENTION_CHUNK / KV_SPAN,    // spans of 16 positions in a chunk
    SCORE_QUERIES = 12,                   // queries that share a key vector
    SCORE_CHAINS = 12,                    // sums in flight: few queries take several spans at once
    WEIGH_QUERIES = 6,                    // queries that share a value vector
    WEIGH_VECTORS = 4,                    // of 16 dimensions
};
_Static_assert((int)KV_SPAN == (int)LANES, "a key vector is one span");

// One chunk of one tile.
struct chunk {
    const struct attention_tile *tile;
    uint32_t index;
    uint32_t query_count;
    uint32_t span_count;
    uint32_t head_dim;
    const uint8_t *key[SPANS];      // [head_dim][16]
    const uint8_t *value[SPANS];    // [16][head_dim]
    float *p;                       // [query_count][256] scores, then weights
};

AVX2_INLINE __m512 load16(enum dtype dtype, const uint8_t *base, size_t element) {
    if (dtype == DTYPE_F16) {
        return avx512_load_half16(base + 2 * element);
    }
    return _mm512_loadu_ps((const float *)(const void *)(base + 4 * element));
}

// The lanes of `mask`, zero elsewhere; memory under the other lanes is not read.
AVX2_INLINE __m512 load_some(enum dtype dtype, const uint8_t *base, size_t element,
                             __mmask16 mask) {
    if (dtype == DTYPE_F16) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, base + 2 * element));
    }
    return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)(base + 4 * element));
}

static __mmask16 first_lanes(uint32_t count) {
    return (__mmask16)(count >= LANES ? 0xFFFFu : (1u << count) - 1);
}

static const float *query(const struct chunk *chunk, uint32_t index) {
    return chunk->tile->args->q + attention_query_offset(chunk->tile, index);
}

static uint32_t limit_of(const struct chunk *chunk, uint32_t index) {
    return attention_query_limit(chunk->tile, index, chunk->index);
}

// ---- scores ------------------------------------------------------------------------------------

// `queries` x `spans` chains over the dimensions.
AVX2_INLINE void score_block(enum dtype dtype, const struct chunk *chunk, uint32_t first_query,
                             uint32_t first_span, int queries, int spans) {
    const float *q[SCORE_QUERIES];
    __m512 dot[SCORE_QUERIES][SCORE_CHAINS];
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        q[i] = query(chunk, first_query + (uint32_t)i);
        AVX2_UNROLL
        for (int s = 0; s < spans; s++) {
            dot[i][s] = _mm512_setzero_ps();
        }
    }
    for (uint32_t d = 0; d < chunk->head_dim; d++) {
        __m512 key[SCORE_CHAINS];
        AVX2_UNROLL
        for (int s = 0; s < spans; s++) {
            key[s] = load16(dtype, chunk->key[first_span + (uint32_t)s], (size_t)KV_SPAN * d);
        }
        AVX2_UNROLL
        for (int i = 0; i < queries; i++) {
            __m512 x = _mm512_set1_ps(q[i][d]);
            AVX2_UNROLL
            for (int s = 0; s < spans; s++) {
                dot[i][s] = _mm512_fmadd_ps(x, key[s], dot[i][s]);
            }
        }
    }
    __m512 factor = _mm512_set1_ps(chunk->tile->args->scale);
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        float *to = chunk->p + (size_t)(first_query + (uint32_t)i) * ATTENTION_CHUNK;
        AVX2_UNROLL
        for (int s = 0; s < spans; s++) {
            _mm512_storeu_ps(to + (size_t)KV_SPAN * (first_span + (uint32_t)s),
                             _mm512_mul_ps(dot[i][s], factor));
        }
    }
}

// Sizes there is code for; a rest is done one span, or one query, at a time.
#define SCORE(queries, spans)                                                                      \
    for (; span + (spans) <= end; span += (spans)) {                                               \
        score_block(dtype, chunk, first, span, queries, spans);                                    \
    }

AVX2_INLINE void score_queries(enum dtype dtype, const struct chunk *chunk, uint32_t first,
                               uint32_t count, uint32_t end) {
    uint32_t span = 0;
    switch (count) {
    case 12:
        SCORE(12, 1)
        return;
    case 6:
        SCORE(6, 2)
        SCORE(6, 1)
        return;
    case 3:
        SCORE(3, 4)
        SCORE(3, 1)
        return;
    case 2:
        SCORE(2, 4)
        SCORE(2, 1)
        return;
    default:
        SCORE(1, 8)
        SCORE(1, 1)
        return;
    }
}

static void score_f16(const struct chunk *chunk, uint32_t first, uint32_t count, uint32_t end) {
    score_queries(DTYPE_F16, chunk, first, count, end);
}

static void score_f32(const struct chunk *chunk, uint32_t first, uint32_t count, uint32_t end) {
    score_queries(DTYPE_F32, chunk, first, count, end);
}

static void scores(const struct chunk *chunk, bool halves) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < chunk->query_count; first += count) {
        uint32_t left = chunk->query_count - first;
        count = left >= 12 ? 12 : left >= 6 ? 6 : left >= 3 ? 3 : left;
        // Causal: rows ascend, so nobody of this block sees past its last query's limit.
        uint32_t end = (limit_of(chunk, first + count - 1) + KV_SPAN - 1) / KV_SPAN;
        (halves ? score_f16 : score_f32)(chunk, first, count, end);
    }
}

// ---- weights -----------------------------------------------------------------------------------

// exp(score - max) in place for `limit` positions, zero up to the end of the span.
static void softmax(float *p, uint32_t limit, float *max_out, float *sum_out) {
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 max = none;
    uint32_t end = (limit + KV_SPAN - 1) / KV_SPAN * KV_SPAN;
    for (uint32_t i = 0; i < end; i += LANES) {
        __m512 s = _mm512_mask_loadu_ps(none, first_lanes(limit - i), p + i);
        _mm512_storeu_ps(p + i, s);
        max = _mm512_max_ps(s, max);    // the second operand when the first is NaN
    }
    *max_out = _mm512_reduce_max_ps(max);
    __m512 largest = _mm512_set1_ps(*max_out);
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < end; i += LANES) {
        __m512 e = avx512_exp(_mm512_sub_ps(_mm512_loadu_ps(p + i), largest));
        _mm512_storeu_ps(p + i, e);
        sum = _mm512_add_ps(sum, e);
    }
    *sum_out = avx512_fold16(sum);
}

// ---- output ------------------------------------------------------------------------------------

// Neighbouring queries against the values of one chunk.
struct block {
    const float *p;                   // [queries][256]
    uint32_t limit[WEIGH_QUERIES];    // ascending; 0 where the row ends before the chunk
    float *o;                         // [queries][head_dim]
};

AVX2_INLINE void add_position(enum dtype dtype, const struct chunk *chunk,
                              const struct block *block, uint32_t position, uint32_t begin,
                              __mmask16 mask, int queries, int vectors, bool all,
                              __m512 sum[WEIGH_QUERIES][WEIGH_VECTORS]) {
    const uint8_t *base = chunk->value[position / KV_SPAN];
    size_t at = (size_t)chunk->head_dim * (position % KV_SPAN) + begin;
    __m512 value[WEIGH_VECTORS];
    AVX2_UNROLL
    for (int v = 0; v < vectors; v++) {
        value[v] = mask == 0xFFFF ? load16(dtype, base, at + LANES * (size_t)v)
                                  : load_some(dtype, base, at + LANES * (size_t)v, mask);
    }
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        if (all || position < block->limit[i]) {
            __m512 w = _mm512_set1_ps(block->p[(size_t)i * ATTENTION_CHUNK + position]);
            AVX2_UNROLL
            for (int v = 0; v < vectors; v++) {
                sum[i][v] = _mm512_fmadd_ps(w, value[v], sum[i][v]);
            }
        }
    }
}

// o[query][begin ..] = sum over positions of p * value, each query up to its own limit.
AVX2_INLINE void weigh(enum dtype dtype, const struct chunk *chunk, const struct block *block,
                       uint32_t begin, __mmask16 mask, int queries, int vectors) {
    __m512 sum[WEIGH_QUERIES][WEIGH_VECTORS];
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        AVX2_UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[i][v] = _mm512_setzero_ps();
        }
    }
    // Positions everybody sees, then those only the later rows see.
    uint32_t position = 0;
    for (; position < block->limit[0]; position++) {
        add_position(dtype, chunk, block, position, begin, mask, queries, vectors, true, sum);
    }
    for (; position < block->limit[queries - 1]; position++) {
        add_position(dtype, chunk, block, position, begin, mask, queries, vectors, false, sum);
    }
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        float *o = block->o + (size_t)i * chunk->head_dim + begin;
        AVX2_UNROLL
        for (int v = 0; v < vectors; v++) {
            _mm512_mask_storeu_ps(o + LANES * v, mask, sum[i][v]);
        }
    }
}

AVX2_INLINE void weigh_dims(enum dtype dtype, const struct chunk *chunk, const struct block *block,
                            int queries) {
    uint32_t d = 0;
    for (; d + LANES * WEIGH_VECTORS <= chunk->head_dim; d += LANES * WEIGH_VECTORS) {
        weigh(dtype, chunk, block, d, 0xFFFF, queries, WEIGH_VECTORS);
    }
    for (; d < chunk->head_dim; d += LANES) {
        weigh(dtype, chunk, block, d, first_lanes(chunk->head_dim - d), queries, 1);
    }
}

AVX2_INLINE void weigh_queries(enum dtype dtype, const struct chunk *chunk,
                               const struct block *block, uint32_t count) {
    switch (count) {
    case 6:
        weigh_dims(dtype, chunk, block, 6);
        return;
    case 3:
        weigh_dims(dtype, chunk, block, 3);
        return;
    case 2:
        weigh_dims(dtype, chunk, block, 2);
        return;
    default:
        weigh_dims(dtype, chunk, block, 1);
        return;
    }
}

static void weigh_f16(const struct chunk *chunk, const struct block *block, uint32_t count) {
    weigh_queries(DTYPE_F16, chunk, block, count);
}

static void weigh_f32(const struct chunk *chunk, const struct block *block, uint32_t count) {
    weigh_queries(DTYPE_F32, chunk, block, count);
}

static void outputs(const struct chunk *chunk, bool halves, const struct attention_part *out) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < chunk->query_count; first += count) {
        uint32_t left = chunk->query_count - first;
        count = left >= 6 ? 6 : left >= 3 ? 3 : left;
        struct block block = {
            .p = chunk->p + (size_t)first * ATTENTION_CHUNK,
            .o = out->o + (size_t)first * chunk->head_dim,
        };
        for (uint32_t i = 0; i < count; i++) {
            block.limit[i] = limit_of(chunk, first + i);
        }
        (halves ? weigh_f16 : weigh_f32)(chunk, &block, count);
    }
}

// ---- the kernel table --------------------------------------------------------------------------

static void chunk_avx512(const struct attention_tile *tile, uint32_t chunk_index,
                         const struct attention_part *out) {
    const struct op_kv_layout *kv = tile->args->kv;
    struct chunk chunk = {
        .tile = tile,
        .index = chunk_index,
        .query_count = (tile->row_end - tile->row_begin) * tile->group,
        .head_dim = kv->head_dim,
        .p = (float *)(void *)tile->scratch,
    };
    uint32_t most = limit_of(&chunk, chunk.query_count - 1);
    chunk.span_count = (most + KV_SPAN - 1) / KV_SPAN;
    attention_find_spans(tile, chunk_index, chunk.span_count, chunk.key, chunk.value);
    bool halves = kv->dtype == DTYPE_F16;
    scores(&chunk, halves);
    for (uint32_t i = 0; i < chunk.query_count; i++) {
        uint32_t limit = limit_of(&chunk, i);
        if (limit > 0) {
            softmax(chunk.p + (size_t)i * ATTENTION_CHUNK, limit, &out->m[i], &out->l[i]);
        }
    }
    outputs(&chunk, halves, out);
}

static void merge_avx512(float *sum_m, float *sum_l, float *sum_o, float part_m, float part_l,
                         const float *part_o, uint32_t head_dim) {
    float max = part_m > *sum_m ? part_m : *sum_m;
    float keep = arith_exp(*sum_m - max);
    float add = arith_exp(part_m - max);
    for (uint32_t d = 0; d < head_dim; d += LANES) {
        __mmask16 mask = first_lanes(head_dim - d);
        __m512 kept = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, sum_o + d), _mm512_set1_ps(keep));
        __m512 part = _mm512_maskz_loadu_ps(mask, part_o + d);
        _mm512_mask_storeu_ps(sum_o + d, mask, _mm512_fmadd_ps(part, _mm512_set1_ps(add), kept));
    }
    *sum_l = fmaf(part_l, add, *sum_l * keep);
    *sum_m = max;
}

static void finish_avx512(float l, const float *o, float *y, uint32_t head_dim) {
    __m512 inverse = _mm512_set1_ps(1.0f / l);
    for (uint32_t d = 0; d < head_dim; d += LANES) {
        __mmask16 mask = first_lanes(head_dim - d);
        __m512 v = _mm512_maskz_loadu_ps(mask, o + d);
        _mm512_mask_storeu_ps(y + d, mask, _mm512_mul_ps(v, inverse));
    }
}

static size_t thread_scratch_bytes(uint32_t query_count, uint32_t head_dim) {
    (void)head_dim;
    return (size_t)query_count * ATTENTION_CHUNK * sizeof(float);
}

const struct attention_kernels attention_kernels_avx512 = {
    .chunk = chunk_avx512,
    .merge = merge_avx512,
    .finish = finish_avx512,
    .thread_scratch_bytes = thread_scratch_bytes,
};
