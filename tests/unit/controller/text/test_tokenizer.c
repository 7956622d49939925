// SPDX-License-Identifier: Apache-2.0
// Goal: both builders yield the same tokenizer, the pipeline runs in the reference's order, and bad
// files are refused by name. Method: one small vocabulary written as tokenizer.json and as GGUF.
#include "common/buf.h"
#include "common/memory.h"
#include "controller/text/tokenizer.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

// ---- a small model -----------------------------------------------------------------------------

// Ids 0..255 are the bytes in order of the alphabet's code points; these follow.
static const char *const words[] = {"he", "ll", "hell", "hello", "\u0120w", "\u0120hello"};
static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\u0120 w"};
enum { ID_HE = 256, ID_LL, ID_HELL, ID_HELLO, ID_W, ID_UNREACHABLE, ID_BOS, ID_END, ID_TAG };

static void spell(uint8_t byte, char out[3]) {
    uint8_t raw[2];
    uint32_t length = byte_alphabet_encode(byte, raw);
    memcpy(out, raw, length);
    out[length] = '\0';
}

struct json_options {
    const char *normalizer;
    const char *pre;
    const char *model_extra;
    const char *post;
    const char *added_extra;
};

static const char llama_pre[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}"
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},"
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}";

static void write_json(struct buf *out, struct json_options options) {
    buf_init(out, 1 << 20);
    buf_printf(out, "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,",
               options.normalizer ? options.normalizer : "null",
               options.pre ? options.pre : llama_pre, options.post ? options.post : "null");
    buf_append_str(out, "\"added_tokens\":[");
    buf_printf(out, "{\"id\":%d,\"content\":\"<bos>\",\"special\":true},", ID_BOS);
    buf_printf(out, "{\"id\":%d,\"content\":\"<end>\",\"special\":true},", ID_END);
    buf_printf(out, "{\"id\":%d,\"content\":\"<tag>\",\"special\":false,\"normalized\":false}%s],",
               ID_TAG, options.added_extra ? options.added_extra : "");
    buf_printf(out, "\"model\":{\"type\":\"BPE\",%s\"vocab\":{",
               options.model_extra ? options.model_extra : "");
    for (uint32_t byte = 0; byte < 256; byte++) {
        char key[3];
        spell((uint8_t)byte, key);
        json_write_string(out, key, strlen(key));
        buf_printf(out, ":%u,", byte);
    }
    for (int i = 0; i < 6; i++) {
        buf_printf(out, "\"%s\":%d%s", words[i], ID_HE + i, i < 5 ? "," : "},\"merges\":[");
    }
    for (int i = 0; i < 5; i++) {
        buf_printf(out, "\"%s\"%s", merges[i], i < 4 ? "," : "]}}");
    }
}

static enum status from_json_text(const char *text, size_t byte_count, struct tokenizer **out,
                                  struct error *err) {
    struct json_doc *doc = NULL;
    enum status status = json_parse(text, byte_count, &doc, err);
    if (status == STATUS_OK) {
        status = tokenizer_from_json(json_root(doc), out, err);
        json_destroy(doc);
    }
    return status;
}

static struct tokenizer *from_json(struct json_options options) {
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    write_json(&text, options);
    enum status status = from_json_text((const char *)text.data, text.bytes_used, &tokenizer, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    buf_deinit(&text);
    return tokenizer;
}

static void refuse_json(struct json_options options, enum status want, const char *sentence) {
    struct buf text;
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    write_json(&text, options);
    enum status got = from_json_text((const char *)text.data, text.bytes_used, &tokenizer, &err);
    ck_assert_msg(got == want && strstr(err.message, sentence) != NULL, "%s: '%s' not in '%s'",
                  status_name(got), sentence, err.message);
    buf_deinit(&text);
}

static void put(struct buf *b, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) {
        buf_append_byte(b, (uint8_t)(value >> (8 * i)));
    }
}

static void put_text(struct buf *b, const char *text) {
    put(b, strlen(text), 8);
    buf_append_str(b, text);
}

static void put_string(struct buf *b, const char *key, const char *value) {
    put_text(b, key);
    put(b, GGUF_TYPE_STRING, 4);
    put_text(b, value);
}

static void put_u32(struct buf *b, const char *key, uint32_t value) {
    put_text(b, key);
    put(b, GGUF_TYPE_U32, 4);
    put(b, value, 4);
}

static void put_array(struct buf *b, const char *key, enum gguf_type type, uint64_t count) {
    put_text(b, key);
    put(b, GGUF_TYPE_ARRAY, 4);
    put(b, type, 4);
    put(b, count, 8);
}

struct gguf_options {
    const char *model;
    const char *pre;
    uint64_t type_count;    // 0: as many as tokens
    const char *last_merge;
    uint32_t eos;
    int32_t last_type;
};

static void write_gguf(struct buf *b, struct gguf_options options) {
    buf_init(b, 1 << 20);
    buf_append_str(b, "GGUF");
    put(b, 3, 4);
    put(b, 0, 8);
    put(b, 7, 8);
    put_string(b, "tokenizer.ggml.model", options.model);
    put_string(b, "tokenizer.ggml.pre", options.pre);
    put_u32(b, "tokenizer.ggml.bos_token_id", ID_BOS);
    put_u32(b, "tokenizer.ggml.eos_token_id", options.eos ? options.eos : ID_END);
    put_array(b, "tokenizer.ggml.tokens", GGUF_TYPE_STRING, ID_TAG + 2);
    for (uint32_t byte = 0; byte < 256; byte++) {
        char key[3];
        spell((uint8_t)byte, key);
        put_text(b, key);
    }
    for (int i = 0; i < 6; i++) {
        put_text(b, words[i]);
    }
    put_text(b, "<bos>");
    put_text(b, "<end>");
    put_text(b, "<tag>");
    put_text(b, "[PAD1]");
    uint64_t type_count = options.type_count ? options.type_count : ID_TAG + 2;
    put_array(b, "tokenizer.ggml.token_type", GGUF_TYPE_I32, type_count);
    for (uint64_t i = 0; i < type_count; i++) {
        bool control = i == ID_BOS || i == ID_END;
        uint32_t last = options.last_type ? (uint32_t)options.last_type : 5;
        put(b, i == ID_TAG + 1 ? last : i == ID_TAG ? 4 : control ? 3 : 1, 4);
    }
    put_array(b, "tokenizer.ggml.merges", GGUF_TYPE_STRING, 5);
    for (int i = 0; i < 5; i++) {
        put_text(b, i == 4 && options.last_merge ? options.last_merge : merges[i]);
    }
}

static enum status from_gguf(struct gguf_options options, struct tokenizer **out,
                             struct error *err) {
    struct buf b;
    struct gguf *gguf = NULL;
    write_gguf(&b, options);
    ck_assert_int_eq(gguf_parse(b.data, b.bytes_used, &gguf, err), STATUS_OK);
    enum status status = tokenizer_from_gguf(gguf, out, err);
    gguf_destroy(gguf);
    buf_deinit(&b);
    return status;
}

static void refuse_gguf(struct gguf_options options, enum status want, const char *sentence) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    enum status got = from_gguf(options, &tokenizer, &err);
    ck_assert_msg(got == want && strstr(err.message, sentence) != NULL, "%s: '%s' not in '%s'",
                  status_name(got), sentence, err.message);
}

struct ids {
    size_t count;
    uint32_t id[16];
};

static void expect(const struct tokenizer *tokenizer, const char *text, size_t byte_count,
                   struct tokenizer_options options, struct ids want) {
    struct token_list got;
    token_list_init(&got, 100);
    struct error err = {0};
    enum status status = tokenizer_encode(tokenizer, text, byte_count, options, &got, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(got.count, want.count);
    if (want.count > 0) {
        ck_assert_mem_eq(got.ids, want.id, want.count * sizeof(uint32_t));
    }
    token_list_deinit(&got);
}

static const struct tokenizer_options plain = {0};
static const struct tokenizer_options parse = {.parse_special = true};

// ---- tests -------------------------------------------------------------------------------------

START_TEST(both_builders_agree) {
    struct tokenizer *tokenizers[2] = {from_json((struct json_options){0}), NULL};
    struct error err = {0};
    ck_assert_int_eq(
        from_gguf((struct gguf_options){.model = "gpt2", .pre = "smollm"}, &tokenizers[1], &err),
        STATUS_OK);
    for (int i = 0; i < 2; i++) {
        const struct tokenizer *t = tokenizers[i];
        expect(t, "hello", 5, plain, (struct ids){1, {ID_HELLO}});
        expect(t, "hello w", 7, plain, (struct ids){2, {ID_HELLO, ID_W}});
        expect(t, " hello", 6, plain, (struct ids){2, {' ', ID_HELLO}});    // not by merges
        expect(t, "", 0, plain, (struct ids){0, {0}});
        expect(t, "a\xFF\x00z", 4, plain, (struct ids){4, {'a', 0xFF, 0, 'z'}});
        expect(t, "<end>he", 7, parse, (struct ids){2, {ID_END, ID_HE}});
        expect(t, "<end>", 5, plain, (struct ids){5, {'<', 'e', 'n', 'd', '>'}});
        expect(t, "x<tag>", 6, plain, (struct ids){2, {'x', ID_TAG}});
        size_t n = 0;
        ck_assert_mem_eq(tokenizer_token_bytes(t, ID_W, &n), " w", 2);
        ck_assert_uint_eq(n, 2);
        ck_assert(tokenizer_is_special(t, ID_END));
        ck_assert(!tokenizer_is_special(t, ID_TAG));
        uint32_t id = 0;
        ck_assert(tokenizer_find(t, "<end>", 5, &id) && id == ID_END);
        ck_assert(tokenizer_find(t, "\u0120w", 3, &id) && id == ID_W);
        ck_assert(!tokenizer_find(t, "nope", 4, &id));
        tokenizer_destroy(tokenizers[i]);
    }
}
END_TEST

START_TEST(gguf_gives_bos_stop_set_and_holes) {
    struct tokenizer *t = NULL;
    ck_assert_int_eq(
        from_gguf((struct gguf_options){.model = "gpt2", .pre = "llama-bpe"}, &t, NULL), STATUS_OK);
    uint32_t id = 0;
    uint32_t count = 0;
    ck_assert(tokenizer_bos(t, &id) && id == ID_BOS);
    ck_assert(tokenizer_adds_bos(t));
    ck_assert_uint_eq(tokenizer_eos(t, &count)[0], ID_END);
    ck_assert_uint_eq(count, 1);
    ck_assert(tokenizer_is_eos(t, ID_END));
    ck_assert(!tokenizer_is_eos(t, ID_TAG));
    ck_assert_uint_eq(tokenizer_vocabulary_tokens(t), ID_TAG + 2);
    ck_assert(!tokenizer_has(t, ID_TAG + 1));    // an unused row
    size_t n = 1;
    ck_assert_ptr_null(tokenizer_token_bytes(t, ID_TAG + 1, &n));
    ck_assert_uint_eq(n, 0);
    // llama-bpe ignores merges: the unreachable token is reached.
    expect(t, " hello", 6, (struct tokenizer_options){.add_special = true},
           (struct ids){2, {ID_BOS, ID_UNREACHABLE}});
    tokenizer_destroy(t);
}
END_TEST

START_TEST(stop_ids_are_bounded_and_must_exist) {
    struct tokenizer *t = from_json((struct json_options){0});
    uint32_t count = 0;
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(tokenizer_add_eos(t, i, NULL), STATUS_OK);
        ck_assert_int_eq(tokenizer_add_eos(t, i, NULL), STATUS_OK);    // again is harmless
    }
    tokenizer_eos(t, &count);
    ck_assert_uint_eq(count, 8);
    ck_assert_int_eq(tokenizer_add_eos(t, 8, NULL), STATUS_INVALID);
    ck_assert_int_eq(tokenizer_set_bos(t, 5000, NULL), STATUS_INVALID);
    ck_assert_int_eq(tokenizer_set_bos(t, ID_BOS, NULL), STATUS_OK);
    ck_assert(!tokenizer_adds_bos(t));
    tokenizer_destroy(t);
}
END_TEST

START_TEST(the_template_post_processor_wraps_the_text) {
    struct tokenizer *t = from_json((struct json_options){
        .post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
                "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\"}},"
                "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"E\"}}],"
                "\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[262]},"
                "\"E\":{\"id\":\"E\",\"ids\":[263,263]}}}]}"});
    expect(t, "he", 2, (struct tokenizer_options){.add_special = true},
           (struct ids){4, {ID_BOS, ID_HE, ID_END, ID_END}});
    expect(t, "he", 2, plain, (struct ids){1, {ID_HE}});
    tokenizer_destroy(t);
}
END_TEST

START_TEST(normalisation_comes_before_normalised_tokens_and_after_raw_ones) {
    struct tokenizer *t = from_json((struct json_options){
        .normalizer = "{\"type\":\"NFC\"}",
        .added_extra = ",{\"id\":265,\"content\":\"\u00e9\",\"normalized\":true}"
                       ",{\"id\":266,\"content\":\"u\u0308\",\"normalized\":false}"
                       ",{\"id\":267,\"content\":\"a\u030a\",\"normalized\":true}"});
    expect(t, "e\u0301", 3, plain, (struct ids){1, {265}});
    expect(t, "\u00e9", 2, plain, (struct ids){1, {265}});
    expect(t, "u\u0308", 3, plain, (struct ids){1, {266}});
    expect(t, "\u00fc", 2, plain, (struct ids){2, {0xC3, 0xBC}});
    expect(t, "\u00e5", 2, plain, (struct ids){1, {267}});    // its content was normalised
    expect(t, "o\u0308", 3, plain, (struct ids){2, {0xC3, 0xB6}});
    tokenizer_destroy(t);
}
END_TEST

START_TEST(pre_tokenizer_steps_of_every_kind_are_read) {
    struct tokenizer *t = from_json((struct json_options){
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\","
               "\"individual_digits\":true},{\"type\":\"Split\",\"pattern\":{\"String\":\"+l\"},"
               "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}"});
    expect(t, "h+lle", 5, plain, (struct ids){5, {'h', '+', 'l', 'l', 'e'}});
    tokenizer_destroy(t);
    t = from_json((struct json_options){.pre = "{\"type\":\"ByteLevel\"}"});
    expect(t, "w", 1, plain, (struct ids){1, {ID_W}});    // a space was put in front
    tokenizer_destroy(t);
}
END_TEST

START_TEST(other_kinds_of_tokenizer_json_are_refused) {
    refuse_json((struct json_options){.normalizer = "{\"type\":\"Lowercase\"}"}, STATUS_UNSUPPORTED,
                "a normalizer of type 'Lowercase'");
    refuse_json((struct json_options){.pre = "{\"type\":\"Metaspace\"}"}, STATUS_UNSUPPORTED,
                "not byte-level");
    refuse_json((struct json_options){.pre = "null"}, STATUS_UNSUPPORTED, "not byte-level");
    refuse_json((struct json_options){.pre = "{\"type\":\"Sequence\",\"pretokenizers\":["
                                             "{\"type\":\"Bert\"},{\"type\":\"ByteLevel\"}]}"},
                STATUS_UNSUPPORTED, "'Bert'");
    refuse_json((struct json_options){.post = "{\"type\":\"BertProcessing\"}"}, STATUS_UNSUPPORTED,
                "'BertProcessing'");
    refuse_json((struct json_options){.model_extra = "\"dropout\":0.1,"}, STATUS_UNSUPPORTED,
                "dropout");
    refuse_json((struct json_options){.model_extra = "\"end_of_word_suffix\":\"</w>\","},
                STATUS_UNSUPPORTED, "end_of_word_suffix");
    refuse_json((struct json_options){.model_extra = "\"unk_token\":\"nope\","}, STATUS_CORRUPT,
                "unk_token");
    refuse_json((struct json_options){.added_extra = ",{\"id\":-1,\"content\":\"x\"}"},
                STATUS_CORRUPT, "added_tokens");
    refuse_json((struct json_options){.added_extra = ",7"}, STATUS_CORRUPT, "entry 3");
    refuse_json((struct json_options){.added_extra = ",{\"id\":1048576,\"content\":\"x\"}"},
                STATUS_CORRUPT, "0 to 1048575");
}
END_TEST

START_TEST(broken_models_are_refused) {
    static const struct {
        const char *text;
        const char *sentence;
    } rows[] = {
        {"[]", "no object 'model'"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "'Unigram'"},
        {"{\"model\":{},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", "model.vocab"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "stands twice"},
        {"{\"model\":{\"vocab\":{\"a\":\"0\"}},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "must be an integer"},
        {"{\"model\":{\"vocab\":{\"a\":0}},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "model.merges"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]},"
         "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "entry 0 is not a pair"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\"]]},"
         "\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}",
         "merge 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct tokenizer *t = NULL;
        struct error err = {0};
        ck_assert_int_ne(from_json_text(rows[i].text, strlen(rows[i].text), &t, &err), STATUS_OK);
        ck_assert_msg(strstr(err.message, rows[i].sentence) != NULL, "'%s' not in '%s'",
                      rows[i].sentence, err.message);
    }
}
END_TEST

START_TEST(broken_gguf_vocabularies_are_refused) {
    refuse_gguf((struct gguf_options){.model = "llama", .pre = "gpt-2"}, STATUS_UNSUPPORTED,
                "kind 'llama'");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "strange"}, STATUS_UNSUPPORTED,
                "'strange'");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "gpt-2", .type_count = 7},
                STATUS_CORRUPT, "7 entries");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "gpt-2", .last_merge = "hello"},
                STATUS_CORRUPT, "entry 4 is not 'left right'");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "gpt-2", .last_merge = "q q"},
                STATUS_CORRUPT, "merge 4");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "gpt-2", .eos = 9999}, STATUS_INVALID,
                "9999");
    refuse_gguf((struct gguf_options){.model = "gpt2", .pre = "gpt-2", .last_type = 77},
                STATUS_CORRUPT, "type 77");
}
END_TEST

START_TEST(every_failed_allocation_ends_in_a_status) {
    struct buf text;
    write_json(&text, (struct json_options){.normalizer = "{\"type\":\"NFC\"}"});
    struct json_doc *doc = NULL;
    ck_assert_int_eq(json_parse((const char *)text.data, text.bytes_used, &doc, NULL), STATUS_OK);
    enum status status = STATUS_EXHAUSTED;
    for (uint64_t nth = 1; status != STATUS_OK; nth++) {
        struct tokenizer *t = NULL;
        struct token_list list;
        token_list_init(&list, 100);
        memory_fail_nth(nth);
        status = tokenizer_from_json(json_root(doc), &t, NULL);
        if (status == STATUS_OK) {
            status = tokenizer_encode(t, "hello e\u0301 <end>", 15, parse, &list, NULL);
        }
        memory_fail_nth(0);
        ck_assert(status == STATUS_OK || status == STATUS_EXHAUSTED);
        ck_assert_uint_lt(nth, 1000);
        token_list_deinit(&list);
        tokenizer_destroy(t);
    }
    json_destroy(doc);
    buf_deinit(&text);
}
END_TEST

Suite *suite_tokenizer(void) {
    Suite *suite = suite_create("controller/text/tokenizer");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, both_builders_agree);
    tcase_add_test(tc, gguf_gives_bos_stop_set_and_holes);
    tcase_add_test(tc, stop_ids_are_bounded_and_must_exist);
    tcase_add_test(tc, the_template_post_processor_wraps_the_text);
    tcase_add_test(tc, normalisation_comes_before_normalised_tokens_and_after_raw_ones);
    tcase_add_test(tc, pre_tokenizer_steps_of_every_kind_are_read);
    tcase_add_test(tc, other_kinds_of_tokenizer_json_are_refused);
    tcase_add_test(tc, broken_models_are_refused);
    tcase_add_test(tc, broken_gguf_vocabularies_are_refused);
    tcase_add_test(tc, every_failed_allocation_ends_in_a_status);
    suite_add_tcase(suite, tc);
    return suite;
}
