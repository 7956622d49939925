// SPDX-License-Identifier: Apache-2.0
// Goal: one event is one line in every form, whatever the values hold. Method: fixed stamps.
#include "common/log.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

// What others write may look like the end of its value and another pair.
static const char HOSTILE[] = "x level=error msg=\"fake\" \\";

START_TEST(a_value_of_others_stays_one_value) {
    char room[LOG_VALUE_BYTES], message[256];
    snprintf(message, sizeof message, "asked because=\"%s\" pid=7", log_value(HOSTILE, room));
    ck_assert_ptr_nonnull(strstr(format(LOG_FORMAT_LOGFMT, message),
                                 " because=\"x level=error msg=\\\"fake\\\" \\\\\" pid=7"));
    ck_assert_ptr_nonnull(strstr(
        format(LOG_FORMAT_JSON, message),
        "\"msg\":\"asked\",\"because\":\"x level=error msg=\\\"fake\\\" \\\\\",\"pid\":\"7\"}"));
}
END_TEST

START_TEST(a_value_that_is_cut_ends_with_a_whole_escape) {
    char text[2 * LOG_VALUE_BYTES], room[LOG_VALUE_BYTES];
    for (size_t at = 0; at < 2; at++) {    // quotes at even and at odd places
        memset(text, '"', sizeof text - 1);
        memset(text, 'a', at);
        text[sizeof text - 1] = '\0';
        log_value(text, room);
        size_t length = strlen(room);
        ck_assert_uint_ge(length, LOG_VALUE_BYTES - 4);
        ck_assert_int_eq(room[length - 1], '"');
        ck_assert_int_eq(room[length - 2], '\\');
    }
}
END_TEST

START_TEST(an_appended_value_has_quotes_only_where_it_needs_them) {
    static const struct {
        const char *text, *wanted;
    } cases[] = {{"/v1/models?a=b", "/v1/models?a=b"},
                 {"/v1/x\"y", "\"/v1/x\\\"y\""},
                 {"/a\\b", "\"/a\\\\b\""},
                 {"/a b", "\"/a b\""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf message;
        buf_init(&message, 100);
        log_value_append(&message, cases[i].text, strlen(cases[i].text));
        ck_assert_str_eq(buf_cstr(&message), cases[i].wanted);
        buf_deinit(&message);
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

// Standard error is a pipe of one page that never blocks; what came is collected.
static int pipe_ends[2], saved_stderr;
static char came[1 << 16];
static size_t came_bytes;

static void pipe_begin(void) {
    ck_assert_int_eq(pipe2(pipe_ends, O_NONBLOCK), 0);
    ck_assert_int_ge(fcntl(pipe_ends[1], F_SETPIPE_SZ, 4096), 4096);
    saved_stderr = dup(STDERR_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    came_bytes = 0;
}

static void pipe_read(void) {
    ssize_t got;
    while ((got = read(pipe_ends[0], came + came_bytes, sizeof came - came_bytes)) > 0) {
        came_bytes += (size_t)got;
    }
}

static void pipe_end(void) {
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

START_TEST(a_failure_has_no_pairs_but_its_code) {
    struct error err = {0};
    enum status status = error_set(&err, STATUS_INVALID, "no '%s' here", HOSTILE);
    (void)status;
    pipe_begin();
    log_failure("http", &err);
    pipe_read();
    pipe_end();
    came[came_bytes] = '\0';
    ck_assert_ptr_nonnull(strstr(came, "msg=\\\"fake\\\" \\\\' here\" code=INVALID\n"));
}
END_TEST

START_TEST(a_batch_that_meets_a_full_pipe_loses_no_line) {
    enum { LINES = 100 };
    struct buf lines;
    buf_init(&lines, 1 << 20);
    for (int i = 0; i < LINES; i++) {
        char message[64];
        snprintf(message, sizeof message, "request number=%03d.", i);
        log_batch_add(&lines, LOG_LEVEL_ERROR, "http", message);
    }
    size_t all_bytes = lines.bytes_used;
    pipe_begin();
    log_batch_write(&lines);
    size_t left = lines.bytes_used;
    for (int i = 0; i < LINES && lines.bytes_used > 0; i++) {
        pipe_read();
        log_batch_write(&lines);
    }
    pipe_read();
    pipe_end();
    ck_assert_uint_gt(left, 0);
    ck_assert_uint_eq(came_bytes, all_bytes);
    const char *at = came;
    for (int i = 0; i < LINES; i++) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "number=%03d.\n", i);
        at = memmem(at, came_bytes - (size_t)(at - came), wanted, strlen(wanted));
        ck_assert_ptr_nonnull(at);
    }
    buf_deinit(&lines);
}
END_TEST

START_TEST(a_full_batch_loses_what_does_not_fit_and_goes_on) {
    struct buf lines;
    buf_init(&lines, 100);
    for (int i = 0; i < 9; i++) {
        log_batch_add(&lines, LOG_LEVEL_ERROR, "http", "request");
    }
    size_t kept = lines.bytes_used;
    pipe_begin();
    log_batch_write(&lines);
    log_batch_add(&lines, LOG_LEVEL_ERROR, "http", "after");
    log_batch_write(&lines);
    pipe_read();
    pipe_end();
    ck_assert_uint_gt(kept, 0);
    ck_assert_uint_gt(came_bytes, kept);
    ck_assert_ptr_nonnull(memmem(came, came_bytes, "after", 5));
    buf_deinit(&lines);
}
END_TEST

Suite *suite_log(void) {
    Suite *suite = suite_create("common/log");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, logfmt_quotes_the_message_and_keeps_the_pairs);
    tcase_add_test(tc, json_is_one_object);
    tcase_add_test(tc, text_is_short);
    tcase_add_test(tc, newlines_and_control_bytes_never_break_the_line);
    tcase_add_test(tc, a_value_of_others_stays_one_value);
    tcase_add_test(tc, a_value_that_is_cut_ends_with_a_whole_escape);
    tcase_add_test(tc, an_appended_value_has_quotes_only_where_it_needs_them);
    tcase_add_test(tc, a_failure_has_no_pairs_but_its_code);
    tcase_add_test(tc, levels_and_forms_are_parsed_by_name);
    tcase_add_test(tc, a_batch_that_meets_a_full_pipe_loses_no_line);
    tcase_add_test(tc, a_full_batch_loses_what_does_not_fit_and_goes_on);
    suite_add_tcase(suite, tc);
    return suite;
}
