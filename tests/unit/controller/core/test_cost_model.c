// SPDX-License-Identifier: Apache-2.0
// Goal: the model comes to predict step times of shapes it has not seen, follows a machine that
// changes, bounds nine steps of ten, and sizes chunks that keep a budget. Method: invented machines
// with known coefficients and noise.
#include "common/rng.h"
#include "controller/core/cost_model.h"
#include "tests/unit/suites.h"

#include <math.h>

struct machine {
    double a, b, c, d, f;
    double noise;    // relative, uniform, one-sided like a busy machine's
};
static const struct machine laptop = {2000, 520, 2500, 0.02, 0.4, 0.2};
static const struct machine node = {9000, 5.5, 18, 0.0001, 0.002, 0.05};

static double truth_us(const struct machine *m, const struct cost_shape *s) {
    return m->a + m->b * s->prefill_tokens + m->c * s->decode_rows +
           m->d * (double)s->prefill_context + m->f * (double)s->decode_context;
}

static struct cost_shape any_shape(struct rng *rng) {
    struct cost_shape shape = {0};
    uint32_t rows = (uint32_t)rng_below(rng, 64);
    for (uint32_t i = 0; i < rows; i++) {
        cost_shape_add_decodes(&shape, 1, 1 + rng_below(rng, 4096));
    }
    if (rng_below(rng, 3) > 0 || rows == 0) {
        uint32_t tokens = 1 + (uint32_t)rng_below(rng, 512);
        cost_shape_add_chunk(&shape, (uint32_t)rng_below(rng, 8192), tokens);
    }
    return shape;
}

static uint32_t measured_us(const struct machine *m, const struct cost_shape *s, struct rng *rng) {
    double noise = m->noise * (double)rng_below(rng, 1000) / 1000;
    return (uint32_t)(truth_us(m, s) * (1 + noise));
}

static void teach(struct cost_model *model, const struct machine *m, uint32_t steps,
                  struct rng *rng) {
    for (uint32_t i = 0; i < steps; i++) {
        struct cost_shape shape = any_shape(rng);
        cost_model_learn(model, &shape, measured_us(m, &shape, rng));
    }
}

static double worst_error(const struct cost_model *model, const struct machine *m,
                          struct rng *rng) {
    double worst = 0;
    for (uint32_t i = 0; i < 500; i++) {
        struct cost_shape shape = any_shape(rng);
        double want = truth_us(m, &shape) * (1 + m->noise / 2);
        worst = fmax(worst, fabs(cost_model_us(model, &shape) / want - 1));
    }
    return worst;
}

START_TEST(unseen_shapes_are_predicted) {
    static const struct machine *const machines[] = {&laptop, &node};
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 7);
    cost_model_init(&model, 300);    // wrong for both
    teach(&model, machines[_i], 2000, &rng);
    ck_assert_double_lt(worst_error(&model, machines[_i], &rng), 0.15);
}
END_TEST

START_TEST(a_machine_that_slows_down_is_believed) {
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 8);
    cost_model_init(&model, 300);
    teach(&model, &laptop, 5000, &rng);
    struct machine slower = laptop;
    slower.a *= 3, slower.b *= 3, slower.c *= 3, slower.d *= 3, slower.f *= 3;
    teach(&model, &slower, 3000, &rng);
    ck_assert_double_lt(worst_error(&model, &slower, &rng), 0.2);
}
END_TEST

START_TEST(nine_steps_of_ten_keep_the_bound) {
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 9);
    cost_model_init(&model, 300);
    teach(&model, &laptop, 2000, &rng);
    uint32_t kept = 0, steps = 4000;
    for (uint32_t i = 0; i < steps; i++) {
        struct cost_shape shape = any_shape(&rng);
        uint32_t us = measured_us(&laptop, &shape, &rng);
        kept += us <= cost_model_late_us(&model, &shape) ? 1 : 0;
        cost_model_learn(&model, &shape, us);
    }
    ck_assert_uint_ge(kept, steps * 85 / 100);
    ck_assert_uint_le(kept, steps * 97 / 100);
}
END_TEST

START_TEST(an_accident_does_not_spoil_it) {
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 10);
    cost_model_init(&model, 300);
    teach(&model, &laptop, 2000, &rng);
    struct cost_shape shape = any_shape(&rng);
    cost_model_learn(&model, &shape, 4000000000u);
    teach(&model, &laptop, 400, &rng);
    ck_assert_double_lt(worst_error(&model, &laptop, &rng), 0.5);    // of 1 million and more
}
END_TEST

START_TEST(steady_decode_alone_keeps_the_model_sound) {
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 11);
    cost_model_init(&model, 300);
    teach(&model, &laptop, 1000, &rng);
    // A day of the same shape: nothing is learnt about prompts, and nothing is unlearnt.
    struct cost_shape shape = {0};
    for (uint32_t i = 0; i < 16; i++) {
        cost_shape_add_decodes(&shape, 1, 1000);
    }
    for (uint32_t i = 0; i < 500000; i++) {
        cost_model_learn(&model, &shape, measured_us(&laptop, &shape, &rng));
    }
    double wanted = truth_us(&laptop, &shape) * 1.1;
    ck_assert_double_lt(fabs(cost_model_us(&model, &shape) / wanted - 1), 0.1);
    cost_shape_add_chunk(&shape, 0, 256);
    ck_assert(isfinite(cost_model_us(&model, &shape)));
    teach(&model, &laptop, 1000, &rng);
    ck_assert_double_lt(worst_error(&model, &laptop, &rng), 0.2);
}
END_TEST

START_TEST(chunks_fill_a_budget_and_keep_it) {
    struct cost_model model;
    struct rng rng;
    rng_init(&rng, 12);
    cost_model_init(&model, 300);
    teach(&model, &laptop, 2000, &rng);
    for (uint32_t i = 0; i < 300; i++) {
        struct cost_shape shape = any_shape(&rng);
        uint32_t start = (uint32_t)rng_below(&rng, 4096);
        double budget = 1000.0 * (double)rng_below(&rng, 400);
        uint32_t tokens = cost_model_chunk(&model, &shape, start, 2048, budget);
        ck_assert_uint_le(tokens, 2048);
        struct cost_shape with = shape;
        cost_shape_add_chunk(&with, start, tokens);
        ck_assert(tokens == 0 || cost_model_late_us(&model, &with) <= budget);
        with = shape;
        cost_shape_add_chunk(&with, start, tokens + 1);
        ck_assert(tokens == 2048 || cost_model_late_us(&model, &with) > budget);
    }
}
END_TEST

Suite *suite_cost_model(void) {
    Suite *suite = suite_create("controller/core/cost_model");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, unseen_shapes_are_predicted, 0, 2);
    tcase_add_test(tc, a_machine_that_slows_down_is_believed);
    tcase_add_test(tc, nine_steps_of_ten_keep_the_bound);
    tcase_add_test(tc, an_accident_does_not_spoil_it);
    tcase_add_test(tc, steady_decode_alone_keeps_the_model_sound);
    tcase_add_test(tc, chunks_fill_a_budget_and_keep_it);
    suite_add_tcase(suite, tc);
    return suite;
}
