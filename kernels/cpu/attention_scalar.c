// SPDX-License-Identifier: Apache-2.0
// The meaning of attention: one query, one position, one dimension at a time.
#include "kernels/cpu/arith.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/kv_page.h"

static float load_element(enum dtype dtype, const uint8_t *base, size_t index) {
    if (dtype == DTYPE_F16) {
        uint16_t half;
        memcpy(&half, base + 2 * index, sizeof half);
        return dtype_f16_to_f32(half);
    }
    float value;
    memcpy(&value, base + 4 * index, sizeof value);
    return value;
}

static float score_at(const struct attention_tile *tile, const float *q, uint32_t position) {
    const struct op_kv_layout *kv = tile->args->kv;
    const uint8_t *page = kv_page(tile->args->step, kv, tile->args->layer, tile->seq, position);
    const uint8_t *span = page + kv_key_span_offset(kv, tile->kv_head, position % kv->block_tokens);
    float dot = 0.0f;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        dot = fmaf(q[d], load_element(kv->dtype, span, (size_t)KV_SPAN * d + position % KV_SPAN),
                   dot);
    }
    return dot * tile->args->scale;
}

static void chunk_query(const struct attention_tile *tile, uint32_t begin, uint32_t count,
                        const float *q, float *m, float *l, float *o) {
    const struct op_kv_layout *kv = tile->args->kv;
    float p[ATTENTION_CHUNK];
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        p[i] = score_at(tile, q, begin + i);
        max = p[i] > max ? p[i] : max;
    }
    float lane[KV_SPAN] = {0};
    for (uint32_t i = 0; i < count; i++) {
        p[i] = arith_exp(p[i] - max);
        lane[i % KV_SPAN] += p[i];
    }
    for (int i = 0; i < 8; i++) {
        lane[i] += lane[i + 8];
    }
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        o[d] = 0.0f;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t position = begin + i;
        const uint8_t *page = kv_page(tile->args->step, kv, tile->args->layer, tile->seq, position);
        const uint8_t *value =
            page + kv_value_offset(kv, tile->kv_head, position % kv->block_tokens);
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            o[d] = fmaf(p[i], load_element(kv->dtype, value, d), o[d]);
        }
    }
    *m = max;
    *l = arith_fold8(lane);
}

static void chunk_scalar(const struct attention_tile *tile, uint32_t chunk_index,
                         const struct attention_part *out) {
    uint32_t head_dim = tile->args->kv->head_dim;
    uint32_t queries = (tile->row_end - tile->row_begin) * tile->group;
    for (uint32_t i = 0; i < queries; i++) {
        uint32_t count = attention_query_limit(tile, i, chunk_index);
        if (count > 0) {
            chunk_query(tile, chunk_index * ATTENTION_CHUNK, count,
                        tile->args->q + attention_query_offset(tile, i), &out->m[i], &out->l[i],
                        out->o + (size_t)i * head_dim);
        }
    }
}

static void merge_scalar(float *sum_m, float *sum_l, float *sum_o, float part_m, float part_l,
                         const float *part_o, uint32_t head_dim) {
    float max = part_m > *sum_m ? part_m : *sum_m;
    float keep = arith_exp(*sum_m - max);
    float add = arith_exp(part_m - max);
    for (uint32_t d = 0; d < head_dim; d++) {
        sum_o[d] = fmaf(part_o[d], add, sum_o[d] * keep);
    }
    *sum_l = fmaf(part_l, add, *sum_l * keep);
    *sum_m = max;
}

static void finish_scalar(float l, const float *o, float *y, uint32_t head_dim) {
    float inverse = 1.0f / l;
    for (uint32_t d = 0; d < head_dim; d++) {
        y[d] = o[d] * inverse;
    }
}

static size_t no_scratch(uint32_t query_count, uint32_t head_dim) {
    (void)query_count;
    (void)head_dim;
    return 0;
}

const struct attention_kernels attention_kernels_scalar = {
    .chunk = chunk_scalar,
    .merge = merge_scalar,
    .finish = finish_scalar,
    .thread_scratch_bytes = no_scratch,
};
