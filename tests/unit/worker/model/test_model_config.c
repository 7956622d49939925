// SPDX-License-Identifier: Apache-2.0
// Goal: rotary frequencies under every scaling equal the recorded numbers, and a scaling that is
// not understood is refused rather than left out. Method: the golden vectors of the model notes
// (float64, rounded), small config.json files, and the measure reader's placement on a hand-made
// sequence.
#include "tests/unit/suites.h"
#include "worker/model/model_config.h"
#include "worker/model/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void near_to(double have, double want) {
    ck_assert_msg(fabs(have - want) <= 1e-8 * fabs(want) * 10, "%.12g, not %.12g", have, want);
}

START_TEST(llama3_frequencies_match) {
    struct rope_config rope = {.theta = 5e5,
                               .dims = 128,
                               .scaling = ROPE_SCALING_LLAMA3,
                               .factor = 8,
                               .low_freq_factor = 1,
                               .high_freq_factor = 4,
                               .original_context = 8192};
    double f[64], amplitude = 0;
    rope_frequencies(&rope, NULL, f, &amplitude);
    near_to(amplitude, 1.0);
    near_to(f[1], 0.814617234);
    near_to(f[30], 0.00137189357);
    near_to(f[63], 3.06892599e-07);
    // The same numbers as divisors from a file.
    float divisors[64];
    for (int j = 0; j < 64; j++) {
        divisors[j] = (float)(pow(5e5, -2.0 * j / 128) / f[j]);
    }
    ck_assert(fabs((double)divisors[31] - 2.026313) < 1e-6);
    rope.scaling = ROPE_SCALING_TABLE;
    double g[64];
    rope_frequencies(&rope, divisors, g, &amplitude);
    for (int j = 0; j < 64; j++) {
        ck_assert(fabs(g[j] / f[j] - 1) < 1e-6);
    }
}
END_TEST

START_TEST(yarn_frequencies_match) {
    struct rope_config rope = {.theta = 1e6,
                               .dims = 128,
                               .scaling = ROPE_SCALING_YARN,
                               .factor = 4,
                               .original_context = 32768,
                               .beta_fast = 32,
                               .beta_slow = 1};
    double f[64], amplitude = 0;
    rope_frequencies(&rope, NULL, f, &amplitude);
    near_to(amplitude, 1.138629436);
    near_to(f[24], 0.00537532149);
    near_to(f[30], 0.00106436098);
    near_to(f[63], 3.1023444e-07);
}
END_TEST

START_TEST(linear_scaling_divides) {
    struct rope_config rope = {
        .theta = 1e4, .dims = 8, .scaling = ROPE_SCALING_LINEAR, .factor = 2};
    double f[4], amplitude = 0;
    rope_frequencies(&rope, NULL, f, &amplitude);
    near_to(f[0], 0.5);
    near_to(f[1], 0.05);
}
END_TEST

static enum status read_with(const char *member) {
    char dir[] = "/tmp/tare-test-config-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
            "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":256,"
            "\"max_position_embeddings\":128%s}",
            member);
    fclose(file);
    struct weights *weights = NULL;
    struct model_config config;
    ck_assert_int_eq(weights_open(dir, &weights, NULL), STATUS_OK);
    enum status status = model_config_read(weights, &config, NULL);
    weights_close(weights);
    remove(path);
    remove(dir);
    return status;
}

START_TEST(a_scaling_that_is_not_understood_is_refused) {
    ck_assert_int_eq(read_with(""), STATUS_OK);
    ck_assert_int_eq(read_with(",\"rope_scaling\":null"), STATUS_OK);
    ck_assert_int_eq(read_with(",\"rope_scaling\":{\"rope_theta\":500000.0}"), STATUS_OK);
    ck_assert_int_eq(read_with(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"), STATUS_OK);
    ck_assert_int_eq(read_with(",\"rope_scaling\":{\"factor\":2}"), STATUS_UNSUPPORTED);
    ck_assert_int_eq(read_with(",\"rope_scaling\":{\"type\":\"new\",\"factor\":2}"),
                     STATUS_UNSUPPORTED);
    ck_assert_int_eq(read_with(",\"rope_scaling\":\"linear\""), STATUS_CORRUPT);
    ck_assert_int_eq(read_with(",\"rope_scaling\":2"), STATUS_CORRUPT);
    ck_assert_int_eq(read_with(",\"rope_scaling\":[]"), STATUS_CORRUPT);
}
END_TEST

START_TEST(both_readers_place_memory_alike_and_reuse_what_was_dropped) {
    static _Alignas(64) uint8_t arena[4096];
    struct op_ctx ctx = {0};
    struct ops ops = {0};
    struct reader measure, run;
    reader_init_measure(&measure, &ops, &ctx);
    reader_init_run(&run, &ops, &ctx, arena, sizeof arena);
    struct reader *readers[2] = {&measure, &run};
    size_t offsets[2][4];
    for (int i = 0; i < 2; i++) {
        uint8_t *base = reader_take(readers[i], 100);    // 0..128
        uint8_t *b = reader_take(readers[i], 64);        // 128..192
        uint8_t *c = reader_take(readers[i], 1);         // 192..256
        reader_drop(readers[i], b);
        uint8_t *d = reader_take(readers[i], 65);    // does not fit the gap: 256..384
        uint8_t *e = reader_take(readers[i], 64);    // fits it: 128
        offsets[i][0] = (size_t)(b - base);
        offsets[i][1] = (size_t)(c - base);
        offsets[i][2] = (size_t)(d - base);
        offsets[i][3] = (size_t)(e - base);
        ck_assert_uint_eq(reader_peak_bytes(readers[i]), 384);
    }
    ck_assert_mem_eq(offsets[0], offsets[1], sizeof offsets[0]);
    ck_assert_uint_eq(offsets[0][2], 256);
    ck_assert_uint_eq(offsets[0][3], 128);
}
END_TEST

Suite *suite_model_config(void) {
    Suite *suite = suite_create("worker/model/model_config");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, llama3_frequencies_match);
    tcase_add_test(tc, yarn_frequencies_match);
    tcase_add_test(tc, linear_scaling_divides);
    tcase_add_test(tc, a_scaling_that_is_not_understood_is_refused);
    tcase_add_test(tc, both_readers_place_memory_alike_and_reuse_what_was_dropped);
    suite_add_tcase(suite, tc);
    return suite;
}
