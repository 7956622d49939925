// SPDX-License-Identifier: Apache-2.0
// Goal: exactly the well-formed sequences of the Unicode standard decode, and to the right values.
// Method: every code point encoded by the definition; all byte strings of one to three bytes (four:
// all first and second bytes, the others at their edges) counted against what the definition
// allows.
#include "common/utf8.h"
#include "tests/unit/suites.h"

// By the definition, without looking at ranges of second bytes. Surrogates too: they must not
// decode.
static uint32_t encode(uint32_t code, uint8_t out[4]) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    uint32_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    out[0] = (uint8_t)(((0xF00u >> length) & 0xFF) | (code >> (6 * (length - 1))));
    for (uint32_t i = 1; i < length; i++) {
        out[i] = (uint8_t)(0x80 | ((code >> (6 * (length - 1 - i))) & 0x3F));
    }
    return length;
}

static bool decodes_to(uint32_t code, const uint8_t *bytes, uint32_t length) {
    uint32_t back = 0;
    uint32_t needed = 0;
    bool ok = utf8_decode(bytes, length, &back) == length && back == code &&
              utf8_prefix(bytes, length, &needed) == length && needed == length &&
              utf8_valid(bytes, length);
    for (uint32_t cut = 1; cut < length; cut++) {
        back = 77;
        ok = ok && utf8_decode(bytes, cut, &back) == 0 && back == 77 &&
             utf8_prefix(bytes, cut, &needed) == cut && needed == length && !utf8_valid(bytes, cut);
    }
    return ok;
}

START_TEST(every_code_point_decodes_and_no_surrogate_does) {
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        uint8_t bytes[4];
        uint32_t length = encode(code, bytes);
        bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        uint32_t back = 0;
        bool ok = surrogate ? utf8_decode(bytes, length, &back) == 0 && !utf8_valid(bytes, length)
                            : decodes_to(code, bytes, length);
        if (!ok) {
            ck_abort_msg("U+%04X", code);
        }
    }
}
END_TEST

// How many strings of `byte_count` bytes are one whole sequence, where bytes after the second take
// only the four values at their edges when `edges`.
static uint32_t count_whole(uint32_t byte_count, bool edges) {
    static const uint8_t edge[4] = {0x7F, 0x80, 0xBF, 0xC0};
    uint32_t radix = edges ? 4 : 256;
    uint32_t strings = 1;
    for (uint32_t i = 0; i < byte_count; i++) {
        strings *= i < 2 ? 256 : radix;
    }
    uint32_t whole = 0;
    for (uint32_t n = 0; n < strings; n++) {
        uint8_t bytes[4];
        uint32_t rest = n;
        for (uint32_t i = 0; i < byte_count; i++) {
            uint32_t base = i < 2 ? 256 : radix;
            bytes[i] = base == 4 ? edge[rest % 4] : (uint8_t)(rest % 256);
            rest /= base;
        }
        uint32_t code = 0;
        whole += utf8_decode(bytes, byte_count, &code) == byte_count ? 1 : 0;
    }
    return whole;
}

START_TEST(nothing_else_decodes) {
    ck_assert_uint_eq(count_whole(1, false), 0x80);
    ck_assert_uint_eq(count_whole(2, false), 0x800 - 0x80);
    ck_assert_uint_eq(count_whole(3, false), 0x10000 - 0x800 - 0x800);
    // 64 * 64 third and fourth bytes belong to each pair of first ones; two edges of each are
    // inside.
    ck_assert_uint_eq(count_whole(4, true), (0x110000 - 0x10000) / (64 * 64) * 2 * 2);
}
END_TEST

START_TEST(broken_sequences_are_named_by_kind) {
    static const struct {
        const char *kind;
        uint8_t bytes[4];
        uint32_t byte_count;
        uint32_t prefix;    // bytes that agree with some sequence
    } table[] = {
        {"continuation alone", {0x80}, 1, 0},
        {"overlong NUL", {0xC0, 0x80}, 2, 0},
        {"overlong 2", {0xC1, 0xBF}, 2, 0},
        {"overlong 3", {0xE0, 0x9F, 0xBF}, 3, 1},
        {"overlong 4", {0xF0, 0x8F, 0xBF, 0xBF}, 4, 1},
        {"first surrogate", {0xED, 0xA0, 0x80}, 3, 1},
        {"last surrogate", {0xED, 0xBF, 0xBF}, 3, 1},
        {"U+110000", {0xF4, 0x90, 0x80, 0x80}, 4, 1},
        {"five bytes begin", {0xF8, 0x88, 0x80, 0x80}, 4, 0},
        {"never a byte", {0xFF}, 1, 0},
        {"cut by ASCII", {0xE2, 0x82, '('}, 3, 2},
        {"cut by a lead", {0xF0, 0x9F, 0x98, 0xC3}, 4, 3},
        {"cut by the end", {0xF0, 0x9F, 0x98}, 3, 3},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        uint32_t code = 0;
        uint32_t length = 0;
        ck_assert_msg(utf8_decode(table[i].bytes, table[i].byte_count, &code) == 0, "%s",
                      table[i].kind);
        ck_assert_msg(utf8_prefix(table[i].bytes, table[i].byte_count, &length) == table[i].prefix,
                      "%s", table[i].kind);
        ck_assert_msg(!utf8_valid(table[i].bytes, table[i].byte_count), "%s", table[i].kind);
    }
}
END_TEST

START_TEST(a_text_is_valid_from_end_to_end_or_not) {
    static const char text[] = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\0z";
    ck_assert(utf8_valid("", 0));
    ck_assert(utf8_valid(text, sizeof text - 1));    // NUL is a character like any other
    ck_assert(utf8_valid(text, 10));
    ck_assert(!utf8_valid(text, 9));
    ck_assert(!utf8_valid("ab\xED\xA0\x80", 5));
    ck_assert(!utf8_valid("ab\x80", 3));
}
END_TEST

Suite *suite_utf8(void) {
    Suite *suite = suite_create("common/utf8");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, every_code_point_decodes_and_no_surrogate_does);
    tcase_add_test(tc, nothing_else_decodes);
    tcase_add_test(tc, broken_sequences_are_named_by_kind);
    tcase_add_test(tc, a_text_is_valid_from_end_to_end_or_not);
    suite_add_tcase(suite, tc);
    return suite;
}
