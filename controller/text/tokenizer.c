// SPDX-License-Identifier: Apache-2.0
#include "controller/text/tokenizer.h"

#include "common/buf.h"
#include "common/memory.h"
#include "controller/text/normalize.h"
#include "controller/text/tokenizer_internal.h"

// ---- life cycle --------------------------------------------------------------------------------

struct tokenizer *tokenizer_create(void) {
    struct tokenizer *tokenizer = memory_zalloc(sizeof *tokenizer);
    if (tokenizer == NULL) {
        return NULL;
    }
    vocabulary_init(&tokenizer->vocabulary);
    added_tokens_init(&tokenizer->raw);
    added_tokens_init(&tokenizer->normalized);
    tokenizer->bos = BPE_NO_TOKEN;
    tokenizer->pre = pretokenizer_create();
    if (tokenizer->pre == NULL) {
        tokenizer_destroy(tokenizer);
        return NULL;
    }
    return tokenizer;
}

void tokenizer_destroy(struct tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    pretokenizer_destroy(tokenizer->pre);
    added_tokens_deinit(&tokenizer->raw);
    added_tokens_deinit(&tokenizer->normalized);
    bpe_deinit(&tokenizer->bpe);
    vocabulary_deinit(&tokenizer->vocabulary);
    memory_free(tokenizer);
}

// The reference normalises the content of tokens that are matched in normalised text.
static enum status add_normalized(struct tokenizer *tokenizer, const uint8_t *bytes,
                                  size_t byte_count, const struct added_token *token,
                                  struct error *err) {
    struct buf content;
    buf_init(&content, 16 * BOUND_TOKEN_BYTES);
    enum status status = normalize_nfc(bytes, byte_count, &content, err);
    if (status == STATUS_OK) {
        status =
            added_tokens_add(&tokenizer->normalized, content.data, content.bytes_used, token, err);
    }
    buf_deinit(&content);
    return status;
}

enum status tokenizer_add_token(struct tokenizer *tokenizer, const struct added_token *token,
                                bool normalized, struct error *err) {
    size_t byte_count = 0;
    const uint8_t *bytes = vocabulary_bytes(&tokenizer->vocabulary, token->id, &byte_count);
    if (normalized && tokenizer->nfc) {
        return add_normalized(tokenizer, bytes, byte_count, token, err);
    }
    struct added_tokens *pass = normalized ? &tokenizer->normalized : &tokenizer->raw;
    return added_tokens_add(pass, bytes, byte_count, token, err);
}

enum status affix_push(struct affix *affix, uint32_t id, struct error *err) {
    if (affix->count == BOUND_AFFIX_TOKENS) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "the tokenizer puts more than %u tokens around a text",
                         BOUND_AFFIX_TOKENS);
    }
    affix->ids[affix->count++] = id;
    return STATUS_OK;
}

static enum status check_id(const struct tokenizer *tokenizer, uint32_t id, const char *what,
                            struct error *err) {
    if (!tokenizer_has(tokenizer, id)) {
        return error_set(err, STATUS_INVALID, "%s is %u, which is no token of the vocabulary", what,
                         id);
    }
    return STATUS_OK;
}

enum status tokenizer_set_bos(struct tokenizer *tokenizer, uint32_t id, struct error *err) {
    TRY(check_id(tokenizer, id, "the BOS id", err));
    tokenizer->bos = id;
    return STATUS_OK;
}

enum status tokenizer_add_eos(struct tokenizer *tokenizer, uint32_t id, struct error *err) {
    TRY(check_id(tokenizer, id, "a stop id", err));
    if (tokenizer_is_eos(tokenizer, id)) {
        return STATUS_OK;
    }
    if (tokenizer->eos_count == BOUND_EOS_TOKENS) {
        return error_set(err, STATUS_INVALID, "the model has more than %u stop ids",
                         BOUND_EOS_TOKENS);
    }
    tokenizer->eos[tokenizer->eos_count++] = id;
    return STATUS_OK;
}

enum status tokenizer_prefix_bos(struct tokenizer *tokenizer, struct error *err) {
    if (tokenizer->bos == BPE_NO_TOKEN || tokenizer->prefix.count > 0) {
        return STATUS_OK;
    }
    return affix_push(&tokenizer->prefix, tokenizer->bos, err);
}

// ---- encoding ----------------------------------------------------------------------------------

struct encoding {
    const struct tokenizer *tokenizer;
    struct tokenizer_options options;
    struct token_list *out;
};

static enum status encode_word(void *context, const uint8_t *bytes, size_t byte_count,
                               struct error *err) {
    const struct encoding *encoding = context;
    return bpe_word(&encoding->tokenizer->bpe, bytes, byte_count, encoding->out, err);
}

typedef enum status (*encode_fn)(struct encoding *encoding, const uint8_t *bytes, size_t byte_count,
                                 struct error *err);

// Emits the added tokens of one pass and hands everything between them to `rest`.
static enum status encode_around(struct encoding *encoding, const struct added_tokens *added,
                                 const uint8_t *bytes, size_t byte_count, encode_fn rest,
                                 struct error *err) {
    size_t done = 0;
    struct added_match match;
    while (added_tokens_find(added, bytes, byte_count, done, encoding->options.parse_special,
                             &match)) {
        TRY(rest(encoding, bytes + done, match.start - done, err));
        TRY(token_list_push(encoding->out, match.token->id, err));
        done = match.end;
    }
    return rest(encoding, bytes + done, byte_count - done, err);
}

static enum status encode_words(struct encoding *encoding, const uint8_t *bytes, size_t byte_count,
                                struct error *err) {
    return pretokenize_run(encoding->tokenizer->pre, bytes, byte_count, encode_word, encoding, err);
}

static enum status encode_normalized(struct encoding *encoding, const uint8_t *bytes,
                                     size_t byte_count, struct error *err) {
    return encode_around(encoding, &encoding->tokenizer->normalized, bytes, byte_count,
                         encode_words, err);
}

static enum status encode_piece(struct encoding *encoding, const uint8_t *bytes, size_t byte_count,
                                struct error *err) {
    if (byte_count == 0) {
        return STATUS_OK;
    }
    if (!encoding->tokenizer->nfc || normalize_nfc_quick(bytes, byte_count)) {
        return encode_normalized(encoding, bytes, byte_count, err);
    }
    // NFC at most triples a text (UAX #15, table 7: the worst case in UTF-8).
    struct buf composed;
    buf_init(&composed, 3 * byte_count + 64);
    enum status status = normalize_nfc(bytes, byte_count, &composed, err);
    if (status == STATUS_OK) {
        status = encode_normalized(encoding, composed.data, composed.bytes_used, err);
    }
    buf_deinit(&composed);
    return status;
}

static enum status push_affix(struct encoding *encoding, const struct affix *affix,
                              struct error *err) {
    for (uint32_t i = 0; encoding->options.add_special && i < affix->count; i++) {
        TRY(token_list_push(encoding->out, affix->ids[i], err));
    }
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                             struct tokenizer_options options, struct token_list *out,
                             struct error *err) {
    if (byte_count > BOUND_ENCODE_BYTES) {
        return error_set(err, STATUS_INVALID, "a text of %zu bytes is longer than %u", byte_count,
                         BOUND_ENCODE_BYTES);
    }
    struct encoding encoding = {.tokenizer = tokenizer, .options = options, .out = out};
    TRY(push_affix(&encoding, &tokenizer->prefix, err));
    TRY(encode_around(&encoding, &tokenizer->raw, (const uint8_t *)text, byte_count, encode_piece,
                      err));
    return push_affix(&encoding, &tokenizer->suffix, err);
}

// ---- queries -----------------------------------------------------------------------------------

uint32_t tokenizer_vocabulary_tokens(const struct tokenizer *tokenizer) {
    return tokenizer->vocabulary.token_count;
}

bool tokenizer_has(const struct tokenizer *tokenizer, uint32_t id) {
    return vocabulary_has(&tokenizer->vocabulary, id, TOKEN_USED);
}

const uint8_t *tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id,
                                     size_t *byte_count) {
    return vocabulary_bytes(&tokenizer->vocabulary, id, byte_count);
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id) {
    return vocabulary_has(&tokenizer->vocabulary, id, TOKEN_SPECIAL);
}

bool tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                    uint32_t *id) {
    const uint8_t *bytes = (const uint8_t *)text;
    if (added_tokens_exact(&tokenizer->raw, bytes, byte_count, id) ||
        added_tokens_exact(&tokenizer->normalized, bytes, byte_count, id)) {
        return true;
    }
    uint8_t raw[BOUND_TOKEN_BYTES];
    size_t raw_count = 0;
    return byte_count <= sizeof raw && byte_alphabet_decode(text, byte_count, raw, &raw_count) &&
           vocabulary_find(&tokenizer->vocabulary, raw, raw_count, id);
}

bool tokenizer_bos(const struct tokenizer *tokenizer, uint32_t *id) {
    *id = tokenizer->bos;
    return tokenizer->bos != BPE_NO_TOKEN;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer) {
    return tokenizer->prefix.count > 0;
}

const uint32_t *tokenizer_eos(const struct tokenizer *tokenizer, uint32_t *count) {
    *count = tokenizer->eos_count;
    return tokenizer->eos;
}

bool tokenizer_is_eos(const struct tokenizer *tokenizer, uint32_t id) {
    for (uint32_t i = 0; i < tokenizer->eos_count; i++) {
        if (tokenizer->eos[i] == id) {
            return true;
        }
    }
    return false;
}
