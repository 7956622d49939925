// SPDX-License-Identifier: Apache-2.0
// Input rows: norm or SiLU applied, then 8 bits per 32 columns, 32 columns at a time.
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/matmul_avx2.h"

struct source {
    const float *x;
    const float *x2;
    const float *norm_weight;
    __m256 factor;
    enum op_input input;
};

// Transformed columns [at, at + 8) of the row; lanes past `count` are zero.
AVX2_INLINE __m256 transform8(const struct source *source, uint32_t at, uint32_t count) {
    __m256i mask = avx2_mask(count);
    __m256 x = _mm256_maskload_ps(source->x + at, mask);
    if (source->input == OP_INPUT_RMS_NORM) {
        __m256 weight = _mm256_maskload_ps(source->norm_weight + at, mask);
        return _mm256_mul_ps(weight, _mm256_mul_ps(x, source->factor));
    }
    if (source->input == OP_INPUT_SILU_MUL) {
        return _mm256_mul_ps(avx2_silu(x), _mm256_maskload_ps(source->x2 + at, mask));
    }
    return x;
}

AVX2_INLINE uint32_t largest_bits(const __m256 *v) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i m = _mm256_setzero_si256();
    AVX2_UNROLL
    for (int j = 0; j < 4; j++) {
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
    }
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4E));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(h);
}

AVX2_INLINE int sum8(__m256i v) {
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xB1)));
}

// arith_quantise32 of four vectors.
AVX2_INLINE __m256i quantise(const __m256 *v, float *scale, float *sum) {
    float factor = arith_block_scale(largest_bits(v), scale);
    if (factor == 0.0f) {
        *sum = *scale * 0.0f;
        return _mm256_setzero_si256();
    }
    __m256i q[4];
    __m256i total = _mm256_setzero_si256();
    AVX2_UNROLL
    for (int j = 0; j < 4; j++) {
        q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], _mm256_set1_ps(factor)));
        total = _mm256_add_epi32(total, q[j]);
    }
    *sum = *scale * (float)sum8(total);
    __m256i low = _mm256_packs_epi32(q[0], q[1]);
    __m256i high = _mm256_packs_epi32(q[2], q[3]);
    // Packing works per 128-bit half; this puts the fours back in order.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
}

AVX2_INLINE void store_words(int16_t *to, __m256i q) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(q), order);
    __m128i high = _mm_shuffle_epi8(_mm256_extracti128_si256(q, 1), order);
    _mm256_storeu_si256((__m256i *)to, _mm256_cvtepi8_epi16(low));
    _mm256_storeu_si256((__m256i *)(to + 16), _mm256_cvtepi8_epi16(high));
}

void matmul_prepare_avx2(const struct op_matmul_args *args, uint32_t in_row,
                         const struct matmul_input *input, uint32_t out_row) {
    uint32_t cols = input->cols;
    struct source source = {
        .x = args->x + (size_t)in_row * args->x_stride,
        .x2 = args->input == OP_INPUT_SILU_MUL ? args->x2 + (size_t)in_row * args->x_stride : NULL,
        .norm_weight = args->norm_weight,
        .factor = _mm256_setzero_ps(),
        .input = args->input,
    };
    if (args->input == OP_INPUT_RMS_NORM) {
        float squares = avx2_sum_squares(source.x, cols);
        source.factor = _mm256_set1_ps(arith_rms_factor(squares, cols, args->norm_eps));
    }
    size_t row = (size_t)out_row * cols;
    for (uint32_t at = 0; at < cols; at += PACK_BLOCK) {
        __m256 v[4];
        AVX2_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t begin = at + 8 * j;
            v[j] = begin < cols ? transform8(&source, begin, cols - begin) : _mm256_setzero_ps();
            if (input->x != NULL && begin < cols) {
                _mm256_maskstore_ps(input->x + row + begin, avx2_mask(cols - begin), v[j]);
            }
        }
        if (input->q != NULL) {
            size_t block = (size_t)out_row * input->block_count + at / PACK_BLOCK;
            __m256i q = quantise(v, &input->scale[block], &input->sum[block]);
            _mm256_storeu_si256((__m256i *)(input->q + row + at), q);
            if (input->q16 != NULL) {
                store_words(input->q16 + row + at, q);
            }
        }
    }
}
