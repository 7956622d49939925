// SPDX-License-Identifier: Apache-2.0
// Goal: matches are leftmost-longest and obey their flags. Method: one named case per rule.
#include "controller/text/added_tokens.h"
#include "tests/unit/suites.h"

#include <string.h>

static void add(struct added_tokens *added, const char *text, struct added_token token) {
    ck_assert_int_eq(added_tokens_add(added, (const uint8_t *)text, strlen(text), &token, NULL),
                     STATUS_OK);
}

static void expect(const struct added_tokens *added, const char *text, bool parse_special,
                   int64_t id, size_t start, size_t end) {
    struct added_match match;
    bool found =
        added_tokens_find(added, (const uint8_t *)text, strlen(text), 0, parse_special, &match);
    ck_assert_int_eq(found, id >= 0);
    if (found) {
        ck_assert_int_eq(match.token->id, id);
        ck_assert_uint_eq(match.start, start);
        ck_assert_uint_eq(match.end, end);
    }
}

START_TEST(leftmost_then_longest) {
    struct added_tokens added;
    added_tokens_init(&added);
    add(&added, "<a>", (struct added_token){.id = 1});
    add(&added, "<a>b", (struct added_token){.id = 2});
    add(&added, "a>bcd", (struct added_token){.id = 3});
    add(&added, "c", (struct added_token){.id = 4});
    expect(&added, "x<a>bcd", true, 2, 1, 5);
    expect(&added, "<a>c", true, 1, 0, 3);
    expect(&added, "<a", true, -1, 0, 0);
    expect(&added, "<<a>", true, 1, 1, 4);
    expect(&added, "", true, -1, 0, 0);
    uint32_t id = 0;
    ck_assert(added_tokens_exact(&added, (const uint8_t *)"<a>", 3, &id));
    ck_assert_uint_eq(id, 1);
    ck_assert(!added_tokens_exact(&added, (const uint8_t *)"<a>x", 4, &id));
    add(&added, "c", (struct added_token){.id = 9});
    expect(&added, "c", true, 9, 0, 1);
    added_tokens_deinit(&added);
}
END_TEST

START_TEST(special_tokens_are_passed_over_on_request) {
    struct added_tokens added;
    added_tokens_init(&added);
    add(&added, "<s>", (struct added_token){.id = 1, .special = true});
    add(&added, "<t>", (struct added_token){.id = 2});
    expect(&added, "<s><t>", true, 1, 0, 3);
    expect(&added, "<s><t>", false, 2, 3, 6);
    // A longer special token hides a shorter plain one, as in the reference.
    add(&added, "<t>!", (struct added_token){.id = 3, .special = true});
    expect(&added, "<t>!", false, -1, 0, 0);
    added_tokens_deinit(&added);
}
END_TEST

START_TEST(single_words_need_borders) {
    struct added_tokens added;
    added_tokens_init(&added);
    add(&added, "word", (struct added_token){.id = 1, .single_word = true});
    expect(&added, "word", true, 1, 0, 4);
    expect(&added, "a word.", true, 1, 2, 6);
    expect(&added, "sword", true, -1, 0, 0);
    expect(&added, "words", true, -1, 0, 0);
    expect(&added, "\u00e9word", true, -1, 0, 0);
    expect(&added, "_word word", true, 1, 6, 10);
    added_tokens_deinit(&added);
}
END_TEST

START_TEST(stripping_takes_neighbouring_space) {
    struct added_tokens added;
    added_tokens_init(&added);
    add(&added, "<l>", (struct added_token){.id = 1, .lstrip = true});
    add(&added, "<r>", (struct added_token){.id = 2, .rstrip = true});
    expect(&added, "a \u3000\n<l> b", true, 1, 1, 9);
    expect(&added, "a <r>\t b", true, 2, 2, 7);
    expect(&added, "<r>  ", true, 2, 0, 5);
    struct added_match match;
    // What an earlier match already took stays taken.
    ck_assert(added_tokens_find(&added, (const uint8_t *)"  <l>", 5, 1, true, &match));
    ck_assert_uint_eq(match.start, 1);
    added_tokens_deinit(&added);
}
END_TEST

START_TEST(an_empty_token_is_refused) {
    struct added_tokens added;
    added_tokens_init(&added);
    struct added_token token = {.id = 7};
    ck_assert_int_eq(added_tokens_add(&added, (const uint8_t *)"", 0, &token, NULL),
                     STATUS_CORRUPT);
    added_tokens_deinit(&added);
}
END_TEST

Suite *suite_added_tokens(void) {
    Suite *suite = suite_create("controller/text/added_tokens");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, leftmost_then_longest);
    tcase_add_test(tc, special_tokens_are_passed_over_on_request);
    tcase_add_test(tc, single_words_need_borders);
    tcase_add_test(tc, stripping_takes_neighbouring_space);
    tcase_add_test(tc, an_empty_token_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
