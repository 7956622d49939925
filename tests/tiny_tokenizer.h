// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_TINY_TOKENIZER_H
#define TESTS_TINY_TOKENIZER_H

#include "common/buf.h"
#include "common/invariant.h"
#include "common/json.h"
#include "controller/text/tokenizer.h"
#include "controller/text/vocabulary.h"

// A tokenizer of 265 tokens built in memory, for tests, fuzzing and benchmarks.
//
// Tokens 0..255 are the bytes; then "he" 256, "ll" 257, "hell" 258, "hello" 259, " w" 260, and the
// special tokens "<|bos|>" 261, "<|end|>" 262 (the stop set), "<|im_start|>" 263, "<|im_end|>" 264.
//
// Owns nothing.  Thread any.  Allocates the tokenizer.  Fails by invariant.

enum {
    TOKEN_HE = 256,
    TOKEN_LL,
    TOKEN_HELL,
    TOKEN_HELLO,
    TOKEN_SPACE_W,
    TOKEN_BOS,
    TOKEN_END,
    TOKEN_IM_START,
    TOKEN_IM_END,
    TINY_VOCABULARY,
};

static inline void tiny_write_vocabulary(struct buf *out) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t spelled[2];
        uint32_t spelled_bytes = byte_alphabet_encode((uint8_t)byte, spelled);
        json_write_string(out, (const char *)spelled, spelled_bytes);
        buf_printf(out, ":%u,", byte);
    }
    buf_append_str(out, "\"he\":256,\"ll\":257,\"hell\":258,\"hello\":259,\"\xC4\xA0w\":260");
}

static inline void tiny_write_added(struct buf *out) {
    static const char *const names[] = {"<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>"};
    for (unsigned i = 0; i < 4; i++) {
        buf_printf(out,
                   "%s{\"id\":%u,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                   "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                   i > 0 ? "," : "", (unsigned)TOKEN_BOS + i, names[i]);
    }
}

// Destroy with tokenizer_destroy.
static inline struct tokenizer *tiny_tokenizer(void) {
    struct buf text;
    buf_init(&text, 1 << 20);
    buf_append_str(&text, "{\"version\":\"1.0\",\"added_tokens\":[");
    tiny_write_added(&text);
    buf_append_str(&text, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                          "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                          "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                          "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
                          "\"vocab\":{");
    tiny_write_vocabulary(&text);
    buf_append_str(&text, "},\"merges\":[\"h e\",\"l l\",\"he ll\",\"hell o\",\"\xC4\xA0 w\"]}}");
    struct json_doc *doc = NULL;
    struct tokenizer *tokenizer = NULL;
    INVARIANT(json_parse(buf_cstr(&text), text.bytes_used, &doc, NULL) == STATUS_OK);
    INVARIANT(tokenizer_from_json(json_root(doc), &tokenizer, NULL) == STATUS_OK);
    INVARIANT(tokenizer_add_eos(tokenizer, TOKEN_END, NULL) == STATUS_OK);
    json_destroy(doc);
    buf_deinit(&text);
    return tokenizer;
}

#endif
