// SPDX-License-Identifier: Apache-2.0
// Goal: the error story keeps the first failure and grows context in front. Method: direct calls.
#include "common/status.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

START_TEST(first_error_wins) {
    struct error err = {0};
    ck_assert_int_eq(error_set(&err, STATUS_EXHAUSTED, "wanted %d, %d free", 96, 12),
                     STATUS_EXHAUSTED);
    ck_assert_int_eq(error_set(&err, STATUS_IO, "later"), STATUS_IO);
    ck_assert_int_eq(err.status, STATUS_EXHAUSTED);
    ck_assert_str_eq(err.message, "wanted 96, 12 free");
}
END_TEST

START_TEST(context_is_prepended_and_long_messages_are_cut) {
    struct error err = {0};
    char big[2 * ERROR_MESSAGE_BYTES];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    (void)error_set(&err, STATUS_INVALID, "%s", big);
    error_context(&err, "reading '%s'", "config.json");
    ck_assert(strncmp(err.message, "reading 'config.json': xxx", 26) == 0);
    ck_assert_uint_lt(strlen(err.message), ERROR_MESSAGE_BYTES);
}
END_TEST

START_TEST(every_status_has_a_name_and_a_text) {
    for (int i = 0; i < STATUS_COUNT; i++) {
        ck_assert_ptr_nonnull(status_name((enum status)i));
        ck_assert_ptr_nonnull(status_text((enum status)i));
    }
}
END_TEST

START_TEST(null_error_is_accepted_everywhere) {
    ck_assert_int_eq(error_set(NULL, STATUS_IO, "x"), STATUS_IO);
    error_context(NULL, "x");
    error_hint(NULL, "x");
    error_hop(NULL, "f", 1);
    error_reset(NULL);
}
END_TEST

static void expect_line(const struct error *err, const char *want) {
    char got[256] = "";
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    int kept = dup(STDERR_FILENO);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    error_print("tare", err);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    size_t byte_count = fread(got, 1, sizeof got - 1, file);
    fclose(file);
    got[byte_count] = '\0';
    ck_assert_str_eq(got, want);
}

START_TEST(a_failure_is_told_in_one_line_with_its_hint) {
    struct error err = {0};
    ck_assert_int_eq(error_set(&err, STATUS_INVALID, "no model given"), STATUS_INVALID);
    expect_line(&err, "tare: no model given\n");
    error_hint(&err, "name one");
    expect_line(&err, "tare: no model given; name one\n");
}
END_TEST

Suite *suite_status(void) {
    Suite *suite = suite_create("common/status");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, first_error_wins);
    tcase_add_test(tc, context_is_prepended_and_long_messages_are_cut);
    tcase_add_test(tc, every_status_has_a_name_and_a_text);
    tcase_add_test(tc, null_error_is_accepted_everywhere);
    tcase_add_test(tc, a_failure_is_told_in_one_line_with_its_hint);
    suite_add_tcase(suite, tc);
    return suite;
}
