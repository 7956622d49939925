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

static enum status read_config(const char *member, struct model_config *config, struct error *err) {
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
    ck_assert_int_eq(weights_open(dir, &weights, NULL), STATUS_OK);
    enum status status = model_config_read(weights, config, err);
    weights_close(weights);
    remove(path);
    remove(dir);
    return status;
}

static enum status read_with(const char *member) {
    struct model_config config;
    return read_config(member, &config, NULL);
}

#define EXPERTS ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32"

START_TEST(layers_have_experts_where_the_configuration_says) {
    struct model_config c;
    ck_assert_int_eq(read_config(EXPERTS, &c, NULL), STATUS_OK);
    ck_assert_uint_eq(c.expert_used, 2);
    ck_assert(!c.expert_normalise);
    ck_assert(model_config_has_experts(&c, 0) && model_config_has_experts(&c, 1));
    ck_assert(!model_config_has_dense(&c));
    ck_assert_int_eq(read_config(EXPERTS ",\"decoder_sparse_step\":2", &c, NULL), STATUS_OK);
    ck_assert(!model_config_has_experts(&c, 0) && model_config_has_experts(&c, 1));
    ck_assert_int_eq(read_config(EXPERTS ",\"mlp_only_layers\":[1]", &c, NULL), STATUS_OK);
    ck_assert(model_config_has_experts(&c, 0) && !model_config_has_experts(&c, 1));
    ck_assert(model_config_has_dense(&c));
    ck_assert_int_eq(read_config(",\"num_experts\":0", &c, NULL), STATUS_OK);
    ck_assert(!model_config_has_experts(&c, 0));
}
END_TEST

static const struct {
    const char *member, *word;
} wrong_experts[] = {
    {",\"num_experts\":8", "num_experts_per_tok"},
    {",\"num_experts\":8,\"num_experts_per_tok\":2", "moe_intermediate_size"},
    {",\"num_experts\":8,\"num_experts_per_tok\":9,\"moe_intermediate_size\":32", "per token"},
    {",\"num_experts\":8,\"num_experts_per_tok\":0,\"moe_intermediate_size\":32", "per token"},
    {",\"num_experts\":4000000,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32", "expert"},
    {",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":0", "inner size"},
    {",\"num_experts\":-1", "num_experts"},
    {",\"num_experts\":\"8\"", "num_experts"},
    {EXPERTS ",\"decoder_sparse_step\":0", "decoder_sparse_step"},
    {EXPERTS ",\"mlp_only_layers\":[2]", "mlp_only_layers"},
    {EXPERTS ",\"mlp_only_layers\":[-1]", "mlp_only_layers"},
    {EXPERTS ",\"mlp_only_layers\":[\"0\"]", "mlp_only_layers"},
    {EXPERTS ",\"mlp_only_layers\":{\"0\":1}", "mlp_only_layers"},
    {EXPERTS ",\"norm_topk_prob\":2", "norm_topk_prob"},
    {EXPERTS ",\"shared_expert_intermediate_size\":900000000", "shared expert"},
};
enum { WRONG_EXPERTS = sizeof wrong_experts / sizeof *wrong_experts };

START_TEST(experts_that_cannot_be_are_refused_by_name) {
    struct model_config c;
    struct error err = {0};
    ck_assert_int_eq(read_config(wrong_experts[_i].member, &c, &err), STATUS_CORRUPT);
    ck_assert_msg(strstr(err.message, wrong_experts[_i].word) != NULL, "%s", err.message);
}
END_TEST

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
    tcase_add_test(tc, layers_have_experts_where_the_configuration_says);
    tcase_add_loop_test(tc, experts_that_cannot_be_are_refused_by_name, 0, WRONG_EXPERTS);
    tcase_add_test(tc, a_scaling_that_is_not_understood_is_refused);
    tcase_add_test(tc, both_readers_place_memory_alike_and_reuse_what_was_dropped);
    suite_add_tcase(suite, tc);
    return suite;
}
