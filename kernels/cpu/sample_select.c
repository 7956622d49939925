// SPDX-License-Identifier: Apache-2.0
// Top-k and top-p without sorting: halve the range of the threshold's bits, keep the undecided.
#include "common/invariant.h"
#include "kernels/cpu/sample.h"

#include <string.h>

// Order-preserving map of float32 to unsigned: negative values, reversed, below positive ones.
static uint32_t key_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Values above `key` stay, and so do the first `ties` values equal to it.
struct threshold {
    uint32_t key;
    uint32_t ties;
};

struct range {
    uint32_t low;
    uint32_t high;
};

static struct range range_of(const float *value, uint32_t count) {
    struct range range = {.low = UINT32_MAX, .high = 0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = key_of(value[i]);
        range.low = key < range.low ? key : range.low;
        range.high = key > range.high ? key : range.high;
    }
    return range;
}

// Values with key >= cut go to the front of `out`, the others behind them, both in order.
static uint32_t split(const float *in, uint32_t count, uint32_t cut, float *out,
                      double *upper_mass) {
    uint32_t upper = 0;
    double mass = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        bool above = key_of(in[i]) >= cut;
        upper += above;
        mass += above ? (double)in[i] : 0.0;
    }
    uint32_t at[2] = {upper, 0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t *to = &at[key_of(in[i]) >= cut];
        out[*to] = in[i];
        (*to)++;
    }
    *upper_mass = mass;
    return upper;
}

// A count (keep > 0) or else a mass decides. `value` and `spare` are both overwritten.
static struct threshold find_threshold(float *value, uint32_t count, uint32_t keep, double mass,
                                       float *spare) {
    bool by_count = keep > 0;
    struct range range = range_of(value, count);
    while (range.low < range.high) {
        uint32_t cut = range.low + (range.high - range.low) / 2 + 1;
        double upper_mass;
        uint32_t upper = split(value, count, cut, spare, &upper_mass);
        float *undecided = spare;
        if (by_count ? upper >= keep : upper_mass >= mass) {
            range.low = cut;
            count = upper;
        } else {
            range.high = cut - 1;
            keep -= by_count ? upper : 0;
            mass -= upper_mass;
            undecided += upper;
            count -= upper;
        }
        spare = value;
        value = undecided;
    }
    // All that are left are equal.
    struct threshold threshold = {.key = range.low, .ties = keep};
    for (double sum = 0.0; !by_count && threshold.ties < count && sum < mass;) {
        sum += (double)value[threshold.ties];
        threshold.ties++;
    }
    threshold.ties += threshold.ties == 0;
    return threshold;
}

static void apply(struct sample_list *list, struct threshold threshold) {
    uint32_t kept = 0;
    uint32_t ties = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t key = key_of(list->value[i]);
        bool keep = key > threshold.key || (key == threshold.key && ties < threshold.ties);
        ties += key == threshold.key;
        list->index[kept] = list->index[i];
        list->value[kept] = list->value[i];
        kept += keep;
    }
    list->count = kept;
}

void sample_keep_top(struct sample_list *list, uint32_t keep, float *work[2]) {
    INVARIANT(keep > 0);
    if (keep < list->count) {
        memcpy(work[0], list->value, list->count * sizeof *list->value);
        apply(list, find_threshold(work[0], list->count, keep, 0.0, work[1]));
    }
}

void sample_keep_mass(struct sample_list *list, double mass, float *work[2]) {
    if (list->count > 1) {
        memcpy(work[0], list->value, list->count * sizeof *list->value);
        apply(list, find_threshold(work[0], list->count, 0, mass, work[1]));
    }
}
