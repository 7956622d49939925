// SPDX-License-Identifier: Apache-2.0
#include "common/hash.h"

#include <sodium.h>
#include <string.h>

#define XXH_INLINE_ALL    // small keys dominate: saves the call
#include <xxhash.h>

_Static_assert(HASH_SHA256_BYTES == crypto_hash_sha256_BYTES, "digest size");
_Static_assert(HASH_KEY_BYTES == crypto_shorthash_siphashx24_KEYBYTES, "key size");
_Static_assert(sizeof(struct hash128) == crypto_shorthash_siphashx24_BYTES, "keyed hash size");

uint64_t hash_bytes(const void *bytes, size_t byte_count) {
    return XXH3_64bits(bytes, byte_count);
}

void hash_sha256(const void *bytes, size_t byte_count, uint8_t out[HASH_SHA256_BYTES]) {
    crypto_hash_sha256(out, bytes, byte_count);
}

struct hash128 hash_keyed(const uint8_t key[HASH_KEY_BYTES], const void *bytes, size_t byte_count) {
    uint8_t digest[crypto_shorthash_siphashx24_BYTES];
    crypto_shorthash_siphashx24(digest, bytes, byte_count, key);
    struct hash128 result;
    memcpy(&result, digest, sizeof result);
    return result;
}

bool hash_equal(const void *a, const void *b, size_t byte_count) {
    return sodium_memcmp(a, b, byte_count) == 0;
}
