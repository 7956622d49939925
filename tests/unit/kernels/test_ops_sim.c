// SPDX-License-Identifier: Apache-2.0
// Goal: a simulated step takes no less time than the named machine's limits allow and not much
// more, scratch never grows when a step gets smaller, and drawn tokens depend on the request alone.
// Method: a public model's shapes on a published machine, random shapes, direct calls.
#include "common/rng.h"
#include "kernels/sim/ops_sim.h"
#include "tests/unit/suites.h"
#include "worker/model/model.h"
#include "worker/step/simulate.h"

#include <string.h>

// As published for an H100 SXM.
static const struct sim_machine machine = {
    .multiprocessors = 132, .bytes_per_s = 3.35e12, .flops_per_s = 989.4e12, .launch_us = 2};

enum { BLOCK = 16, LAYERS = 32 };

static struct weights *weights;
static struct model *model;
static struct op_kv_layout kv;

static void set_up(void) {
    struct error err = {0};
    ck_assert_msg(weights_open("deploy/models/Llama-3.1-8B", &weights, &err) == STATUS_OK, "%s",
                  err.message);
    ck_assert_msg(model_create(weights, ops_sim(), (struct model_shard){0, 1}, 8192, &model,
                               &err) == STATUS_OK,
                  "%s", err.message);
    model_kv_layout(model, DTYPE_F16, BLOCK, &kv);
}

static void tear_down(void) {
    model_destroy(model);
    weights_close(weights);
}

// `seqs` sequences of `rows_each` rows that end before position `context`.
static struct simulate_result simulate(uint32_t seqs, uint32_t rows_each, uint32_t context) {
    static const struct tiles tiles = {64, 512, 512, 1584};
    struct simulate_shape shape = {seqs, rows_each, context};
    struct sim_meter meter = {.machine = &machine};
    struct op_ctx ctx;
    struct simulate_result result;
    struct error err = {0};
    ops_sim_context(&meter, &ctx);
    ck_assert_int_eq(simulate_step(model, ops_sim(), &ctx, &kv, &tiles, &shape, &result, &err),
                     STATUS_OK);
    ck_assert_uint_eq(meter.launch_count, 0);    // the device itself did nothing
    ck_assert_uint_eq(result.message_count, 0);
    return result;
}

START_TEST(a_decode_step_costs_the_reading_of_weights_and_kv) {
    struct simulate_result one = simulate(1, 1, 1000);
    // Every matrix once; the embedding matrix is looked up, not read.
    double matrices = 2.0 * (8030261248.0 - 128256.0 * 4096.0 - 65.0 * 4096.0);
    ck_assert(one.bytes > matrices);
    ck_assert(one.bytes < 1.01 * matrices + 1000 * 131072.0);
    double limit_us = one.bytes / machine.bytes_per_s * 1e6;
    ck_assert(one.us > limit_us);
    ck_assert(one.us < 1.5 * limit_us);
    // 64 sequences of 8,000 tokens read their KV, 128 KiB a token, and the weights still once.
    struct simulate_result many = simulate(64, 1, 8000);
    double kv_bytes = 64.0 * 8000 * 131072;
    ck_assert(many.bytes > one.bytes + 0.99 * kv_bytes);
    ck_assert(many.bytes < one.bytes + 1.02 * kv_bytes);
}
END_TEST

START_TEST(a_prefill_step_costs_its_products) {
    struct simulate_result meter = simulate(1, 4096, 4096);
    // Products of all rows with all layers, causal attention, logits of one row.
    double layers = 2.0 * 4096 * (8030261248.0 - 2 * 128256.0 * 4096.0 - 65.0 * 4096.0);
    double attention = 4.0 * 4096 * LAYERS * (4096.0 * 4097 / 2);
    double want = layers + attention + 2.0 * 128256 * 4096;
    ck_assert_msg(meter.flops > 0.999 * want && meter.flops < 1.001 * want, "%g, not %g",
                  meter.flops, want);
    ck_assert(meter.us > want / machine.flops_per_s * 1e6);
}
END_TEST

START_TEST(more_tokens_take_longer) {
    double before = 0;
    for (uint32_t rows = 1; rows <= 4096; rows *= 4) {
        struct simulate_result meter = simulate(1, rows, 4096);
        ck_assert(meter.us > before);
        before = meter.us;
    }
}
END_TEST

START_TEST(a_smaller_step_never_needs_more_scratch) {
    const struct ops *ops = ops_sim();
    struct sim_meter meter = {.machine = &machine};
    struct op_ctx ctx;
    struct rng rng;
    ops_sim_context(&meter, &ctx);
    rng_init(&rng, 5);
    for (int i = 0; i < 1000; i++) {
        uint32_t rows = 1 + (uint32_t)rng_below(&rng, 8192);
        uint32_t fewer = 1 + (uint32_t)rng_below(&rng, rows);
        struct op_weight weight = {DTYPE_BF16, 4096, 1 + (uint32_t)rng_below(&rng, 9000), NULL};
        struct op_matmul_args product = {.rows.most = rows, .weight_count = 1, .weight = {&weight}};
        size_t large = ops->matmul_scratch(&ctx, &product);
        product.rows.most = fewer;
        ck_assert_uint_le(ops->matmul_scratch(&ctx, &product), large);
        product.pass_rows = 1;
        ck_assert_uint_le(ops->matmul_scratch(&ctx, &product), large);
        struct op_step step = {.row_count = rows, .seq_count = rows};
        struct op_attention_args attention = {.step = &step, .kv = &kv, .q_head_count = 32};
        large = ops->attention_scratch(&ctx, &attention);
        attention.parts = 1;
        ck_assert_uint_lt(ops->attention_scratch(&ctx, &attention), large);
        attention.parts = 0;
        step.seq_count = fewer;
        ck_assert_uint_le(ops->attention_scratch(&ctx, &attention), large);
        struct op_sample_args sample = {.rows.most = rows, .vocabulary = 128256};
        large = ops->sample_scratch(&ctx, &sample);
        sample.rows.most = fewer;
        ck_assert_uint_le(ops->sample_scratch(&ctx, &sample), large);
    }
}
END_TEST

static int32_t drawn(uint64_t seed, uint64_t position, const int32_t *banned, uint32_t count) {
    struct sim_meter meter = {.machine = &machine};
    struct op_ctx ctx;
    ops_sim_context(&meter, &ctx);
    struct op_sample_row row = {
        .seed = seed, .position = position, .target = -1, .banned = banned, .banned_count = count};
    struct op_sample_args args = {.row = &row, .rows.most = 1, .vocabulary = 1000};
    ops_sim()->sample(&ctx, &args);
    ck_assert_int_ge(row.token, 0);
    ck_assert_int_lt(row.token, 1000);
    return row.token;
}

START_TEST(a_token_depends_on_its_request_and_position) {
    uint32_t equal = 0;
    for (uint64_t p = 0; p < 100; p++) {
        int32_t token = drawn(7, p, NULL, 0);
        ck_assert_int_eq(token, drawn(7, p, NULL, 0));
        equal += token == drawn(8, p, NULL, 0) ? 1 : 0;
        equal += token == drawn(7, p + 1, NULL, 0) ? 1 : 0;
        int32_t banned[3] = {token, (token + 1) % 1000, (token + 2) % 1000};
        ck_assert_int_eq(drawn(7, p, banned, 3), (token + 3) % 1000);
    }
    ck_assert_uint_lt(equal, 5);
}
END_TEST

static void count_kernel(void *ctx, enum sim_kernel kernel) {
    uint32_t *counts = ctx;
    counts[kernel]++;
}

START_TEST(the_first_launch_of_each_kernel_is_told_once) {
    uint32_t counts[SIM_KERNEL_COUNT] = {0};
    struct sim_meter meter = {
        .machine = &machine, .first_launch = count_kernel, .first_launch_ctx = counts};
    struct op_ctx ctx;
    ops_sim_context(&meter, &ctx);
    struct op_weight weight = {DTYPE_BF16, 64, 64, NULL};
    struct op_matmul_args product = {.rows.most = 4, .weight_count = 1, .weight = {&weight}};
    ops_sim()->matmul(&ctx, &product);
    ops_sim()->matmul(&ctx, &product);
    ck_assert_uint_eq(counts[SIM_KERNEL_MATMUL], 1);
    ck_assert_uint_eq(counts[SIM_KERNEL_SAMPLE], 0);
    ck_assert_uint_eq(meter.launch_count, 2);
}
END_TEST

START_TEST(ranks_share_the_work_and_pay_for_messages) {
    struct model *part = NULL;
    struct op_kv_layout part_kv;
    static const struct tiles tiles = {64, 512, 512, 1584};
    struct simulate_shape shape = {32, 1, 4000};
    struct sim_meter meter = {.machine = &machine};
    struct op_ctx ctx;
    struct simulate_result alone, shared;
    ops_sim_context(&meter, &ctx);
    ck_assert_int_eq(
        model_create(weights, ops_sim(), (struct model_shard){3, 4}, 8192, &part, NULL), STATUS_OK);
    model_kv_layout(part, DTYPE_F16, BLOCK, &part_kv);
    ck_assert_int_eq(simulate_step(model, ops_sim(), &ctx, &kv, &tiles, &shape, &alone, NULL),
                     STATUS_OK);
    ck_assert_int_eq(simulate_step(part, ops_sim(), &ctx, &part_kv, &tiles, &shape, &shared, NULL),
                     STATUS_OK);
    // Products divide by four but for the padding of the vocabulary.
    ck_assert(shared.flops > 0.999 * alone.flops / 4 && shared.flops < 1.01 * alone.flops / 4);
    ck_assert_uint_eq(alone.message_count, 0);
    ck_assert_uint_eq(shared.message_count, 1 + 2 * LAYERS + 1);
    model_destroy(part);
}
END_TEST

Suite *suite_ops_sim(void) {
    Suite *suite = suite_create("kernels/ops_sim");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_decode_step_costs_the_reading_of_weights_and_kv);
    tcase_add_test(tc, a_prefill_step_costs_its_products);
    tcase_add_test(tc, more_tokens_take_longer);
    tcase_add_test(tc, ranks_share_the_work_and_pay_for_messages);
    tcase_add_test(tc, a_smaller_step_never_needs_more_scratch);
    tcase_add_test(tc, a_token_depends_on_its_request_and_position);
    tcase_add_test(tc, the_first_launch_of_each_kernel_is_told_once);
    suite_add_tcase(suite, tc);
    return suite;
}
