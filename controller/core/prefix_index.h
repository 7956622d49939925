// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_PREFIX_INDEX_H
#define CONTROLLER_CORE_PREFIX_INDEX_H

#include "common/hash.h"
#include "common/status.h"
#include <stdbool.h>
#include <stdint.h>

// Which block holds the KV of which run of tokens.
//
// The idea: a full block is known by a key that covers its own tokens and, through the key of the
// block before it, all tokens before; a salt at the head of the chain keeps tenants apart. Keys are
// 128 bits of a keyed hash, so nobody can aim for a collision, and the first and last token of a
// block are kept beside it, so that even one that happens by chance is seen in most cases. A key
// belongs to one block and a block has one key.
//
//   Owns       its tables.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      never after create: there is room for a key of every block.

struct prefix_index;

struct prefix_key {
    struct hash128 hash;
    int32_t first, last;    // tokens of the block
};

#define PREFIX_NONE UINT32_MAX    // no such block

enum status prefix_index_create(uint32_t blocks_max, struct prefix_index **out,
                                struct error *err) MUST_USE;
void prefix_index_destroy(struct prefix_index *index);    // accepts NULL
// No keys; blocks 0 .. block_count - 1 may get one. Memory is touched only as far as that.
void prefix_index_reset(struct prefix_index *index, uint32_t block_count);
void prefix_index_grow(struct prefix_index *index, uint32_t block_count);    // keys stay

// Keys of the full blocks of `tokens`: out[token_count / block_tokens]. The first `known` of them
// are there already and are continued. `secret` is the deployment's, `salt` the tenant's.
struct prefix_chain {
    const uint8_t *secret;    // [HASH_KEY_BYTES]
    uint64_t salt;
    uint32_t block_tokens;    // at most BOUND_BLOCK_TOKENS
};
void prefix_keys(const struct prefix_chain *chain, const int32_t *tokens, uint32_t token_count,
                 uint32_t known, struct prefix_key *out);

uint32_t prefix_index_find(const struct prefix_index *index, const struct prefix_key *key);
// False when another block has the key: the first one keeps it.
bool prefix_index_add(struct prefix_index *index, const struct prefix_key *key, uint32_t block);
bool prefix_index_has(const struct prefix_index *index, uint32_t block);
void prefix_index_remove(struct prefix_index *index,
                         uint32_t block);    // of a block that has a key
// The contents of `from`, which has a key, are in `to` now, which has none.
void prefix_index_move(struct prefix_index *index, uint32_t from, uint32_t to);
uint32_t prefix_index_count(const struct prefix_index *index);

// Tests: every key is found where it is, and nothing else is there.
void prefix_index_audit(const struct prefix_index *index);

#endif
