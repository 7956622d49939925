// SPDX-License-Identifier: Apache-2.0
// Goal: one event is one line in every form, whatever the values hold. Method: fixed stamps.
#include "common/log.h"
#include "tests/unit/suites.h"

#include <string.h>

static const char *format(enum log_format form, const char *message) {
    static char line[8192];
    struct log_stamp stamp = {LOG_LEVEL_WARN, form, 1767225599123u, "http"};
    log_format_line(&stamp, message, line, sizeof line);
    return line;
}

START_TEST(logfmt_quotes_the_message_and_keeps_the_pairs) {
    ck_assert_str_eq(format(LOG_FORMAT_LOGFMT, "request done status=200 path=/v1/models"),
                     "ts=2025-12-31T23:59:59.123Z level=warn src=http msg=\"request done\" "
                     "status=200 path=/v1/models");
}
END_TEST

START_TEST(json_is_one_object) {
    ck_assert_str_eq(format(LOG_FORMAT_JSON, "lost reason=\"no word\" pid=7"),
                     "{\"ts\":\"2025-12-31T23:59:59.123Z\",\"level\":\"warn\",\"src\":\"http\","
                     "\"msg\":\"lost\",\"reason\":\"no word\",\"pid\":\"7\"}");
}
END_TEST

START_TEST(text_is_short) {
    ck_assert_str_eq(format(LOG_FORMAT_TEXT, "ready"), "23:59:59.123 warn  http: ready");
}
END_TEST

START_TEST(newlines_and_control_bytes_never_break_the_line) {
    for (int form = LOG_FORMAT_TEXT; form <= LOG_FORMAT_JSON; form++) {
        const char *line = format((enum log_format)form, "a\nb\r\"c\" key=v\n2");
        ck_assert_ptr_null(strchr(line, '\n'));
        ck_assert_ptr_null(strchr(line, '\r'));
    }
}
END_TEST

START_TEST(levels_and_forms_are_parsed_by_name) {
    enum log_level level = LOG_LEVEL_ERROR;
    enum log_format form = LOG_FORMAT_AUTO;
    ck_assert(log_level_parse("trace", &level) && level == LOG_LEVEL_TRACE);
    ck_assert(!log_level_parse("loud", &level));
    ck_assert(log_format_parse("json", &form) && form == LOG_FORMAT_JSON);
    ck_assert(!log_format_parse("xml", &form));
}
END_TEST

Suite *suite_log(void) {
    Suite *suite = suite_create("common/log");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, logfmt_quotes_the_message_and_keeps_the_pairs);
    tcase_add_test(tc, json_is_one_object);
    tcase_add_test(tc, text_is_short);
    tcase_add_test(tc, newlines_and_control_bytes_never_break_the_line);
    tcase_add_test(tc, levels_and_forms_are_parsed_by_name);
    suite_add_tcase(suite, tc);
    return suite;
}
