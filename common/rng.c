// SPDX-License-Identifier: Apache-2.0
#include "common/rng.h"

#include "common/invariant.h"

struct block {
    uint32_t word[4];
};

static struct block philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    struct block b = {{(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                       (uint32_t)(counter_high >> 32)}};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * b.word[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * b.word[2];
        struct block next = {{(uint32_t)(p1 >> 32) ^ b.word[1] ^ k0, (uint32_t)p1,
                              (uint32_t)(p0 >> 32) ^ b.word[3] ^ k1, (uint32_t)p0}};
        b = next;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return b;
}

uint64_t rng_draw_u64(struct rng_key key, uint64_t position) {
    struct block b = philox(key.seed, position, key.stream);
    return ((uint64_t)b.word[1] << 32) | b.word[0];
}

static double unit_from(uint64_t bits) {
    return (double)(bits >> 11) * 0x1.0p-53;
}

double rng_draw_unit(struct rng_key key, uint64_t position) {
    return unit_from(rng_draw_u64(key, position));
}

void rng_init(struct rng *rng, uint64_t seed) {
    rng->seed = seed;
    rng->next = 0;
}

uint64_t rng_u64(struct rng *rng) {
    struct rng_key key = {.seed = rng->seed, .stream = 0x7E57};
    return rng_draw_u64(key, rng->next++);
}

uint64_t rng_below(struct rng *rng, uint64_t limit) {
    INVARIANT(limit > 0);
    // The bias of a plain remainder is below limit / 2^64.
    return rng_u64(rng) % limit;
}

double rng_unit(struct rng *rng) {
    return unit_from(rng_u64(rng));
}
