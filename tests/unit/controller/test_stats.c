// SPDX-License-Identifier: Apache-2.0
// Goal: what the core counts and the shell observes appears under its documented name, and
// Prometheus' own checker has nothing to say. Method: known numbers in, text out; promtool.
#include "common/clock.h"
#include "controller/stats.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
    struct stats *stats;
    struct core_counters counters;
    struct core_gauges gauges;
    struct ledger_line lines[2];
    struct message_capacity capacity;
    struct message_heartbeat heartbeat;
    struct stats_view view;
    struct buf out;
};

static void fixture_init(struct fixture *fixture, bool compat) {
    memset(fixture, 0, sizeof *fixture);
    const struct stats_config config = {.model = "tiny",
                                        .version = "1.2.3",
                                        .commit = "abc",
                                        .model_digest = "d1",
                                        .compat = compat};
    struct error err = {0};
    ck_assert_msg(stats_create(&config, &fixture->stats, &err) == STATUS_OK, "%s", err.message);
    fixture->lines[0] = (struct ledger_line){"weights", 1000, true};
    fixture->lines[1] = (struct ledger_line){"kv", 2000, true};
    fixture->capacity = (struct message_capacity){.block_tokens = 16,
                                                  .kv_blocks = 100,
                                                  .kv_dtype = "f16",
                                                  .line_count = 2,
                                                  .lines = fixture->lines};
    fixture->heartbeat.resident_bytes = 4096;
    fixture->counters.requests_finished[REQUEST_CLASS_STANDARD][FINISH_REASON_LENGTH] = 3;
    fixture->counters.requests_rejected[REQUEST_CLASS_BATCH][REJECT_REASON_QUEUE_FULL] = 4;
    fixture->counters.tokens_prompt_computed = 50;
    fixture->counters.tokens_prompt_cached = 5;
    fixture->counters.tokens_generated = 60;
    fixture->counters.plan_refusals = 2;
    for (uint32_t why = 0; why < EPOCH_END_COUNT; why++) {
        fixture->counters.epochs_ended[why] = 10 + why;
    }
    fixture->gauges = (struct core_gauges){.queued = 2,
                                           .prefilling = 1,
                                           .decoding = 7,
                                           .kv_blocks_total = 100,
                                           .kv_blocks_held = 30,
                                           .kv_blocks_free = 60,
                                           .kv_blocks_quarantined = 10,
                                           .ready = true,
                                           .queue_oldest_us = 1500000};
    fixture->view = (struct stats_view){.counters = &fixture->counters,
                                        .gauges = &fixture->gauges,
                                        .capacity = &fixture->capacity,
                                        .heartbeat = &fixture->heartbeat,
                                        .connections = 9};
    buf_init(&fixture->out, 8u << 20);
}

static void fixture_deinit(struct fixture *fixture) {
    buf_deinit(&fixture->out);
    stats_destroy(fixture->stats);
}

static bool shows(struct fixture *fixture, const char *line) {
    buf_reset(&fixture->out);
    stats_print(fixture->stats, &fixture->view, METRIC_FORMAT_CLASSIC, &fixture->out);
    char whole[512];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    return strstr(buf_cstr(&fixture->out), whole) != NULL;
}

static void observe_everything(struct stats *stats) {
    stats_ttft(stats, REQUEST_CLASS_STANDARD, 30000);
    stats_itl(stats, REQUEST_CLASS_STANDARD, 9000);
    stats_queue(stats, REQUEST_CLASS_STANDARD, 100);
    stats_prefill(stats, REQUEST_CLASS_STANDARD, 20000);
    const struct stats_sequence sequence = {REQUEST_CLASS_STANDARD, 100, 11, 30000, 130000};
    stats_sequence_done(stats, &sequence);
    stats_response(stats, 200);
    stats_response(stats, 404);
    stats_response(stats, 429);
    stats_response(stats, 499);
    stats_response(stats, 503);
    const struct plan_prefill prefill = {.token_count = 40};
    struct plan plan = {.seq = 1, .decode_rows = 3, .prefill_count = 1, .prefills = &prefill};
    stats_plan_sent(stats, &plan, 500);
    struct step_result result = {.seq = 1, .status = RESULT_STATUS_OK, .step_us = 4000};
    stats_step_done(stats, &result);
    stats_turn(stats, STATS_PHASE_TOTAL, 12);
    stats_loop_lag(stats, 300);
    stats_recovered(stats, EPOCH_END_LOST, 40000);
}

START_TEST(documented_names_carry_the_numbers) {
    struct fixture fixture;
    fixture_init(&fixture, true);
    observe_everything(fixture.stats);
    static const char *const lines[] = {
        "tare_requests_total{model=\"tiny\",class=\"standard\",outcome=\"length\"} 3",
        "tare_requests_rejected_total{model=\"tiny\",class=\"batch\",reason=\"queue_requests\"} 4",
        "tare_requests{model=\"tiny\",state=\"queued\"} 2",
        "tare_requests{model=\"tiny\",state=\"decoding\"} 7",
        "tare_queue_oldest_seconds{model=\"tiny\"} 1.5",
        "tare_tokens_total{model=\"tiny\",kind=\"prompt_cached\"} 5",
        "tare_tokens_total{model=\"tiny\",kind=\"generated\"} 60",
        "tare_ttft_seconds_bucket{model=\"tiny\",class=\"standard\",le=\"0.02\"} 0",
        "tare_ttft_seconds_bucket{model=\"tiny\",class=\"standard\",le=\"0.05\"} 1",
        "tare_itl_seconds_count{model=\"tiny\",class=\"standard\"} 1",
        "tare_tpot_seconds_sum{model=\"tiny\",class=\"standard\"} 0.01",
        "tare_e2e_seconds_count{model=\"tiny\",class=\"standard\"} 1",
        "tare_prompt_tokens_sum{model=\"tiny\",class=\"standard\"} 100",
        "tare_output_tokens_sum{model=\"tiny\",class=\"standard\"} 11",
        "tare_step_seconds_bucket{model=\"tiny\",kind=\"mixed\",le=\"0.005\"} 1",
        "tare_step_seconds_count{model=\"tiny\",kind=\"decode\"} 0",
        "tare_step_rows_sum{model=\"tiny\",kind=\"prefill_tokens\"} 40",
        "tare_plans_total{model=\"tiny\",form=\"delta\"} 1",
        "tare_plan_bytes_total{model=\"tiny\",form=\"delta\"} 500",
        "tare_plan_nacks_total{model=\"tiny\",kind=\"refused\"} 2",
        "tare_plan_nacks_total{model=\"tiny\",kind=\"state\"} 12",
        "tare_epoch_changes_total{model=\"tiny\",cause=\"lost\"} 10",
        "tare_epoch_changes_total{model=\"tiny\",cause=\"late\"} 11",
        "tare_epoch_changes_total{model=\"tiny\",cause=\"state\"} 12",
        "tare_epoch_changes_total{model=\"tiny\",cause=\"broken\"} 13",
        "tare_epoch_changes_total{model=\"tiny\",cause=\"diverged\"} 14",
        "tare_digest_mismatch_total{model=\"tiny\"} 14",
        "tare_recovery_seconds_bucket{model=\"tiny\",cause=\"lost\",le=\"0.02\"} 0",
        "tare_recovery_seconds_bucket{model=\"tiny\",cause=\"lost\",le=\"0.05\"} 1",
        "tare_recovery_seconds_count{model=\"tiny\",cause=\"late\"} 0",
        "tare_kv_blocks{model=\"tiny\",state=\"free\"} 60",
        "tare_kv_blocks{model=\"tiny\",state=\"held\"} 30",
        "tare_kv_blocks{model=\"tiny\",state=\"quarantine\"} 10",
        "tare_kv_blocks_capacity{model=\"tiny\"} 100",
        "tare_mem_bytes{model=\"tiny\",rank=\"0\",pool=\"weights\",where=\"device\"} 1000",
        "tare_mem_bytes{model=\"tiny\",rank=\"0\",pool=\"kv\",where=\"device\"} 2000",
        "tare_mem_sealed{model=\"tiny\",rank=\"0\"} 1",
        "tare_worker_up{model=\"tiny\",rank=\"0\"} 1",
        "tare_http_responses_total{model=\"tiny\",code=\"499\"} 1",
        "tare_http_connections{model=\"tiny\"} 9",
        "tare_build_info{version=\"1.2.3\",commit=\"abc\"} 1",
        "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 8",
        "vllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 2",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.4",
        "vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 55",
        "vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"length\"} 3",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 1",
        // Two literals, one line.
        ("vllm:cache_config_info{model_name=\"tiny\",engine=\"0\",block_size=\"16\","
         "num_gpu_blocks=\"100\",cache_dtype=\"f16\"} 1"),
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        ck_assert_msg(shows(&fixture, lines[i]), "missing: %s\n%s", lines[i],
                      buf_cstr(&fixture.out));
    }
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(alias_block_can_be_removed) {
    struct fixture fixture;
    fixture_init(&fixture, false);
    observe_everything(fixture.stats);
    ck_assert(shows(&fixture, "tare_kv_blocks_capacity{model=\"tiny\"} 100"));
    ck_assert_ptr_null(strstr(buf_cstr(&fixture.out), "vllm:"));
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(nothing_is_invented_before_a_worker_is_ready) {
    struct fixture fixture;
    fixture_init(&fixture, true);
    fixture.view.capacity = NULL;
    fixture.view.heartbeat = NULL;
    ck_assert(shows(&fixture, "tare_worker_up{model=\"tiny\",rank=\"0\"} 0"));
    ck_assert_ptr_null(strstr(buf_cstr(&fixture.out), "tare_mem_bytes"));
    ck_assert_ptr_null(strstr(buf_cstr(&fixture.out), "heartbeat_age"));
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(step_of_a_forgotten_plan_is_not_counted_as_another) {
    struct fixture fixture;
    fixture_init(&fixture, false);
    struct plan plan = {.seq = 9, .decode_rows = 1};
    stats_plan_sent(fixture.stats, &plan, 10);
    struct step_result result = {.seq = 1, .status = RESULT_STATUS_OK, .step_us = 4000};
    stats_step_done(fixture.stats, &result);    // same place in the ring
    ck_assert(shows(&fixture, "tare_step_seconds_count{model=\"tiny\",kind=\"decode\"} 0"));
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(groups_number_their_plans_each_for_itself) {
    struct fixture fixture;
    fixture_init(&fixture, false);
    struct plan decode = {.group = 1, .seq = 1, .decode_rows = 1};
    const struct plan_prefill prefill = {.token_count = 40};
    struct plan prompt = {.group = 2, .seq = 1, .prefill_count = 1, .prefills = &prefill};
    stats_plan_sent(fixture.stats, &decode, 10);
    stats_plan_sent(fixture.stats, &prompt, 10);
    struct step_result result = {.group = 1, .seq = 1, .status = RESULT_STATUS_OK, .step_us = 4000};
    stats_step_done(fixture.stats, &result);
    ck_assert(shows(&fixture, "tare_step_seconds_count{model=\"tiny\",kind=\"decode\"} 1"));
    ck_assert(shows(&fixture, "tare_step_seconds_count{model=\"tiny\",kind=\"prefill\"} 0"));
    fixture.view.worker_refusals[LINK_REFUSAL_KEY] = 5;
    ck_assert(shows(&fixture, "tare_worker_refusals_total{model=\"tiny\",reason=\"key\"} 5"));
    fixture_deinit(&fixture);
}
END_TEST

// Runs `promtool check metrics` over the text; returns its exit status and its output.
static int promtool(struct fixture *fixture, char *output, size_t output_bytes) {
    char path[] = "/tmp/tare-metrics-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    FILE *file = fdopen(fd, "w");
    ck_assert_uint_eq(fwrite(fixture->out.data, 1, fixture->out.bytes_used, file),
                      fixture->out.bytes_used);
    fclose(file);
    char command[128];
    snprintf(command, sizeof command, "promtool check metrics < %s 2>&1", path);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t used = fread(output, 1, output_bytes - 1, pipe);
    output[used] = '\0';
    int rc = pclose(pipe);
    remove(path);
    return rc;
}

START_TEST(promtool_has_nothing_to_say) {
    struct fixture fixture;
    fixture_init(&fixture, false);
    observe_everything(fixture.stats);
    stats_print(fixture.stats, &fixture.view, METRIC_FORMAT_CLASSIC, &fixture.out);
    static char output[65536];
    int rc = promtool(&fixture, output, sizeof output);
    ck_assert_msg(rc == 0 && output[0] == '\0', "promtool (Debian package prometheus): %d\n%s", rc,
                  output);
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(promtool_minds_only_the_colons_of_foreign_names) {
    struct fixture fixture;
    fixture_init(&fixture, true);
    observe_everything(fixture.stats);
    stats_print(fixture.stats, &fixture.view, METRIC_FORMAT_CLASSIC, &fixture.out);
    static char output[65536];
    promtool(&fixture, output, sizeof output);
    for (char *line = strtok(output, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        ck_assert_msg(strncmp(line, "vllm:", 5) == 0 &&
                          strstr(line, "metric names should not contain ':'") != NULL,
                      "promtool: %s", line);
    }
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(scrape_is_cheap) {
    struct fixture fixture;
    fixture_init(&fixture, true);
    observe_everything(fixture.stats);
    uint64_t best_us = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        buf_reset(&fixture.out);
        uint64_t start_us = clock_monotonic_us();
        stats_print(fixture.stats, &fixture.view, METRIC_FORMAT_OPEN, &fixture.out);
        uint64_t us = clock_monotonic_us() - start_us;
        best_us = us < best_us ? us : best_us;
    }
    // The limit is 2 ms; sanitizers are allowed ten times that.
    ck_assert_msg(best_us < 20000, "%llu us", (unsigned long long)best_us);
    fixture_deinit(&fixture);
}
END_TEST

Suite *suite_stats(void) {
    Suite *suite = suite_create("controller/stats");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_test(tc, documented_names_carry_the_numbers);
    tcase_add_test(tc, alias_block_can_be_removed);
    tcase_add_test(tc, nothing_is_invented_before_a_worker_is_ready);
    tcase_add_test(tc, step_of_a_forgotten_plan_is_not_counted_as_another);
    tcase_add_test(tc, groups_number_their_plans_each_for_itself);
    tcase_add_test(tc, promtool_has_nothing_to_say);
    tcase_add_test(tc, promtool_minds_only_the_colons_of_foreign_names);
    tcase_add_test(tc, scrape_is_cheap);
    suite_add_tcase(suite, tc);
    return suite;
}
