// SPDX-License-Identifier: Apache-2.0
// Goal: packing loses nothing and costs no bytes. Method: random rows of every type, decoded from
// the packed form and by the reference decoder.
#include "kernels/cpu/pack.h"
#include "tests/unit/kernels/fixture.h"
#include "tests/unit/suites.h"

#include "common/bounds.h"
#include "common/memory.h"
#include <string.h>

static uint32_t cols_for(enum dtype dtype, uint32_t blocks) {
    return dtype_block_elements(dtype) * blocks;
}

static void check_decode(struct fixture *fixture, const struct ops *ops, enum dtype dtype,
                         uint32_t rows, uint32_t cols) {
    const uint8_t *source = fixture_source(fixture, dtype, rows, cols);
    struct op_weight weight = fixture_pack(fixture, ops, dtype, rows, cols, source);
    uint64_t row_bytes = 0;
    ck_assert(dtype_row_bytes(dtype, cols, &row_bytes));
    float *expected = fixture_alloc(fixture, cols * sizeof *expected);
    float *got = fixture_alloc(fixture, cols * sizeof *got);
    for (uint32_t r = 0; r < rows; r++) {
        dtype_decode(dtype, source + row_bytes * r, cols, expected);
        pack_decode_row(&weight, r, got);
        for (uint32_t c = 0; c < cols; c++) {
            ck_assert_msg(got[c] == expected[c], "%s row %u column %u: %.9g, expected %.9g",
                          dtype_name(dtype), r, c, (double)got[c], (double)expected[c]);
        }
    }
}

START_TEST(packed_rows_decode_as_the_file_does) {
    struct fixture fixture;
    fixture_init(&fixture, 1);
    const struct ops *ops = ops_cpu("scalar");
    for (int d = 0; d < DTYPE_COUNT; d++) {
        check_decode(&fixture, ops, (enum dtype)d, 43, cols_for((enum dtype)d, 3));
        check_decode(&fixture, ops, (enum dtype)d, 8, cols_for((enum dtype)d, 1));
    }
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(packed_size_is_the_file_size) {
    for (int d = 0; d < DTYPE_COUNT; d++) {
        uint64_t row_bytes = 0;
        ck_assert(dtype_row_bytes((enum dtype)d, 1536, &row_bytes));
        ck_assert_uint_eq(pack_weight_bytes((enum dtype)d, 576, 1536), 576 * row_bytes);
        ck_assert_uint_eq(pack_weight_bytes((enum dtype)d, 569, 1536), 576 * row_bytes);
    }
}
END_TEST

START_TEST(packing_in_parts_equals_packing_at_once) {
    struct fixture fixture;
    fixture_init(&fixture, 2);
    const struct ops *ops = ops_cpu("scalar");
    for (int d = 0; d < DTYPE_COUNT; d++) {
        uint32_t cols = cols_for((enum dtype)d, 2);
        const void *source = fixture_source(&fixture, (enum dtype)d, 53, cols);
        struct op_weight whole = fixture_pack(&fixture, ops, (enum dtype)d, 53, cols, source);
        size_t bytes = ops->weight_bytes((enum dtype)d, 53, cols);
        void *parts = fixture_alloc(&fixture, bytes);
        uint64_t row_bytes = 0;
        ck_assert(dtype_row_bytes((enum dtype)d, cols, &row_bytes));
        const struct op_source from = {source, row_bytes, 53};
        ops->weight_pack(&whole, &from, parts, 48, 53);
        ops->weight_pack(&whole, &from, parts, 0, 48);
        ck_assert_mem_eq(parts, whole.data, bytes);
    }
    ck_assert_uint_eq(48 % ops->weight_pack_rows(), 0);
    fixture_deinit(&fixture);
}
END_TEST

// A rank's padding: rows that no file has.
START_TEST(rows_past_the_source_are_zero) {
    struct fixture fixture;
    fixture_init(&fixture, 3);
    const struct ops *ops = ops_cpu("scalar");
    for (int d = 0; d < DTYPE_COUNT; d++) {
        for (uint32_t present = 0; present <= 30; present += 10) {
            uint32_t first = fixture.buffer_count, cols = cols_for((enum dtype)d, 1);
            const void *source = fixture_source(&fixture, (enum dtype)d, 30, cols);
            struct op_weight whole = fixture_pack(&fixture, ops, (enum dtype)d, 30, cols, source);
            struct op_weight weight = whole;
            void *packed = fixture_alloc(&fixture, ops->weight_bytes((enum dtype)d, 30, cols));
            uint64_t row_bytes = 0;
            ck_assert(dtype_row_bytes((enum dtype)d, cols, &row_bytes));
            const struct op_source from = {source, row_bytes, present};
            ops->weight_pack(&weight, &from, packed, 0, 24);
            ops->weight_pack(&weight, &from, packed, 24, 30);
            weight.data = packed;
            float *got = fixture_alloc(&fixture, cols * sizeof *got);
            float *want = fixture_alloc(&fixture, cols * sizeof *want);
            for (uint32_t row = 0; row < 30; row++) {
                pack_decode_row(&weight, row, got);
                pack_decode_row(&whole, row, want);
                for (uint32_t c = 0; c < cols; c++) {
                    ck_assert(got[c] == (row < present ? want[c] : 0.0f));
                }
            }
            fixture_release(&fixture, first);
        }
    }
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(refuses_shapes_it_cannot_hold) {
    ck_assert(pack_supported(DTYPE_Q4_1, 1, 32));
    ck_assert(!pack_supported(DTYPE_Q4_1, 1, 33));
    ck_assert(!pack_supported(DTYPE_Q4_K, 8, 128));
    ck_assert(pack_supported(DTYPE_F32, 3, 1));
    ck_assert(!pack_supported(DTYPE_F32, 0, 8));
    ck_assert(!pack_supported(DTYPE_F32, 8, 0));
    ck_assert(!pack_supported(DTYPE_COUNT, 8, 32));
    ck_assert(pack_supported(DTYPE_F16, BOUND_VOCABULARY_TOKENS, BOUND_MATRIX_COLS));
    ck_assert(!pack_supported(DTYPE_F16, BOUND_VOCABULARY_TOKENS + 1, 32));
    ck_assert(!pack_supported(DTYPE_F16, 8, BOUND_MATRIX_COLS + 1));
}
END_TEST

Suite *suite_kernels_pack(void) {
    Suite *suite = suite_create("kernels/pack");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, packed_rows_decode_as_the_file_does);
    tcase_add_test(tc, packed_size_is_the_file_size);
    tcase_add_test(tc, packing_in_parts_equals_packing_at_once);
    tcase_add_test(tc, rows_past_the_source_are_zero);
    tcase_add_test(tc, refuses_shapes_it_cannot_hold);
    suite_add_tcase(suite, tc);
    return suite;
}
