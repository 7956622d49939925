// SPDX-License-Identifier: Apache-2.0
// Goal: the error story keeps the first failure and grows context in front. Method: direct calls.
#include "common/status.h"
#include "tests/unit/suites.h"

#include <string.h>

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

Suite *suite_status(void) {
    Suite *suite = suite_create("common/status");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, first_error_wins);
    tcase_add_test(tc, context_is_prepended_and_long_messages_are_cut);
    tcase_add_test(tc, every_status_has_a_name_and_a_text);
    tcase_add_test(tc, null_error_is_accepted_everywhere);
    suite_add_tcase(suite, tc);
    return suite;
}
