// SPDX-License-Identifier: Apache-2.0
// Goal: strict parsing with the rulings of our API (null is absent, 256.0 is an integer, lone
// surrogates become U+FFFD) and safe writing. Method: small texts, each rule at and past its bound.
#include "common/bounds.h"
#include "common/json.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <string.h>

static struct json_doc *parse(const char *text) {
    struct json_doc *doc = NULL;
    struct error err = {0};
    ck_assert_msg(json_parse(text, strlen(text), &doc, &err) == STATUS_OK, "%s", err.message);
    return doc;
}

START_TEST(typed_fields_name_the_field_and_the_range) {
    struct json_doc *doc = parse("{\"n\":256.0,\"t\":null,\"s\":\"x\",\"f\":1.5}");
    const struct json *root = json_root(doc);
    int64_t n = 0;
    bool found = true;
    struct json_range_int range = {1, 256};
    ck_assert_int_eq(json_field_int(root, "n", range, &n, &found, NULL), STATUS_OK);
    ck_assert_int_eq(n, 256);
    ck_assert_int_eq(json_field_int(root, "t", range, &n, &found, NULL), STATUS_OK);
    ck_assert(!found);
    struct error err = {0};
    range.max = 255;
    ck_assert_int_eq(json_field_int(root, "n", range, &n, &found, &err), STATUS_INVALID);
    ck_assert_str_eq(err.message, "field 'n' is 256; it must lie in 1..255");
    error_reset(&err);
    ck_assert_int_eq(json_field_int(root, "f", range, &n, &found, &err), STATUS_INVALID);
    ck_assert_str_eq(err.message, "field 'f' must be an integer, not a number");
    error_reset(&err);
    ck_assert_int_eq(json_field_int(root, "missing", range, &n, NULL, &err), STATUS_INVALID);
    ck_assert_str_eq(err.message, "field 'missing' is required");
    json_destroy(doc);
}
END_TEST

START_TEST(lone_surrogates_become_replacement_characters) {
    struct json_doc *doc = parse("[\"\\ud83d\",\"\\ud83d\\ude00\",\"\\\\ud83d\",\"a\\udc00b\"]");
    const struct json *root = json_root(doc);
    ck_assert_str_eq(json_text(json_at(root, 0), NULL), "\xEF\xBF\xBD");
    ck_assert_str_eq(json_text(json_at(root, 1), NULL), "\xF0\x9F\x98\x80");
    ck_assert_str_eq(json_text(json_at(root, 2), NULL), "\\ud83d");
    ck_assert_str_eq(json_text(json_at(root, 3), NULL), "a\xEF\xBF\xBD"
                                                        "b");
    json_destroy(doc);
}
END_TEST

START_TEST(depth_is_bounded) {
    char text[4 * BOUND_JSON_DEPTH];
    for (uint32_t depth = BOUND_JSON_DEPTH; depth <= BOUND_JSON_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        struct json_doc *doc = NULL;
        enum status want = depth > BOUND_JSON_DEPTH ? STATUS_INVALID : STATUS_OK;
        ck_assert_int_eq(json_parse(text, 2 * (size_t)depth, &doc, NULL), want);
        json_destroy(doc);
    }
}
END_TEST

START_TEST(broken_texts_are_refused) {
    static const char *const texts[] = {
        "",         "{",
        "[1,]",     "{\"a\":1,}",
        "nul",      "1 2",
        "\"\xff\"", "\"\\u12\"",
        "\"a\nb\"", "'a'",
        "{a:1}",    "[1e999]",
        "\"\\",     "123456789012345678901234567890",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct json_doc *doc = NULL;
        struct error err = {0};
        ck_assert_msg(json_parse(texts[i], strlen(texts[i]), &doc, &err) == STATUS_INVALID,
                      "accepted: %s", texts[i]);
        ck_assert_ptr_null(doc);
    }
}
END_TEST

START_TEST(written_strings_are_one_safe_line) {
    struct buf out;
    buf_init(&out, 1 << 16);
    const char text[] = "a\"\\\n\x01\xC2\x85\xE2\x80\xA8\xFF\xC3\xA9\x7F";
    json_write_string(&out, text, sizeof text - 1);
    ck_assert_str_eq(buf_cstr(&out),
                     "\"a\\\"\\\\\\n\\u0001\\u0085\\u2028\xEF\xBF\xBD\xC3\xA9\\u007f\"");
    buf_deinit(&out);
}
END_TEST

START_TEST(values_are_written_as_python_does) {
    struct json_doc *doc = parse("{\"b\":[1,2.0,true,null],\"a\":{\"k\":\"\xC3\xA9\"}}");
    struct buf out;
    buf_init(&out, 1 << 16);
    struct json_write_options options = {.style = JSON_STYLE_SPACED};
    json_write(json_root(doc), &options, &out);
    ck_assert_str_eq(buf_cstr(&out), "{\"b\": [1, 2.0, true, null], \"a\": {\"k\": \"\xC3\xA9\"}}");
    buf_reset(&out);
    options.sort_keys = true;
    options.ascii_only = true;
    options.indent = 2;
    json_write(json_root(doc), &options, &out);
    ck_assert_str_eq(buf_cstr(&out), "{\n  \"a\": {\n    \"k\": \"\\u00e9\"\n  },\n  \"b\": [\n"
                                     "    1,\n    2.0,\n    true,\n    null\n  ]\n}");
    buf_deinit(&out);
    json_destroy(doc);
}
END_TEST

START_TEST(numbers_that_json_cannot_say_are_replaced) {
    struct buf out;
    buf_init(&out, 1 << 16);
    json_write_float(&out, -INFINITY);
    buf_append_byte(&out, ' ');
    json_write_float(&out, -0.1f);
    buf_append_byte(&out, ' ');
    json_write_double(&out, (double)NAN);
    ck_assert_str_eq(buf_cstr(&out), "-9999.0 -0.100000001 null");
    buf_deinit(&out);
}
END_TEST

START_TEST(a_failure_is_code_reason_and_hint) {
    struct buf out;
    struct error err = {0};
    buf_init(&out, 1024);
    (void)error_set(&err, STATUS_NOT_FOUND, "no file \"x\"");
    json_write_failure(&out, &err);
    ck_assert_str_eq(buf_cstr(&out), "\"code\":\"NOT_FOUND\",\"reason\":\"no file \\\"x\\\"\"");
    buf_reset(&out);
    error_hint(&err, "make one");
    json_write_failure(&out, &err);
    ck_assert_str_eq(buf_cstr(&out), "\"code\":\"NOT_FOUND\",\"reason\":\"no file \\\"x\\\"\","
                                     "\"hint\":\"make one\"");
    buf_deinit(&out);
}
END_TEST

Suite *suite_json(void) {
    Suite *suite = suite_create("common/json");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, typed_fields_name_the_field_and_the_range);
    tcase_add_test(tc, lone_surrogates_become_replacement_characters);
    tcase_add_test(tc, depth_is_bounded);
    tcase_add_test(tc, broken_texts_are_refused);
    tcase_add_test(tc, written_strings_are_one_safe_line);
    tcase_add_test(tc, values_are_written_as_python_does);
    tcase_add_test(tc, numbers_that_json_cannot_say_are_replaced);
    tcase_add_test(tc, a_failure_is_code_reason_and_hint);
    suite_add_tcase(suite, tc);
    return suite;
}
