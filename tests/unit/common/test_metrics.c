// SPDX-License-Identifier: Apache-2.0
// Goal: series count exactly and print as both formats demand. Method: whole expected texts, values
// at and beside bucket edges, and the bound on series.
#include "common/bounds.h"
#include "common/memory.h"
#include "common/metrics.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

static const double edges[] = {0.1, 1, 2.5};

static const struct metric_desc counter = {
    .name = "t_bytes_total", .help = "Bytes.", .kind = METRIC_KIND_COUNTER};
static const struct metric_desc gauge = {
    .name = "t_age_seconds", .help = "Age.", .kind = METRIC_KIND_GAUGE};
static const struct metric_desc histogram = {.name = "t_wait_seconds",
                                             .help = "Wait.",
                                             .kind = METRIC_KIND_HISTOGRAM,
                                             .edges = edges,
                                             .edge_count = 3};
static const struct metric_desc info = {
    .name = "t_build_info", .help = "Build.", .kind = METRIC_KIND_INFO};

static struct metric *add(struct metrics *metrics, const struct metric_desc *desc,
                          const char *label, const char *value) {
    struct metric *metric = NULL;
    struct error err = {0};
    const struct metric_label labels[] = {{label, value}};
    enum status status = metrics_add(metrics, desc, labels, label == NULL ? 0 : 1, &metric, &err);
    ck_assert_msg(status == STATUS_OK, "%s", err.message);
    return metric;
}

static struct metrics *create(void) {
    struct metrics *metrics = NULL;
    ck_assert_int_eq(metrics_create(&metrics, NULL), STATUS_OK);
    return metrics;
}

START_TEST(classic_text_is_exact) {
    struct metrics *metrics = create();
    metric_increase(add(metrics, &counter, "way", "in"), 7);
    struct metric *age = add(metrics, &gauge, NULL, NULL);
    metric_set(age, 1.5);
    metric_increase(add(metrics, &counter, "way", "o\"u\\t\n"), UINT64_MAX);
    add(metrics, &info, "version", "1");
    struct buf out;
    buf_init(&out, 1 << 20);
    metrics_print(metrics, METRIC_FORMAT_CLASSIC, &out);
    ck_assert_str_eq(buf_cstr(&out), "# HELP t_bytes_total Bytes.\n"
                                     "# TYPE t_bytes_total counter\n"
                                     "t_bytes_total{way=\"in\"} 7\n"
                                     "t_bytes_total{way=\"o\\\"u\\\\t\\n\"} 18446744073709551615\n"
                                     "# HELP t_age_seconds Age.\n"
                                     "# TYPE t_age_seconds gauge\n"
                                     "t_age_seconds 1.5\n"
                                     "# HELP t_build_info Build.\n"
                                     "# TYPE t_build_info gauge\n"
                                     "t_build_info{version=\"1\"} 1\n");
    metric_show(age, false);
    buf_reset(&out);
    metrics_print(metrics, METRIC_FORMAT_CLASSIC, &out);
    ck_assert_ptr_null(strstr(buf_cstr(&out), "t_age_seconds"));
    buf_deinit(&out);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(open_text_is_exact) {
    struct metrics *metrics = create();
    metric_increase(add(metrics, &counter, NULL, NULL), 7);
    add(metrics, &info, "version", "1");
    metric_observe(add(metrics, &histogram, "class", "a"), 0.5);
    struct buf out;
    buf_init(&out, 1 << 20);
    metrics_print(metrics, METRIC_FORMAT_OPEN, &out);
    ck_assert_str_eq(buf_cstr(&out), "# HELP t_bytes Bytes.\n"
                                     "# TYPE t_bytes counter\n"
                                     "# UNIT t_bytes bytes\n"
                                     "t_bytes_total 7\n"
                                     "# HELP t_build Build.\n"
                                     "# TYPE t_build info\n"
                                     "t_build_info{version=\"1\"} 1\n"
                                     "# HELP t_wait_seconds Wait.\n"
                                     "# TYPE t_wait_seconds histogram\n"
                                     "# UNIT t_wait_seconds seconds\n"
                                     "t_wait_seconds_bucket{class=\"a\",le=\"0.1\"} 0\n"
                                     "t_wait_seconds_bucket{class=\"a\",le=\"1.0\"} 1\n"
                                     "t_wait_seconds_bucket{class=\"a\",le=\"2.5\"} 1\n"
                                     "t_wait_seconds_bucket{class=\"a\",le=\"+Inf\"} 1\n"
                                     "t_wait_seconds_sum{class=\"a\"} 0.5\n"
                                     "t_wait_seconds_count{class=\"a\"} 1\n"
                                     "# EOF\n");
    buf_deinit(&out);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(buckets_include_their_edge) {
    struct metrics *metrics = create();
    struct metric *wait = add(metrics, &histogram, NULL, NULL);
    const double values[] = {0.1, 0.1000001, 1, 2.5, 2.6, 100};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        metric_observe(wait, values[i]);
    }
    ck_assert_uint_eq(metric_total(wait), 6);
    struct buf out;
    buf_init(&out, 1 << 20);
    metrics_print(metrics, METRIC_FORMAT_CLASSIC, &out);
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "t_wait_seconds_bucket{le=\"0.1\"} 1\n"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "t_wait_seconds_bucket{le=\"1.0\"} 3\n"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "t_wait_seconds_bucket{le=\"2.5\"} 4\n"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "t_wait_seconds_bucket{le=\"+Inf\"} 6\n"));
    ck_assert_ptr_nonnull(strstr(buf_cstr(&out), "t_wait_seconds_count 6\n"));
    buf_deinit(&out);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(totals_never_fall) {
    struct metrics *metrics = create();
    struct metric *bytes = add(metrics, &counter, NULL, NULL);
    metric_set_total(bytes, 10);
    metric_set_total(bytes, 3);
    ck_assert_uint_eq(metric_total(bytes), 10);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(bad_descriptions_are_refused) {
    static const double falling[] = {1, 1};
    const struct metric_desc bad[] = {
        {.name = "t_bytes", .help = "x", .kind = METRIC_KIND_COUNTER},
        {.name = "t_total", .help = "x", .kind = METRIC_KIND_GAUGE},
        {.name = "t_info", .help = "x", .kind = METRIC_KIND_GAUGE},
        {.name = "t_build", .help = "x", .kind = METRIC_KIND_INFO},
        {.name = "", .help = "x", .kind = METRIC_KIND_GAUGE},
        {.name = "1t", .help = "x", .kind = METRIC_KIND_GAUGE},
        {.name = "t-a", .help = "x", .kind = METRIC_KIND_GAUGE},
        {.name = "t_a", .help = "", .kind = METRIC_KIND_GAUGE},
        {.name = "t_a", .help = "x", .kind = METRIC_KIND_HISTOGRAM},
        {.name = "t_a",
         .help = "x",
         .kind = METRIC_KIND_HISTOGRAM,
         .edges = falling,
         .edge_count = 2},
        {.name = "t_a", .help = "x", .kind = METRIC_KIND_GAUGE, .edges = edges, .edge_count = 3},
    };
    struct metrics *metrics = create();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct metric *metric = NULL;
        struct error err = {0};
        ck_assert_msg(metrics_add(metrics, &bad[i], NULL, 0, &metric, &err) == STATUS_INVALID,
                      "row %zu", i);
    }
    const struct metric_label label = {"a:b", "c"};
    struct metric *metric = NULL;
    ck_assert_int_eq(metrics_add(metrics, &gauge, &label, 1, &metric, NULL), STATUS_INVALID);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(series_fit_their_bound_and_not_one_more) {
    struct metrics *metrics = create();
    char value[16];
    for (uint32_t i = 0; i < BOUND_METRIC_SERIES; i++) {
        snprintf(value, sizeof value, "%u", i);
        add(metrics, &gauge, "i", value);
    }
    struct metric *metric = NULL;
    ck_assert_int_eq(metrics_add(metrics, &gauge, NULL, 0, &metric, NULL), STATUS_EXHAUSTED);
    metrics_destroy(metrics);
}
END_TEST

START_TEST(missing_memory_leaves_nothing_behind) {
    for (uint64_t nth = 1; nth < 10; nth++) {
        struct metrics *metrics = create();
        struct metric *metric = NULL;
        memory_fail_nth(nth);
        enum status status = metrics_add(metrics, &histogram, NULL, 0, &metric, NULL);
        memory_fail_nth(0);
        struct buf out;
        buf_init(&out, 1 << 20);
        metrics_print(metrics, METRIC_FORMAT_CLASSIC, &out);
        ck_assert((out.bytes_used > 0) == (status == STATUS_OK));
        buf_deinit(&out);
        metrics_destroy(metrics);
    }
}
END_TEST

Suite *suite_metrics(void) {
    Suite *suite = suite_create("common/metrics");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, classic_text_is_exact);
    tcase_add_test(tc, open_text_is_exact);
    tcase_add_test(tc, buckets_include_their_edge);
    tcase_add_test(tc, totals_never_fall);
    tcase_add_test(tc, bad_descriptions_are_refused);
    tcase_add_test(tc, series_fit_their_bound_and_not_one_more);
    tcase_add_test(tc, missing_memory_leaves_nothing_behind);
    suite_add_tcase(suite, tc);
    return suite;
}
