// SPDX-License-Identifier: Apache-2.0
// Goal: bytes decode as the Unicode standard says, broken ones one at a time, and NFC is NFC.
// Method: table 3-7 at its edges, every code point forth and back, known compositions, a megabyte
// of marks.
#include "common/memory.h"
#include "controller/text/normalize.h"
#include "controller/text/unicode.h"
#include "tests/unit/suites.h"

#include <string.h>

static const uint8_t *u8(const char *text) {
    return (const uint8_t *)text;
}

// One assertion per code point would take longer than all other tests together.
static bool survives(uint32_t code) {
    uint8_t bytes[4];
    uint32_t back = 0;
    uint32_t length = unicode_encode(code, bytes);
    bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    bool ok = unicode_decode(bytes, length, &back) == length &&
              back == (surrogate ? UNICODE_REPLACEMENT : code) &&
              unicode_incomplete_tail(bytes, length) == 0;
    for (uint32_t cut = 1; cut < length; cut++) {
        ok = ok && unicode_decode(bytes, cut, &back) == 1 && back == UNICODE_BROKEN &&
             unicode_incomplete_tail(bytes, cut) == cut;
    }
    uint8_t after[8] = "ab";
    memcpy(after + 2, bytes, length);
    return ok && unicode_before(after, 2 + length, &back) == 2;
}

START_TEST(every_code_point_survives_a_round_trip) {
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (!survives(code)) {
            ck_abort_msg("U+%04X", code);
        }
    }
    uint8_t bytes[4];
    uint32_t back = 0;
    unicode_decode(bytes, unicode_encode(0x110000, bytes), &back);
    ck_assert_uint_eq(back, UNICODE_REPLACEMENT);
}
END_TEST

START_TEST(broken_sequences_are_met_byte_by_byte) {
    static const char *const broken[] = {
        "\x80",         "\xBF",         "\xC0\x80",     "\xC1\xBF", "\xE0\x9F\x80", "\xED\xA0\x80",
        "\xF0\x8F\x80", "\xF4\x90\x80", "\xF5\x80\x80", "\xFF",     "\xC3(",        "\xE2\x82("};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        uint32_t code = 0;
        ck_assert_uint_eq(unicode_decode(u8(broken[i]), strlen(broken[i]), &code), 1);
        ck_assert_uint_eq(code, UNICODE_BROKEN);
        ck_assert_int_eq(unicode_class(code), UNICODE_OTHER);
        ck_assert(!unicode_is_word(code));
    }
    // Maximal subparts: one U+FFFD each.
    ck_assert_uint_eq(unicode_broken_span(u8("\xE2\x82("), 3), 2);
    ck_assert_uint_eq(unicode_broken_span(u8("\xF0\x9F\x98("), 4), 3);
    ck_assert_uint_eq(unicode_broken_span(u8("\xE0\x9F\x80"), 3), 1);
    ck_assert_uint_eq(unicode_broken_span(u8("\xFF"), 1), 1);
    // What can never become valid is not held back.
    ck_assert_uint_eq(unicode_incomplete_tail(u8("a\xED\xA0"), 3), 0);
    ck_assert_uint_eq(unicode_incomplete_tail(u8("a\x80\x80"), 3), 0);
    ck_assert_uint_eq(unicode_incomplete_tail(u8("a\xF0\x9F\x98"), 4), 3);
    ck_assert_uint_eq(unicode_incomplete_tail(u8(""), 0), 0);
}
END_TEST

START_TEST(classes_are_those_the_patterns_mean) {
    static const uint32_t spaces[] = {0x09,   0x0D,   0x20,   0x85,   0xA0,   0x1680, 0x2000,
                                      0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        ck_assert_int_eq(unicode_class(spaces[i]), UNICODE_SPACE);
    }
    static const uint32_t others[] = {0x00,   0x08,   0x0E,   0x1C,   0x1F,    0x7F,
                                      0x200B, 0xFEFF, 0x180E, 0x2060, 0x110000};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        ck_assert_int_eq(unicode_class(others[i]), UNICODE_OTHER);
    }
    ck_assert_int_eq(unicode_class('_'), UNICODE_OTHER);
    ck_assert_int_eq(unicode_class('@'), UNICODE_OTHER);
    ck_assert_int_eq(unicode_class('['), UNICODE_OTHER);
    ck_assert_int_eq(unicode_class('`'), UNICODE_OTHER);
    ck_assert_int_eq(unicode_class('{'), UNICODE_OTHER);
    ck_assert_int_eq(unicode_class('A'), UNICODE_LETTER);
    ck_assert_int_eq(unicode_class('z'), UNICODE_LETTER);
    ck_assert_int_eq(unicode_class('0'), UNICODE_NUMBER);
    ck_assert_int_eq(unicode_class('9'), UNICODE_NUMBER);
    ck_assert_int_eq(unicode_class(0xBD), UNICODE_NUMBER);      // one half
    ck_assert_int_eq(unicode_class(0x2167), UNICODE_NUMBER);    // roman eight
    ck_assert_int_eq(unicode_class(0x301), UNICODE_MARK);
    ck_assert_int_eq(unicode_class(0x4E00), UNICODE_LETTER);
    ck_assert(unicode_is_word('_'));
    ck_assert(unicode_is_word(0x203F));
    ck_assert(!unicode_is_word('-'));
}
END_TEST

// ---- NFC ---------------------------------------------------------------------------------------

static void expect_nfc(const char *text, const char *want) {
    struct buf out;
    buf_init(&out, 1 << 20);
    ck_assert_int_eq(normalize_nfc(u8(text), strlen(text), &out, NULL), STATUS_OK);
    ck_assert_str_eq(buf_cstr(&out), want);
    if (strcmp(text, want) != 0) {
        ck_assert(!normalize_nfc_quick(u8(text), strlen(text)));
    }
    ck_assert(strlen(want) <= 3 * strlen(text));
    buf_deinit(&out);
}

START_TEST(composes_and_orders_as_the_standard_says) {
    expect_nfc("", "");
    expect_nfc("plain ASCII", "plain ASCII");
    expect_nfc("e\u0301", "\u00e9");
    expect_nfc("xe\u0301y", "x\u00e9y");
    expect_nfc("\u212b", "\u00c5");    // Angstrom sign: a singleton
    expect_nfc("A\u030a", "\u00c5");
    expect_nfc("a\u0315\u0300", "\u00e0\u0315");    // ordered, then composed
    expect_nfc("a\u0301\u0300", "\u00e1\u0300");    // same class: the second is blocked
    expect_nfc("\u1e9b\u0323", "\u1e9b\u0323");     // stays, but is not quick
    expect_nfc("\u1100\u1161\u11a8", "\uac01");     // Hangul
    expect_nfc("\uac00\u11a8", "\uac01");
    expect_nfc("\u0958", "\u0915\u093c");    // composition exclusion
    expect_nfc("\u09c7\u09be", "\u09cb");    // a starter that composes with what precedes
    expect_nfc("\u0344", "\u0308\u0301");
    expect_nfc("\u0301alone", "\u0301alone");
    expect_nfc("\xFF\u0301", "\xFF\u0301");    // a broken byte is no starter
    expect_nfc("e\xCC", "e\xCC");
    expect_nfc("\u00e9\u0323", "\u1eb9\u0301");    // decomposed, ordered, composed anew
    ck_assert(normalize_nfc_quick(u8("\u00e9\u4e2d\uac01"), 8));
}
END_TEST

START_TEST(a_megabyte_of_marks_is_ordered_in_linear_time) {
    size_t count = 1 << 18;
    uint8_t *text = memory_alloc(4 * count);
    for (size_t i = 0; i < count; i++) {
        memcpy(text + 4 * i, "\u0301\u0316", 4);    // classes 230 and 220 in turn
    }
    struct buf out;
    buf_init(&out, 12 * count);
    ck_assert_int_eq(normalize_nfc(text, 4 * count, &out, NULL), STATUS_OK);
    ck_assert_uint_eq(out.bytes_used, 4 * count);
    ck_assert_mem_eq(out.data, "\u0316\u0316\u0316", 6);
    ck_assert_mem_eq(out.data + 4 * count - 6, "\u0301\u0301\u0301", 6);
    buf_deinit(&out);
    memory_free(text);
}
END_TEST

START_TEST(a_full_buffer_is_a_status) {
    struct buf out;
    struct error err = {0};
    buf_init(&out, 3);
    ck_assert_int_eq(normalize_nfc(u8("abcd"), 4, &out, &err), STATUS_EXHAUSTED);
    buf_reset(&out);
    ck_assert_int_eq(normalize_nfc(u8("abc"), 3, &out, NULL), STATUS_OK);
    buf_deinit(&out);
}
END_TEST

Suite *suite_unicode(void) {
    Suite *suite = suite_create("controller/text/unicode");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, every_code_point_survives_a_round_trip);
    tcase_add_test(tc, broken_sequences_are_met_byte_by_byte);
    tcase_add_test(tc, classes_are_those_the_patterns_mean);
    tcase_add_test(tc, composes_and_orders_as_the_standard_says);
    tcase_add_test(tc, a_megabyte_of_marks_is_ordered_in_linear_time);
    tcase_add_test(tc, a_full_buffer_is_a_status);
    suite_add_tcase(suite, tc);
    return suite;
}
