// SPDX-License-Identifier: Apache-2.0
// Goal: every hash is the published function. Method: vectors of the standards and reference
// papers.
#include "common/hash.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(sha256_matches_fips_180_4) {
    static const uint8_t want[HASH_SHA256_BYTES] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                                    0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                                    0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                                    0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    uint8_t got[HASH_SHA256_BYTES];
    hash_sha256("abc", 3, got);
    ck_assert_mem_eq(got, want, sizeof want);
}
END_TEST

START_TEST(keyed_hash_matches_the_siphash_128_vector) {
    // First row of the 128-bit vectors: key 00..0f, empty message.
    static const uint8_t want[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                     0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    uint8_t key[HASH_KEY_BYTES];
    for (uint8_t i = 0; i < sizeof key; i++) {
        key[i] = i;
    }
    struct hash128 got = hash_keyed(key, "", 0);
    ck_assert_mem_eq(&got, want, sizeof want);
    key[0] ^= 1;
    struct hash128 other = hash_keyed(key, "", 0);
    ck_assert(other.low != got.low || other.high != got.high);
}
END_TEST

START_TEST(plain_hash_matches_the_reference) {
    // XXH3, 64 bits, seed 0, as printed by xxhsum -H3.
    ck_assert_uint_eq(hash_bytes("", 0), 0x2D06800538D394C2u);
    ck_assert_uint_ne(hash_bytes("abc", 3), hash_bytes("abd", 3));
}
END_TEST

START_TEST(equal_compares_every_byte) {
    ck_assert(hash_equal("abcd", "abcd", 4));
    ck_assert(!hash_equal("abcd", "abce", 4));
    ck_assert(!hash_equal("bbcd", "abcd", 4));
    ck_assert(hash_equal("abcd", "abce", 3));
}
END_TEST

Suite *suite_hash(void) {
    Suite *suite = suite_create("common/hash");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, sha256_matches_fips_180_4);
    tcase_add_test(tc, keyed_hash_matches_the_siphash_128_vector);
    tcase_add_test(tc, plain_hash_matches_the_reference);
    tcase_add_test(tc, equal_compares_every_byte);
    suite_add_tcase(suite, tc);
    return suite;
}
