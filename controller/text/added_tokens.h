// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_ADDED_TOKENS_H
#define CONTROLLER_TEXT_ADDED_TOKENS_H

#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Finds added tokens (control tokens, tool tags, runs of spaces ...) in a text.
//
// The idea: a byte trie; at each place where some token may begin it is walked as deep as it goes
// and the longest token wins, so matches are leftmost-longest. A match that its flags rule out
// hides shorter ones at the same place, as in the reference (Hugging Face tokenizers,
// AddedVocabulary).
//
//   Owns       the trie.
//   Thread     any number of readers once built.
//   Allocates  while tokens are added.
//   Fails      CORRUPT for an empty token, EXHAUSTED.

struct added_token {
    uint32_t id;
    bool special;
    bool single_word;    // neither neighbour may be a word character
    bool lstrip;         // takes the whitespace before it along
    bool rstrip;         // and after it
};

struct added_node {
    uint32_t child;    // first child, 0: none
    uint32_t next;     // next sibling, 0: none
    uint32_t token;    // index + 1 of the token that ends here, 0: none
    uint8_t byte;
};

struct added_tokens {
    struct added_node *nodes;    // nodes[0] is the root
    size_t node_count;
    size_t nodes_allocated;
    struct added_token *tokens;
    size_t token_count;
    size_t tokens_allocated;
    uint32_t first[256];    // root's children by byte, 0: none
};

// Where a match lies and which token it is.
struct added_match {
    size_t start;    // bytes from the start of the text, stripped whitespace included
    size_t end;
    const struct added_token *token;
};

void added_tokens_init(struct added_tokens *added);
void added_tokens_deinit(struct added_tokens *added);

// A second token with the same bytes replaces the first.
enum status added_tokens_add(struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                             const struct added_token *token, struct error *err) MUST_USE;

// The first match at or after `from`; false when there is none. Without `parse_special` tokens
// that are special are passed over and stay text.
bool added_tokens_find(const struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                       size_t from, bool parse_special, struct added_match *match);

// The token with exactly these bytes.
bool added_tokens_exact(const struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                        uint32_t *id);

#endif
