// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_BPE_H
#define CONTROLLER_TEXT_BPE_H

#include "common/status.h"
#include "controller/text/vocabulary.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Byte-level byte-pair encoding of one word (Sennrich et al. 2016; Radford et al. 2019).
//
// The idea: start with one symbol per byte; merge the adjacent pair of lowest rank, the leftmost
// among equals, until no pair is in the table. Words up to BPE_SHORT symbols rescan a small array;
// longer ones use a linked list and a heap of (rank, position), so a megabyte in one word costs
// n log n. Most words of real text are one token: whether a token's own bytes merge back into it
// is found out once per token and remembered, and then a word costs one hash lookup.
//
//   Owns       the merge table and the memory of whole words; keeps `vocabulary`, which must
//              outlive it.
//   Thread     any number at once (the memory of whole words is a relaxed atomic whose value does
//              not depend on who computes it).
//   Allocates  the table; bpe_word only for words above BPE_SHORT bytes.
//   Fails      CORRUPT for a merge whose parts or result are no tokens; EXHAUSTED.

enum { BPE_SHORT = 64 };

struct bpe_slot {
    uint64_t pair;    // left id << 32 | right id
    uint32_t rank;    // UINT32_MAX: free
    uint32_t merged;
};

struct bpe {
    const struct vocabulary *vocabulary;
    struct bpe_slot *slots;    // at most half full
    uint32_t slot_mask;
    uint32_t symbols_max;        // most bytes that one token can be merged from
    uint32_t byte_token[256];    // BPE_NO_TOKEN where the vocabulary has none
    uint32_t unknown;            // for bytes without a token; BPE_NO_TOKEN: they are dropped
    bool fuse_unknown;           // neighbouring unknowns become one
    bool ignore_merges;          // a word that is a token is that token, reachable or not
    atomic_uchar *whole;         // [token_count] 0 not known, 1 its bytes merge into it, 2 not
};

#define BPE_NO_TOKEN UINT32_MAX

// A list of ids with a cap: what encoding produces.
struct token_list {
    uint32_t *ids;
    size_t count;
    size_t allocated;
    size_t count_max;
};

void token_list_init(struct token_list *list, size_t count_max);
void token_list_deinit(struct token_list *list);
// INVALID past the cap ("more than N tokens"), EXHAUSTED without memory.
enum status token_list_push(struct token_list *list, uint32_t id, struct error *err) MUST_USE;

// `vocabulary` is sealed. At most `merge_count` merges will be added.
enum status bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, size_t merge_count,
                     struct error *err) MUST_USE;
void bpe_deinit(struct bpe *bpe);

// Adds the merge of rank `rank` (its line in the file) from alphabet spelling; a later merge of the
// same pair replaces an earlier one.
enum status bpe_add_merge(struct bpe *bpe, uint32_t rank, const char *left, size_t left_bytes,
                          const char *right, size_t right_bytes, struct error *err) MUST_USE;

// Appends the tokens of one word (1 .. BOUND_ENCODE_BYTES bytes). A word that cannot fit under the
// list's cap is refused (INVALID) before it is merged.
enum status bpe_word(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count,
                     struct token_list *out, struct error *err) MUST_USE;

#endif
