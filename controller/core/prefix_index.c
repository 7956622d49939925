// SPDX-License-Identifier: Apache-2.0
#include "controller/core/prefix_index.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

// Open addressing with linear probing over block ids; the keys lie by block. At most half full, so
// a miss looks at two places on average.
struct prefix_index {
    uint32_t blocks_max;
    uint32_t blocks;    // that may have a key
    uint32_t mask;
    uint32_t count;
    uint32_t *place;            // [mask + 1, room for blocks_max] block id, or PREFIX_NONE
    struct prefix_key *keys;    // [blocks_max]
    bool *has_key;              // [blocks_max]
};

static uint32_t places_for(uint32_t blocks) {
    uint32_t places = 2;
    while (places < 2 * (uint64_t)blocks) {
        places *= 2;
    }
    return places;
}

enum status prefix_index_create(uint32_t blocks_max, struct prefix_index **out, struct error *err) {
    struct prefix_index *index = memory_zalloc(sizeof *index);
    if (index == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a prefix index");
    }
    index->blocks_max = blocks_max;
    index->place = memory_array(places_for(blocks_max), sizeof *index->place);
    index->keys = memory_array(blocks_max, sizeof *index->keys);
    index->has_key = memory_array(blocks_max, sizeof *index->has_key);
    if (index->place == NULL || index->keys == NULL || index->has_key == NULL) {
        prefix_index_destroy(index);
        return error_set(err, STATUS_EXHAUSTED, "no memory for the keys of %u blocks", blocks_max);
    }
    prefix_index_reset(index, 0);
    *out = index;
    return STATUS_OK;
}

void prefix_index_destroy(struct prefix_index *index) {
    if (index == NULL) {
        return;
    }
    memory_free(index->place);
    memory_free(index->keys);
    memory_free(index->has_key);
    memory_free(index);
}

static void clear_places(struct prefix_index *index, uint32_t blocks) {
    index->mask = places_for(blocks) - 1;
    memset(index->place, 0xFF, ((size_t)index->mask + 1) * sizeof *index->place);
}

void prefix_index_reset(struct prefix_index *index, uint32_t block_count) {
    INVARIANT(block_count <= index->blocks_max);
    memset(index->has_key, 0, index->blocks * sizeof *index->has_key);
    index->blocks = block_count;
    index->count = 0;
    clear_places(index, block_count);
}

// ---- keys --------------------------------------------------------------------------------------

void prefix_keys(const struct prefix_chain *chain, const int32_t *tokens, uint32_t token_count,
                 uint32_t known, struct prefix_key *out) {
    INVARIANT(chain->block_tokens <= BOUND_BLOCK_TOKENS);
    struct {
        struct hash128 parent;
        uint64_t salt;
        int32_t tokens[BOUND_BLOCK_TOKENS];
    } text = {.salt = chain->salt};
    size_t text_bytes = offsetof(__typeof__(text), tokens) + chain->block_tokens * sizeof(int32_t);
    for (uint32_t i = known; i < token_count / chain->block_tokens; i++) {
        const int32_t *block = tokens + (size_t)i * chain->block_tokens;
        text.parent = i == 0 ? (struct hash128){0} : out[i - 1].hash;
        memcpy(text.tokens, block, chain->block_tokens * sizeof(int32_t));
        out[i] = (struct prefix_key){hash_keyed(chain->secret, &text, text_bytes), block[0],
                                     block[chain->block_tokens - 1]};
    }
}

// ---- places ------------------------------------------------------------------------------------

static bool same_hash(const struct hash128 *a, const struct hash128 *b) {
    return a->low == b->low && a->high == b->high;
}

static uint32_t home_of(const struct prefix_index *index, uint32_t block) {
    return (uint32_t)index->keys[block].hash.low & index->mask;
}

// Where the key's block is, or the free place where it would be.
static uint32_t seek(const struct prefix_index *index, const struct hash128 *hash) {
    uint32_t at = (uint32_t)hash->low & index->mask;
    while (index->place[at] != PREFIX_NONE &&
           !same_hash(&index->keys[index->place[at]].hash, hash)) {
        at = (at + 1) & index->mask;
    }
    return at;
}

uint32_t prefix_index_find(const struct prefix_index *index, const struct prefix_key *key) {
    uint32_t block = index->place[seek(index, &key->hash)];
    if (block == PREFIX_NONE) {
        return PREFIX_NONE;
    }
    const struct prefix_key *found = &index->keys[block];
    bool same = found->first == key->first && found->last == key->last;
    return same ? block : PREFIX_NONE;
}

bool prefix_index_add(struct prefix_index *index, const struct prefix_key *key, uint32_t block) {
    INVARIANT(block < index->blocks);
    INVARIANT(!index->has_key[block]);
    uint32_t at = seek(index, &key->hash);
    if (index->place[at] != PREFIX_NONE) {
        return false;
    }
    index->keys[block] = *key;
    index->has_key[block] = true;
    index->place[at] = block;
    index->count++;
    return true;
}

void prefix_index_grow(struct prefix_index *index, uint32_t block_count) {
    INVARIANT(block_count <= index->blocks_max);
    if (block_count <= index->blocks) {
        return;
    }
    uint32_t before = index->blocks;
    index->blocks = block_count;
    if (places_for(block_count) == index->mask + 1) {
        return;
    }
    clear_places(index, block_count);
    for (uint32_t block = 0; block < before; block++) {
        if (index->has_key[block]) {
            index->place[seek(index, &index->keys[block].hash)] = block;
        }
    }
}

bool prefix_index_has(const struct prefix_index *index, uint32_t block) {
    INVARIANT(block < index->blocks_max);
    return index->has_key[block];
}

// Blocks behind the hole move into it unless that would put them before their home.
static void close_hole(struct prefix_index *index, uint32_t hole) {
    uint32_t at = hole;
    for (;;) {
        at = (at + 1) & index->mask;
        uint32_t block = index->place[at];
        if (block == PREFIX_NONE) {
            break;
        }
        uint32_t home = home_of(index, block);
        if (((at - home) & index->mask) >= ((at - hole) & index->mask)) {
            index->place[hole] = block;
            hole = at;
        }
    }
    index->place[hole] = PREFIX_NONE;
}

void prefix_index_remove(struct prefix_index *index, uint32_t block) {
    INVARIANT(prefix_index_has(index, block));
    uint32_t at = seek(index, &index->keys[block].hash);
    INVARIANT(index->place[at] == block);
    index->has_key[block] = false;
    index->count--;
    close_hole(index, at);
}

void prefix_index_move(struct prefix_index *index, uint32_t from, uint32_t to) {
    INVARIANT(prefix_index_has(index, from));
    INVARIANT(!prefix_index_has(index, to));
    uint32_t at = seek(index, &index->keys[from].hash);
    index->keys[to] = index->keys[from];
    index->has_key[to] = true;
    index->has_key[from] = false;
    index->place[at] = to;
}

uint32_t prefix_index_count(const struct prefix_index *index) {
    return index->count;
}

void prefix_index_audit(const struct prefix_index *index) {
    uint32_t placed = 0, keyed = 0;
    for (uint32_t at = 0; at <= index->mask; at++) {
        uint32_t block = index->place[at];
        if (block != PREFIX_NONE) {
            INVARIANT(index->has_key[block]);
            INVARIANT(seek(index, &index->keys[block].hash) == at);
            placed++;
        }
    }
    for (uint32_t block = 0; block < index->blocks; block++) {
        keyed += index->has_key[block] ? 1 : 0;
    }
    INVARIANT(placed == index->count);
    INVARIANT(keyed == index->count);
}
