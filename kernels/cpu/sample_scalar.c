// SPDX-License-Identifier: Apache-2.0
// The meaning of the passes over a row of logits.
#include "kernels/cpu/arith.h"
#include "kernels/cpu/sample.h"

static uint32_t argmax_scalar(const float *values, uint32_t count) {
    uint32_t best = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] > max) {
            max = values[i];
            best = i;
        }
    }
    return best;
}

static double weights_scalar(const float *logits, uint32_t count, float max,
                             float inverse_temperature, float *weight, double *block_sum) {
    double total = 0.0;
    for (uint32_t begin = 0; begin < count; begin += SAMPLE_BLOCK) {
        uint32_t end = count - begin < SAMPLE_BLOCK ? count : begin + SAMPLE_BLOCK;
        float lane[8] = {0};
        for (uint32_t i = begin; i < end; i++) {
            float x = (logits[i] - max) * inverse_temperature;
            weight[i] = x == x ? arith_exp(x) : 0.0f;
            lane[i % 8] += weight[i];
        }
        block_sum[begin / SAMPLE_BLOCK] = (double)arith_fold8(lane);
        total += block_sum[begin / SAMPLE_BLOCK];
    }
    return total;
}

static uint32_t gather_scalar(const float *values, uint32_t count, float floor, uint32_t *index,
                              float *value) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] >= floor) {
            index[found] = i;
            value[found] = values[i];
            found++;
        }
    }
    return found;
}

static uint32_t count_before_scalar(const float *values, uint32_t count, uint32_t token) {
    float own = values[token];
    uint32_t before = 0;
    for (uint32_t i = 0; i < count; i++) {
        before += values[i] > own || (values[i] == own && i < token);
    }
    return before;
}

const struct sample_kernels sample_kernels_scalar = {
    .argmax = argmax_scalar,
    .weights = weights_scalar,
    .gather = gather_scalar,
    .count_before = count_before_scalar,
};
