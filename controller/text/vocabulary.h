// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_VOCABULARY_H
#define CONTROLLER_TEXT_VOCABULARY_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The tokens of a model: id to raw bytes, and back.
//
// The idea: files spell tokens in a printable alphabet, one code point per byte; they are decoded
// once, on entry, and everything later works on raw bytes. Only tokens that are wholly spelled in
// the alphabet can come out of BPE ("coded"); added tokens are plain text and found by matching.
//
// Alphabet (GPT-2, Radford et al. 2019, encoder.py): bytes 0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF are
// the code points of the same value; the other 68, in rising order, are U+0100, U+0101, ...
//
//   Owns       the bytes and the tables.
//   Thread     any number of readers once sealed.
//   Allocates  while tokens are set, and in vocabulary_seal.
//   Fails      CORRUPT past BOUND_TOKEN_BYTES or BOUND_VOCABULARY_TOKENS; EXHAUSTED.

enum token_flag {
    TOKEN_USED = 1,       // the id exists
    TOKEN_CODED = 2,      // spelled in the byte alphabet: may come out of BPE
    TOKEN_ADDED = 4,      // found by matching in the text, before BPE
    TOKEN_SPECIAL = 8,    // control token: skipped by decoding, never made from a user's text
};

struct token {
    uint32_t offset;    // into the bytes
    uint16_t byte_count;
    uint8_t flags;    // enum token_flag
};

struct vocabulary_slot {
    uint32_t hash;
    uint32_t id_plus_one;    // 0: free
};

struct vocabulary {
    struct token *tokens;    // [token_count]
    uint32_t token_count;    // highest id + 1
    uint32_t allocated;
    struct buf bytes;
    struct vocabulary_slot *slots;    // coded tokens by bytes; at most half full
    uint32_t slot_mask;
};

void vocabulary_init(struct vocabulary *vocabulary);
void vocabulary_deinit(struct vocabulary *vocabulary);

// Sets or replaces token `id`. `bytes` are raw, not alphabet-coded.
enum status vocabulary_set(struct vocabulary *vocabulary, uint32_t id, const uint8_t *bytes,
                           size_t byte_count, uint8_t flags, struct error *err) MUST_USE;
// The same from the file's spelling: decoded and TOKEN_CODED if it is all alphabet, else as it is.
enum status vocabulary_set_spelled(struct vocabulary *vocabulary, uint32_t id, const char *text,
                                   size_t byte_count, uint8_t flags, struct error *err) MUST_USE;
// Makes ids 0 .. count-1 part of the vocabulary; those never set are holes without bytes.
enum status vocabulary_extend(struct vocabulary *vocabulary, uint32_t count,
                              struct error *err) MUST_USE;
// Builds the table for vocabulary_find; of two coded tokens with the same bytes the later id wins.
enum status vocabulary_seal(struct vocabulary *vocabulary, struct error *err) MUST_USE;

// The coded token with exactly these bytes.
bool vocabulary_find(const struct vocabulary *vocabulary, const uint8_t *bytes, size_t byte_count,
                     uint32_t *id);
// NULL for an id that does not exist.
const uint8_t *vocabulary_bytes(const struct vocabulary *vocabulary, uint32_t id,
                                size_t *byte_count);
bool vocabulary_has(const struct vocabulary *vocabulary, uint32_t id, uint8_t flag);

// Decodes alphabet spelling into `out` (at least byte_count bytes); false if a code point is not of
// the alphabet. Also used for the two halves of a merge.
bool byte_alphabet_decode(const char *text, size_t byte_count, uint8_t *out, size_t *out_count);
// The spelling of one byte; returns 1 or 2.
uint32_t byte_alphabet_encode(uint8_t byte, uint8_t out[2]);

#endif
