// SPDX-License-Identifier: Apache-2.0
// Attention on AVX2. Scores: lanes are positions, up to six queries share each key vector. Output:
// lanes are dimensions, up to six queries share each value vector. With more than six queries in a
// tile, float16 pages are converted to float32 once per chunk.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/kv_page.h"

enum {
    QUERIES = 6,                          // queries of one inner block
    SPANS = ATTENTION_CHUNK / KV_SPAN,    // spans of 16 positions in a chunk
    PANEL = 16,                           // dimensions of a converted panel of values
    PANEL_FLOATS = ATTENTION_CHUNK * PANEL,
};

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
    float *key_copy;                // [head_dim][16] float32
    float *value_copy;              // [head_dim / 16][256][16] float32
};

// Up to six neighbouring queries of a tile.
struct block {
    const float *q[QUERIES];
    uint32_t limit[QUERIES];    // ascending; 0 where the row ends before the chunk
    float *p;                   // [queries][256]
};

AVX2_INLINE __m256 load8(enum dtype dtype, const uint8_t *base, size_t element) {
    if (dtype == DTYPE_F16) {
        return avx2_load_half8(base + 2 * element);
    }
    return _mm256_loadu_ps((const float *)(const void *)(base + 4 * element));
}

// Blocks have 6, 3, 2 or 1 queries: the sizes there is code for.
static uint32_t block_size(const struct chunk *chunk, uint32_t first) {
    uint32_t left = chunk->query_count - first;
    return left >= QUERIES ? QUERIES : left >= 3 ? 3 : left;
}

static struct block block_at(const struct chunk *chunk, uint32_t first, uint32_t count) {
    struct block block = {.p = chunk->p + (size_t)first * ATTENTION_CHUNK};
    for (uint32_t i = 0; i < count; i++) {
        block.q[i] = chunk->tile->args->q + attention_query_offset(chunk->tile, first + i);
        block.limit[i] = attention_query_limit(chunk->tile, first + i, chunk->index);
    }
    return block;
}

// ---- scores ------------------------------------------------------------------------------------

AVX2_INLINE void score_span(enum dtype dtype, const uint8_t *key, const struct block *block,
                            uint32_t span, int queries, uint32_t head_dim, float scale) {
    __m256 dot[QUERIES][2];
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        dot[i][0] = _mm256_setzero_ps();
        dot[i][1] = _mm256_setzero_ps();
    }
    for (uint32_t d = 0; d < head_dim; d++) {
        __m256 k0 = load8(dtype, key, (size_t)KV_SPAN * d);
        __m256 k1 = load8(dtype, key, (size_t)KV_SPAN * d + 8);
        AVX2_UNROLL
        for (int i = 0; i < queries; i++) {
            __m256 q = _mm256_broadcast_ss(block->q[i] + d);
            dot[i][0] = _mm256_fmadd_ps(q, k0, dot[i][0]);
            dot[i][1] = _mm256_fmadd_ps(q, k1, dot[i][1]);
        }
    }
    __m256 factor = _mm256_set1_ps(scale);
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        float *to = block->p + (size_t)i * ATTENTION_CHUNK + (size_t)KV_SPAN * span;
        _mm256_storeu_ps(to, _mm256_mul_ps(dot[i][0], factor));
        _mm256_storeu_ps(to + 8, _mm256_mul_ps(dot[i][1], factor));
    }
}

AVX2_INLINE void score_queries(enum dtype dtype, const uint8_t *key, const struct block *block,
                               uint32_t span, uint32_t queries, uint32_t head_dim, float scale) {
    if (queries == 6) {
        score_span(dtype, key, block, span, 6, head_dim, scale);
    } else if (queries == 3) {
        score_span(dtype, key, block, span, 3, head_dim, scale);
    } else if (queries == 2) {
        score_span(dtype, key, block, span, 2, head_dim, scale);
    } else {
        score_span(dtype, key, block, span, 1, head_dim, scale);
    }
}

static void score_f16(const uint8_t *key, const struct block *block, uint32_t span,
                      uint32_t queries, uint32_t head_dim, float scale) {
    score_queries(DTYPE_F16, key, block, span, queries, head_dim, scale);
}

static void score_f32(const uint8_t *key, const struct block *block, uint32_t span,
                      uint32_t queries, uint32_t head_dim, float scale) {
    score_queries(DTYPE_F32, key, block, span, queries, head_dim, scale);
}

static void convert(const uint8_t *halves, float *out, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
        _mm256_storeu_ps(out + i, avx2_load_half8(halves + 2 * i));
    }
}

static void scores(const struct chunk *chunk, bool halves) {
    float scale = chunk->tile->args->scale;
    for (uint32_t s = 0; s < chunk->span_count; s++) {
        const uint8_t *key = chunk->key[s];
        bool as_halves = halves;
        if (halves && chunk->query_count > QUERIES) {
            convert(key, chunk->key_copy, (size_t)KV_SPAN * chunk->head_dim);
            key = (const uint8_t *)chunk->key_copy;
            as_halves = false;
        }
        uint32_t count = 0;
        for (uint32_t first = 0; first < chunk->query_count; first += count) {
            count = block_size(chunk, first);
            struct block block = block_at(chunk, first, count);
            if (block.limit[count - 1] <= KV_SPAN * s) {
                continue;    // causal: nobody here sees this span
            }
            (as_halves ? score_f16 : score_f32)(key, &block, s, count, chunk->head_dim, scale);
        }
    }
}

// ---- weights -----------------------------------------------------------------------------------

// exp(score - max) in place for `limit` positions, zero up to the end of the span.
static void softmax(float *p, uint32_t limit, float *max_out, float *sum_out) {
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 max = none;
    uint32_t end = (limit + KV_SPAN - 1) / KV_SPAN * KV_SPAN;
    for (uint32_t i = 0; i < end; i += 8) {
        __m256 s = _mm256_loadu_ps(p + i);
        if (i + 8 > limit) {
            uint32_t count = i < limit ? limit - i : 0;
            s = _mm256_blendv_ps(none, s, _mm256_castsi256_ps(avx2_mask(count)));
            _mm256_storeu_ps(p + i, s);
        }
        max = _mm256_max_ps(s, max);    // the second operand when the first is NaN
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    *max_out = _mm_cvtss_f32(m);
    __m256 largest = _mm256_set1_ps(*max_out);
    __m256 low = _mm256_setzero_ps();
    __m256 high = _mm256_setzero_ps();
    for (uint32_t i = 0; i < end; i += KV_SPAN) {
        __m256 p0 = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(p + i), largest));
        __m256 p1 = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(p + i + 8), largest));
        _mm256_storeu_ps(p + i, p0);
        _mm256_storeu_ps(p + i + 8, p1);
        low = _mm256_add_ps(low, p0);
        high = _mm256_add_ps(high, p1);
    }
    *sum_out = avx2_fold8(_mm256_add_ps(low, high));
}

// ---- output ------------------------------------------------------------------------------------

// Rows of values: 16 positions per span, `row_elements` apart, from dimension `begin` on.
struct rows {
    const uint8_t *const *span;
    size_t span_bytes;    // 0, or spans follow each other from span[0] on
    size_t row_elements;
    size_t begin;
};

AVX2_INLINE const uint8_t *span_base(const struct rows *rows, uint32_t s) {
    return rows->span_bytes == 0 ? rows->span[s] : rows->span[0] + rows->span_bytes * s;
}

// o[query][8 * vectors] = sum over positions of p * value, each query up to its own limit.
AVX2_INLINE void weigh(enum dtype dtype, const struct rows *rows, const struct block *block,
                       int queries, int vectors, float *const *out) {
    __m256 sum[QUERIES][4];
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        AVX2_UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[i][v] = _mm256_setzero_ps();
        }
    }
    // Positions everybody sees, then those only the later rows see.
    uint32_t common = block->limit[0];
    uint32_t position = 0;
    while (position < common) {
        const uint8_t *base = span_base(rows, position / KV_SPAN);
        uint32_t count = common - position < KV_SPAN ? common - position : KV_SPAN;
        const float *p = block->p + position;
        for (uint32_t j = 0; j < count; j++) {
            size_t at = rows->row_elements * j + rows->begin;
            __m256 value[4];
            AVX2_UNROLL
            for (int v = 0; v < vectors; v++) {
                value[v] = load8(dtype, base, at + 8 * (size_t)v);
            }
            AVX2_UNROLL
            for (int i = 0; i < queries; i++) {
                __m256 w = _mm256_broadcast_ss(p + (size_t)i * ATTENTION_CHUNK + j);
                AVX2_UNROLL
                for (int v = 0; v < vectors; v++) {
                    sum[i][v] = _mm256_fmadd_ps(w, value[v], sum[i][v]);
                }
            }
        }
        position += count;
    }
    for (; position < block->limit[queries - 1]; position++) {
        const uint8_t *base = span_base(rows, position / KV_SPAN);
        size_t at = rows->row_elements * (position % KV_SPAN) + rows->begin;
        AVX2_UNROLL
        for (int i = 0; i < queries; i++) {
            if (position < block->limit[i]) {
                __m256 w = _mm256_broadcast_ss(block->p + (size_t)i * ATTENTION_CHUNK + position);
                AVX2_UNROLL
                for (int v = 0; v < vectors; v++) {
                    __m256 value = load8(dtype, base, at + 8 * (size_t)v);
                    sum[i][v] = _mm256_fmadd_ps(w, value, sum[i][v]);
                }
            }
        }
    }
    AVX2_UNROLL
    for (int i = 0; i < queries; i++) {
        AVX2_UNROLL
        for (int v = 0; v < vectors; v++) {
            _mm256_storeu_ps(out[i] + 8 * v, sum[i][v]);
        }
    }
}

// `vectors` of 8 dimensions at once: 4 for up to three queries, 2 for any, 1 for one.
AVX2_INLINE void weigh_queries(enum dtype dtype, const struct rows *rows, const struct block *block,
                               uint32_t queries, int vectors, float *const *out) {
    if (vectors == 1 || queries == 1) {
        weigh(dtype, rows, block, 1, vectors, out);
    } else if (queries == 2) {
        weigh(dtype, rows, block, 2, vectors, out);
    } else if (queries == 3) {
        weigh(dtype, rows, block, 3, vectors, out);
    } else if (vectors == 2) {
        weigh(dtype, rows, block, 6, 2, out);
    }
}

#define WEIGH_FN(name, dtype, vectors)                                                             \
    static void name(const struct rows *rows, const struct block *block, uint32_t queries,         \
                     float *const *out) {                                                          \
        weigh_queries(dtype, rows, block, queries, vectors, out);                                  \
    }
WEIGH_FN(weigh_f16_4, DTYPE_F16, 4)
WEIGH_FN(weigh_f16_2, DTYPE_F16, 2)
WEIGH_FN(weigh_f16_1, DTYPE_F16, 1)
WEIGH_FN(weigh_f32_4, DTYPE_F32, 4)
WEIGH_FN(weigh_f32_2, DTYPE_F32, 2)
WEIGH_FN(weigh_f32_1, DTYPE_F32, 1)

// Dimensions [begin, end) of a block of queries, as wide as registers allow.
static void weigh_range(bool halves, struct rows rows, const struct block *block, uint32_t queries,
                        uint32_t begin, uint32_t end, float *const *o) {
    uint32_t width = 0;
    for (uint32_t d = begin; d < end; d += width) {
        float *out[QUERIES];
        for (uint32_t i = 0; i < queries; i++) {
            out[i] = o[i] + d;
        }
        struct rows at = rows;
        at.begin += d - begin;
        if (queries <= 3 && end - d >= 32) {
            width = 32;
            (halves ? weigh_f16_4 : weigh_f32_4)(&at, block, queries, out);
        } else if (end - d >= 16) {
            width = 16;
            (halves ? weigh_f16_2 : weigh_f32_2)(&at, block, queries, out);
        } else {
            width = 8;    // the end of a head that is no multiple of 16
            for (uint32_t i = 0; i < queries; i++) {
                struct block one = {.p = block->p + (size_t)i * ATTENTION_CHUNK};
                one.limit[0] = block->limit[i];
                (halves ? weigh_f16_1 : weigh_f32_1)(&at, &one, 1, &out[i]);
            }
        }
    }
}

// Panels of 16 dimensions (the last may have 8): [position][16].
static void convert_values(const struct chunk *chunk) {
    for (uint32_t d = 0; d < chunk->head_dim; d += 8) {
        float *panel = chunk->value_copy + (size_t)(d / PANEL) * PANEL_FLOATS + d % PANEL;
        for (uint32_t s = 0; s < chunk->span_count; s++) {
            for (uint32_t j = 0; j < KV_SPAN; j++) {
                const uint8_t *from = chunk->value[s] + 2 * ((size_t)chunk->head_dim * j + d);
                _mm256_storeu_ps(panel + (size_t)PANEL * (KV_SPAN * s + j), avx2_load_half8(from));
            }
        }
    }
}

// Dimensions [begin, end) of all queries.
static void weigh_all(const struct chunk *chunk, bool halves, uint32_t begin, uint32_t end,
                      const struct rows *rows, const struct attention_part *out) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < chunk->query_count; first += count) {
        count = block_size(chunk, first);
        struct block block = block_at(chunk, first, count);
        float *o[QUERIES];
        for (uint32_t i = 0; i < count; i++) {
            o[i] = out->o + (size_t)(first + i) * chunk->head_dim;
        }
        weigh_range(halves, *rows, &block, count, begin, end, o);
    }
}

static void outputs(const struct chunk *chunk, bool halves, const struct attention_part *out) {
    if (!halves || chunk->query_count <= QUERIES) {
        struct rows rows = {.span = chunk->value, .row_elements = chunk->head_dim};
        weigh_all(chunk, halves, 0, chunk->head_dim, &rows, out);
        return;
    }
    convert_values(chunk);
    for (uint32_t d = 0; d < chunk->head_dim; d += PANEL) {
        const uint8_t *panel =
            (const uint8_t *)(chunk->value_copy + (size_t)(d / PANEL) * PANEL_FLOATS);
        struct rows rows = {
            .span = &panel, .span_bytes = KV_SPAN * PANEL * sizeof(float), .row_elements = PANEL};
        uint32_t end = d + PANEL < chunk->head_dim ? d + PANEL : chunk->head_dim;
        weigh_all(chunk, false, d, end, &rows, out);
    }
}

// ---- the kernel table --------------------------------------------------------------------------

static void chunk_avx2(const struct attention_tile *tile, uint32_t chunk_index,
                       const struct attention_part *out) {
    const struct op_kv_layout *kv = tile->args->kv;
    struct chunk chunk = {
        .tile = tile,
        .index = chunk_index,
        .query_count = (tile->row_end - tile->row_begin) * tile->group,
        .head_dim = kv->head_dim,
        .p = (float *)(void *)tile->scratch,
    };
    chunk.key_copy = chunk.p + (size_t)chunk.query_count * ATTENTION_CHUNK;
    chunk.value_copy = chunk.key_copy + (size_t)KV_SPAN * kv->head_dim;
    uint32_t most = attention_query_limit(tile, chunk.query_count - 1, chunk_index);
    chunk.span_count = (most + KV_SPAN - 1) / KV_SPAN;
    attention_find_spans(tile, chunk_index, chunk.span_count, chunk.key, chunk.value);
    bool halves = kv->dtype == DTYPE_F16;
    scores(&chunk, halves);
    for (uint32_t i = 0; i < chunk.query_count; i++) {
        uint32_t limit = attention_query_limit(tile, i, chunk_index);
        if (limit > 0) {
            softmax(chunk.p + (size_t)i * ATTENTION_CHUNK, limit, &out->m[i], &out->l[i]);
        }
    }
    outputs(&chunk, halves, out);
}

static void merge_avx2(float *sum_m, float *sum_l, float *sum_o, float part_m, float part_l,
                       const float *part_o, uint32_t head_dim) {
    float max = part_m > *sum_m ? part_m : *sum_m;
    float keep = arith_exp(*sum_m - max);
    float add = arith_exp(part_m - max);
    __m256 keep8 = _mm256_set1_ps(keep);
    __m256 add8 = _mm256_set1_ps(add);
    for (uint32_t d = 0; d < head_dim; d += 8) {
        __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(sum_o + d), keep8);
        _mm256_storeu_ps(sum_o + d, _mm256_fmadd_ps(_mm256_loadu_ps(part_o + d), add8, kept));
    }
    *sum_l = fmaf(part_l, add, *sum_l * keep);
    *sum_m = max;
}

static void finish_avx2(float l, const float *o, float *y, uint32_t head_dim) {
    __m256 inverse = _mm256_set1_ps(1.0f / l);
    for (uint32_t d = 0; d < head_dim; d += 8) {
        _mm256_storeu_ps(y + d, _mm256_mul_ps(_mm256_loadu_ps(o + d), inverse));
    }
}

static size_t thread_scratch_bytes(uint32_t query_count, uint32_t head_dim) {
    size_t floats = (size_t)query_count * ATTENTION_CHUNK + (size_t)KV_SPAN * head_dim;
    if (query_count > QUERIES) {
        floats += (size_t)((head_dim + PANEL - 1) / PANEL) * PANEL_FLOATS;
    }
    return floats * sizeof(float);
}

const struct attention_kernels attention_kernels_avx2 = {
    .chunk = chunk_avx2,
    .merge = merge_avx2,
    .finish = finish_avx2,
    .thread_scratch_bytes = thread_scratch_bytes,
};
