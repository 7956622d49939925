// SPDX-License-Identifier: Apache-2.0
// Rotary embedding and the KV write, 8 dimensions at a time.
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/kv_page.h"
#include "kernels/cpu/rope.h"

static void norm_head(float *x, const float *weight, uint32_t head_dim, float eps) {
    float factor = arith_rms_factor(avx2_sum_squares(x, head_dim), head_dim, eps);
    __m256 factor8 = _mm256_set1_ps(factor);
    for (uint32_t i = 0; i < head_dim; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor8);
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(weight + i), v));
    }
}

static void rotate_half(float *x, const float *cos_sin, uint32_t half) {
    for (uint32_t j = 0; j < half; j += 8) {
        __m256 a = _mm256_loadu_ps(x + j);
        __m256 b = _mm256_loadu_ps(x + half + j);
        __m256 c = _mm256_loadu_ps(cos_sin + j);
        __m256 s = _mm256_loadu_ps(cos_sin + half + j);
        _mm256_storeu_ps(x + j, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + half + j, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
}

// Pairs side by side: x * cos + swapped x * (-sin, sin).
static void rotate_interleaved(float *x, const float *cos_sin, uint32_t half) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256 sign = _mm256_setr_ps(-0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f);
    for (uint32_t j = 0; j < half; j += 4) {
        __m256 c = _mm256_castps128_ps256(_mm_loadu_ps(cos_sin + j));
        __m256 s = _mm256_castps128_ps256(_mm_loadu_ps(cos_sin + half + j));
        c = _mm256_permutevar8x32_ps(c, twice);
        s = _mm256_xor_ps(_mm256_permutevar8x32_ps(s, twice), sign);
        __m256 v = _mm256_loadu_ps(x + 2 * j);
        __m256 swapped = _mm256_permute_ps(v, 0xB1);
        _mm256_storeu_ps(x + 2 * j, _mm256_fmadd_ps(v, c, _mm256_mul_ps(swapped, s)));
    }
}

static void rotate(const struct op_rope_append_args *args, float *x, const float *norm,
                   const float *cos_sin) {
    uint32_t head_dim = args->kv->head_dim;
    if (norm != NULL) {
        norm_head(x, norm, head_dim, args->norm_eps);
    }
    if (args->pairing == OP_ROPE_HALF) {
        rotate_half(x, cos_sin, head_dim / 2);
    } else {
        rotate_interleaved(x, cos_sin, head_dim / 2);
    }
}

// Keys are position-minor, so one position's key is spread: 16 elements apart.
static void store_key(enum dtype dtype, uint8_t *span, uint32_t lane, const float *k,
                      uint32_t head_dim) {
    if (dtype == DTYPE_F32) {
        float *to = (float *)(void *)span + lane;
        for (uint32_t i = 0; i < head_dim; i++) {
            to[(size_t)KV_SPAN * i] = k[i];
        }
        return;
    }
    uint16_t *to = (uint16_t *)(void *)span + lane;
    for (uint32_t i = 0; i < head_dim; i += 8) {
        uint16_t half[8];
        __m128i packed = _mm256_cvtps_ph(_mm256_loadu_ps(k + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)half, packed);
        for (uint32_t j = 0; j < 8; j++) {
            to[(size_t)KV_SPAN * (i + j)] = half[j];
        }
    }
}

static void store_value(enum dtype dtype, uint8_t *to, const float *v, uint32_t head_dim) {
    if (dtype == DTYPE_F32) {
        memcpy(to, v, head_dim * sizeof *v);
        return;
    }
    for (uint32_t i = 0; i < head_dim; i += 8) {
        __m128i packed = _mm256_cvtps_ph(_mm256_loadu_ps(v + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(to + 2 * i), packed);
    }
}

void rope_row_avx2(const struct op_rope_append_args *args, uint32_t row) {
    const struct op_kv_layout *kv = args->kv;
    uint32_t head_dim = kv->head_dim;
    if (head_dim % 16 != 0) {
        rope_row_scalar(args, row);    // half a head is no whole number of vectors
        return;
    }
    uint32_t position = args->step->position[row];
    const float *cos_sin = args->rope_cos_sin + (size_t)position * head_dim;
    float *q = args->q + (size_t)row * args->q_head_count * head_dim;
    for (uint32_t h = 0; h < args->q_head_count; h++) {
        rotate(args, q + (size_t)h * head_dim, args->q_norm, cos_sin);
    }
    uint8_t *page = kv_page(args->step, kv, args->layer, args->step->row_seq[row], position);
    uint32_t in_block = position % kv->block_tokens;
    float *k = args->k + (size_t)row * kv->kv_head_count * head_dim;
    const float *v = args->v + (size_t)row * kv->kv_head_count * head_dim;
    for (uint32_t h = 0; h < kv->kv_head_count; h++) {
        float *head = k + (size_t)h * head_dim;
        rotate(args, head, args->k_norm, cos_sin);
        store_key(kv->dtype, page + kv_key_span_offset(kv, h, in_block), in_block % KV_SPAN, head,
                  head_dim);
        store_value(kv->dtype, page + kv_value_offset(kv, h, in_block), v + (size_t)h * head_dim,
                    head_dim);
    }
}
