// SPDX-License-Identifier: Apache-2.0
// Goal: operators read what the core counts and the worker reported, and no worker where there is
// none. Method: known numbers in, one JSON object out, read back by the parser.
#include "common/json.h"
#include "controller/status_json.h"
#include "tests/unit/suites.h"

#include <string.h>

static const struct core_gauges gauges = {.queued = 2,
                                          .prefilling = 1,
                                          .decoding = 7,
                                          .queued_tokens = 300,
                                          .kv_blocks_total = 100,
                                          .kv_blocks_free = 60,
                                          .kv_blocks_quarantined = 10,
                                          .queue_oldest_us = 1500000};
static const struct ledger_line lines[] = {{"weights", 1000, true}, {"context", 500, false}};
static const struct message_capacity capacity = {.envelope = {.tokens = 512,
                                                              .seqs = 8,
                                                              .seq_tokens = 8192,
                                                              .logit_rows = 512,
                                                              .prompt_logit_rows = 500,
                                                              .logprob_rows = 400,
                                                              .attended_tokens_max = 8000,
                                                              .attended_tokens = 60000},
                                                 .kv_bytes_per_token = 100,
                                                 .block_tokens = 16,
                                                 .kv_blocks = 100,
                                                 .kv_dtype = "float16",
                                                 .threads = 3,
                                                 .tiles = {64, 512, 256, 36},
                                                 .line_count = 2,
                                                 .lines = lines};
static const struct message_heartbeat heartbeat = {.resident_bytes = 4096};

static struct stats_view stats;
static struct status_view view;
static struct buf out;
static struct json_doc *doc;

// The last rank of the last group is not there.
static void describe(void *ctx, uint32_t group, uint32_t rank, struct status_worker *worker) {
    static const char *const names[2][2] = {{"g0r0", "g0r1"}, {"g1r0", ""}};
    ck_assert_ptr_eq(ctx, &stats);
    bool away = group == 1 && rank == 1;
    *worker = (struct status_worker){.name = names[group][rank],
                                     .state = away ? "away" : "ready",
                                     .device = "cpu",
                                     .key = group == 1 ? "node-2" : "",
                                     .pid = away ? 0 : 70 + rank,
                                     .epoch = away ? 0 : 5 + group,
                                     .heartbeat_age_us = 1500000,
                                     .applied_seq = 9,
                                     .completed_seq = 8,
                                     .kv_blocks = 100 + rank};
}

static uint32_t doubted_group;

static bool is_doubted(void *ctx, uint32_t group) {
    ck_assert_ptr_eq(ctx, &stats);
    return group == doubted_group;
}

static void set_up(void) {
    doubted_group = UINT32_MAX;
    stats = (struct stats_view){.gauges = &gauges,
                                .capacity = &capacity,
                                .heartbeat = &heartbeat,
                                .heartbeat_age_us = 250000,
                                .epoch = 5,
                                .connections = 9};
    view = (struct status_view){.model = "a \"b\"",
                                .address = "http://127.0.0.1:8000",
                                .state = "ready",
                                .uptime_us = 61000000,
                                .now_unix_ms = 1234,
                                .stats = &stats,
                                .groups = 2,
                                .world = 2,
                                .ctx = &stats,
                                .worker = describe,
                                .doubted = is_doubted};
    buf_init(&out, 1 << 16);
}

static void tear_down(void) {
    json_destroy(doc);
    buf_deinit(&out);
}

static const struct json *write_and_read(void) {
    struct error err = {0};
    status_json(&view, &out);
    ck_assert_msg(json_parse((const char *)out.data, out.bytes_used, &doc, &err) == STATUS_OK,
                  "%s in %s", err.message, buf_cstr(&out));
    return json_root(doc);
}

static void expect_int(const struct json *object, const char *key, int64_t want) {
    ck_assert_msg(json_int(json_get(object, key)) == want, "%s in %s", key, buf_cstr(&out));
}

static void expect_number(const struct json *object, const char *key, double want) {
    ck_assert_msg(json_number(json_get(object, key)) == want, "%s in %s", key, buf_cstr(&out));
}

static void expect_text(const struct json *object, const char *key, const char *want) {
    ck_assert_str_eq(json_text(json_get(object, key), NULL), want);
}

START_TEST(the_object_says_what_was_counted) {
    const struct json *root = write_and_read();
    expect_text(root, "model", "a \"b\"");
    expect_text(root, "state", "ready");
    expect_number(root, "uptime_seconds", 61.0);
    expect_int(root, "connections", 9);
    expect_int(root, "as_of_unix_ms", 1234);
    const struct json *requests = json_get(root, "requests");
    expect_int(requests, "queued", 2);
    expect_int(requests, "prefilling", 1);
    expect_int(requests, "decoding", 7);
    expect_int(requests, "queued_tokens", 300);
    expect_number(requests, "queue_oldest_seconds", 1.5);
    const struct json *kv = json_get(root, "kv");
    expect_text(kv, "group", "0");
    expect_text(kv, "state", "steady");
    expect_int(kv, "block_bytes", 1600);
    expect_int(kv, "blocks", 100);
    expect_int(kv, "blocks_free", 60);
    expect_int(kv, "blocks_quarantined", 10);
    expect_int(kv, "capacity_tokens", 1600);
}
END_TEST

START_TEST(a_worker_is_shown_with_its_ledger) {
    const struct json *worker = json_get(write_and_read(), "worker");
    expect_int(worker, "epoch", 5);
    expect_int(worker, "threads", 3);
    const struct json *tiles = json_get(worker, "tiles");
    expect_int(tiles, "logit_rows", 64);
    expect_int(tiles, "mlp_rows", 512);
    expect_int(tiles, "matmul_rows", 256);
    expect_int(tiles, "attention_parts", 36);
    expect_int(worker, "resident_bytes", 4096);
    expect_number(worker, "heartbeat_age_seconds", 0.25);
    const struct json *envelope = json_get(worker, "envelope");
    expect_int(envelope, "sequences", 8);
    expect_int(envelope, "attended_tokens", 60000);
    expect_int(envelope, "attended_tokens_max", 8000);
    expect_int(envelope, "logit_rows", 512);
    expect_int(envelope, "prompt_logit_rows", 500);
    expect_int(envelope, "logprob_rows", 400);
    expect_int(envelope, "draft_tokens", 0);
    const struct json *ledger = json_get(worker, "ledger");
    ck_assert_uint_eq(json_count(ledger), 2);
    expect_text(json_at(ledger, 0), "line", "weights");
    expect_text(json_at(ledger, 0), "kind", "planned");
    expect_int(json_at(ledger, 1), "bytes", 500);
    expect_text(json_at(ledger, 1), "kind", "found");
}
END_TEST

START_TEST(without_a_worker_none_is_shown) {
    stats.capacity = NULL;
    stats.heartbeat = NULL;
    const struct json *root = write_and_read();
    ck_assert(json_absent(json_get(root, "worker")));
    expect_int(json_get(root, "kv"), "capacity_tokens", 0);
}
END_TEST

START_TEST(a_buffer_that_is_too_small_says_so_at_every_size) {
    status_json(&view, &out);
    size_t whole = out.bytes_used;
    for (size_t bytes = 0; bytes < whole; bytes++) {
        struct buf small;
        buf_init(&small, bytes);
        status_json(&view, &small);
        ck_assert_int_eq(buf_status(&small), STATUS_EXHAUSTED);
        ck_assert_uint_le(small.bytes_used, bytes);
        buf_deinit(&small);
    }
}
END_TEST

START_TEST(a_group_whose_ranks_diverge_is_shown_as_doubted) {
    doubted_group = 0;
    const struct json *groups = json_get(write_and_read(), "groups");
    expect_text(json_at(groups, 0), "state", "doubted");
    expect_text(json_at(groups, 1), "state", "forming");
}
END_TEST

START_TEST(every_place_of_every_group_is_shown) {
    const struct json *groups = json_get(write_and_read(), "groups");
    ck_assert_uint_eq(json_count(groups), 2);
    const struct json *first = json_at(groups, 0), *second = json_at(groups, 1);
    expect_text(first, "group", "0");
    expect_text(first, "state", "ready");
    expect_text(second, "state", "forming");
    expect_int(second, "world", 2);
    const struct json *worker = json_at(json_get(first, "workers"), 1);
    expect_text(worker, "id", "g0r1");
    expect_int(worker, "rank", 1);
    expect_int(worker, "pid", 71);
    expect_int(worker, "epoch", 5);
    expect_number(worker, "heartbeat_age_seconds", 1.5);
    expect_int(worker, "applied_seq", 9);
    expect_int(worker, "completed_seq", 8);
    expect_int(worker, "kv_blocks", 101);
    expect_text(json_at(json_get(second, "workers"), 0), "key", "node-2");
    expect_text(json_at(json_get(second, "workers"), 1), "state", "away");
}
END_TEST

Suite *suite_status_json(void) {
    Suite *suite = suite_create("controller/status_json");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, the_object_says_what_was_counted);
    tcase_add_test(tc, a_worker_is_shown_with_its_ledger);
    tcase_add_test(tc, without_a_worker_none_is_shown);
    tcase_add_test(tc, a_buffer_that_is_too_small_says_so_at_every_size);
    tcase_add_test(tc, every_place_of_every_group_is_shown);
    tcase_add_test(tc, a_group_whose_ranks_diverge_is_shown_as_doubted);
    suite_add_tcase(suite, tc);
    return suite;
}
