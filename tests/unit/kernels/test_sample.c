// SPDX-License-Identifier: Apache-2.0
// Goal: the sampler keeps the tokens its parameters say, draws them with the right probability, and
// is a function of the row alone. Method: a float64 reference that sorts; then the same rows in
// other batches, thread counts and tables.
#include "tests/unit/kernels/fixture.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const TABLES[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = 3, VOCABULARY_MAX = 49152 };

static struct op_sample_row plain_row(const float *logits) {
    return (struct op_sample_row){
        .logits = logits,
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .target = -1,
    };
}

static int32_t sample_one(struct fixture *fixture, const char *table, struct op_sample_row *row,
                          uint32_t vocabulary) {
    fixture_sample(fixture, ops_cpu(table), 1, row, 1, vocabulary);
    return row->token;
}

// Logits with a steep and a flat part, and many equal values.
static float *make_logits(struct fixture *fixture, uint32_t vocabulary, float spread) {
    float *logits = fixture_floats(fixture, vocabulary, spread);
    for (uint32_t i = 0; i < vocabulary; i += 3) {
        logits[i] = floorf(logits[i] * 2.0f) / 2.0f;
    }
    return logits;
}

// ---- reference ---------------------------------------------------------------------------------

struct entry {
    double weight;
    uint32_t index;
};

static int by_weight(const void *a, const void *b) {
    const struct entry *x = a;
    const struct entry *y = b;
    if (x->weight != y->weight) {
        return x->weight < y->weight ? 1 : -1;
    }
    return x->index < y->index ? -1 : 1;
}

static int by_index(const void *a, const void *b) {
    const struct entry *x = a;
    const struct entry *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

// The kept tokens in token order; weights relative to the largest.
static uint32_t reference_set(const struct op_sample_row *row, const float *logits,
                              uint32_t vocabulary, struct entry *set) {
    double max = (double)-INFINITY;
    for (uint32_t i = 0; i < vocabulary; i++) {
        max = (double)logits[i] > max ? (double)logits[i] : max;
    }
    for (uint32_t i = 0; i < vocabulary; i++) {
        double weight = exp(((double)logits[i] - max) / (double)row->temperature);
        set[i] = (struct entry){isnan(weight) ? 0.0 : weight, i};
    }
    qsort(set, vocabulary, sizeof *set, by_weight);
    uint32_t count = vocabulary;
    if (row->top_k > 0 && row->top_k < count) {
        count = row->top_k;
    }
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += set[i].weight;
    }
    uint32_t kept = 0;
    while (kept < count && (kept == 0 || sum < (double)row->top_p * total)) {
        sum += set[kept++].weight;
    }
    count = row->top_p < 1.0f ? kept : count;
    while (count > 1 && set[count - 1].weight < (double)row->min_p) {
        count--;
    }
    qsort(set, count, sizeof *set, by_index);
    return count;
}

// The token whose share of the line [0, 1) holds `unit`, and how far `unit` is from its ends.
static uint32_t reference_draw(const struct entry *set, uint32_t count, double unit,
                               double *margin) {
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += set[i].weight;
    }
    for (uint32_t i = 0; i < count; i++) {
        double before = sum / total;
        sum += set[i].weight;
        if (sum / total > unit) {
            *margin = fmin(unit - before, sum / total - unit);
            return set[i].index;
        }
    }
    *margin = 0.0;
    return set[count - 1].index;
}

// ---- tests -------------------------------------------------------------------------------------

START_TEST(greedy_takes_the_largest_and_the_smaller_id_of_equals) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 1);
        for (uint32_t vocabulary = 1; vocabulary < 100; vocabulary++) {
            float *logits = fixture_floats(&fixture, vocabulary, 1.0f);
            uint32_t a = (uint32_t)rng_below(&fixture.rng, vocabulary);
            uint32_t b = (uint32_t)rng_below(&fixture.rng, vocabulary);
            logits[a] = 2.0f;
            logits[b] = 2.0f;
            struct op_sample_row row = plain_row(logits);
            row.temperature = 0.0f;
            ck_assert_int_eq(sample_one(&fixture, TABLES[t], &row, vocabulary), a < b ? a : b);
            fixture_release(&fixture, 0);
        }
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(logits_that_are_not_numbers_never_win) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 2);
        float *logits = fixture_floats(&fixture, 40, 1.0f);
        logits[0] = NAN;
        logits[17] = NAN;
        logits[39] = -INFINITY;
        struct op_sample_row row = plain_row(logits);
        for (uint64_t position = 0; position < 300; position++) {
            row.position = position;
            int32_t token = sample_one(&fixture, TABLES[t], &row, 40);
            ck_assert(token != 0 && token != 17 && token != 39);
        }
        for (int i = 0; i < 40; i++) {
            logits[i] = i % 2 == 0 ? NAN : -INFINITY;
        }
        ck_assert_int_eq(sample_one(&fixture, TABLES[t], &row, 40), 0);
        logits[23] = INFINITY;
        ck_assert_int_eq(sample_one(&fixture, TABLES[t], &row, 40), 23);
        fixture_deinit(&fixture);
    }
}
END_TEST

static void check_draws(struct fixture *fixture, const char *table, struct op_sample_row row,
                        uint32_t vocabulary, uint32_t draws) {
    struct entry *set = fixture_alloc(fixture, vocabulary * sizeof *set);
    uint32_t count = reference_set(&row, row.logits, vocabulary, set);
    for (uint32_t i = 0; i < draws; i++) {
        row.position = i;
        double margin;
        double unit = rng_draw_unit((struct rng_key){row.seed, row.stream}, i);
        uint32_t expected = reference_draw(set, count, unit, &margin);
        int32_t got = sample_one(fixture, table, &row, vocabulary);
        ck_assert_msg((uint32_t)got == expected || margin < 1e-5,
                      "%s: drew %d, expected %u (margin %.3g; k %u, p %g, min_p %g, %u of %u)",
                      table, got, expected, margin, row.top_k, (double)row.top_p, (double)row.min_p,
                      count, vocabulary);
    }
}

START_TEST(draws_follow_the_filtered_distribution) {
    static const uint32_t vocabularies[] = {7, 256, 1000, VOCABULARY_MAX};
    static const uint32_t top_k[] = {0, 1, 3, 50, 1000, 60000};
    static const float top_p[] = {1.0f, 0.95f, 0.5f, 0.01f};
    static const float min_p[] = {0.0f, 0.05f, 0.5f};
    static const float temperature[] = {1.0f, 0.3f, 2.5f};
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 3);
        for (int trial = 0; trial < 120; trial++) {
            uint32_t vocabulary = vocabularies[trial % 40 == 0 ? 3 : trial % 3];
            struct op_sample_row row = plain_row(make_logits(&fixture, vocabulary, 6.0f));
            row.top_k = top_k[rng_below(&fixture.rng, 6)];
            row.top_p = top_p[rng_below(&fixture.rng, 4)];
            row.min_p = min_p[rng_below(&fixture.rng, 3)];
            row.temperature = temperature[rng_below(&fixture.rng, 3)];
            row.seed = rng_u64(&fixture.rng);
            row.stream = (uint32_t)rng_below(&fixture.rng, 4);
            check_draws(&fixture, TABLES[t], row, vocabulary, vocabulary > 1000 ? 3 : 20);
            fixture_release(&fixture, 0);
        }
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(ties_at_a_threshold_go_to_the_smaller_ids) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 4);
        float *logits = fixture_floats(&fixture, 100, 0.0f);
        struct op_sample_row row = plain_row(logits);
        bool seen_k[100] = {false}, seen_p[100] = {false};
        for (uint64_t position = 0; position < 400; position++) {
            row.position = position;
            row.top_k = 10;
            row.top_p = 1.0f;
            seen_k[sample_one(&fixture, TABLES[t], &row, 100)] = true;
            row.top_k = 0;
            row.top_p = 0.25f;
            seen_p[sample_one(&fixture, TABLES[t], &row, 100)] = true;
        }
        for (int i = 0; i < 100; i++) {
            ck_assert_int_eq(seen_k[i], i < 10);
            ck_assert_int_eq(seen_p[i], i < 25);
        }
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(penalties_bias_and_bans_change_the_choice_but_not_the_logits) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 5);
        uint32_t vocabulary = 300;
        float *logits = fixture_floats(&fixture, vocabulary, 3.0f);
        float *copy = fixture_alloc(&fixture, vocabulary * 4);
        memcpy(copy, logits, vocabulary * 4);
        for (int trial = 0; trial < 200; trial++) {
            int32_t history[60];
            struct op_token_bias bias[3];
            int32_t banned[4];
            double expected[300];
            struct op_sample_row row = plain_row(logits);
            row.temperature = 0.0f;
            row.repetition_penalty = 0.5f + (float)rng_below(&fixture.rng, 4) * 0.5f;
            row.presence_penalty = (float)rng_below(&fixture.rng, 3) - 1.0f;
            row.frequency_penalty = (float)rng_below(&fixture.rng, 3) - 1.0f;
            row.history = history;
            row.prompt_count = (uint32_t)rng_below(&fixture.rng, 30);
            row.output_count = (uint32_t)rng_below(&fixture.rng, 30);
            row.bias = bias;
            row.bias_count = (uint32_t)rng_below(&fixture.rng, 4);
            row.banned = banned;
            row.banned_count = (uint32_t)rng_below(&fixture.rng, 5);
            uint32_t seen[300] = {0}, output[300] = {0};
            for (uint32_t i = 0; i < row.prompt_count + row.output_count; i++) {
                history[i] = (int32_t)rng_below(&fixture.rng, vocabulary);
                seen[history[i]]++;
                output[history[i]] += i >= row.prompt_count;
            }
            for (uint32_t i = 0; i < vocabulary; i++) {
                double l = (double)logits[i];
                if (seen[i] > 0) {
                    l = l > 0.0 ? l / (double)row.repetition_penalty
                                : l * (double)row.repetition_penalty;
                }
                l -= (double)row.frequency_penalty * output[i];
                expected[i] = l - (output[i] > 0 ? (double)row.presence_penalty : 0.0);
            }
            for (uint32_t i = 0; i < row.bias_count; i++) {
                bias[i].token = (int32_t)rng_below(&fixture.rng, vocabulary);
                bias[i].bias = fixture_float(&fixture, 5.0f);
                expected[bias[i].token] += (double)bias[i].bias;
            }
            for (uint32_t i = 0; i < row.banned_count; i++) {
                banned[i] = (int32_t)rng_below(&fixture.rng, vocabulary);
                expected[banned[i]] = (double)-INFINITY;
            }
            double largest = (double)-INFINITY;
            for (uint32_t i = 0; i < vocabulary; i++) {
                largest = fmax(largest, expected[i]);
            }
            int32_t token = sample_one(&fixture, TABLES[t], &row, vocabulary);
            ck_assert(expected[token] >= largest - 1e-5);
        }
        ck_assert_mem_eq(copy, logits, vocabulary * 4);
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(logprobs_are_of_the_raw_logits) {
    static const uint32_t vocabularies[] = {5, 300, VOCABULARY_MAX};
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 6);
        for (int trial = 0; trial < 12; trial++) {
            uint32_t vocabulary = vocabularies[trial % 3];
            float *logits = make_logits(&fixture, vocabulary, trial < 6 ? 9.0f : 0.1f);
            int32_t banned = 1;
            struct op_sample_row row = plain_row(logits);
            row.temperature = 0.7f;
            row.banned = &banned;
            row.banned_count = 1;
            row.want_logprob = true;
            row.top_count = OP_SAMPLE_TOP_MAX;
            row.target = trial % 2 == 0 ? (int32_t)rng_below(&fixture.rng, vocabulary) : -1;
            row.position = (uint64_t)trial;
            int32_t target = row.target;
            sample_one(&fixture, TABLES[t], &row, vocabulary);
            ck_assert(target < 0 || row.token == target);
            struct op_sample_row all = plain_row(logits);
            struct entry *order = fixture_alloc(&fixture, vocabulary * sizeof *order);
            reference_set(&all, logits, vocabulary, order);
            double total = 0.0, max = (double)-INFINITY;
            uint32_t rank = 1;
            for (uint32_t i = 0; i < vocabulary; i++) {
                max = fmax(max, (double)logits[i]);
                rank += logits[i] > logits[row.token] ||
                        (logits[i] == logits[row.token] && i < (uint32_t)row.token);
            }
            for (uint32_t i = 0; i < vocabulary; i++) {
                total += exp((double)logits[i] - max);
            }
            ck_assert_uint_eq(row.rank, rank);
            double expected = (double)logits[row.token] - max - log(total);
            ck_assert(fabs((double)row.logprob - expected) <= 2e-6 * (1.0 + fabs(expected)));
            ck_assert_uint_eq(row.top_count, vocabulary < 20 ? vocabulary : 20);
            for (uint32_t i = 0; i < row.top_count; i++) {
                uint32_t before = 0;
                uint32_t token = (uint32_t)row.top_token[i];
                for (uint32_t j = 0; j < vocabulary; j++) {
                    before +=
                        logits[j] > logits[token] || (logits[j] == logits[token] && j < token);
                }
                ck_assert_uint_eq(before, i);
                expected = (double)logits[token] - max - log(total);
                ck_assert(fabs((double)row.top_logprob[i] - expected) <=
                          2e-6 * (1.0 + fabs(expected)));
                // The same token has the same digits in both places.
                ck_assert(row.top_token[i] != row.token || row.top_logprob[i] == row.logprob);
            }
            fixture_release(&fixture, 0);
        }
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(a_row_gives_the_same_in_any_batch_table_and_thread_count) {
    struct fixture fixture;
    fixture_init(&fixture, 7);
    enum { ROWS = 9, VOCABULARY = 5000 };
    struct op_sample_row alone[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        alone[i] = plain_row(make_logits(&fixture, VOCABULARY, 1.0f + (float)i));
        alone[i].top_p = i % 2 == 0 ? 0.9f : 1.0f;
        alone[i].top_k = i % 3 == 0 ? 40 : 0;
        alone[i].min_p = i == 5 ? 0.02f : 0.0f;
        alone[i].seed = i;
        alone[i].want_logprob = true;
        alone[i].top_count = i;
    }
    struct op_sample_row fresh[ROWS];
    memcpy(fresh, alone, sizeof fresh);
    for (uint32_t i = 0; i < ROWS; i++) {
        sample_one(&fixture, "scalar", &alone[i], VOCABULARY);
    }
    for (int t = 0; t < TABLE_COUNT; t++) {
        for (uint32_t threads = 1; threads <= 3 && ops_cpu(TABLES[t]) != NULL; threads++) {
            struct op_sample_row batch[ROWS];
            memcpy(batch, fresh, sizeof batch);
            fixture_sample(&fixture, ops_cpu(TABLES[t]), threads, batch, ROWS, VOCABULARY);
            for (uint32_t i = 0; i < ROWS; i++) {
                ck_assert_int_eq(batch[i].token, alone[i].token);
                ck_assert_uint_eq(batch[i].rank, alone[i].rank);
                ck_assert_mem_eq(&batch[i].logprob, &alone[i].logprob, sizeof(float));
                ck_assert_mem_eq(batch[i].top_token, alone[i].top_token, i * sizeof(int32_t));
                ck_assert_mem_eq(batch[i].top_logprob, alone[i].top_logprob, i * sizeof(float));
            }
        }
    }
    fixture_deinit(&fixture);
}
END_TEST

Suite *suite_kernels_sample(void) {
    Suite *suite = suite_create("kernels/sample");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, greedy_takes_the_largest_and_the_smaller_id_of_equals);
    tcase_add_test(tc, logits_that_are_not_numbers_never_win);
    tcase_add_test(tc, draws_follow_the_filtered_distribution);
    tcase_add_test(tc, ties_at_a_threshold_go_to_the_smaller_ids);
    tcase_add_test(tc, penalties_bias_and_bans_change_the_choice_but_not_the_logits);
    tcase_add_test(tc, logprobs_are_of_the_raw_logits);
    tcase_add_test(tc, a_row_gives_the_same_in_any_batch_table_and_thread_count);
    suite_add_tcase(suite, tc);
    return suite;
}
