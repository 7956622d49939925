// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_COMM_ORDERED_SUM_H
#define WORKER_COMM_ORDERED_SUM_H

#include <stddef.h>
#include <stdint.h>

// Sums over the ranks' parts, in the one order that all ranks use (collective.h): 2, 4 and 8 parts
// in pairs, other numbers from the first one upwards.
//
// The idea: the order is a matter of each element, so elements may be taken in any grouping: any
// cut into chunks and any vector width gives the same bits.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum { ORDERED_SUM_PARTS_MAX = 8 };

// out[i] = sum over the parts; out may be one of them.
void ordered_sum(const float *const *part, uint32_t part_count, float *out, size_t count);
// y[i] += sum over the parts; y is none of them.
void ordered_sum_add(const float *const *part, uint32_t part_count, float *y, size_t count);
void ordered_add(const float *x, float *y, size_t count);    // y[i] += x[i]

#endif
