// SPDX-License-Identifier: Apache-2.0
// Goal: the buffer stops exactly at its cap and stays failed. Method: at the bound and one past it.
#include "common/buf.h"
#include "common/memory.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(holds_exactly_its_cap) {
    struct buf buf;
    buf_init(&buf, 5);
    buf_append(&buf, "12345", 5);
    ck_assert_int_eq(buf_status(&buf), STATUS_OK);
    ck_assert_str_eq(buf_cstr(&buf), "12345");
    buf_append_byte(&buf, '6');
    ck_assert_int_eq(buf_status(&buf), STATUS_EXHAUSTED);
    ck_assert_uint_eq(buf.bytes_used, 5);
    buf_reset(&buf);
    buf_append_str(&buf, "ok");
    ck_assert_str_eq(buf_cstr(&buf), "ok");
    buf_deinit(&buf);
}
END_TEST

START_TEST(formats_and_consumes) {
    struct buf buf;
    buf_init(&buf, 1 << 20);
    buf_printf(&buf, "%s=%d", "key", 7);
    buf_append_u64(&buf, UINT64_MAX);
    ck_assert_str_eq(buf_cstr(&buf), "key=718446744073709551615");
    buf_consume(&buf, 4);
    ck_assert_str_eq(buf_cstr(&buf), "718446744073709551615");
    buf_deinit(&buf);
}
END_TEST

START_TEST(failed_allocation_is_sticky_and_harmless) {
    struct buf buf;
    buf_init(&buf, 1 << 20);
    memory_fail_nth(1);
    buf_append_str(&buf, "lost");
    memory_fail_nth(0);
    ck_assert_int_eq(buf_status(&buf), STATUS_EXHAUSTED);
    ck_assert_str_eq(buf_cstr(&buf), "");
    buf_deinit(&buf);
}
END_TEST

Suite *suite_buf(void) {
    Suite *suite = suite_create("common/buf");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, holds_exactly_its_cap);
    tcase_add_test(tc, formats_and_consumes);
    tcase_add_test(tc, failed_allocation_is_sticky_and_harmless);
    suite_add_tcase(suite, tc);
    return suite;
}
