// SPDX-License-Identifier: Apache-2.0
// Goal: pieces are whole characters, together they are the batch decoding, and stop strings are
// found wherever token borders fall. Method: a vocabulary of single bytes and a few words, random
// byte streams cut at random, against a decoder written straight from the definition.
#include "common/memory.h"
#include "common/rng.h"
#include "controller/text/detokenizer.h"
#include "controller/text/unicode.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

enum { ID_WORD = 256, ID_SPECIAL, ID_TAG };

// Token i is byte i; three more follow.
static struct tokenizer *make_tokenizer(void) {
    struct buf text;
    buf_init(&text, 1 << 16);
    buf_append_str(&text, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"added_tokens\":["
                          "{\"id\":257,\"content\":\"<s>\",\"special\":true},"
                          "{\"id\":258,\"content\":\"<t>\",\"special\":false}],"
                          "\"model\":{\"vocab\":{");
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t raw[2];
        uint32_t length = byte_alphabet_encode((uint8_t)byte, raw);
        json_write_string(&text, (const char *)raw, length);
        buf_printf(&text, ":%u,", byte);
    }
    buf_append_str(&text, "\"stop\u0120me\":256},\"merges\":[]}}");
    struct json_doc *doc = NULL;
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    ck_assert_int_eq(json_parse((const char *)text.data, text.bytes_used, &doc, NULL), STATUS_OK);
    enum status status = tokenizer_from_json(json_root(doc), &tokenizer, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    json_destroy(doc);
    buf_deinit(&text);
    return tokenizer;
}

static void add_stop(struct detokenizer *d, const char *text) {
    ck_assert_int_eq(detokenizer_add_stop(d, text, strlen(text), NULL), STATUS_OK);
}

// Pushes each byte of `text` as a token; returns how many were taken before the stop.
static size_t push_bytes(struct detokenizer *d, const char *text, struct buf *out) {
    bool stopped = false;
    size_t i = 0;
    for (; text[i] != '\0' && !stopped; i++) {
        ck_assert_int_eq(detokenizer_push(d, (uint8_t)text[i], out, &stopped, NULL), STATUS_OK);
        ck_assert_uint_eq(unicode_incomplete_tail(out->data, out->bytes_used), 0);
    }
    return i;
}

START_TEST(pieces_are_whole_characters) {
    struct tokenizer *t = make_tokenizer();
    struct detokenizer d;
    struct buf out;
    bool stopped = true;
    buf_init(&out, 1000);
    detokenizer_init(&d, t, (struct detokenizer_options){0});
    static const uint8_t bytes[] = {0xF0, 0x9F, 0x98, 0x80, 'a', 0xE4, 0xB8};
    static const size_t sizes[] = {0, 0, 0, 4, 5, 5, 5};
    for (size_t i = 0; i < sizeof bytes; i++) {
        ck_assert_int_eq(detokenizer_push(&d, bytes[i], &out, &stopped, NULL), STATUS_OK);
        ck_assert_uint_eq(out.bytes_used, sizes[i]);
        ck_assert(!stopped);
    }
    ck_assert_uint_eq(detokenizer_held_bytes(&d), 2);
    ck_assert_int_eq(detokenizer_finish(&d, &out, NULL), STATUS_OK);
    ck_assert_str_eq(buf_cstr(&out), "\U0001f600a\ufffd");
    detokenizer_deinit(&d);
    buf_deinit(&out);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(special_and_unknown_tokens_give_no_text) {
    struct tokenizer *t = make_tokenizer();
    struct buf out;
    static const uint32_t ids[] = {'a', ID_SPECIAL, ID_TAG, 99999, ID_WORD};
    buf_init(&out, 1000);
    ck_assert_int_eq(detokenize(t, ids, 5, true, &out, NULL), STATUS_OK);
    ck_assert_str_eq(buf_cstr(&out), "a<t>stop me");
    buf_reset(&out);
    ck_assert_int_eq(detokenize(t, ids, 5, false, &out, NULL), STATUS_OK);
    ck_assert_str_eq(buf_cstr(&out), "a<s><t>stop me");
    buf_deinit(&out);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(stop_strings_are_found_across_tokens) {
    struct tokenizer *t = make_tokenizer();
    static const struct {
        const char *stops[3];
        const char *text;
        bool include;
        int32_t index;
        const char *want;
    } rows[] = {
        {{"END", NULL}, "abcENDxyz", false, 0, "abc"},
        {{"END", NULL}, "abcENDxyz", true, 0, "abcEND"},
        {{"END", NULL}, "abcENxyz", false, -1, "abcENxyz"},
        {{"END", NULL}, "EEND", false, 0, "E"},
        {{"aab", NULL}, "aaaab", false, 0, "aa"},
        {{"abcabd", NULL}, "abcabcabd!", false, 0, "abc"},
        {{"b", "abc", NULL}, "xabc", false, 0, "xa"},    // the first to end wins
        {{"c", "abc", NULL}, "xabc", false, 1, "x"},     // of two, the longer
        {{"\n\n", "\u00e9!", NULL}, "caf\u00e9!", false, 1, "caf"},
        {{"\u00e9", NULL}, "\u00e8\u00e9", false, 0, "\u00e8"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct detokenizer d;
        struct buf out;
        buf_init(&out, 1000);
        detokenizer_init(&d, t, (struct detokenizer_options){.include_stop = rows[i].include});
        for (size_t k = 0; rows[i].stops[k] != NULL; k++) {
            add_stop(&d, rows[i].stops[k]);
        }
        push_bytes(&d, rows[i].text, &out);
        ck_assert_int_eq(detokenizer_stop_index(&d), rows[i].index);
        bool stopped = false;
        ck_assert_int_eq(detokenizer_push(&d, ' ', &out, &stopped, NULL), STATUS_OK);
        ck_assert_int_eq(stopped, rows[i].index >= 0);
        ck_assert_int_eq(detokenizer_finish(&d, &out, NULL), STATUS_OK);
        char want[64];
        snprintf(want, sizeof want, "%s%s", rows[i].want, rows[i].index < 0 ? " " : "");
        ck_assert_str_eq(buf_cstr(&out), want);
        detokenizer_deinit(&d);
        buf_deinit(&out);
    }
    tokenizer_destroy(t);
}
END_TEST

START_TEST(no_more_is_held_than_could_begin_a_stop) {
    struct tokenizer *t = make_tokenizer();
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 1000);
    detokenizer_init(&d, t, (struct detokenizer_options){0});
    add_stop(&d, "ababc");
    push_bytes(&d, "xabab", &out);
    ck_assert_str_eq(buf_cstr(&out), "x");
    push_bytes(&d, "a", &out);    // "aba" may still begin it, the first "ab" may not
    ck_assert_str_eq(buf_cstr(&out), "xab");
    ck_assert_uint_eq(detokenizer_held_bytes(&d), 3);
    push_bytes(&d, "!", &out);
    ck_assert_str_eq(buf_cstr(&out), "xababa!");
    detokenizer_deinit(&d);
    buf_deinit(&out);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(stops_are_overlooked_while_not_watched) {
    struct tokenizer *t = make_tokenizer();
    struct detokenizer d;
    struct buf out;
    buf_init(&out, 1000);
    detokenizer_init(&d, t, (struct detokenizer_options){0});
    add_stop(&d, "ab");
    detokenizer_watch_stops(&d, false);
    push_bytes(&d, "aba", &out);
    detokenizer_watch_stops(&d, true);
    push_bytes(&d, "b-ab", &out);
    ck_assert_int_eq(detokenizer_stop_index(&d), 0);
    ck_assert_str_eq(buf_cstr(&out), "abab-");
    detokenizer_deinit(&d);
    buf_deinit(&out);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(stop_strings_have_bounds) {
    struct tokenizer *t = make_tokenizer();
    struct detokenizer d;
    char longest[BOUND_STOP_STRING_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    detokenizer_init(&d, t, (struct detokenizer_options){0});
    ck_assert_int_eq(detokenizer_add_stop(&d, "", 0, NULL), STATUS_INVALID);
    ck_assert_int_eq(detokenizer_add_stop(&d, longest, sizeof longest, NULL), STATUS_INVALID);
    for (uint32_t i = 0; i < BOUND_STOP_STRINGS; i++) {
        ck_assert_int_eq(detokenizer_add_stop(&d, longest, BOUND_STOP_STRING_BYTES, NULL),
                         STATUS_OK);
    }
    ck_assert_int_eq(detokenizer_add_stop(&d, "a", 1, NULL), STATUS_INVALID);
    detokenizer_deinit(&d);
    tokenizer_destroy(t);
}
END_TEST

// Python's bytes.decode(errors="replace") and the WHATWG decoder, written out.
static void decode_whole(const uint8_t *bytes, size_t byte_count, struct buf *out) {
    for (size_t at = 0; at < byte_count;) {
        uint32_t code = 0;
        uint32_t length = unicode_decode(bytes + at, byte_count - at, &code);
        if (code == UNICODE_BROKEN) {
            length = unicode_broken_span(bytes + at, byte_count - at);
            buf_append_str(out, "\ufffd");
        } else {
            buf_append(out, bytes + at, length);
        }
        at += length;
    }
}

START_TEST(random_streams_equal_the_whole_decoding_cut_at_the_stop) {
    struct tokenizer *t = make_tokenizer();
    static const uint8_t alphabet[] = {'a',  'a',  'b',  0xC3, 0xA9, 0xE4, 0xB8, 0xAD,
                                       0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xED, 0xA0};
    static const char *const stops[] = {"aab", "ab\u00e9", "\ufffdb", "\u4e2d"};
    struct rng rng;
    rng_init(&rng, 5);
    for (int round = 0; round < 3000; round++) {
        uint8_t bytes[40];
        size_t count = (size_t)rng_below(&rng, sizeof bytes);
        for (size_t i = 0; i < count; i++) {
            bytes[i] = alphabet[rng_below(&rng, sizeof alphabet)];
        }
        struct buf want;
        struct buf got;
        buf_init(&want, 1000);
        buf_init(&got, 1000);
        decode_whole(bytes, count, &want);
        size_t cut = want.bytes_used;
        for (size_t end = 1; end <= want.bytes_used && cut == want.bytes_used; end++) {
            size_t longest = 0;
            for (size_t k = 0; k < 4; k++) {
                size_t n = strlen(stops[k]);
                if (n <= end && n > longest && memcmp(want.data + end - n, stops[k], n) == 0) {
                    longest = n;
                }
            }
            if (longest > 0) {
                cut = end - longest;
                break;
            }
        }
        struct detokenizer d;
        detokenizer_init(&d, t, (struct detokenizer_options){0});
        for (size_t k = 0; k < 4; k++) {
            add_stop(&d, stops[k]);
        }
        bool stopped = false;
        for (size_t i = 0; i < count; i++) {
            ck_assert_int_eq(detokenizer_push(&d, bytes[i], &got, &stopped, NULL), STATUS_OK);
        }
        ck_assert_int_eq(detokenizer_finish(&d, &got, NULL), STATUS_OK);
        ck_assert_uint_eq(got.bytes_used, cut);
        if (cut > 0) {
            ck_assert_mem_eq(got.data, want.data, cut);
        }
        detokenizer_deinit(&d);
        buf_deinit(&want);
        buf_deinit(&got);
    }
    tokenizer_destroy(t);
}
END_TEST

Suite *suite_detokenizer(void) {
    Suite *suite = suite_create("controller/text/detokenizer");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, pieces_are_whole_characters);
    tcase_add_test(tc, special_and_unknown_tokens_give_no_text);
    tcase_add_test(tc, stop_strings_are_found_across_tokens);
    tcase_add_test(tc, no_more_is_held_than_could_begin_a_stop);
    tcase_add_test(tc, stops_are_overlooked_while_not_watched);
    tcase_add_test(tc, stop_strings_have_bounds);
    tcase_add_test(tc, random_streams_equal_the_whole_decoding_cut_at_the_stop);
    suite_add_tcase(suite, tc);
    return suite;
}
