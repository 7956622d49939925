// SPDX-License-Identifier: Apache-2.0
// Goal: the index says exactly what was added and not removed, whatever the order; keys tell apart
// what differs in any token before, in the salt or in the secret. Method: a plain table beside it,
// many keys on few places.
#include "common/rng.h"
#include "controller/core/prefix_index.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { BLOCKS = 200, TOKENS = 320, BLOCK_TOKENS = 32, KEYS = TOKENS / BLOCK_TOKENS };

static struct prefix_index *create(void) {
    struct prefix_index *index = NULL;
    ck_assert_int_eq(prefix_index_create(BLOCKS, &index, NULL), STATUS_OK);
    prefix_index_reset(index, 3);
    prefix_index_grow(index, BLOCKS);
    return index;
}

// Few homes, so that runs of probing are long.
static struct prefix_key crowded_key(uint32_t number) {
    return (struct prefix_key){{number % 7, number}, (int32_t)number, 1};
}

START_TEST(it_says_what_was_added_and_not_removed) {
    struct prefix_index *index = create();
    uint32_t key_of[BLOCKS], block_of[4 * BLOCKS];
    memset(key_of, 0xFF, sizeof key_of);
    memset(block_of, 0xFF, sizeof block_of);
    struct rng rng;
    rng_init(&rng, 21);
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t block = (uint32_t)rng_below(&rng, BLOCKS);
        uint32_t number = (uint32_t)rng_below(&rng, 4 * BLOCKS);
        struct prefix_key key = crowded_key(number);
        if (key_of[block] != UINT32_MAX && rng_below(&rng, 3) == 0) {
            uint32_t to = (uint32_t)rng_below(&rng, BLOCKS);
            if (key_of[to] == UINT32_MAX) {
                prefix_index_move(index, block, to);
                key_of[to] = key_of[block];
                block_of[key_of[to]] = to;
                key_of[block] = UINT32_MAX;
            }
        } else if (key_of[block] != UINT32_MAX) {
            prefix_index_remove(index, block);
            block_of[key_of[block]] = UINT32_MAX;
            key_of[block] = UINT32_MAX;
        } else {
            bool added = prefix_index_add(index, &key, block);
            ck_assert_int_eq(added, block_of[number] == UINT32_MAX);
            if (added) {
                key_of[block] = number;
                block_of[number] = block;
            }
        }
        if (i % 64 == 0) {
            prefix_index_audit(index);
        }
        ck_assert_uint_eq(prefix_index_find(index, &key), block_of[number]);
    }
    for (uint32_t number = 0; number < 4 * BLOCKS; number++) {
        struct prefix_key key = crowded_key(number);
        ck_assert_uint_eq(prefix_index_find(index, &key), block_of[number]);
    }
    prefix_index_reset(index, BLOCKS);
    ck_assert_uint_eq(prefix_index_count(index), 0);
    prefix_index_audit(index);
    prefix_index_destroy(index);
}
END_TEST

START_TEST(keys_stay_when_the_pool_grows) {
    struct prefix_index *index = NULL;
    ck_assert_int_eq(prefix_index_create(BLOCKS, &index, NULL), STATUS_OK);
    for (uint32_t blocks = 1; blocks <= BLOCKS; blocks++) {
        prefix_index_grow(index, blocks);
        struct prefix_key key = crowded_key(blocks);
        ck_assert(prefix_index_add(index, &key, blocks - 1));
        prefix_index_audit(index);
        for (uint32_t k = 1; k <= blocks; k++) {
            key = crowded_key(k);
            ck_assert_uint_eq(prefix_index_find(index, &key), k - 1);
        }
    }
    prefix_index_destroy(index);
}
END_TEST

START_TEST(a_collision_with_other_tokens_is_no_hit) {
    struct prefix_index *index = create();
    struct prefix_key key = crowded_key(5), other = key;
    other.last++;
    ck_assert(prefix_index_add(index, &key, 3));
    ck_assert_uint_eq(prefix_index_find(index, &key), 3);
    ck_assert_uint_eq(prefix_index_find(index, &other), PREFIX_NONE);
    ck_assert(!prefix_index_add(index, &other, 4));    // the place is taken
    prefix_index_destroy(index);
}
END_TEST

START_TEST(a_key_covers_every_token_before_it) {
    static const uint8_t secret[HASH_KEY_BYTES] = "0123456789abcde", other[HASH_KEY_BYTES] = "x";
    struct prefix_chain chain = {secret, 1, BLOCK_TOKENS};
    int32_t tokens[TOKENS + 5];
    struct prefix_key base[KEYS], now[KEYS];
    for (int32_t i = 0; i < TOKENS + 5; i++) {
        tokens[i] = i * 31 % 977;
    }
    prefix_keys(&chain, tokens, TOKENS + 5, 0, base);
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i]++;
        prefix_keys(&chain, tokens, TOKENS, 0, now);
        tokens[i]--;
        for (uint32_t k = 0; k < KEYS; k++) {
            bool same = memcmp(&now[k].hash, &base[k].hash, sizeof now[k].hash) == 0;
            ck_assert_int_eq(same, k < i / BLOCK_TOKENS);
        }
    }
    // Continuing a chain gives the same keys as making it whole.
    memcpy(now, base, 4 * sizeof *now);
    memset(now + 4, 0, (KEYS - 4) * sizeof *now);
    prefix_keys(&chain, tokens, TOKENS, 4, now);
    ck_assert_int_eq(memcmp(now, base, sizeof base), 0);
    chain.salt = 2;
    prefix_keys(&chain, tokens, TOKENS, 0, now);
    for (uint32_t k = 0; k < KEYS; k++) {
        ck_assert_int_ne(memcmp(&now[k].hash, &base[k].hash, sizeof now[k].hash), 0);
    }
    chain = (struct prefix_chain){other, 1, BLOCK_TOKENS};
    prefix_keys(&chain, tokens, TOKENS, 0, now);
    ck_assert_int_ne(memcmp(&now[0].hash, &base[0].hash, sizeof now[0].hash), 0);
}
END_TEST

Suite *suite_prefix_index(void) {
    Suite *suite = suite_create("controller/core/prefix_index");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, it_says_what_was_added_and_not_removed);
    tcase_add_test(tc, keys_stay_when_the_pool_grows);
    tcase_add_test(tc, a_collision_with_other_tokens_is_no_hit);
    tcase_add_test(tc, a_key_covers_every_token_before_it);
    suite_add_tcase(suite, tc);
    return suite;
}
