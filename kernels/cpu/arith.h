// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_ARITH_H
#define KERNELS_CPU_ARITH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

// Float arithmetic whose bits every cpu table must reproduce: exponential, sums over a row, SiLU,
// rounding to 8 bits.
//
// The idea: the scalar form here is written in the shape a vector unit computes (fused steps named
// as such, sums in 32 or 8 lanes folded in one fixed tree), so the vector forms need no other
// rounding. The build forbids contraction, so what is not written as fmaf is not fused.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never; NaN goes through.

// exp(x) = 2^n * e^r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds x / ln 2 to the nearest integer
// and leaves n in the low bits. The polynomial is a minimax fit of (e^r - 1 - r) / r^2, relative
// error 3.1e-9 before rounding. Results below 2^-126 are zero, above exp(88) they are exp(88).
#define ARITH_EXP_LOG2E 0x1.715476p+0f
#define ARITH_EXP_ROUND 12582912.0f
#define ARITH_EXP_LN2_HIGH 0x1.62e430p-1f
#define ARITH_EXP_LN2_LOW (-0x1.05c610p-29f)
#define ARITH_EXP_C2 0x1.fffffcp-2f
#define ARITH_EXP_C3 0x1.555490p-3f
#define ARITH_EXP_C4 0x1.5558f4p-5f
#define ARITH_EXP_C5 0x1.123a6cp-7f
#define ARITH_EXP_C6 0x1.6a2358p-10f
#define ARITH_EXP_MIN (-87.0f)
#define ARITH_EXP_MAX 88.0f

static inline float arith_exp(float x) {
    if (x < ARITH_EXP_MIN) {
        return 0.0f;
    }
    float clamped = x > ARITH_EXP_MAX ? ARITH_EXP_MAX : x;
    float shifted = fmaf(clamped, ARITH_EXP_LOG2E, ARITH_EXP_ROUND);
    float n = shifted - ARITH_EXP_ROUND;
    float r = fmaf(n, -ARITH_EXP_LN2_HIGH, clamped);
    r = fmaf(n, -ARITH_EXP_LN2_LOW, r);
    float p = fmaf(ARITH_EXP_C6, r, ARITH_EXP_C5);
    p = fmaf(p, r, ARITH_EXP_C4);
    p = fmaf(p, r, ARITH_EXP_C3);
    p = fmaf(p, r, ARITH_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t power, bits;
    memcpy(&power, &shifted, sizeof power);
    memcpy(&bits, &p, sizeof bits);
    bits += power << 23;
    memcpy(&p, &bits, sizeof p);
    return x != x ? x : p;
}

// silu(x) = x * sigmoid(x).
static inline float arith_silu(float x) {
    return x / (1.0f + arith_exp(-x));
}

// The fold of 8 lanes: halves, quarters, pair.
static inline float arith_fold8(const float *lane) {
    float a[4];
    for (int i = 0; i < 4; i++) {
        a[i] = lane[i] + lane[i + 4];
    }
    return (a[0] + a[2]) + (a[1] + a[3]);
}

// Sum of squares: element i goes to lane i mod 32, fused, in ascending order.
static inline float arith_sum_squares(const float *x, uint32_t count) {
    float lane[32] = {0};
    for (uint32_t i = 0; i < count; i++) {
        lane[i % 32] = fmaf(x[i], x[i], lane[i % 32]);
    }
    for (int i = 0; i < 8; i++) {
        lane[i] = (lane[i] + lane[i + 8]) + (lane[i + 16] + lane[i + 24]);
    }
    return arith_fold8(lane);
}

// 1 / sqrt(mean(x^2) + eps).
static inline float arith_rms_factor(float sum_squares, uint32_t count, float eps) {
    return 1.0f / sqrtf(sum_squares / (float)count + eps);
}

// 32 values to 8 bits: q = round to even of x * (127 / max|x|), x ~ scale * q. `sum` is scale times
// the sum of q, which the minimum of a weight block multiplies. A block that is not finite has q =
// 0 and a NaN scale, so that its row shows it. All zero, or too small to invert: all zero.

// Scale of a block by the bits of its max|x|; returns the factor x is multiplied by, 0 for q = 0.
static inline float arith_block_scale(uint32_t max_bits, float *scale) {
    float max;
    memcpy(&max, &max_bits, sizeof max);
    if (max_bits >= 0x7F800000u) {
        *scale = NAN;
        return 0.0f;
    }
    if (max < 0x1p-100f) {
        *scale = 0.0f;
        return 0.0f;
    }
    *scale = max / 127.0f;
    return 127.0f / max;
}

static inline void arith_quantise32(const float *x, int8_t *q, float *scale, float *sum) {
    uint32_t max_bits = 0;    // among magnitudes the order of bits is the order of values
    for (int i = 0; i < 32; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7FFFFFFFu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    float factor = arith_block_scale(max_bits, scale);
    int total = 0;
    for (int i = 0; i < 32; i++) {
        // Adding 1.5 * 2^23 rounds to an integer, ties to even.
        float shifted = x[i] * factor + ARITH_EXP_ROUND;
        q[i] = factor == 0.0f ? 0 : (int8_t)(shifted - ARITH_EXP_ROUND);
        total += q[i];
    }
    *sum = *scale * (float)total;
}

#endif
