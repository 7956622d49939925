// SPDX-License-Identifier: Apache-2.0
// Goal: the hand scanners cut like the regular expressions they stand for, and stages nest.
// Method: each scanner against pcre2 with the same pattern on random texts of the characters that
// matter; named cases; bounds.
#include "common/bounds.h"
#include "common/buf.h"
#include "common/memory.h"
#include "common/rng.h"
#include "controller/text/pretokenize.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

// Words joined with '|', for comparing and for reading in a failure.
static enum status join(void *context, const uint8_t *bytes, size_t byte_count, struct error *err) {
    (void)err;
    buf_append(context, bytes, byte_count);
    buf_append_byte(context, '|');
    return STATUS_OK;
}

static void cut(const struct pretokenizer *pre, const void *text, size_t byte_count,
                struct buf *out) {
    struct error err = {0};
    buf_init(out, 1 << 20);
    enum status status = pretokenize_run(pre, text, byte_count, join, out, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
}

static struct pretokenizer *with_rule(enum pretokenize_rule rule) {
    struct pretokenizer *pre = pretokenizer_create();
    ck_assert_int_eq(pretokenizer_add_rule(pre, rule, NULL), STATUS_OK);
    return pre;
}

static void expect(const struct pretokenizer *pre, const char *text, const char *want) {
    struct buf got;
    cut(pre, text, strlen(text), &got);
    ck_assert_str_eq(buf_cstr(&got), want);
    buf_deinit(&got);
}

START_TEST(scanners_agree_with_their_patterns) {
    static const char *const alphabet[] = {
        "a",        "B",          "s",      "'",      "'s",     "'LL",     "'Re",    " ",
        "  ",       "\n",         "\r",     "\t",     "1",      "23",      ".",      "(",
        "_",        "\u00e9",     "\u4e2d", "\u0301", "\u00bd", "\u00a0",  "\u3000", "\u2028",
        "\xC2\x85", "\U0001f600", "\u0967", "\u200b", "\u017f", "'\u017f", "\x1c",   "\u0e34"};
    struct rng rng;
    rng_init(&rng, 7);
    for (int rule = 0; rule < PRETOKENIZE_RULE_COUNT; rule++) {
        struct pretokenizer *ours = with_rule((enum pretokenize_rule)rule);
        struct pretokenizer *pcre = pretokenizer_create();
        char pattern[512];
        // The brackets keep the pattern from being recognised as the rule.
        snprintf(pattern, sizeof pattern, "(?:%s)",
                 pretokenize_pattern((enum pretokenize_rule)rule));
        ck_assert_int_eq(pretokenizer_add_regex(pcre, pattern, strlen(pattern), false, NULL),
                         STATUS_OK);
        for (int round = 0; round < 4000; round++) {
            struct buf text;
            struct buf a;
            struct buf b;
            buf_init(&text, 4096);
            uint64_t parts = 1 + rng_below(&rng, 24);
            for (uint64_t i = 0; i < parts; i++) {
                buf_append_str(&text,
                               alphabet[rng_below(&rng, sizeof alphabet / sizeof *alphabet)]);
            }
            cut(ours, text.data, text.bytes_used, &a);
            cut(pcre, text.data, text.bytes_used, &b);
            ck_assert_msg(strcmp(buf_cstr(&a), buf_cstr(&b)) == 0, "rule %d: '%s' not '%s'", rule,
                          buf_cstr(&a), buf_cstr(&b));
            buf_deinit(&text);
            buf_deinit(&a);
            buf_deinit(&b);
        }
        pretokenizer_destroy(ours);
        pretokenizer_destroy(pcre);
    }
}
END_TEST

START_TEST(named_cases_of_each_family) {
    struct pretokenizer *pre = with_rule(PRETOKENIZE_LLAMA3);
    expect(pre, "I'm  sure they'LL pay 12345.", "I|'m| | sure| they|'LL| pay| |123|45|.|");
    expect(pre, "x=1;\n\treturn (x)  \n", "x|=|1|;\n|\treturn| (|x|)|  \n|");
    expect(pre, "a\n\n  b", "a|\n\n| | b|");
    expect(pre, "   ", "   |");
    expect(pre, "\xFFz \xFE\xFD", "\xFFz| \xFE\xFD|");    // broken bytes are "other"
    pretokenizer_destroy(pre);
    pre = with_rule(PRETOKENIZE_QWEN2);
    expect(pre, "ab 123", "ab| |1|2|3|");
    pretokenizer_destroy(pre);
    pre = with_rule(PRETOKENIZE_QWEN35);
    expect(pre, "e\u0301t\u0e34 \u0301", "e\u0301t\u0e34| \u0301|");
    pretokenizer_destroy(pre);
    pre = with_rule(PRETOKENIZE_GPT2);
    expect(pre, "they'LL 12 a  b", "they|'|LL| 12| a| | b|");
    pretokenizer_destroy(pre);
}
END_TEST

START_TEST(stages_see_only_their_piece) {
    // SmolLM2: the spaces before a digit are at the end of their piece and stay whole.
    struct pretokenizer *pre = with_rule(PRETOKENIZE_DIGIT);
    ck_assert_int_eq(pretokenizer_add_rule(pre, PRETOKENIZE_GPT2, NULL), STATUS_OK);
    expect(pre, "a  12 b", "a|  |1|2| b|");
    pretokenizer_destroy(pre);
    pre = with_rule(PRETOKENIZE_DIGITS);
    ck_assert_int_eq(pretokenizer_add_prefix_space(pre, NULL), STATUS_OK);
    expect(pre, "a12", " a| 12|");
    expect(pre, " a", " a|");
    pretokenizer_destroy(pre);
}
END_TEST

START_TEST(regex_stages_isolate_or_keep_matches_only) {
    struct pretokenizer *pre = pretokenizer_create();
    ck_assert_int_eq(pretokenizer_add_regex(pre, "b+", 2, false, NULL), STATUS_OK);
    expect(pre, "abbacb", "a|bb|ac|b|");
    expect(pre,
           "a\xFF\xFE"
           "b",
           "a|\xFF\xFE|b|");
    expect(pre, "", "");
    pretokenizer_destroy(pre);
    pre = pretokenizer_create();
    ck_assert_int_eq(pretokenizer_add_regex(pre, "\\w+|x*", 6, true, NULL), STATUS_OK);
    expect(pre, "ab, cd!", "ab|cd|");
    pretokenizer_destroy(pre);
}
END_TEST

START_TEST(bad_patterns_and_too_many_stages_are_refused) {
    struct error err = {0};
    struct pretokenizer *pre = pretokenizer_create();
    ck_assert_int_eq(pretokenizer_add_regex(pre, "a(", 2, false, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "does not compile at byte 2"));
    ck_assert_int_eq(pretokenizer_add_regex(pre, "\\C", 2, false, NULL), STATUS_UNSUPPORTED);
    static char longest[BOUND_REGEX_BYTES + 1];
    memset(longest, 'a', sizeof longest);
    ck_assert_int_eq(pretokenizer_add_regex(pre, longest, BOUND_REGEX_BYTES + 1, false, NULL),
                     STATUS_UNSUPPORTED);
    ck_assert_int_eq(pretokenizer_add_regex(pre, longest, BOUND_REGEX_BYTES, false, NULL),
                     STATUS_OK);
    for (uint32_t i = 1; i < BOUND_PRETOKENIZER_STAGES; i++) {
        ck_assert_int_eq(pretokenizer_add_rule(pre, PRETOKENIZE_GPT2, NULL), STATUS_OK);
    }
    ck_assert_int_eq(pretokenizer_add_rule(pre, PRETOKENIZE_GPT2, NULL), STATUS_UNSUPPORTED);
    pretokenizer_destroy(pre);
}
END_TEST

START_TEST(a_pattern_that_explodes_is_a_status) {
    struct pretokenizer *pre = pretokenizer_create();
    ck_assert_int_eq(pretokenizer_add_regex(pre, "(a|aa)+$", 8, false, NULL), STATUS_OK);
    char text[64];
    memset(text, 'a', sizeof text);
    text[63] = 'b';
    struct buf out;
    buf_init(&out, 1024);
    struct error err = {0};
    ck_assert_int_eq(pretokenize_run(pre, (const uint8_t *)text, 64, join, &out, &err),
                     STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "gave up"));
    buf_deinit(&out);
    pretokenizer_destroy(pre);
}
END_TEST

Suite *suite_pretokenize(void) {
    Suite *suite = suite_create("controller/text/pretokenize");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, scanners_agree_with_their_patterns);
    tcase_add_test(tc, named_cases_of_each_family);
    tcase_add_test(tc, stages_see_only_their_piece);
    tcase_add_test(tc, regex_stages_isolate_or_keep_matches_only);
    tcase_add_test(tc, bad_patterns_and_too_many_stages_are_refused);
    tcase_add_test(tc, a_pattern_that_explodes_is_a_status);
    suite_add_tcase(suite, tc);
    return suite;
}
