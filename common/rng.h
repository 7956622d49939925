// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_RNG_H
#define COMMON_RNG_H

#include <stdint.h>

// Random numbers: a counter-based draw for sampling, and a small seeded stream for tests.
//
// The idea of the counter-based draw: the number depends on (seed, stream, position) and on nothing
// else, so a position redone in a replay, in another batch or on another rank draws the same.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

// Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section
// 3), key = seed, counter = (position, stream).
struct rng_key {
    uint64_t seed;
    uint32_t stream;    // choice index of a request with n > 1
};
uint64_t rng_draw_u64(struct rng_key key, uint64_t position);
double rng_draw_unit(struct rng_key key, uint64_t position);    // [0, 1), 53 bits

// A stream for tests, jitter and ids: the same generator with a running counter.
struct rng {
    uint64_t seed;
    uint64_t next;
};
void rng_init(struct rng *rng, uint64_t seed);
uint64_t rng_u64(struct rng *rng);
uint64_t rng_below(struct rng *rng, uint64_t limit);    // 0 <= result < limit, limit > 0
double rng_unit(struct rng *rng);

#endif
