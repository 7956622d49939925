// SPDX-License-Identifier: Apache-2.0
// Goal: event streams and chats keep every rule that real clients depend on. Method: tokens in, raw
// bytes out, read as a client reads them.
#include "controller/text/tokenizer.h"
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

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

static void chat(const char *body) {
    api_fixture_post(f, "/v1/chat/completions", body);
}

// One member of one event, as text; "" when it is not there or not a string.
static const char *event_text(uint32_t index, const char *path) {
    static char text[512];
    struct json_doc *doc = api_fixture_event(&f->client, index);
    ck_assert_msg(doc != NULL, "no event %u", index);
    snprintf(text, sizeof text, "%s", json_walk_text(json_root(doc), path));
    json_destroy(doc);
    return text;
}

static bool event_has(uint32_t index, const char *path) {
    struct json_doc *doc = api_fixture_event(&f->client, index);
    ck_assert_msg(doc != NULL, "no event %u", index);
    bool has = json_walk(json_root(doc), path) != NULL;
    json_destroy(doc);
    return has;
}

static bool ends_with_done(void) {
    bool whole = false;
    const char *body = api_fixture_body(&f->client, &whole);
    size_t byte_count = strlen(body);
    return whole && byte_count >= 14 && strcmp(body + byte_count - 14, "data: [DONE]\n\n") == 0;
}

static void expect_failure(int status, const char *code, const char *param) {
    ck_assert_int_eq(api_fixture_status(&f->client), status);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.code"), code);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.param"), param);
    json_destroy(doc);
}

START_TEST(chat_answer_has_every_field) {
    chat("{" HI ",\"max_tokens\":2}");
    ck_assert_uint_eq(f->submits[0].output_max, 2);
    ck_assert_int_eq(f->submits[0].tokens[0], TOKEN_IM_START);
    api_fixture_play(f, 0, "ok");
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_int_eq(strncmp(json_walk_text(root, "id"), "chatcmpl-", 9), 0);
    ck_assert_str_eq(json_walk_text(root, "object"), "chat.completion");
    ck_assert_str_eq(json_walk_text(root, "service_tier"), "default");
    ck_assert_str_eq(json_walk_text(root, "choices.0.message.role"), "assistant");
    ck_assert_str_eq(json_walk_text(root, "choices.0.message.content"), "ok");
    ck_assert_ptr_nonnull(json_walk(root, "choices.0.message.refusal"));
    ck_assert_ptr_null(json_walk(root, "choices.0.message.tool_calls"));
    ck_assert_ptr_null(json_walk(root, "choices.0.message.reasoning_content"));
    ck_assert_ptr_nonnull(json_walk(root, "choices.0.logprobs"));
    ck_assert_str_eq(json_walk_text(root, "choices.0.finish_reason"), "length");
    ck_assert_int_eq(json_int(json_walk(root, "usage.completion_tokens")), 2);
    json_destroy(doc);
    chat("{" HI "}");    // without a limit: the rest of the context
    ck_assert_uint_eq(f->submits[1].output_max, FIXTURE_CONTEXT - f->submits[1].prompt_count);
}
END_TEST

START_TEST(chat_logprobs_carry_bytes_and_alternatives) {
    chat("{" HI ",\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":2}");
    const int32_t top[] = {0xC3, 'b'};
    const float values[] = {-0.5f, -1};
    const struct result_row row = {.token = 0xC3,
                                   .has_logprob = true,
                                   .logprob = -0.5f,
                                   .top_count = 2,
                                   .top_tokens = top,
                                   .top_logprobs = values};
    api_fixture_row(f, 0, &row);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *entry = json_walk(json_root(doc), "choices.0.logprobs.content.0");
    ck_assert_str_eq(json_walk_text(entry, "token"), "\xEF\xBF\xBD");
    ck_assert_int_eq(json_int(json_walk(entry, "bytes.0")), 0xC3);
    ck_assert(json_number(json_walk(entry, "logprob")) == -0.5);
    ck_assert_uint_eq(json_count(json_walk(entry, "top_logprobs")), 2);
    ck_assert_str_eq(json_walk_text(entry, "top_logprobs.1.token"), "b");
    ck_assert_ptr_nonnull(json_walk(json_root(doc), "choices.0.logprobs.refusal"));
    json_destroy(doc);
}
END_TEST

START_TEST(stream_begins_with_the_first_token_and_not_before) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":3}");
    ck_assert_uint_eq(f->client.answer.bytes_used, 0);
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    ck_assert_str_eq(api_fixture_field(&f->client, "content-type"),
                     "text/event-stream; charset=utf-8");
    ck_assert_str_eq(api_fixture_field(&f->client, "cache-control"), "no-store");
    ck_assert_str_eq(api_fixture_field(&f->client, "x-accel-buffering"), "no");
    // Role and first text are in one write: one chunk of the transfer coding.
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 2);
    ck_assert_str_eq(event_text(0, "choices.0.delta.role"), "assistant");
    ck_assert(event_has(0, "choices.0.delta.content"));
    ck_assert_str_eq(event_text(1, "choices.0.delta.content"), "a");
    ck_assert(!event_has(1, "choices.0.delta.role"));
}
END_TEST

START_TEST(one_step_is_one_chunk_and_the_finish_rides_on_the_last) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":3}");
    api_fixture_play(f, 0, "abc");
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 4);
    ck_assert_str_eq(event_text(3, "choices.0.delta.content"), "c");
    ck_assert_str_eq(event_text(3, "choices.0.finish_reason"), "length");
    ck_assert_str_eq(event_text(2, "choices.0.finish_reason"), "");
    ck_assert(event_has(2, "choices.0.finish_reason"));
    ck_assert_str_eq(event_text(1, "object"), "chat.completion.chunk");
    char id[128];
    snprintf(id, sizeof id, "%s", event_text(0, "id"));
    for (uint32_t i = 1; i < 4; i++) {
        ck_assert_str_eq(event_text(i, "id"), id);
        ck_assert(!event_has(i, "usage"));
    }
    ck_assert(ends_with_done());
    ck_assert_str_eq(f->access_finish, "length");
}
END_TEST

START_TEST(two_tokens_of_one_turn_share_a_chunk) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":3}");
    api_fixture_token(f, 0, 'a');
    api_fixture_token(f, 0, 'b');
    api_fixture_turn(f);
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 2);
    ck_assert_str_eq(event_text(1, "choices.0.delta.content"), "ab");
}
END_TEST

START_TEST(last_step_without_text_has_an_empty_delta) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":3}");
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    api_fixture_token(f, 0, TOKEN_END);
    api_fixture_finish(f, 0, FINISH_REASON_STOP);
    api_fixture_turn(f);
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 3);
    struct json_doc *doc = api_fixture_event(&f->client, 2);
    ck_assert_uint_eq(json_count(json_walk(json_root(doc), "choices.0.delta")), 0);
    json_destroy(doc);
    ck_assert_str_eq(event_text(2, "choices.0.finish_reason"), "stop");
    ck_assert(ends_with_done());
}
END_TEST

START_TEST(usage_comes_in_its_own_chunk_when_asked_for) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":2,\"stream_options\":{\"include_usage\":true}}");
    api_fixture_play(f, 0, "ab");
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 4);
    struct json_doc *doc = api_fixture_event(&f->client, 3);
    const struct json *root = json_root(doc);
    ck_assert_uint_eq(json_count(json_get(root, "choices")), 0);
    ck_assert_int_eq(json_kind(json_get(root, "choices")), JSON_KIND_ARRAY);
    ck_assert_int_eq(json_int(json_walk(root, "usage.completion_tokens")), 2);
    json_destroy(doc);
    ck_assert(!event_has(1, "usage"));
    ck_assert(ends_with_done());
}
END_TEST

START_TEST(usage_can_come_in_every_chunk) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":2,"
         "\"stream_options\":{\"continuous_usage_stats\":true,\"include_usage\":true}}");
    api_fixture_play(f, 0, "ab");
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert(event_has(i, "usage.prompt_tokens"));
    }
}
END_TEST

static void force_usage(struct api_config *config) {
    config->usage_always = true;
}

START_TEST(usage_can_be_forced_by_the_server) {
    api_fixture_deinit(f);
    api_fixture_init(f, force_usage);
    api_fixture_ready(f);
    chat("{" HI ",\"stream\":true,\"max_tokens\":1}");
    api_fixture_play(f, 0, "a");
    ck_assert(event_has(2, "usage.total_tokens"));
}
END_TEST

START_TEST(characters_are_never_split) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":9}");
    static const unsigned char emoji[] = {0xF0, 0x9F, 0x98, 0x80};
    for (int i = 0; i < 4; i++) {
        api_fixture_token(f, 0, emoji[i]);
        api_fixture_turn(f);
    }
    // The role came with the first token; the text once it was whole.
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 2);
    ck_assert_str_eq(event_text(1, "choices.0.delta.content"), "\xF0\x9F\x98\x80");
    api_fixture_token(f, 0, 0xE2);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    ck_assert_str_eq(event_text(2, "choices.0.delta.content"), "\xEF\xBF\xBD");
}
END_TEST

START_TEST(line_separators_are_escaped) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":9}");
    static const unsigned char text[] = {0xE2, 0x80, 0xA8, 0xC2, 0x85, '\n', '\r', 0x01};
    for (size_t i = 0; i < sizeof text; i++) {
        api_fixture_token(f, 0, text[i]);
    }
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    const char *body = api_fixture_body(&f->client, NULL);
    ck_assert_ptr_nonnull(strstr(body, "\\u2028\\u0085\\n\\r\\u0001"));
    ck_assert_ptr_null(strstr(body, "\xE2\x80\xA8"));
    ck_assert_ptr_null(strchr(body, '\r'));
}
END_TEST

START_TEST(beginnings_of_stops_are_held_back_with_their_logprobs) {
    api_fixture_post(
        f, "/v1/completions",
        "{\"prompt\":\"a\",\"stream\":true,\"max_tokens\":20,\"stop\":\"END\",\"logprobs\":0}");
    for (const char *at = "xENyEND"; *at != '\0'; at++) {
        const struct result_row row = {
            .token = (unsigned char)*at, .has_logprob = true, .logprob = -1};
        api_fixture_row(f, 0, &row);
        api_fixture_turn(f);
    }
    // "x"; then "ENy" once it cannot be the stop; then the end.
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 3);
    ck_assert_str_eq(event_text(0, "choices.0.text"), "x");
    ck_assert_str_eq(event_text(1, "choices.0.text"), "ENy");
    struct json_doc *doc = api_fixture_event(&f->client, 1);
    ck_assert_uint_eq(json_count(json_walk(json_root(doc), "choices.0.logprobs.tokens")), 3);
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "choices.0.logprobs.text_offset.0")), 1);
    json_destroy(doc);
    ck_assert_str_eq(event_text(2, "choices.0.text"), "");
    ck_assert_str_eq(event_text(2, "choices.0.finish_reason"), "stop");
    ck_assert_str_eq(event_text(2, "choices.0.stop_reason"), "END");
    ck_assert(ends_with_done());
    ck_assert_uint_eq(f->stop_count, 1);
}
END_TEST

START_TEST(choices_interleave_and_each_is_in_order) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":2,\"n\":2}");
    api_fixture_token(f, 1, 'x');
    api_fixture_turn(f);
    api_fixture_token(f, 0, 'a');
    api_fixture_token(f, 1, 'y');
    api_fixture_finish(f, 1, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    ck_assert(!ends_with_done());
    api_fixture_token(f, 0, 'b');
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    char texts[2][16] = {"", ""};
    uint32_t roles = 0;
    for (uint32_t i = 0; i < api_fixture_event_count(&f->client); i++) {
        struct json_doc *doc = api_fixture_event(&f->client, i);
        size_t index = (size_t)json_int(json_walk(json_root(doc), "choices.0.index"));
        const char *text = json_walk_text(json_root(doc), "choices.0.delta.content");
        roles += json_walk(json_root(doc), "choices.0.delta.role") != NULL ? 1 : 0;
        strncat(texts[index], text, 8);
        json_destroy(doc);
    }
    ck_assert_str_eq(texts[0], "ab");
    ck_assert_str_eq(texts[1], "xy");
    ck_assert_uint_eq(roles, 2);
    ck_assert(ends_with_done());
}
END_TEST

START_TEST(head_leaves_after_its_delay_and_silence_gets_newlines) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":2}");
    struct http_handler handler = api_handler(f->api);
    ck_assert_uint_eq(f->client.exchange.alarm_us, f->now_us + 10000000);
    f->now_us = f->client.exchange.alarm_us;
    f->client.exchange.alarm_us = 0;
    handler.on_alarm(handler.ctx, &f->client.exchange, f->now_us);
    api_fixture_collect(&f->client);
    ck_assert_int_eq(api_fixture_status(&f->client), 200);
    ck_assert_str_eq(api_fixture_body(&f->client, NULL), "");
    ck_assert_uint_eq(f->client.exchange.alarm_us, f->now_us + 15000000);
    f->now_us = f->client.exchange.alarm_us;
    handler.on_alarm(handler.ctx, &f->client.exchange, f->now_us);
    api_fixture_collect(&f->client);
    ck_assert_str_eq(api_fixture_body(&f->client, NULL), "\n\n");
    // A token puts the alarm off.
    f->now_us += 1000000;
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    ck_assert_uint_eq(f->client.exchange.alarm_us, f->now_us + 15000000);
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 2);
}
END_TEST

START_TEST(requests_may_shorten_the_keepalive) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":2,\"sse_ping_interval\":3}");
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    ck_assert_uint_eq(f->client.exchange.alarm_us, f->now_us + 3000000);
    api_fixture_token(f, 0, 'a');
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    chat("{" HI ",\"stream\":true,\"max_tokens\":2,\"sse_ping_interval\":300}");
    api_fixture_token(f, 1, 'a');
    api_fixture_turn(f);
    ck_assert_uint_eq(f->client.exchange.alarm_us, f->now_us + 15000000);
}
END_TEST

START_TEST(fault_in_a_stream_never_looks_finished) {
    static const struct {
        enum finish_reason reason;
        const char *code;
    } rows[] = {{FINISH_REASON_FAULT, "instance_lost"}, {FINISH_REASON_SHUTDOWN, "draining"}};
    for (uint32_t i = 0; i < 2; i++) {
        chat("{" HI ",\"stream\":true,\"max_tokens\":9}");
        api_fixture_token(f, i, 'a');
        api_fixture_turn(f);
        api_fixture_finish(f, i, rows[i].reason);
        api_fixture_turn(f);
        bool whole = true;
        const char *body = api_fixture_body(&f->client, &whole);
        ck_assert(!whole);    // no last chunk
        ck_assert_ptr_null(strstr(body, "[DONE]"));
        ck_assert_ptr_null(strstr(body, "\"finish_reason\":\""));
        ck_assert_str_eq(event_text(2, "error.code"), rows[i].code);
        ck_assert_int_eq(f->client.exchange.phase, HTTP_EXCHANGE_PHASE_BROKEN);
        ck_assert(!f->client.exchange.keep_alive);
        ck_assert_str_eq(f->access_finish, rows[i].code);
    }
}
END_TEST

START_TEST(late_rejection_of_a_sibling_breaks_the_stream) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":9,\"n\":2}");
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    api_fixture_reject(f, 1, REJECT_REASON_UNAVAILABLE, 1000);
    api_fixture_turn(f);
    ck_assert_str_eq(event_text(2, "error.code"), "unavailable");
    ck_assert_uint_eq(f->cancel_count, 1);
}
END_TEST

START_TEST(leaving_a_stream_cancels_it) {
    chat("{" HI ",\"stream\":true,\"max_tokens\":9}");
    api_fixture_token(f, 0, 'a');
    api_fixture_turn(f);
    struct http_handler handler = api_handler(f->api);
    f->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &f->client.exchange, HTTP_GONE_REASON_SLOW, f->now_us);
    ck_assert_uint_eq(f->cancel_count, 1);
    ck_assert_str_eq(f->access_finish, "slow_client");
    api_fixture_token(f, 0, 'b');
    api_fixture_turn(f);
    api_fixture_finish(f, 0, FINISH_REASON_CANCELLED);
    api_fixture_turn(f);
    ck_assert_uint_eq(api_live_sequences(f->api), 0);
}
END_TEST

START_TEST(completions_stream_their_own_shape) {
    api_fixture_post(f, "/v1/completions",
                     "{\"prompt\":\"hi\",\"stream\":true,\"max_tokens\":2,\"echo\":true}");
    api_fixture_play(f, 0, "ab");
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 2);
    ck_assert_str_eq(event_text(0, "object"), "text_completion");
    ck_assert_str_eq(event_text(0, "choices.0.text"), "hia");    // the echo leads
    ck_assert(event_has(0, "choices.0.logprobs"));
    ck_assert_str_eq(event_text(1, "choices.0.text"), "b");
    ck_assert_str_eq(event_text(1, "choices.0.finish_reason"), "length");
    ck_assert(ends_with_done());
}
END_TEST

START_TEST(old_clients_get_a_stream_without_chunks) {
    api_fixture_send(f, &f->client,
                     "POST /v1/completions HTTP/1.0\r\nContent-Length: 43\r\n\r\n"
                     "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":true}");
    api_fixture_play(f, 0, "x");
    ck_assert_ptr_null(api_fixture_field(&f->client, "transfer-encoding"));
    ck_assert_str_eq(api_fixture_field(&f->client, "connection"), "close");
    ck_assert_uint_eq(api_fixture_event_count(&f->client), 1);
}
END_TEST

// ---- messages ----------------------------------------------------------------------------------

START_TEST(bad_messages_are_refused_by_path) {
    static const struct {
        const char *body, *code, *param;
    } rows[] = {
        {"{}", "missing_required_parameter", "messages"},
        {"{\"messages\":null}", "missing_required_parameter", "messages"},
        {"{\"messages\":[]}", "invalid_value", "messages"},
        {"{\"messages\":\"hi\"}", "invalid_type", "messages"},
        {"{\"messages\":[7]}", "invalid_type", "messages.0"},
        {"{\"messages\":[{\"content\":\"a\"}]}", "missing_required_parameter", "messages.0.role"},
        {"{\"messages\":[{\"role\":1,\"content\":\"a\"}]}", "invalid_type", "messages.0.role"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "missing_required_parameter",
         "messages.0.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":5}]}",
         "invalid_type", "messages.1.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "unsupported_value", "messages.0.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "invalid_type",
         "messages.0.content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", "unsupported_value",
         "messages.0.content"},
        {"{" HI ",\"chat_template_kwargs\":1}", "invalid_type", "chat_template_kwargs"},
        {"{" HI ",\"reasoning_effort\":1}", "invalid_type", "reasoning_effort"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":7}]}",
         "invalid_type", "messages.0.tool_calls"},
        {"{" HI ",\"tools\":[{\"type\":\"function\"}]}", "unsupported_parameter", "tools"},
        {"{" HI ",\"continue_final_message\":true,\"add_generation_prompt\":true}", "invalid_value",
         "continue_final_message"},
        {"{\"messages\":[{\"role\":\"bad\",\"content\":\"a\"}]}", "invalid_value", "messages"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        chat(rows[i].body);
        expect_failure(400, rows[i].code, rows[i].param);
    }
    ck_assert_uint_eq(f->submit_count, 0);
    chat("{\"messages\":[{\"role\":\"bad\",\"content\":\"a\"}]}");
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.message"), "No bad roles.");
    json_destroy(doc);
}
END_TEST

// The prompt that was rendered for request `index`.
static const char *prompt_text(uint32_t index) {
    static char text[4096];
    size_t used = 0;
    for (uint32_t i = 0; i < f->submits[index].prompt_count; i++) {
        size_t byte_count = 0;
        const uint8_t *bytes =
            tokenizer_token_bytes(f->tokenizer, (uint32_t)f->submits[index].tokens[i], &byte_count);
        memcpy(text + used, bytes, byte_count);
        used += byte_count;
    }
    text[used] = '\0';
    return text;
}

START_TEST(messages_are_rendered_and_encoded) {
    static const struct {
        const char *body, *prompt;
    } rows[] = {
        {"{" HI "}", "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"}]}",
         "<|im_start|>system\nd<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"input_text\",\"text\":\"b\"}]}]}",
         "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n"},
        {"{" HI ",\"add_generation_prompt\":false}", "<|im_start|>user\nhello<|im_end|>\n"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"content\":\"He\"}],\"continue_final_message\":true}",
         "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nHe"},
        {"{\"messages\":[{\"role\":\"ends\",\"content\":\"\"}],\"add_generation_prompt\":false}",
         "<|bos|><|end|><|im_start|>ends\n<|im_end|>\n"},
        {"{" HI ",\"chat_template_kwargs\":{\"effort\":\"!\"},\"add_generation_prompt\":false}",
         "<|im_start|>user\nhello<|im_end|>\n!"},
        {"{" HI ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"effort\":1},"
         "\"add_generation_prompt\":false}",
         "<|im_start|>user\nhello<|im_end|>\n1noneFalse"},
        {"{\"messages\":[{\"role\":\"custom\",\"content\":\"\"}]}",
         "<|im_start|>custom\n<|im_end|>\n<|im_start|>assistant\n"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        chat(rows[i].body);
        ck_assert_str_eq(prompt_text(i), rows[i].prompt);
        // Control tokens of the template are tokens, not text.
        ck_assert_int_ge(f->submits[i].tokens[0], TOKEN_BOS);
        api_fixture_finish(f, i, FINISH_REASON_LENGTH);
        api_fixture_turn(f);
    }
}
END_TEST

START_TEST(long_chats_are_refused_with_both_numbers) {
    chat(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"abcdefghijklmnopqrstuvwxyzabcdefghijklmnop"
        "qrstuvwxyzabcdefghijklmnopqrstuvwxyz\"}]}");
    expect_failure(400, "context_length_exceeded", "messages");
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_int_gt(json_int(json_walk(json_root(doc), "error.n_prompt_tokens")), FIXTURE_CONTEXT);
    json_destroy(doc);
}
END_TEST

START_TEST(model_without_template_cannot_chat) {
    f->model.chat_template = NULL;
    chat("{" HI "}");
    expect_failure(400, "unsupported_value", "messages");
}
END_TEST

START_TEST(message_count_fits_its_bound_and_not_one_more) {
    struct buf body;
    buf_init(&body, 1 << 20);
    for (unsigned count = BOUND_MESSAGES_PER_REQUEST; count <= BOUND_MESSAGES_PER_REQUEST + 1;
         count++) {
        buf_reset(&body);
        buf_append_str(&body, "{\"messages\":[");
        for (unsigned i = 0; i < count; i++) {
            buf_append_str(&body, i > 0 ? ",{\"role\":\"user\",\"content\":\"\"}"
                                        : "{\"role\":\"user\",\"content\":\"\"}");
        }
        buf_append_str(&body, "]}");
        chat(buf_cstr(&body));
        // So many messages exceed the tiny context, which is another refusal.
        expect_failure(
            400, count <= BOUND_MESSAGES_PER_REQUEST ? "context_length_exceeded" : "too_large",
            "messages");
    }
    buf_deinit(&body);
}
END_TEST

Suite *suite_api_stream(void) {
    Suite *suite = suite_create("controller/http/api_stream");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, chat_answer_has_every_field);
    tcase_add_test(tc, chat_logprobs_carry_bytes_and_alternatives);
    tcase_add_test(tc, stream_begins_with_the_first_token_and_not_before);
    tcase_add_test(tc, one_step_is_one_chunk_and_the_finish_rides_on_the_last);
    tcase_add_test(tc, two_tokens_of_one_turn_share_a_chunk);
    tcase_add_test(tc, last_step_without_text_has_an_empty_delta);
    tcase_add_test(tc, usage_comes_in_its_own_chunk_when_asked_for);
    tcase_add_test(tc, usage_can_come_in_every_chunk);
    tcase_add_test(tc, usage_can_be_forced_by_the_server);
    tcase_add_test(tc, characters_are_never_split);
    tcase_add_test(tc, line_separators_are_escaped);
    tcase_add_test(tc, beginnings_of_stops_are_held_back_with_their_logprobs);
    tcase_add_test(tc, choices_interleave_and_each_is_in_order);
    tcase_add_test(tc, head_leaves_after_its_delay_and_silence_gets_newlines);
    tcase_add_test(tc, requests_may_shorten_the_keepalive);
    tcase_add_test(tc, fault_in_a_stream_never_looks_finished);
    tcase_add_test(tc, late_rejection_of_a_sibling_breaks_the_stream);
    tcase_add_test(tc, leaving_a_stream_cancels_it);
    tcase_add_test(tc, completions_stream_their_own_shape);
    tcase_add_test(tc, old_clients_get_a_stream_without_chunks);
    tcase_add_test(tc, bad_messages_are_refused_by_path);
    tcase_add_test(tc, messages_are_rendered_and_encoded);
    tcase_add_test(tc, long_chats_are_refused_with_both_numbers);
    tcase_add_test(tc, model_without_template_cannot_chat);
    tcase_add_test(tc, message_count_fits_its_bound_and_not_one_more);
    suite_add_tcase(suite, tc);
    return suite;
}
