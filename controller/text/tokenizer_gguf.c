// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from GGUF metadata. Keys and their meaning: the GGUF specification of the ggml
// project; token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
#include "controller/text/tokenizer.h"

#include "controller/text/tokenizer_internal.h"
#include <string.h>

enum {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};

// ---- pre-tokenizers by name --------------------------------------------------------------------

// What the file leaves out: the pattern, and what follows from it in the original tokenizer.json.
struct pre_row {
    const char *name;
    enum pretokenize_rule rules[2];    // COUNT: none
    bool deepseek;                     // the three patterns below instead
    bool ignore_merges;
    bool nfc;
    bool bos_by_default;    // where tokenizer.ggml.add_bos_token is missing
};

#define NO_RULE PRETOKENIZE_RULE_COUNT

static const struct pre_row pre_rows[] = {
    {"gpt-2", {PRETOKENIZE_GPT2, NO_RULE}, false, false, false, false},
    {"smollm", {PRETOKENIZE_DIGIT, PRETOKENIZE_GPT2}, false, false, false, false},
    {"starcoder", {PRETOKENIZE_DIGIT, PRETOKENIZE_GPT2}, false, false, false, false},
    {"refact", {PRETOKENIZE_DIGIT, PRETOKENIZE_GPT2}, false, false, false, false},
    {"command-r", {PRETOKENIZE_DIGIT, PRETOKENIZE_GPT2}, false, false, false, false},
    {"llama-bpe", {PRETOKENIZE_LLAMA3, NO_RULE}, false, true, false, true},
    {"llama3", {PRETOKENIZE_LLAMA3, NO_RULE}, false, true, false, true},
    {"llama-v3", {PRETOKENIZE_LLAMA3, NO_RULE}, false, true, false, true},
    {"glm4", {PRETOKENIZE_LLAMA3, NO_RULE}, false, true, false, false},
    {"chatglm-bpe", {PRETOKENIZE_LLAMA3, NO_RULE}, false, true, false, false},
    {"qwen2", {PRETOKENIZE_QWEN2, NO_RULE}, false, false, true, false},
    {"deepseek-r1-qwen", {PRETOKENIZE_QWEN2, NO_RULE}, false, false, true, false},
    {"qwen35", {PRETOKENIZE_QWEN35, NO_RULE}, false, false, true, false},
    {"deepseek-v3", {NO_RULE, NO_RULE}, true, false, false, true},
};

static const char *const deepseek_patterns[] = {
    "\\p{N}{1,3}",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

static enum status find_pre(const struct gguf *gguf, const struct pre_row **out,
                            struct error *err) {
    struct gguf_text name = {.bytes = "", .byte_count = 0};
    bool found = false;
    TRY(gguf_get_string(gguf, "tokenizer.ggml.pre", &name, &found, err));
    for (size_t i = 0; i < sizeof pre_rows / sizeof pre_rows[0]; i++) {
        if (strlen(pre_rows[i].name) == name.byte_count &&
            memcmp(pre_rows[i].name, name.bytes, name.byte_count) == 0) {
            *out = &pre_rows[i];
            return STATUS_OK;
        }
    }
    int shown = name.byte_count > 64 ? 64 : (int)name.byte_count;
    error_set(err, STATUS_UNSUPPORTED, "the pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not known",
              shown, name.bytes);
    error_hint(err, "serve the model's Hugging Face directory instead: its tokenizer.json spells "
                    "the pattern out");
    return STATUS_UNSUPPORTED;
}

static enum status build_pre(struct tokenizer *tokenizer, const struct pre_row *row,
                             struct error *err) {
    for (size_t i = 0; i < 2 && row->rules[i] != NO_RULE; i++) {
        TRY(pretokenizer_add_rule(tokenizer->pre, row->rules[i], err));
    }
    for (size_t i = 0; row->deepseek && i < 3; i++) {
        TRY(pretokenizer_add_regex(tokenizer->pre, deepseek_patterns[i],
                                   strlen(deepseek_patterns[i]), false, err));
    }
    tokenizer->nfc = row->nfc;
    return STATUS_OK;
}

// ---- tokens and merges -------------------------------------------------------------------------

static enum status add_one(struct tokenizer *tokenizer, uint32_t id, struct gguf_text text,
                           int64_t type, struct error *err) {
    switch (type) {
    case GGUF_TOKEN_NORMAL:
    case GGUF_TOKEN_BYTE:
        return vocabulary_set_spelled(&tokenizer->vocabulary, id, text.bytes, text.byte_count, 0,
                                      err);
    case GGUF_TOKEN_UNUSED:    // a row of the matrix that nothing can produce or mean
        return vocabulary_extend(&tokenizer->vocabulary, id + 1, err);
    case GGUF_TOKEN_UNKNOWN:
    case GGUF_TOKEN_CONTROL:
    case GGUF_TOKEN_USER_DEFINED: {
        struct added_token added = {.id = id, .special = type != GGUF_TOKEN_USER_DEFINED};
        uint8_t flags = (uint8_t)(TOKEN_ADDED | (added.special ? TOKEN_SPECIAL : 0));
        // Spelled as plain text. Merges may name it all the same, so it stays findable if its text
        // happens to be alphabet too; printable ASCII is spelled alike in both.
        uint8_t raw[BOUND_TOKEN_BYTES];
        size_t raw_count = 0;
        bool coded = text.byte_count <= sizeof raw &&
                     byte_alphabet_decode(text.bytes, text.byte_count, raw, &raw_count) &&
                     raw_count == text.byte_count && memcmp(raw, text.bytes, raw_count) == 0;
        TRY(vocabulary_set(&tokenizer->vocabulary, id, (const uint8_t *)text.bytes, text.byte_count,
                           (uint8_t)(flags | (coded ? TOKEN_CODED : 0)), err));
        return text.byte_count == 0 ? STATUS_OK
                                    : tokenizer_add_token(tokenizer, &added, false, err);
    }
    default:
        return error_set(err, STATUS_CORRUPT, "token %u has type %lld (tokenizer.ggml.token_type)",
                         id, (long long)type);
    }
}

static enum status add_tokens(struct tokenizer *tokenizer, const struct gguf *gguf,
                              struct error *err) {
    struct gguf_array tokens;
    struct gguf_array types = {0};
    bool has_types = false;
    TRY(gguf_get_array(gguf, "tokenizer.ggml.tokens", &tokens, NULL, err));
    TRY(gguf_get_array(gguf, "tokenizer.ggml.token_type", &types, &has_types, err));
    if (has_types && types.count != tokens.count) {
        return error_set(err, STATUS_CORRUPT,
                         "tokenizer.ggml.token_type has %llu entries for %llu tokens",
                         (unsigned long long)types.count, (unsigned long long)tokens.count);
    }
    if (tokens.count == 0 || tokens.count > BOUND_VOCABULARY_TOKENS) {
        return error_set(err, STATUS_CORRUPT, "the vocabulary has %llu tokens; 1 to %u are allowed",
                         (unsigned long long)tokens.count, BOUND_VOCABULARY_TOKENS);
    }
    for (uint32_t id = 0; id < tokens.count; id++) {
        struct gguf_text text;
        int64_t type = GGUF_TOKEN_NORMAL;
        if (!gguf_array_string(&tokens, &text) || (has_types && !gguf_array_i64(&types, &type))) {
            return error_set(err, STATUS_CORRUPT,
                             "tokenizer.ggml.tokens must hold strings, and token_type integers");
        }
        TRY(add_one(tokenizer, id, text, type, err));
    }
    return vocabulary_seal(&tokenizer->vocabulary, err);
}

static enum status add_merges(struct tokenizer *tokenizer, const struct gguf *gguf,
                              struct error *err) {
    struct gguf_array merges;
    TRY(gguf_get_array(gguf, "tokenizer.ggml.merges", &merges, NULL, err));
    TRY(bpe_init(&tokenizer->bpe, &tokenizer->vocabulary, merges.count, err));
    for (uint32_t rank = 0; rank < merges.count; rank++) {
        struct gguf_text text;
        const char *space = NULL;
        if (gguf_array_string(&merges, &text)) {
            space = memchr(text.bytes, ' ', text.byte_count);
        }
        if (space == NULL) {
            return error_set(err, STATUS_CORRUPT,
                             "tokenizer.ggml.merges entry %u is not 'left right'", rank);
        }
        size_t left = (size_t)(space - text.bytes);
        TRY(bpe_add_merge(&tokenizer->bpe, rank, text.bytes, left, space + 1,
                          text.byte_count - left - 1, err));
    }
    return STATUS_OK;
}

// ---- special ids -------------------------------------------------------------------------------

// Control tokens that end a turn in the families we know; files often name only one of them.
static const char *const turn_ends[] = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>",
                                        "<|endoftext|>"};
static const char *const turn_ends_glm[] = {"<|user|>", "<|observation|>"};

static enum status add_eos_by_name(struct tokenizer *tokenizer, const char *name,
                                   struct error *err) {
    uint32_t id = 0;
    if (!tokenizer_find(tokenizer, name, strlen(name), &id) ||
        !tokenizer_is_special(tokenizer, id)) {
        return STATUS_OK;
    }
    return tokenizer_add_eos(tokenizer, id, err);
}

static enum status add_eos(struct tokenizer *tokenizer, const struct gguf *gguf,
                           const struct pre_row *row, struct error *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = 0;
        bool found = false;
        TRY(gguf_get_u32(gguf, keys[i], &id, &found, err));
        if (found) {
            TRY(tokenizer_add_eos(tokenizer, id, err));
        }
    }
    for (size_t i = 0; i < sizeof turn_ends / sizeof turn_ends[0]; i++) {
        TRY(add_eos_by_name(tokenizer, turn_ends[i], err));
    }
    bool glm = strcmp(row->name, "glm4") == 0;
    for (size_t i = 0; glm && i < sizeof turn_ends_glm / sizeof turn_ends_glm[0]; i++) {
        TRY(add_eos_by_name(tokenizer, turn_ends_glm[i], err));
    }
    return STATUS_OK;
}

static enum status add_special(struct tokenizer *tokenizer, const struct gguf *gguf,
                               const struct pre_row *row, struct error *err) {
    uint32_t bos = 0;
    bool found = false;
    TRY(gguf_get_u32(gguf, "tokenizer.ggml.bos_token_id", &bos, &found, err));
    bool has_bos = found;
    if (has_bos) {
        TRY(tokenizer_set_bos(tokenizer, bos, err));
    }
    bool add_bos = row->bos_by_default;
    bool add_eos_token = false;
    TRY(gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", &add_bos, &found, err));
    TRY(gguf_get_bool(gguf, "tokenizer.ggml.add_eos_token", &add_eos_token, &found, err));
    if (add_bos && has_bos) {
        TRY(affix_push(&tokenizer->prefix, bos, err));
    }
    uint32_t eos = 0;
    TRY(gguf_get_u32(gguf, "tokenizer.ggml.eos_token_id", &eos, &found, err));
    if (add_eos_token && found) {
        TRY(affix_push(&tokenizer->suffix, eos, err));
    }
    return add_eos(tokenizer, gguf, row, err);
}

static enum status build(struct tokenizer *tokenizer, const struct gguf *gguf, struct error *err) {
    struct gguf_text model;
    TRY(gguf_get_string(gguf, "tokenizer.ggml.model", &model, NULL, err));
    if (model.byte_count != 4 || memcmp(model.bytes, "gpt2", 4) != 0) {
        int shown = model.byte_count > 64 ? 64 : (int)model.byte_count;
        return error_set(err, STATUS_UNSUPPORTED,
                         "the tokenizer is of kind '%.*s' (tokenizer.ggml.model); only byte-level "
                         "BPE ('gpt2') is supported",
                         shown, model.bytes);
    }
    const struct pre_row *row = NULL;
    TRY(find_pre(gguf, &row, err));
    TRY(build_pre(tokenizer, row, err));
    TRY(add_tokens(tokenizer, gguf, err));
    TRY(add_merges(tokenizer, gguf, err));
    tokenizer->bpe.ignore_merges = row->ignore_merges;
    return add_special(tokenizer, gguf, row, err);
}

enum status tokenizer_from_gguf(const struct gguf *gguf, struct tokenizer **out,
                                struct error *err) {
    struct tokenizer *tokenizer = tokenizer_create();
    if (tokenizer == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a tokenizer");
    }
    enum status status = build(tokenizer, gguf, err);
    if (status != STATUS_OK) {
        tokenizer_destroy(tokenizer);
        return status;
    }
    *out = tokenizer;
    return STATUS_OK;
}
