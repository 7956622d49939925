// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/ordered_sum.h"

#include "common/invariant.h"

// Elements that are summed together: a few vectors, held in registers or the first cache.
enum { GROUP = 64 };

static void sum_2(const float *a, const float *b, float *out) {
    for (size_t i = 0; i < GROUP; i++) {
        out[i] = a[i] + b[i];
    }
}

static void sum_4(const float *const *p, size_t at, float *out) {
    const float *a = p[0] + at, *b = p[1] + at, *c = p[2] + at, *d = p[3] + at;
    for (size_t i = 0; i < GROUP; i++) {
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
    }
}

static void sum_group(const float *const *p, uint32_t part_count, size_t at, float *out) {
    float other[GROUP];
    switch (part_count) {
    case 2:
        sum_2(p[0] + at, p[1] + at, out);
        return;
    case 4:
        sum_4(p, at, out);
        return;
    case 8:
        sum_4(p, at, out);
        sum_4(p + 4, at, other);
        sum_2(out, other, out);
        return;
    default:
        for (size_t i = 0; i < GROUP; i++) {
            out[i] = p[0][at + i];
        }
        for (uint32_t part = 1; part < part_count; part++) {
            sum_2(out, p[part] + at, out);
        }
    }
}

// The same order for one element.
static float sum_one(const float *const *p, uint32_t part_count, size_t i) {
    switch (part_count) {
    case 4:
        return (p[0][i] + p[1][i]) + (p[2][i] + p[3][i]);
    case 8:
        return ((p[0][i] + p[1][i]) + (p[2][i] + p[3][i])) +
               ((p[4][i] + p[5][i]) + (p[6][i] + p[7][i]));
    default:;
        float sum = p[0][i];
        for (uint32_t part = 1; part < part_count; part++) {
            sum += p[part][i];
        }
        return sum;
    }
}

void ordered_sum(const float *const *part, uint32_t part_count, float *out, size_t count) {
    INVARIANT(part_count > 0);
    INVARIANT(part_count <= ORDERED_SUM_PARTS_MAX);
    float sum[GROUP];
    size_t at = 0;
    for (; at + GROUP <= count; at += GROUP) {
        sum_group(part, part_count, at, sum);
        for (size_t i = 0; i < GROUP; i++) {
            out[at + i] = sum[i];
        }
    }
    for (; at < count; at++) {
        out[at] = sum_one(part, part_count, at);
    }
}

void ordered_sum_add(const float *const *part, uint32_t part_count, float *y, size_t count) {
    INVARIANT(part_count > 0);
    INVARIANT(part_count <= ORDERED_SUM_PARTS_MAX);
    float sum[GROUP];
    size_t at = 0;
    for (; at + GROUP <= count; at += GROUP) {
        sum_group(part, part_count, at, sum);
        for (size_t i = 0; i < GROUP; i++) {
            y[at + i] += sum[i];
        }
    }
    for (; at < count; at++) {
        y[at] += sum_one(part, part_count, at);
    }
}

void ordered_add(const float *x, float *y, size_t count) {
    for (size_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}
