// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_TOKENIZER_INTERNAL_H
#define CONTROLLER_TEXT_TOKENIZER_INTERNAL_H

#include "common/bounds.h"
#include "controller/text/added_tokens.h"
#include "controller/text/bpe.h"
#include "controller/text/pretokenize.h"
#include "controller/text/tokenizer.h"
#include "controller/text/vocabulary.h"

// What tokenizer.c shares with the two builders (tokenizer_gguf.c, tokenizer_json.c) and with
// nobody else.
//
// Owns, thread, allocates, fails: as tokenizer.h says.

struct affix {
    uint32_t ids[BOUND_AFFIX_TOKENS];
    uint32_t count;
};

struct tokenizer {
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct added_tokens raw;           // matched in the text as it came
    struct added_tokens normalized;    // matched after normalisation
    struct pretokenizer *pre;
    bool nfc;
    struct affix prefix;    // with add_special
    struct affix suffix;
    uint32_t eos[BOUND_EOS_TOKENS];
    uint32_t eos_count;
    uint32_t bos;    // BPE_NO_TOKEN: none
};

struct tokenizer *tokenizer_create(void);    // empty; NULL without memory

// Registers an added token whose bytes are already in the vocabulary; `normalized` says in which
// pass it is matched.
enum status tokenizer_add_token(struct tokenizer *tokenizer, const struct added_token *token,
                                bool normalized, struct error *err) MUST_USE;
enum status affix_push(struct affix *affix, uint32_t id, struct error *err) MUST_USE;

#endif
