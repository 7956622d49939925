// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from a tokenizer.json. Format: the serialisation of Hugging Face tokenizers.
#include "controller/text/tokenizer.h"

#include "common/buf.h"
#include "controller/text/tokenizer_internal.h"
#include <string.h>

struct text {
    const char *bytes;
    size_t byte_count;
};

static struct text text_of(const struct json *value) {
    struct text text = {.bytes = "", .byte_count = 0};
    const char *bytes = json_text(value, &text.byte_count);
    text.bytes = bytes != NULL ? bytes : "";
    return text;
}

static bool equals(struct text text, const char *word) {
    return text.byte_count == strlen(word) && memcmp(text.bytes, word, text.byte_count) == 0;
}

static struct text type_of(const struct json *object) {
    return text_of(json_kind(object) == JSON_KIND_OBJECT ? json_get(object, "type") : NULL);
}

// "pre_tokenizer of type 'X' is not supported"
static enum status unsupported(const char *what, struct text type, struct error *err) {
    int shown = type.byte_count > 64 ? 64 : (int)type.byte_count;
    return error_set(err, STATUS_UNSUPPORTED, "%s of type '%.*s' is not supported", what, shown,
                     type.bytes);
}

static enum status flag(const struct json *object, const char *key, bool fallback, bool *out,
                        struct error *err) {
    bool found = false;
    *out = fallback;
    return json_field_bool(object, key, out, &found, err);
}

// A step that may be one object or a {"type": "Sequence", KEY: [..]} of them.
typedef enum status (*step_fn)(struct tokenizer *tokenizer, const struct json *step,
                               struct error *err);

static enum status for_each_step(struct tokenizer *tokenizer, const struct json *value,
                                 const char *key, step_fn fn, struct error *err) {
    if (json_absent(value)) {
        return STATUS_OK;
    }
    if (!equals(type_of(value), "Sequence")) {
        return fn(tokenizer, value, err);
    }
    const struct json *steps = json_get(value, key);
    for (size_t i = 0; json_kind(steps) == JSON_KIND_ARRAY && i < json_count(steps); i++) {
        TRY(fn(tokenizer, json_at(steps, i), err));
    }
    return STATUS_OK;
}

// ---- normalizer and pre-tokenizer --------------------------------------------------------------

static enum status add_normalizer(struct tokenizer *tokenizer, const struct json *step,
                                  struct error *err) {
    struct text type = type_of(step);
    if (!equals(type, "NFC")) {
        return unsupported("a normalizer", type, err);
    }
    tokenizer->nfc = true;
    return STATUS_OK;
}

// A literal pattern as a regular expression: every ASCII sign escaped.
static enum status add_literal(struct tokenizer *tokenizer, struct text literal, bool matches_only,
                               struct error *err) {
    struct buf pattern;
    buf_init(&pattern, BOUND_REGEX_BYTES);
    for (size_t i = 0; i < literal.byte_count; i++) {
        unsigned char c = (unsigned char)literal.bytes[i];
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                     (c >= 'a' && c <= 'z') || c < 0x20;
        buf_append_str(&pattern, plain ? "" : "\\");
        buf_append_byte(&pattern, c);
    }
    enum status status = buf_status(&pattern);
    if (status != STATUS_OK) {
        error_set(err, STATUS_UNSUPPORTED, "a pre-tokenizer pattern is longer than %u bytes",
                  BOUND_REGEX_BYTES);
        status = STATUS_UNSUPPORTED;
    } else {
        status = pretokenizer_add_regex(tokenizer->pre, buf_cstr(&pattern), pattern.bytes_used,
                                        matches_only, err);
    }
    buf_deinit(&pattern);
    return status;
}

static enum status add_split(struct tokenizer *tokenizer, const struct json *step,
                             struct error *err) {
    bool invert = false;
    TRY(flag(step, "invert", false, &invert, err));
    struct text behavior = text_of(json_get(step, "behavior"));
    bool matches_only = equals(behavior, "Removed") && invert;
    if (!equals(behavior, "Isolated") && !matches_only) {
        return unsupported("a Split pre-tokenizer with behavior", behavior, err);
    }
    const struct json *pattern = json_get(step, "pattern");
    struct text regex = text_of(json_get(pattern, "Regex"));
    struct text literal = text_of(json_get(pattern, "String"));
    if (regex.byte_count > 0) {
        return pretokenizer_add_regex(tokenizer->pre, regex.bytes, regex.byte_count, matches_only,
                                      err);
    }
    if (literal.byte_count > 0) {
        return add_literal(tokenizer, literal, matches_only, err);
    }
    return error_set(err, STATUS_CORRUPT, "a Split pre-tokenizer has no pattern");
}

static enum status add_pre_tokenizer(struct tokenizer *tokenizer, const struct json *step,
                                     struct error *err) {
    struct text type = type_of(step);
    if (equals(type, "Split")) {
        return add_split(tokenizer, step, err);
    }
    if (equals(type, "Digits")) {
        bool one_by_one = false;
        TRY(flag(step, "individual_digits", false, &one_by_one, err));
        return pretokenizer_add_rule(tokenizer->pre,
                                     one_by_one ? PRETOKENIZE_DIGIT : PRETOKENIZE_DIGITS, err);
    }
    if (equals(type, "ByteLevel")) {
        bool prefix_space = true;
        bool use_regex = true;
        TRY(flag(step, "add_prefix_space", true, &prefix_space, err));
        TRY(flag(step, "use_regex", true, &use_regex, err));
        if (prefix_space) {
            TRY(pretokenizer_add_prefix_space(tokenizer->pre, err));
        }
        return use_regex ? pretokenizer_add_rule(tokenizer->pre, PRETOKENIZE_GPT2, err) : STATUS_OK;
    }
    return unsupported("a pre-tokenizer", type, err);
}

// Without a ByteLevel step the vocabulary is spelled in another way (SentencePiece), and every
// lookup would silently fail.
static enum status check_byte_level(const struct json *pre, struct error *err) {
    bool byte_level = equals(type_of(pre), "ByteLevel");
    const struct json *steps = json_get(pre, "pretokenizers");
    for (size_t i = 0; json_kind(steps) == JSON_KIND_ARRAY && i < json_count(steps); i++) {
        byte_level = byte_level || equals(type_of(json_at(steps, i)), "ByteLevel");
    }
    if (!byte_level) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "the tokenizer is not byte-level: pre_tokenizer has no ByteLevel step");
    }
    return STATUS_OK;
}

// ---- vocabulary --------------------------------------------------------------------------------

static enum status read_id(const struct json *value, const char *what, uint32_t *out,
                           struct error *err) {
    int64_t id = json_kind(value) == JSON_KIND_INT ? json_int(value) : -1;
    if (id < 0 || id >= BOUND_VOCABULARY_TOKENS) {
        return error_set(err, STATUS_CORRUPT, "%s must be an integer of 0 to %u", what,
                         BOUND_VOCABULARY_TOKENS - 1);
    }
    *out = (uint32_t)id;
    return STATUS_OK;
}

static enum status add_vocabulary(struct tokenizer *tokenizer, const struct json *vocabulary,
                                  struct error *err) {
    if (json_kind(vocabulary) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_CORRUPT, "model.vocab must be an object");
    }
    for (void *it = json_iter(vocabulary); it != NULL; it = json_iter_next(vocabulary, it)) {
        struct text key = {0};
        key.bytes = json_iter_key(it, &key.byte_count);
        uint32_t id = 0;
        TRY(read_id(json_iter_value(it), "an id of model.vocab", &id, err));
        if (tokenizer_has(tokenizer, id)) {
            return error_set(err, STATUS_CORRUPT, "id %u stands twice in model.vocab", id);
        }
        TRY(vocabulary_set_spelled(&tokenizer->vocabulary, id, key.bytes, key.byte_count, 0, err));
    }
    return STATUS_OK;
}

// A merge is "left right" or ["left", "right"].
static enum status add_merge(struct tokenizer *tokenizer, const struct json *merge, uint32_t rank,
                             struct error *err) {
    struct text left = {0};
    struct text right = {0};
    if (json_kind(merge) == JSON_KIND_STRING) {
        left = text_of(merge);
        const char *space = memchr(left.bytes, ' ', left.byte_count);
        if (space != NULL) {
            right.bytes = space + 1;
            right.byte_count = left.byte_count - (size_t)(space + 1 - left.bytes);
            left.byte_count = (size_t)(space - left.bytes);
        }
    } else if (json_kind(merge) == JSON_KIND_ARRAY && json_count(merge) == 2) {
        left = text_of(json_at(merge, 0));
        right = text_of(json_at(merge, 1));
    }
    if (left.byte_count == 0 || right.byte_count == 0) {
        return error_set(err, STATUS_CORRUPT, "model.merges entry %u is not a pair of tokens",
                         rank);
    }
    return bpe_add_merge(&tokenizer->bpe, rank, left.bytes, left.byte_count, right.bytes,
                         right.byte_count, err);
}

static enum status add_merges(struct tokenizer *tokenizer, const struct json *model,
                              struct error *err) {
    const struct json *merges = json_get(model, "merges");
    if (json_kind(merges) != JSON_KIND_ARRAY) {
        return error_set(err, STATUS_CORRUPT, "model.merges must be an array");
    }
    TRY(bpe_init(&tokenizer->bpe, &tokenizer->vocabulary, json_count(merges), err));
    for (uint32_t rank = 0; rank < json_count(merges); rank++) {
        TRY(add_merge(tokenizer, json_at(merges, rank), rank, err));
    }
    TRY(flag(model, "ignore_merges", false, &tokenizer->bpe.ignore_merges, err));
    TRY(flag(model, "fuse_unk", false, &tokenizer->bpe.fuse_unknown, err));
    struct text unknown = text_of(json_get(model, "unk_token"));
    if (unknown.byte_count > 0 &&
        !tokenizer_find(tokenizer, unknown.bytes, unknown.byte_count, &tokenizer->bpe.unknown)) {
        return error_set(err, STATUS_CORRUPT, "model.unk_token is not in the vocabulary");
    }
    return STATUS_OK;
}

// Variants of BPE whose presence would change ids, and which byte-level models do not use.
static enum status check_model(const struct json *model, struct error *err) {
    struct text type = type_of(model);
    if (!equals(type, "BPE") && type.byte_count > 0) {
        return unsupported("a tokenizer model", type, err);
    }
    if (json_number(json_get(model, "dropout")) != 0.0) {
        return error_set(err, STATUS_UNSUPPORTED, "model.dropout is not supported");
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        if (text_of(json_get(model, affixes[i])).byte_count > 0) {
            return error_set(err, STATUS_UNSUPPORTED, "model.%s is not supported", affixes[i]);
        }
    }
    return STATUS_OK;
}

// ---- added tokens and affixes ------------------------------------------------------------------

static enum status add_added(struct tokenizer *tokenizer, const struct json *entry,
                             struct error *err) {
    struct added_token token = {0};
    bool normalized = false;
    TRY(read_id(json_get(entry, "id"), "an id of added_tokens", &token.id, err));
    TRY(flag(entry, "special", false, &token.special, err));
    TRY(flag(entry, "single_word", false, &token.single_word, err));
    TRY(flag(entry, "lstrip", false, &token.lstrip, err));
    TRY(flag(entry, "rstrip", false, &token.rstrip, err));
    TRY(flag(entry, "normalized", !token.special, &normalized, err));
    struct text content = text_of(json_get(entry, "content"));
    if (content.byte_count == 0) {
        return STATUS_OK;    // the reference drops empty tokens
    }
    // The plain content replaces what model.vocab may say for the id; a spelling that merges use
    // stays reachable because printable ASCII is spelled alike in both.
    uint8_t coded = 0;
    size_t old_count = 0;
    const uint8_t *old = vocabulary_bytes(&tokenizer->vocabulary, token.id, &old_count);
    if (old != NULL && old_count == content.byte_count &&
        memcmp(old, content.bytes, old_count) == 0 &&
        vocabulary_has(&tokenizer->vocabulary, token.id, TOKEN_CODED)) {
        coded = TOKEN_CODED;
    }
    uint8_t flags = (uint8_t)(TOKEN_ADDED | coded | (token.special ? TOKEN_SPECIAL : 0));
    TRY(vocabulary_set(&tokenizer->vocabulary, token.id, (const uint8_t *)content.bytes,
                       content.byte_count, flags, err));
    return tokenizer_add_token(tokenizer, &token, normalized, err);
}

static enum status add_all_added(struct tokenizer *tokenizer, const struct json *added,
                                 struct error *err) {
    for (size_t i = 0; json_kind(added) == JSON_KIND_ARRAY && i < json_count(added); i++) {
        if (json_kind(json_at(added, i)) != JSON_KIND_OBJECT) {
            return error_set(err, STATUS_CORRUPT, "added_tokens entry %zu is not an object", i);
        }
        TRY(add_added(tokenizer, json_at(added, i), err));
    }
    return STATUS_OK;
}

static enum status add_template_ids(struct tokenizer *tokenizer, const struct json *special,
                                    struct affix *affix, struct error *err) {
    const struct json *ids = json_get(special, "ids");
    if (json_kind(ids) != JSON_KIND_ARRAY) {
        return error_set(err, STATUS_CORRUPT,
                         "post_processor names a special token that it does not define");
    }
    for (size_t i = 0; i < json_count(ids); i++) {
        uint32_t id = 0;
        TRY(read_id(json_at(ids, i), "an id of post_processor", &id, err));
        if (!tokenizer_has(tokenizer, id)) {
            return error_set(err, STATUS_CORRUPT, "post_processor adds id %u, which is no token",
                             id);
        }
        TRY(affix_push(affix, id, err));
    }
    return STATUS_OK;
}

static enum status add_post_processor(struct tokenizer *tokenizer, const struct json *step,
                                      struct error *err) {
    struct text type = type_of(step);
    if (equals(type, "ByteLevel")) {
        return STATUS_OK;    // moves offsets only
    }
    if (!equals(type, "TemplateProcessing")) {
        return unsupported("a post-processor", type, err);
    }
    const struct json *single = json_get(step, "single");
    struct affix *affix = &tokenizer->prefix;
    for (size_t i = 0; json_kind(single) == JSON_KIND_ARRAY && i < json_count(single); i++) {
        const struct json *piece = json_at(single, i);
        const struct json *special =
            json_kind(piece) == JSON_KIND_OBJECT ? json_get(piece, "SpecialToken") : NULL;
        if (special == NULL) {
            affix = &tokenizer->suffix;    // past {"Sequence": {"id": "A"}}
            continue;
        }
        const char *name = json_text(json_get(special, "id"), NULL);
        const struct json *defined =
            name == NULL ? NULL : json_get(json_get(step, "special_tokens"), name);
        TRY(add_template_ids(tokenizer, defined, affix, err));
    }
    return STATUS_OK;
}

// ---- the whole file ----------------------------------------------------------------------------

static enum status build(struct tokenizer *tokenizer, const struct json *root, struct error *err) {
    const struct json *model = json_get(root, "model");
    if (json_kind(root) != JSON_KIND_OBJECT || json_kind(model) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_CORRUPT, "not a tokenizer.json: no object 'model'");
    }
    TRY(check_model(model, err));
    TRY(check_byte_level(json_get(root, "pre_tokenizer"), err));
    TRY(for_each_step(tokenizer, json_get(root, "normalizer"), "normalizers", add_normalizer, err));
    TRY(for_each_step(tokenizer, json_get(root, "pre_tokenizer"), "pretokenizers",
                      add_pre_tokenizer, err));
    TRY(add_vocabulary(tokenizer, json_get(model, "vocab"), err));
    TRY(add_all_added(tokenizer, json_get(root, "added_tokens"), err));
    TRY(vocabulary_seal(&tokenizer->vocabulary, err));
    TRY(add_merges(tokenizer, model, err));
    return for_each_step(tokenizer, json_get(root, "post_processor"), "processors",
                         add_post_processor, err);
}

enum status tokenizer_from_json(const struct json *root, struct tokenizer **out,
                                struct error *err) {
    struct tokenizer *tokenizer = tokenizer_create();
    if (tokenizer == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a tokenizer");
    }
    enum status status = build(tokenizer, root, err);
    if (status != STATUS_OK) {
        tokenizer_destroy(tokenizer);
        return status;
    }
    *out = tokenizer;
    return STATUS_OK;
}
