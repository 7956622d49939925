// SPDX-License-Identifier: Apache-2.0
// Goal: every stored type decodes to the recorded values, bit for bit. Method: the golden blocks of
// the format notes (byte i = 37 i + 11 mod 256, float16 fields overwritten), and all float16
// values.
#include "common/dtype.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <string.h>

struct golden {
    enum dtype dtype;
    int half_offset[2];    // where the float16 fields lie, -1: none
    uint16_t half[2];
    float first[4], middle[2], last[2];
    double sum;
};

static const struct golden goldens[] = {
    {DTYPE_Q4_0,
     {0, -1},
     {0x3400, 0},
     {-0.75f, 0.5f, 1.75f, -1},
     {-0.75f, -0.25f},
     {-0.75f, 0},
     -5.25},
    {DTYPE_Q4_1,
     {0, 2},
     {0x3400, 0xBE00},
     {2.25f, -0.5f, 0.75f, 2},
     {0.75f, 1.5f},
     {1, 1.5f},
     13.25},
    {DTYPE_Q5_0, {0, -1}, {0x3400, 0}, {2.25f, -0.5f, 0.75f, -2}, {3.5f, 0}, {3.5f, 0.25f}, 3.75},
    {DTYPE_Q5_1,
     {0, 2},
     {0x3400, 0xBE00},
     {3.25f, 4.5f, 5.75f, 3},
     {3.25f, -0.25f},
     {-0.75f, -0.25f},
     78.25},
    {DTYPE_Q8_0,
     {0, -1},
     {0x3400, 0},
     {21.25f, 30.5f, -24.25f, -15},
     {-22.75f, -13.5f},
     {-21.25f, -12},
     -44},
    {DTYPE_Q4_K,
     {0, 2},
     {0x2C00, 0x2800},
     {19.71875f, -1.59375f, 8.09375f, 17.78125f},
     {26.4375f, -0.375f},
     {2.28125f, 3.03125f},
     3402.5},
    {DTYPE_Q5_K,
     {0, 2},
     {0x2C00, 0x2800},
     {50.71875f, -1.59375f, 39.09375f, 17.78125f},
     {65.4375f, -0.375f},
     {6.03125f, 6.78125f},
     7263.5},
    {DTYPE_Q6_K,
     {208, -1},
     {0x2C00, 0},
     {-89.4375f, 106, 36.4375f, -33.125f},
     {-21.9375f, 26},
     {-2.5f, -3.75f},
     288.25},
};

START_TEST(golden_blocks_decode_exactly) {
    for (size_t g = 0; g < sizeof goldens / sizeof goldens[0]; g++) {
        const struct golden *want = &goldens[g];
        uint8_t block[256];
        for (int i = 0; i < 256; i++) {
            block[i] = (uint8_t)(37 * i + 11);
        }
        for (int i = 0; i < 2; i++) {
            if (want->half_offset[i] >= 0) {
                memcpy(block + want->half_offset[i], &want->half[i], 2);
            }
        }
        float y[256];
        uint32_t n = dtype_block_elements(want->dtype);
        dtype_decode(want->dtype, block, n, y);
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)y[i];
        }
        ck_assert_mem_eq(y, want->first, sizeof want->first);
        ck_assert_mem_eq(y + n / 2, want->middle, sizeof want->middle);
        ck_assert(y[n - 2] == want->last[0] && y[n - 1] == want->last[1]);
        ck_assert_msg(sum == want->sum, "%s sums to %g", dtype_name(want->dtype), sum);
    }
}
END_TEST

START_TEST(half_precision_survives_a_round_trip) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = dtype_f16_to_f32((uint16_t)bits);
        if (isnan(value)) {
            ck_assert(isnan(dtype_f16_to_f32(dtype_f32_to_f16(value))));
        } else {
            ck_assert_uint_eq(dtype_f32_to_f16(value), bits);
        }
        float brain = dtype_bf16_to_f32((uint16_t)bits);
        if (!isnan(brain)) {
            ck_assert_uint_eq(dtype_f32_to_bf16(brain), bits);
        }
    }
    ck_assert_uint_eq(dtype_f32_to_f16(65519.0f), 0x7BFF);
    ck_assert_uint_eq(dtype_f32_to_f16(65520.0f), 0x7C00);
    ck_assert_uint_eq(dtype_f32_to_f16(1.0f + 0x1.0p-11f), 0x3C00);    // tie to even
    ck_assert_uint_eq(dtype_f32_to_f16(1.0f + 3 * 0x1.0p-11f), 0x3C02);
    ck_assert_uint_eq(dtype_f32_to_f16(0x1.0p-25f), 0x0000);
    ck_assert_uint_eq(dtype_f32_to_f16(0x1.8p-25f), 0x0001);
}
END_TEST

START_TEST(row_bytes_need_whole_blocks_and_do_not_overflow) {
    uint64_t bytes = 0;
    ck_assert(dtype_row_bytes(DTYPE_Q4_1, 576, &bytes));
    ck_assert_uint_eq(bytes, 360);
    ck_assert(!dtype_row_bytes(DTYPE_Q4_1, 577, &bytes));
    ck_assert(!dtype_row_bytes(DTYPE_Q6_K, 576, &bytes));
    ck_assert(!dtype_row_bytes(DTYPE_F32, UINT64_MAX, &bytes));
}
END_TEST

Suite *suite_dtype(void) {
    Suite *suite = suite_create("common/dtype");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, golden_blocks_decode_exactly);
    tcase_add_test(tc, half_precision_survives_a_round_trip);
    tcase_add_test(tc, row_bytes_need_whole_blocks_and_do_not_overflow);
    suite_add_tcase(suite, tc);
    return suite;
}
