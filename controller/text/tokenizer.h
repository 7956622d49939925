// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TOKENIZER_H
#define CONTROLLER_TEXT_TOKENIZER_H

#include "common/gguf.h"
#include "common/json.h"
#include "common/status.h"
#include "controller/text/bpe.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Text to token ids and back: byte-level BPE as the model's files describe it.
//
// The idea: one pipeline for every family, filled from the files and never from a family's name:
// added tokens are cut out first, the rest is normalised (NFC where the model asks), cut into words
// (pretokenize.h), and each word is merged (bpe.h). Ids equal those of the reference (Hugging Face
// tokenizers) for every valid text.
//
// Broken UTF-8, which the reference cannot be given: every broken byte is a character of no class
// and is encoded as its byte token, so decoding gives the very bytes back. Bytes for which the
// vocabulary has no token are dropped, or become the unknown token where the model names one.
//
//   Owns       all tables; nothing of `gguf` or `json` is kept, so both may go after the build.
//   Thread     any number at once after the build.
//   Allocates  in the build; encoding allocates work memory in proportion to the text.
//   Fails      build: CORRUPT for files that contradict themselves, UNSUPPORTED for a kind of
//              tokenizer that is not built; encode: INVALID past the list's cap, EXHAUSTED.

struct tokenizer;

struct tokenizer_options {
    bool add_special;      // put BOS (and what else the model wants) around the text
    bool parse_special;    // control tokens spelled out in the text become control tokens. Off for
                           // text of users; tags that are not special are matched all the same
};

// ---- life cycle --------------------------------------------------------------------------------

// From the metadata of a GGUF file (`tokenizer.ggml.*`), with BOS and the stop set.
enum status tokenizer_from_gguf(const struct gguf *gguf, struct tokenizer **out,
                                struct error *err) MUST_USE;
// From the root of a tokenizer.json. That file names no BOS and no stop ids: the caller adds them.
enum status tokenizer_from_json(const struct json *root, struct tokenizer **out,
                                struct error *err) MUST_USE;
void tokenizer_destroy(struct tokenizer *tokenizer);    // accepts NULL

// While building only. An id that does not exist is INVALID, so is a ninth stop id.
enum status tokenizer_set_bos(struct tokenizer *tokenizer, uint32_t id, struct error *err) MUST_USE;
enum status tokenizer_add_eos(struct tokenizer *tokenizer, uint32_t id, struct error *err) MUST_USE;
// Encoding with add_special puts BOS first, if there is one and it does not do so already: what
// `add_bos_token` in a tokenizer_config.json asks for.
enum status tokenizer_prefix_bos(struct tokenizer *tokenizer, struct error *err) MUST_USE;

// ---- actions -----------------------------------------------------------------------------------

// Appends the ids of `text` to `out`, whose cap it respects (token_list_init in bpe.h). Text out of
// a chat template is encoded without add_special: templates write BOS themselves.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                             struct tokenizer_options options, struct token_list *out,
                             struct error *err) MUST_USE;

// ---- queries -----------------------------------------------------------------------------------

// Highest id + 1. There may be holes, and the model's matrix may have more rows.
uint32_t tokenizer_vocabulary_tokens(const struct tokenizer *tokenizer);
bool tokenizer_has(const struct tokenizer *tokenizer, uint32_t id);
// The raw bytes of one token: often a part of a character. NULL for an id that does not exist.
const uint8_t *tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id,
                                     size_t *byte_count);
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);
// The token that a configuration file names ("<|im_end|>").
bool tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                    uint32_t *id);

bool tokenizer_bos(const struct tokenizer *tokenizer, uint32_t *id);    // false: the model has none
// What encoding with add_special puts first; BOS or nothing in every family here.
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
const uint32_t *tokenizer_eos(const struct tokenizer *tokenizer,
                              uint32_t *count);    // the stop set
bool tokenizer_is_eos(const struct tokenizer *tokenizer, uint32_t id);

#endif
