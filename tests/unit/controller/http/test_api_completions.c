// SPDX-License-Identifier: Apache-2.0
// Goal: bodies of generating requests: prompts in every form, choices, limits, errors.
// Method: the test plays the core and reads the JSON that comes out.
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct api_fixture *f;

static void setup(void) {
    f = calloc(1, sizeof *f);
    api_fixture_init(f, NULL);
    api_fixture_ready(f);
}

static void teardown(void) {
    api_fixture_deinit(f);
    free(f);
}

static void post(const char *body) {
    api_fixture_post(f, "/v1/completions", body);
}

static void expect_failure(int status, const char *code, const char *param) {
    ck_assert_int_eq(api_fixture_status(&f->client), status);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.code"), code);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.param"), param);
    json_destroy(doc);
}

START_TEST(plain_answer_has_every_field) {
    post("{\"model\":\"tiny\",\"prompt\":\"hello\",\"max_tokens\":3,\"temperature\":0}");
    ck_assert_uint_eq(f->submit_count, 1);
    ck_assert_uint_eq(f->submits[0].prompt_count, 1);
    ck_assert_int_eq(f->submits[0].tokens[0], TOKEN_HELLO);
    ck_assert_uint_eq(f->submits[0].output_max, 3);
    ck_assert_int_eq(f->submits[0].class_, REQUEST_CLASS_STANDARD);
    ck_assert_int_eq(f->submits[0].sampling.stop_tokens[0], TOKEN_END);
    api_fixture_play(f, 0, "abc");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_int_eq(strncmp(json_walk_text(root, "id"), "cmpl-", 5), 0);
    ck_assert_str_eq(json_walk_text(root, "id") + 5, api_fixture_field(&f->client, "x-request-id"));
    ck_assert_str_eq(json_walk_text(root, "object"), "text_completion");
    ck_assert_int_gt(json_int(json_get(root, "created")), 1600000000);
    ck_assert_str_eq(json_walk_text(root, "model"), "tiny");
    ck_assert_str_eq(json_walk_text(root, "system_fingerprint"), "tare-9.9.9-tp2-c0ffee");
    ck_assert_str_eq(json_walk_text(root, "choices.0.text"), "abc");
    ck_assert_str_eq(json_walk_text(root, "choices.0.finish_reason"), "length");
    ck_assert_int_eq(json_kind(json_walk(root, "choices.0.stop_reason")), JSON_KIND_NULL);
    ck_assert_ptr_nonnull(json_walk(root, "choices.0.stop_reason"));
    ck_assert_ptr_nonnull(json_walk(root, "choices.0.logprobs"));
    ck_assert(json_absent(json_walk(root, "choices.0.logprobs")));
    ck_assert_int_eq(json_int(json_walk(root, "usage.prompt_tokens")), 1);
    ck_assert_int_eq(json_int(json_walk(root, "usage.completion_tokens")), 3);
    ck_assert_int_eq(json_int(json_walk(root, "usage.total_tokens")), 4);
    ck_assert_ptr_nonnull(json_walk(root, "usage.prompt_tokens_details.cached_tokens"));
    ck_assert_ptr_nonnull(json_walk(root, "usage.completion_tokens_details.reasoning_tokens"));
    json_destroy(doc);
    ck_assert_int_eq(f->access.status, 200);
    ck_assert_str_eq(f->access_finish, "length");
    ck_assert_uint_eq(f->access.output_tokens, 3);
    ck_assert_uint_eq(f->access.ttft_us, 1000);
    ck_assert_uint_eq(f->access.total_us, 3000);
}
END_TEST

START_TEST(stop_token_ends_without_text_and_counts) {
    post("{\"prompt\":\"a\",\"max_tokens\":9}");
    api_fixture_token(f, 0, 'x');
    api_fixture_turn(f);
    api_fixture_token(f, 0, TOKEN_END);
    api_fixture_finish(f, 0, FINISH_REASON_STOP);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "x");
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.finish_reason"), "stop");
    ck_assert(json_absent(json_walk(json_root(doc), "choices.0.stop_reason")));
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "usage.completion_tokens")), 2);
    json_destroy(doc);
}
END_TEST

START_TEST(requested_stop_token_is_the_stop_reason) {
    post("{\"prompt\":\"a\",\"max_tokens\":9,\"stop_token_ids\":[90]}");
    api_fixture_token(f, 0, 90);
    api_fixture_finish(f, 0, FINISH_REASON_STOP);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "");
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "choices.0.stop_reason")), 90);
    json_destroy(doc);
}
END_TEST

START_TEST(stop_string_cuts_the_text_and_stops_the_core) {
    post("{\"prompt\":\"a\",\"max_tokens\":20,\"stop\":[\"zz\",\"STOP\"]}");
    const char *text = "one STOP";
    for (const char *at = text; *at != '\0'; at++) {
        api_fixture_token(f, 0, (unsigned char)*at);
        api_fixture_turn(f);
    }
    ck_assert_uint_eq(f->stop_count, 1);
    ck_assert_uint_eq(f->stops[0].value, f->submits[0].id.value);
    // The answer does not wait for the core's last word.
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "one ");
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.finish_reason"), "stop");
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.stop_reason"), "STOP");
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "usage.completion_tokens")), 8);
    json_destroy(doc);
    ck_assert_uint_eq(api_open_calls(f->api), 0);
    ck_assert_uint_eq(api_live_sequences(f->api), 1);
    api_fixture_token(f, 0, 'x');    // it was on its way already
    api_fixture_finish(f, 0, FINISH_REASON_STOP);
    api_fixture_turn(f);
    ck_assert_uint_eq(api_live_sequences(f->api), 0);
}
END_TEST

START_TEST(min_tokens_overlooks_early_stops) {
    post("{\"prompt\":\"a\",\"max_tokens\":20,\"min_tokens\":3,\"stop\":\"x\"}");
    ck_assert_uint_eq(f->submits[0].sampling.min_tokens, 3);
    for (const char *at = "xxxaxb"; *at != '\0' && f->stop_count == 0; at++) {
        api_fixture_token(f, 0, (unsigned char)*at);
        api_fixture_turn(f);
    }
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "xxxa");
    json_destroy(doc);
}
END_TEST

START_TEST(include_stop_keeps_it) {
    post("{\"prompt\":\"a\",\"max_tokens\":20,\"stop\":\"b\",\"include_stop_str_in_output\":true}");
    api_fixture_token(f, 0, 'a');
    api_fixture_token(f, 0, 'b');
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "ab");
    json_destroy(doc);
}
END_TEST

START_TEST(special_tokens_are_skipped_unless_asked_for) {
    for (int keep = 0; keep < 2; keep++) {
        char body[128];
        snprintf(body, sizeof body,
                 "{\"prompt\":\"a\",\"max_tokens\":2,\"skip_special_tokens\":%s}",
                 keep ? "false" : "true");
        post(body);
        uint32_t index = f->submit_count - 1;
        api_fixture_token(f, index, TOKEN_IM_START);
        api_fixture_token(f, index, 'a');
        api_fixture_finish(f, index, FINISH_REASON_LENGTH);
        api_fixture_turn(f);
        struct json_doc *doc = api_fixture_json(&f->client);
        ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"),
                         keep ? "<|im_start|>a" : "a");
        json_destroy(doc);
    }
}
END_TEST

START_TEST(prompts_come_in_four_forms) {
    static const struct {
        const char *body;
        uint32_t count;
        uint32_t tokens_of_last;
    } rows[] = {
        {"{\"prompt\":\"hello w\"}", 1, 2},  {"{\"prompt\":[\"a\",\"hello\"]}", 2, 1},
        {"{\"prompt\":[1,2,3]}", 1, 3},      {"{\"prompt\":[[1],[2,3]]}", 2, 2},
        {"{\"prompt\":[[1],\"ab\"]}", 2, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t before = f->submit_count;
        post(rows[i].body);
        ck_assert_uint_eq(f->submit_count - before, rows[i].count);
        ck_assert_uint_eq(f->submits[f->submit_count - 1].prompt_count, rows[i].tokens_of_last);
        for (uint32_t k = before; k < f->submit_count; k++) {
            api_fixture_finish(f, k, FINISH_REASON_LENGTH);
        }
        api_fixture_turn(f);
        ck_assert_int_eq(api_fixture_status(&f->client), 200);
    }
}
END_TEST

START_TEST(bad_prompts_are_refused_by_name) {
    static const struct {
        const char *body, *code;
    } rows[] = {
        {"{}", "missing_required_parameter"},
        {"{\"prompt\":null}", "missing_required_parameter"},
        {"{\"prompt\":\"\"}", "invalid_value"},
        {"{\"prompt\":[]}", "invalid_value"},
        {"{\"prompt\":[\"\"]}", "invalid_value"},
        {"{\"prompt\":[[]]}", "invalid_value"},
        {"{\"prompt\":7}", "invalid_type"},
        {"{\"prompt\":{}}", "invalid_type"},
        {"{\"prompt\":[1,\"a\"]}", "invalid_type"},
        {"{\"prompt\":[\"a\",1]}", "invalid_type"},
        {"{\"prompt\":[1.5]}", "invalid_type"},
        {"{\"prompt\":[[1,null]]}", "invalid_type"},
        {"{\"prompt\":[265]}", "invalid_value"},
        {"{\"prompt\":[-1]}", "invalid_value"},
        {"{\"prompt\":[264,99999999999]}", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        post(rows[i].body);
        expect_failure(400, rows[i].code, "prompt");
    }
    ck_assert_uint_eq(f->submit_count, 0);
    ck_assert_uint_eq(api_open_calls(f->api), 0);
}
END_TEST

// A tokenizer may have more tokens than the model has rows.
START_TEST(tokens_that_the_model_lacks_never_reach_the_core) {
    struct message_capacity capacity = {.envelope = {.seq_tokens = FIXTURE_CONTEXT},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TOKEN_END};
    api_on_capacity(f->api, &capacity);
    post("{\"prompt\":\"a<|end|>\"}");
    ck_assert_int_eq(api_fixture_status(&f->client), 400);
    ck_assert_uint_eq(f->submit_count, 0);
    post("{\"prompt\":\"a\",\"max_tokens\":1}");
    ck_assert_uint_eq(f->submits[0].sampling.stop_token_count, 0);
    api_fixture_play(f, 0, "b");
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
}
END_TEST

START_TEST(prompt_count_fits_its_bound_and_not_one_more) {
    for (unsigned count = BOUND_PROMPTS_PER_REQUEST; count <= BOUND_PROMPTS_PER_REQUEST + 1;
         count++) {
        struct buf body;
        buf_init(&body, 1 << 20);
        buf_append_str(&body, "{\"prompt\":[");
        for (unsigned i = 0; i < count; i++) {
            buf_append_str(&body, i > 0 ? ",\"a\"" : "\"a\"");
        }
        buf_append_str(&body, "]}");
        post(buf_cstr(&body));
        buf_deinit(&body);
        if (count <= BOUND_PROMPTS_PER_REQUEST) {
            ck_assert_uint_eq(f->submit_count, count);
            for (unsigned i = 0; i < count; i++) {
                api_fixture_finish(f, i, FINISH_REASON_LENGTH);
            }
            api_fixture_turn(f);
        }
    }
    expect_failure(400, "too_large", "prompt");
}
END_TEST

static void let_three_wait(struct api_config *config) {
    config->sequences_max = 3;
}

START_TEST(a_request_larger_than_the_waiting_line_is_not_told_to_retry) {
    api_fixture_deinit(f);
    api_fixture_init(f, let_three_wait);
    api_fixture_ready(f);
    post("{\"prompt\":[\"a\",\"a\"],\"n\":2}");
    expect_failure(400, "too_large", "n");
    ck_assert_uint_eq(f->submit_count, 0);
    post("{\"prompt\":\"a\",\"n\":3}");
    ck_assert_uint_eq(f->submit_count, 3);
}
END_TEST

START_TEST(sequences_of_one_request_fit_their_bound) {
    struct buf body;
    buf_init(&body, 1 << 20);
    buf_append_str(&body, "{\"n\":64,\"prompt\":[\"a\"");
    for (unsigned i = 1; i < BOUND_SEQUENCES_PER_REQUEST / 64; i++) {
        buf_append_str(&body, ",\"a\"");
    }
    size_t end = body.bytes_used;
    buf_append_str(&body, "]}");
    post(buf_cstr(&body));
    ck_assert_uint_eq(f->submit_count, BOUND_SEQUENCES_PER_REQUEST);
    for (uint32_t i = 100; i < f->submit_count; i++) {
        api_fixture_reject(f, i, REJECT_REASON_QUEUE_FULL, 1000);
    }
    api_fixture_turn(f);
    ck_assert_uint_eq(f->cancel_count, 100);    // those that run, and no refused one
    for (uint32_t i = 0; i < 100; i++) {
        api_fixture_finish(f, i, FINISH_REASON_CANCELLED);
    }
    api_fixture_turn(f);
    body.bytes_used = end;
    buf_append_str(&body, ",\"a\"]}");
    post(buf_cstr(&body));
    expect_failure(400, "too_large", "n");
    buf_deinit(&body);
}
END_TEST

START_TEST(length_rule_holds_at_its_edge) {
    struct buf body;
    buf_init(&body, 1 << 20);
    for (unsigned count = FIXTURE_CONTEXT - 1; count <= FIXTURE_CONTEXT; count++) {
        buf_reset(&body);
        buf_append_str(&body, "{\"max_tokens\":50,\"prompt\":[1");
        for (unsigned i = 1; i < count; i++) {
            buf_append_str(&body, ",1");
        }
        buf_append_str(&body, "]}");
        post(buf_cstr(&body));
        if (count < FIXTURE_CONTEXT) {
            ck_assert_uint_eq(f->submits[0].output_max, 1);    // lowered
            api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
            api_fixture_turn(f);
        }
    }
    expect_failure(400, "context_length_exceeded", "prompt");
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_int_eq(strncmp(json_walk_text(root, "error.message"),
                             "This model's maximum context length is 64 tokens.", 49),
                     0);
    ck_assert_int_eq(json_int(json_walk(root, "error.n_prompt_tokens")), FIXTURE_CONTEXT);
    ck_assert_int_eq(json_int(json_walk(root, "error.n_ctx")), FIXTURE_CONTEXT);
    json_destroy(doc);
    buf_deinit(&body);
    post("{\"prompt\":[1]}");
    ck_assert_uint_eq(f->submits[1].output_max, 16);    // the default of completions
}
END_TEST

static void strict(struct api_config *config) {
    config->strict_max_tokens = true;
}

START_TEST(strict_servers_refuse_instead_of_lowering) {
    api_fixture_deinit(f);
    api_fixture_init(f, strict);
    api_fixture_ready(f);
    post("{\"prompt\":[1,2],\"max_tokens\":62}");
    ck_assert_uint_eq(f->submit_count, 1);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    post("{\"prompt\":[1,2],\"max_tokens\":63}");
    expect_failure(400, "context_length_exceeded", "max_tokens");
}
END_TEST

START_TEST(truncation_keeps_the_end) {
    post("{\"prompt\":[1,2,3,4],\"truncate_prompt_tokens\":2}");
    ck_assert_uint_eq(f->submits[0].prompt_count, 2);
    ck_assert_int_eq(f->submits[0].tokens[0], 3);
}
END_TEST

START_TEST(choices_are_numbered_by_prompt_and_sample) {
    post("{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":1,\"seed\":11}");
    ck_assert_uint_eq(f->submit_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(f->submits[i].sampling.seed, 11);
        ck_assert_uint_eq(f->submits[i].sampling.stream, i % 2);    // of (seed, sample)
        ck_assert_int_eq(f->submits[i].tokens[0], i < 2 ? 'a' : 'b');
    }
    for (uint32_t i = 4; i-- > 0;) {
        api_fixture_token(f, i, (int32_t)('0' + i));
        api_fixture_finish(f, i, FINISH_REASON_LENGTH);
        api_fixture_turn(f);
    }
    struct json_doc *doc = api_fixture_json(&f->client);
    for (uint32_t i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof path, "choices.%u.index", i);
        ck_assert_int_eq(json_int(json_walk(json_root(doc), path)), i);
        snprintf(path, sizeof path, "choices.%u.text", i);
        ck_assert_int_eq(json_walk_text(json_root(doc), path)[0], '0' + (int)i);
    }
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "usage.prompt_tokens")), 2);    // once each
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "usage.completion_tokens")), 4);
    json_destroy(doc);
}
END_TEST

START_TEST(requests_without_a_seed_draw_differently) {
    post("{\"prompt\":[\"a\",\"a\"],\"max_tokens\":1}");
    ck_assert_uint_eq(f->submits[0].sampling.seed, f->submits[1].sampling.seed);
    ck_assert_uint_ne(f->submits[0].sampling.stream, f->submits[1].sampling.stream);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_finish(f, 1, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    post("{\"prompt\":\"a\"}");
    ck_assert_uint_ne(f->submits[0].sampling.seed, f->submits[2].sampling.seed);
}
END_TEST

START_TEST(sampling_reaches_the_core) {
    post("{\"prompt\":\"a\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
         "\"repetition_penalty\":1.5,\"presence_penalty\":-1,\"frequency_penalty\":2,"
         "\"logit_bias\":{\"5\":-100,\"6\":1.5},\"ignore_eos\":true,\"logprobs\":4}");
    const struct sampling_params *sampling = &f->submits[0].sampling;
    ck_assert(sampling->temperature == 0.5f && sampling->top_p == 0.25f);
    ck_assert(sampling->min_p == 0.125f && sampling->repetition_penalty == 1.5f);
    ck_assert(sampling->presence_penalty == -1 && sampling->frequency_penalty == 2);
    ck_assert_uint_eq(sampling->top_k, 7);
    ck_assert_uint_eq(sampling->stop_token_count, 0);
    ck_assert_uint_eq(sampling->bias_count, 2);
    ck_assert_int_eq(sampling->bias[1].token, 6);
    ck_assert(sampling->bias[0].bias == -100);
    ck_assert(sampling->want_logprobs && !sampling->want_prompt_logprobs);
    ck_assert_uint_eq(sampling->top_logprobs, 4);
}
END_TEST

// ---- failures ----------------------------------------------------------------------------------

START_TEST(rejections_keep_their_status) {
    static const struct {
        enum reject_reason reason;
        uint32_t retry_after_ms;
        int status;
        const char *code, *should_retry;
    } rows[] = {
        {REJECT_REASON_QUEUE_FULL, 2500, 429, "queue_full", "true"},
        {REJECT_REASON_QUEUE_FULL, 0, 429, "queue_full", "false"},
        {REJECT_REASON_QUEUE_TOKENS, 2500, 429, "queue_full", "true"},
        {REJECT_REASON_WOULD_MISS, 2500, 429, "would_miss_deadline", "true"},
        {REJECT_REASON_MISSED, 2500, 429, "would_miss_deadline", "true"},
        {REJECT_REASON_TOO_LARGE, 0, 400, "too_large", NULL},
        {REJECT_REASON_UNAVAILABLE, 1000, 503, "unavailable", "true"},
        {REJECT_REASON_DRAINING, 900000, 503, "draining", "true"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        post("{\"prompt\":\"a\",\"stream\":true}");    // no head was sent: the status is honest
        api_fixture_reject(f, i, rows[i].reason, rows[i].retry_after_ms);
        api_fixture_turn(f);
        expect_failure(rows[i].status, rows[i].code, "");
        const char *field = api_fixture_field(&f->client, "x-should-retry");
        ck_assert((field == NULL) == (rows[i].should_retry == NULL));
        ck_assert(field == NULL || strcmp(field, rows[i].should_retry) == 0);
        if (rows[i].retry_after_ms == 2500) {
            ck_assert_str_eq(api_fixture_field(&f->client, "retry-after"), "3");
            ck_assert_str_eq(api_fixture_field(&f->client, "retry-after-ms"), "2500");
        }
        if (rows[i].retry_after_ms == 900000) {
            ck_assert_str_eq(api_fixture_field(&f->client, "retry-after"), "120");
        }
    }
}
END_TEST

START_TEST(one_rejected_sequence_ends_the_request_and_its_siblings) {
    post("{\"prompt\":[\"a\",\"b\",\"c\"],\"max_tokens\":2}");
    api_fixture_token(f, 0, 'x');
    api_fixture_reject(f, 1, REJECT_REASON_QUEUE_FULL, 1000);
    api_fixture_turn(f);
    expect_failure(429, "queue_full", "");
    ck_assert_uint_eq(f->cancel_count, 2);
    api_fixture_finish(f, 0, FINISH_REASON_CANCELLED);
    api_fixture_finish(f, 2, FINISH_REASON_CANCELLED);
    api_fixture_turn(f);
    ck_assert_uint_eq(api_live_sequences(f->api), 0);
}
END_TEST

START_TEST(full_input_queue_is_429_and_takes_back_what_was_submitted) {
    f->submit_status = STATUS_BUSY;
    f->submit_fail_at = 3;
    post("{\"prompt\":[\"a\",\"b\",\"c\",\"d\"]}");
    expect_failure(429, "queue_full", "");
    ck_assert_uint_eq(f->submit_count, 2);
    ck_assert_uint_eq(f->cancel_count, 2);
    f->submit_status = STATUS_SHUTDOWN;
    post("{\"prompt\":\"a\"}");
    expect_failure(503, "unavailable", "");
}
END_TEST

START_TEST(faults_before_the_head_are_honest_statuses) {
    static const struct {
        enum finish_reason reason;
        const char *code;
    } rows[] = {{FINISH_REASON_FAULT, "instance_lost"},
                {FINISH_REASON_SHUTDOWN, "draining"},
                {FINISH_REASON_CANCELLED, "unavailable"}};
    for (uint32_t i = 0; i < 3; i++) {
        post("{\"prompt\":\"a\"}");
        api_fixture_token(f, i, 'x');
        api_fixture_turn(f);
        api_fixture_finish(f, i, rows[i].reason);
        api_fixture_turn(f);
        expect_failure(503, rows[i].code, "");
    }
}
END_TEST

START_TEST(client_that_leaves_cancels_everything) {
    post("{\"prompt\":[\"a\",\"b\"],\"n\":2}");
    struct http_handler handler = api_handler(f->api);
    f->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &f->client.exchange, HTTP_GONE_REASON_CLIENT, f->now_us);
    ck_assert_uint_eq(f->cancel_count, 4);
    ck_assert_int_eq(f->access.status, 499);
    ck_assert_str_eq(f->access_finish, "client_abort");
    ck_assert_uint_eq(api_open_calls(f->api), 0);
    api_fixture_token(f, 0, 'x');    // still on its way: nobody minds
    for (uint32_t i = 0; i < 4; i++) {
        api_fixture_finish(f, i, FINISH_REASON_CANCELLED);
    }
    api_fixture_turn(f);
    ck_assert_uint_eq(api_live_sequences(f->api), 0);
}
END_TEST

START_TEST(model_names_are_checked) {
    post("{\"model\":\"org/tiny:latest\",\"prompt\":\"a\"}");
    ck_assert_uint_eq(f->submit_count, 1);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    post("{\"model\":\"other\",\"prompt\":\"a\"}");
    expect_failure(404, "model_not_found", "model");
    post("{\"model\":7,\"prompt\":\"a\"}");
    expect_failure(400, "invalid_type", "model");
    post("{\"model\":\"\",\"prompt\":\"a\"}");
    ck_assert_uint_eq(f->submit_count, 2);
}
END_TEST

static void any_name(struct api_config *config) {
    config->any_model_name = true;
}

START_TEST(any_name_can_be_allowed) {
    api_fixture_deinit(f);
    api_fixture_init(f, any_name);
    api_fixture_ready(f);
    post("{\"model\":\"other\",\"prompt\":\"a\"}");
    ck_assert_uint_eq(f->submit_count, 1);
}
END_TEST

START_TEST(running_twins_get_different_body_ids) {
    struct api_fixture_client second;
    api_fixture_client_init(f, &second);
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: same\r\n"
        "Content-Length: 29\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1}";
    api_fixture_send(f, &f->client, request);
    api_fixture_send(f, &second, request);
    for (uint32_t i = 0; i < 2; i++) {
        api_fixture_token(f, i, 'x');
        api_fixture_finish(f, i, FINISH_REASON_LENGTH);
    }
    api_fixture_turn(f);
    api_fixture_collect(&second);
    struct json_doc *a = api_fixture_json(&f->client);
    struct json_doc *b = api_fixture_json(&second);
    ck_assert_str_eq(json_walk_text(json_root(a), "id"), "cmpl-same");
    ck_assert_int_eq(strncmp(json_walk_text(json_root(b), "id"), "cmpl-same-", 10), 0);
    json_destroy(a);
    json_destroy(b);
    api_fixture_client_deinit(&second);
}
END_TEST

START_TEST(class_can_be_lowered_and_not_raised) {
    static const struct {
        const char *wish;
        enum request_class class_;
    } rows[] = {{"batch", REQUEST_CLASS_BATCH},
                {"standard", REQUEST_CLASS_STANDARD},
                {"realtime", REQUEST_CLASS_STANDARD}};
    for (uint32_t i = 0; i < 3; i++) {
        char request[256];
        snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Tare-Class: %s\r\n"
                 "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}",
                 rows[i].wish);
        api_fixture_send(f, &f->client, request);
        ck_assert_int_eq(f->submits[i].class_, rows[i].class_);
        api_fixture_finish(f, i, FINISH_REASON_LENGTH);
        api_fixture_turn(f);
    }
    api_fixture_send(f, &f->client,
                     "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Tare-Class: x\r\n"
                     "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
    expect_failure(400, "invalid_value", "x-tare-class");
}
END_TEST

START_TEST(missing_memory_is_an_answer_and_leaks_nothing) {
    int refused = 0;
    for (uint64_t nth = 1; nth < 60; nth++) {
        uint32_t before = f->submit_count;
        f->fail_nth = nth;
        post("{\"prompt\":[\"ab\",\"cd\"],\"stop\":[\"x\"],\"logit_bias\":{\"1\":1},\"max_tokens\":"
             "1}");
        if (f->submit_count == before + 2) {
            for (uint32_t i = before; i < before + 2; i++) {
                api_fixture_token(f, i, 'x');
                api_fixture_finish(f, i, FINISH_REASON_LENGTH);
            }
            api_fixture_turn(f);
            ck_assert_int_eq(api_fixture_status(&f->client), 200);
        } else {
            refused++;
            ck_assert(!http_exchange_live(&f->client.exchange));
            for (uint32_t i = before; i < f->submit_count; i++) {
                api_fixture_finish(f, i, FINISH_REASON_CANCELLED);
            }
            api_fixture_turn(f);
        }
        ck_assert_uint_eq(api_live_sequences(f->api), 0);
        ck_assert_uint_eq(api_open_calls(f->api), 0);
    }
    ck_assert_int_gt(refused, 3);
}
END_TEST

Suite *suite_api_completions(void) {
    Suite *suite = suite_create("controller/http/api_completions");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, plain_answer_has_every_field);
    tcase_add_test(tc, stop_token_ends_without_text_and_counts);
    tcase_add_test(tc, requested_stop_token_is_the_stop_reason);
    tcase_add_test(tc, stop_string_cuts_the_text_and_stops_the_core);
    tcase_add_test(tc, min_tokens_overlooks_early_stops);
    tcase_add_test(tc, include_stop_keeps_it);
    tcase_add_test(tc, special_tokens_are_skipped_unless_asked_for);
    tcase_add_test(tc, prompts_come_in_four_forms);
    tcase_add_test(tc, bad_prompts_are_refused_by_name);
    tcase_add_test(tc, tokens_that_the_model_lacks_never_reach_the_core);
    tcase_add_test(tc, prompt_count_fits_its_bound_and_not_one_more);
    tcase_add_test(tc, a_request_larger_than_the_waiting_line_is_not_told_to_retry);
    tcase_add_test(tc, sequences_of_one_request_fit_their_bound);
    tcase_add_test(tc, length_rule_holds_at_its_edge);
    tcase_add_test(tc, strict_servers_refuse_instead_of_lowering);
    tcase_add_test(tc, truncation_keeps_the_end);
    tcase_add_test(tc, choices_are_numbered_by_prompt_and_sample);
    tcase_add_test(tc, requests_without_a_seed_draw_differently);
    tcase_add_test(tc, sampling_reaches_the_core);
    tcase_add_test(tc, rejections_keep_their_status);
    tcase_add_test(tc, one_rejected_sequence_ends_the_request_and_its_siblings);
    tcase_add_test(tc, full_input_queue_is_429_and_takes_back_what_was_submitted);
    tcase_add_test(tc, faults_before_the_head_are_honest_statuses);
    tcase_add_test(tc, client_that_leaves_cancels_everything);
    tcase_add_test(tc, model_names_are_checked);
    tcase_add_test(tc, any_name_can_be_allowed);
    tcase_add_test(tc, running_twins_get_different_body_ids);
    tcase_add_test(tc, class_can_be_lowered_and_not_raised);
    tcase_add_test(tc, missing_memory_is_an_answer_and_leaks_nothing);
    suite_add_tcase(suite, tc);
    return suite;
}
