// SPDX-License-Identifier: Apache-2.0
// The passes over a row of logits, 8 at a time; ends of rows in plain code.
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/sample.h"

enum { CHAINS = 4 };    // independent comparisons, to hide their latency

static uint32_t argmax_avx2(const float *values, uint32_t count) {
    __m256 max[CHAINS];
    __m256i at[CHAINS];
    for (int j = 0; j < CHAINS; j++) {
        max[j] = _mm256_set1_ps(-INFINITY);
        at[j] = _mm256_setzero_si256();
    }
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i eight = _mm256_set1_epi32(8);
    uint32_t i = 0;
    for (; i + 8 * CHAINS <= count; i += 8 * CHAINS) {
        AVX2_UNROLL
        for (uint32_t j = 0; j < CHAINS; j++) {
            __m256 v = _mm256_loadu_ps(values + i + 8 * j);
            __m256 more = _mm256_cmp_ps(v, max[j], _CMP_GT_OQ);
            max[j] = _mm256_blendv_ps(max[j], v, more);
            at[j] = _mm256_blendv_epi8(at[j], index, _mm256_castps_si256(more));
            index = _mm256_add_epi32(index, eight);
        }
    }
    float lane_max[8 * CHAINS];
    uint32_t lane_at[8 * CHAINS];
    for (int j = 0; j < CHAINS; j++) {
        _mm256_storeu_ps(lane_max + 8 * j, max[j]);
        _mm256_storeu_si256((__m256i *)(lane_at + 8 * j), at[j]);
    }
    float best = -INFINITY;
    uint32_t best_at = 0;
    for (int j = 0; j < 8 * CHAINS; j++) {
        bool earlier = lane_max[j] == best && lane_at[j] < best_at;
        if (lane_max[j] > best || earlier) {
            best = lane_max[j];
            best_at = lane_at[j];
        }
    }
    for (; i < count; i++) {
        if (values[i] > best) {
            best = values[i];
            best_at = i;
        }
    }
    return best_at;
}

static double weights_avx2(const float *logits, uint32_t count, float max,
                           float inverse_temperature, float *weight, double *block_sum) {
    const __m256 max8 = _mm256_set1_ps(max);
    const __m256 inverse = _mm256_set1_ps(inverse_temperature);
    double total = 0.0;
    for (uint32_t begin = 0; begin < count; begin += SAMPLE_BLOCK) {
        uint32_t end = count - begin < SAMPLE_BLOCK ? count : begin + SAMPLE_BLOCK;
        __m256 sum = _mm256_setzero_ps();
        uint32_t i = begin;
        for (; i < end; i += 8) {
            __m256i mask = avx2_mask(end - i);
            __m256 x = _mm256_maskload_ps(logits + i, mask);
            x = _mm256_mul_ps(_mm256_sub_ps(x, max8), inverse);
            __m256 number = _mm256_cmp_ps(x, x, _CMP_ORD_Q);
            number = _mm256_and_ps(number, _mm256_castsi256_ps(mask));
            __m256 w = _mm256_and_ps(avx2_exp(x), number);
            _mm256_maskstore_ps(weight + i, mask, w);
            sum = _mm256_add_ps(sum, w);
        }
        block_sum[begin / SAMPLE_BLOCK] = (double)avx2_fold8(sum);
        total += block_sum[begin / SAMPLE_BLOCK];
    }
    return total;
}

static uint32_t gather_avx2(const float *values, uint32_t count, float floor, uint32_t *index,
                            float *value) {
    const __m256 least = _mm256_set1_ps(floor);
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i += 8) {
        __m256i mask = avx2_mask(count - i);
        __m256 v = _mm256_maskload_ps(values + i, mask);
        __m256 above = _mm256_cmp_ps(v, least, _CMP_GE_OQ);
        above = _mm256_and_ps(above, _mm256_castsi256_ps(mask));
        for (unsigned bits = (unsigned)_mm256_movemask_ps(above); bits != 0; bits &= bits - 1) {
            uint32_t at = i + (uint32_t)__builtin_ctz(bits);
            index[found] = at;
            value[found] = values[at];
            found++;
        }
    }
    return found;
}

// Values in [begin, end) above `own`, or equal to it where `ties` says so.
static uint32_t count_above(const float *values, uint32_t begin, uint32_t end, float own,
                            bool ties) {
    const __m256 own8 = _mm256_set1_ps(own);
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = begin; i < end; i += 8) {
        __m256i mask = avx2_mask(end - i);
        __m256 v = _mm256_maskload_ps(values + i, mask);
        __m256 above =
            ties ? _mm256_cmp_ps(v, own8, _CMP_GE_OQ) : _mm256_cmp_ps(v, own8, _CMP_GT_OQ);
        __m256i one = _mm256_and_si256(_mm256_castps_si256(above), mask);
        sum = _mm256_sub_epi32(sum, one);
    }
    uint32_t lane[8];
    _mm256_storeu_si256((__m256i *)lane, sum);
    uint32_t total = 0;
    for (int i = 0; i < 8; i++) {
        total += lane[i];
    }
    return total;
}

static uint32_t count_before_avx2(const float *values, uint32_t count, uint32_t token) {
    return count_above(values, 0, token, values[token], true) +
           count_above(values, token + 1, count, values[token], false);
}

const struct sample_kernels sample_kernels_avx2 = {
    .argmax = argmax_avx2,
    .weights = weights_avx2,
    .gather = gather_avx2,
    .count_before = count_before_avx2,
};
