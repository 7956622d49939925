// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Hashing: one function per purpose; the door to xxhash and, for hashes, to libsodium.
//
// The idea: one fast 64-bit hash for tables filled from a model's own files, the same on every
// machine; a keyed one for tables whose keys a client may choose (prefix keys between tenants); and
// SHA-256 for secrets that are kept (API keys).
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

uint64_t hash_bytes(const void *bytes, size_t byte_count);

// Spreads a 64-bit key (token pairs, ids) over 64 bits.
// Formula: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
static inline uint64_t hash_u64(uint64_t key) {
    key += 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    return key ^ (key >> 31);
}

enum { HASH_SHA256_BYTES = 32, HASH_KEY_BYTES = 16 };

// FIPS 180-4.
void hash_sha256(const void *bytes, size_t byte_count, uint8_t out[HASH_SHA256_BYTES]);

struct hash128 {
    uint64_t low, high;
};
// SipHash-2-4 with 128 bits of output; without the key nobody can aim for a collision.
struct hash128 hash_keyed(const uint8_t key[HASH_KEY_BYTES], const void *bytes, size_t byte_count);

// Takes the same time wherever the first difference lies.
bool hash_equal(const void *a, const void *b, size_t byte_count);

#endif
