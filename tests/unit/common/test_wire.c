// SPDX-License-Identifier: Apache-2.0
// Goal: what is written is read back by the same calls, and nothing is read beyond the end, however
// short the bytes are. Method: one function for both directions, every length up to the whole.
#include "common/wire.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

struct fields {
    uint64_t large;
    double real;
    uint32_t small;    // one byte
    bool yes, no;
    const uint8_t *run;
    uint32_t run_bytes;
    uint16_t last;
};

static void wire_fields(struct wire *w, struct fields *f) {
    WIRE(w, f->large);
    WIRE(w, f->real);
    wire_u8(w, &f->small);
    wire_bool(w, &f->yes);
    wire_bool(w, &f->no);
    wire_run(w, &f->run, &f->run_bytes);
    WIRE(w, f->last);
}

static void write_fields(struct buf *out) {
    struct fields f = {.large = 0x0123456789abcdefu,
                       .real = -2.5,
                       .small = 255,
                       .yes = true,
                       .run = (const uint8_t *)"run",
                       .run_bytes = 3,
                       .last = 7};
    struct wire w = {.out = out};
    wire_fields(&w, &f);
    ck_assert(!w.broken);
}

START_TEST(what_is_written_is_read_back) {
    struct buf bytes;
    buf_init(&bytes, 256);
    write_fields(&bytes);
    ck_assert_uint_eq(bytes.bytes_used, 8 + 8 + 3 + 4 + 3 + 2);
    struct fields f = {0};
    struct wire w = wire_reader(bytes.data, bytes.bytes_used);
    wire_fields(&w, &f);
    ck_assert(!w.broken && wire_left(&w) == 0);
    ck_assert_uint_eq(f.large, 0x0123456789abcdefu);
    ck_assert_double_eq(f.real, -2.5);
    ck_assert_uint_eq(f.small, 255);
    ck_assert(f.yes && !f.no);
    ck_assert_uint_eq(f.run_bytes, 3);
    ck_assert_mem_eq(f.run, "run", 3);
    ck_assert_ptr_eq(f.run, bytes.data + 23);    // where it lies
    ck_assert_uint_eq(f.last, 7);
    buf_deinit(&bytes);
}
END_TEST

START_TEST(nothing_is_read_beyond_the_end) {
    struct buf bytes;
    buf_init(&bytes, 256);
    write_fields(&bytes);
    for (size_t length = 0; length < bytes.bytes_used; length++) {
        uint8_t *cut = malloc(length);    // so that the sanitizer sees a byte too many
        memcpy(cut, bytes.data, length);
        struct fields f = {.last = 9};
        struct wire w = wire_reader(cut, length);
        wire_fields(&w, &f);
        ck_assert_msg(w.broken, "%zu bytes are taken for the whole", length);
        ck_assert_uint_eq(f.last, 0);
        free(cut);
    }
    buf_deinit(&bytes);
}
END_TEST

START_TEST(a_broken_cursor_stays_where_it_is) {
    const uint8_t bytes[] = {1, 2, 3};
    struct wire w = wire_reader(bytes, sizeof bytes);
    uint64_t wide = 5;
    uint8_t narrow = 5;
    WIRE(&w, wide);
    WIRE(&w, narrow);    // would fit
    ck_assert(w.broken);
    ck_assert_uint_eq(wide, 0);
    ck_assert_uint_eq(narrow, 0);
    ck_assert_uint_eq(wire_left(&w), 3);
}
END_TEST

START_TEST(a_bool_is_0_or_1) {
    const uint8_t bytes[] = {0, 1, 2};
    bool values[3] = {true, false, true};
    struct wire w = wire_reader(bytes, sizeof bytes);
    wire_bool(&w, &values[0]);
    wire_bool(&w, &values[1]);
    ck_assert(!w.broken && !values[0] && values[1]);
    wire_bool(&w, &values[2]);
    ck_assert(w.broken && !values[2]);
}
END_TEST

START_TEST(a_run_that_is_longer_than_what_is_left_is_none) {
    const uint32_t counts[] = {4, 5, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint8_t bytes[8] = {0, 0, 0, 0, 'w', 'i', 'r', 'e'};
        memcpy(bytes, &counts[i], sizeof counts[i]);
        const uint8_t *run = NULL;
        uint32_t run_bytes = 9;
        struct wire w = wire_reader(bytes, sizeof bytes);
        wire_run(&w, &run, &run_bytes);
        ck_assert_int_eq(w.broken, i > 0);
        ck_assert_uint_eq(run_bytes, i > 0 ? 0 : 4);
        ck_assert_ptr_nonnull(run);
    }
}
END_TEST

START_TEST(what_cannot_be_written_is_the_buffers_failure) {
    struct buf bytes;
    buf_init(&bytes, 10);
    write_fields(&bytes);
    ck_assert_int_eq(buf_status(&bytes), STATUS_EXHAUSTED);
    buf_deinit(&bytes);
}
END_TEST

START_TEST(little_endian_integers_have_their_bytes_in_order) {
    const uint8_t bytes[9] = {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x81, 0xff};
    const uint64_t values[9] = {
        [1] = 0xef, [2] = 0xcdef, [4] = 0x89abcdefu, [8] = 0x8123456789abcdefu};
    for (uint32_t count = 1; count <= 8; count *= 2) {
        uint8_t out[9];
        memset(out, 0xff, sizeof out);
        wire_put_le(out, 0x8123456789abcdefu, count);    // what is above is left out
        ck_assert_mem_eq(out, bytes, count);
        ck_assert_uint_eq(out[count], 0xff);
        ck_assert_uint_eq(wire_get_le(bytes, count), values[count]);
    }
}
END_TEST

Suite *suite_wire(void) {
    Suite *suite = suite_create("common/wire");
    TCase *tc = tcase_create("all");
    const TTest *const tests[] = {
        what_is_written_is_read_back,
        nothing_is_read_beyond_the_end,
        a_broken_cursor_stays_where_it_is,
        a_bool_is_0_or_1,
        a_run_that_is_longer_than_what_is_left_is_none,
        what_cannot_be_written_is_the_buffers_failure,
        little_endian_integers_have_their_bytes_in_order,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(tc, tests[i]);
    }
    suite_add_tcase(suite, tc);
    return suite;
}
