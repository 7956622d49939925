// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

// Plain hashing of bytes for in-memory tables; the door to xxhash.
//
// The idea: one fast 64-bit hash, the same on every machine. It is not keyed: tables whose keys a
// client may choose need the keyed hash, tables filled from a model's own files do not.
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

#endif
