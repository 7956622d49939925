// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/http/api_fixture.h"

#include "common/memory.h"
#include "controller/text/chat_template.h"
#include "controller/text/tokenizer.h"
#include "controller/text/vocabulary.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const served_names[] = {"tiny", "org/tiny:latest"};

static const char template_source[] =
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('No bad roles.') }}{% endif "
    "%}"
    "{% if m.role == 'ends' %}{{ bos_token }}{{ eos_token }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if effort is defined %}{{ effort }}{% endif %}"
    "{% if reasoning_effort is defined %}{{ reasoning_effort }}{{ enable_thinking }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// ---- the recording core ------------------------------------------------------------------------

static enum status on_submit(void *ctx, const struct core_request *request) {
    struct api_fixture *fixture = ctx;
    bool fail = fixture->submit_status != STATUS_OK;
    if (fail && fixture->submit_fail_at > 0) {
        fail = --fixture->submit_fail_at == 0;
    }
    if (fail) {
        return fixture->submit_status;
    }
    ck_assert_uint_lt(fixture->submit_count, FIXTURE_SUBMITS);
    ck_assert_uint_ne(request->id.value, 0);
    ck_assert_uint_ge(request->prompt_count, 1);
    ck_assert_uint_ge(request->token_capacity, request->prompt_count + request->output_max);
    ck_assert(request->output_max > 0 || request->sampling.want_prompt_logprobs);
    struct error err = {0};
    ck_assert_msg(sampling_validate(&request->sampling, TINY_VOCABULARY, &err) == STATUS_OK, "%s",
                  err.message);
    fixture->alive[fixture->submit_count] = true;
    fixture->submits[fixture->submit_count++] = *request;
    return STATUS_OK;
}

static void on_cancel(void *ctx, struct request_id id) {
    struct api_fixture *fixture = ctx;
    fixture->cancels[fixture->cancel_count++] = id;
}

static void on_stop(void *ctx, struct request_id id) {
    struct api_fixture *fixture = ctx;
    fixture->stops[fixture->stop_count++] = id;
}

static void on_metrics(void *ctx, enum metric_format format, struct buf *out) {
    (void)ctx;
    buf_append_str(out, format == METRIC_FORMAT_OPEN ? "open\n# EOF\n" : "classic\n");
}

static void on_access(void *ctx, const struct api_access *access) {
    struct api_fixture *fixture = ctx;
    fixture->access = *access;
    fixture->access_count++;
    snprintf(fixture->access_id, sizeof fixture->access_id, "%s", access->request_id);
    snprintf(fixture->access_finish, sizeof fixture->access_finish, "%s", access->finish);
}

// ---- life cycle --------------------------------------------------------------------------------

void api_fixture_init(struct api_fixture *fixture, void (*configure)(struct api_config *config)) {
    memset(fixture, 0, sizeof *fixture);
    struct error err = {0};
    fixture->now_us = 1000000;
    fixture->tokenizer = tiny_tokenizer();
    ck_assert_int_eq(tokenizer_set_bos(fixture->tokenizer, TOKEN_BOS, &err), STATUS_OK);
    ck_assert_msg(chat_template_compile(template_source, sizeof template_source - 1,
                                        &fixture->chat_template, &err) == STATUS_OK,
                  "%s", err.message);
    fixture->model = (struct api_model){.names = served_names,
                                        .name_count = 2,
                                        .tokenizer = fixture->tokenizer,
                                        .chat_template = fixture->chat_template,
                                        .defaults = api_sampling_neutral(),
                                        .created_unix_s = 1700000000};
    api_defaults(&fixture->config);
    fixture->config.ctx = fixture;
    fixture->config.submit = on_submit;
    fixture->config.cancel = on_cancel;
    fixture->config.stop = on_stop;
    fixture->config.metrics = on_metrics;
    fixture->config.access = on_access;
    fixture->config.version = "9.9.9";
    fixture->config.commit = "c0ffee";
    fixture->config.group_ranks = 2;
    fixture->config.id_seed = 7;
    if (configure != NULL) {
        configure(&fixture->config);
    }
    ck_assert_int_eq(api_create(&fixture->config, &fixture->api, &err), STATUS_OK);
    api_fixture_client_init(fixture, &fixture->client);
}

void api_fixture_deinit(struct api_fixture *fixture) {
    for (uint32_t i = 0; i < fixture->submit_count; i++) {
        if (fixture->alive[i]) {
            api_fixture_finish(fixture, i, FINISH_REASON_CANCELLED);
        }
    }
    api_turn_end(fixture->api, fixture->now_us);
    ck_assert_uint_eq(api_live_sequences(fixture->api), 0);
    api_fixture_client_deinit(&fixture->client);
    api_destroy(fixture->api);
    chat_template_destroy(fixture->chat_template);
    tokenizer_destroy(fixture->tokenizer);
}

void api_fixture_ready(struct api_fixture *fixture) {
    struct message_capacity capacity = {.envelope = {.seq_tokens = FIXTURE_CONTEXT},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TINY_VOCABULARY,
                                        .kv_dtype = "f16"};
    api_set_model(fixture->api, &fixture->model);
    api_on_capacity(fixture->api, &capacity);
}

void api_fixture_client_init(struct api_fixture *fixture, struct api_fixture_client *client) {
    (void)fixture;
    const struct http_limits limits = {.head_bytes_max = BOUND_HTTP_HEAD_BYTES,
                                       .field_count_max = BOUND_HTTP_HEADER_FIELDS,
                                       .body_bytes_max = BOUND_HTTP_BODY_BYTES};
    http_parser_init(&client->parser, &limits);
    http_exchange_init(&client->exchange, NULL);
    buf_init(&client->answer, 64u << 20);
}

void api_fixture_client_deinit(struct api_fixture_client *client) {
    http_parser_deinit(&client->parser);
    http_exchange_deinit(&client->exchange);
    buf_deinit(&client->answer);
}

// ---- requests ----------------------------------------------------------------------------------

void api_fixture_send(struct api_fixture *fixture, struct api_fixture_client *client,
                      const char *request) {
    struct http_handler handler = api_handler(fixture->api);
    size_t byte_count = strlen(request);
    http_parser_reset(&client->parser);
    buf_reset(&client->answer);
    size_t at = http_parser_feed(&client->parser, request, byte_count);
    ck_assert_msg(client->parser.state == HTTP_PARSE_STATE_BODY, "%s",
                  client->parser.error_message);
    http_exchange_begin(&client->exchange, &client->parser.request, fixture->now_us);
    handler.on_head(handler.ctx, &client->exchange, fixture->now_us);
    if (http_exchange_live(&client->exchange)) {
        http_parser_feed(&client->parser, request + at, byte_count - at);
        ck_assert_int_eq(client->parser.state, HTTP_PARSE_STATE_DONE);
        client->exchange.body = (const char *)client->parser.body.data;
        client->exchange.body_bytes = client->parser.body.bytes_used;
        memory_fail_nth(fixture->fail_nth);
        handler.on_request(handler.ctx, &client->exchange, fixture->now_us);
        memory_fail_nth(0);
    }
    api_fixture_collect(client);
}

void api_fixture_post(struct api_fixture *fixture, const char *path, const char *body) {
    struct buf request;
    buf_init(&request, 64u << 20);
    buf_printf(&request,
               "POST %s HTTP/1.1\r\nHost: localhost:8000\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n",
               path, strlen(body));
    buf_append_str(&request, body);
    api_fixture_send(fixture, &fixture->client, buf_cstr(&request));
    buf_deinit(&request);
}

void api_fixture_get(struct api_fixture *fixture, const char *path) {
    char request[512];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    api_fixture_send(fixture, &fixture->client, request);
}

bool api_fixture_collect(struct api_fixture_client *client) {
    struct http_pieces pieces;
    http_exchange_pieces(&client->exchange, &pieces);
    for (uint32_t i = 0; i < pieces.count; i++) {
        buf_append(&client->answer, pieces.piece[i].text, pieces.piece[i].byte_count);
    }
    http_exchange_sent(&client->exchange);
    return pieces.count > 0;
}

// ---- the core's part ---------------------------------------------------------------------------

static bool is_stop(const struct core_request *request, int32_t token) {
    for (uint32_t i = 0; i < request->sampling.stop_token_count; i++) {
        if (request->sampling.stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}

void api_fixture_row(struct api_fixture *fixture, uint32_t index, const struct result_row *row) {
    const struct core_request *request = &fixture->submits[index];
    const struct core_action action = {
        .kind = CORE_ACTION_TOKEN,
        .token = {.id = request->id,
                  .row = row,
                  .is_stop_token = !row->is_prompt && is_stop(request, row->token)}};
    api_on_action(fixture->api, &action, fixture->now_us);
}

void api_fixture_token(struct api_fixture *fixture, uint32_t index, int32_t token) {
    const struct result_row row = {.token = token};
    api_fixture_row(fixture, index, &row);
}

void api_fixture_finish(struct api_fixture *fixture, uint32_t index, enum finish_reason reason) {
    ck_assert(fixture->alive[index]);
    fixture->alive[index] = false;
    const struct core_action action = {
        .kind = CORE_ACTION_FINISHED,
        .finished = {.id = fixture->submits[index].id, .reason = reason}};
    api_on_action(fixture->api, &action, fixture->now_us);
}

void api_fixture_reject(struct api_fixture *fixture, uint32_t index, enum reject_reason reason,
                        uint32_t retry_after_ms) {
    ck_assert(fixture->alive[index]);
    fixture->alive[index] = false;
    const struct core_action action = {.kind = CORE_ACTION_REJECTED,
                                       .rejected = {.id = fixture->submits[index].id,
                                                    .reason = reason,
                                                    .retry_after_ms = retry_after_ms}};
    api_on_action(fixture->api, &action, fixture->now_us);
}

void api_fixture_turn(struct api_fixture *fixture) {
    api_turn_end(fixture->api, fixture->now_us);
    api_fixture_collect(&fixture->client);
}

void api_fixture_play(struct api_fixture *fixture, uint32_t index, const char *text) {
    uint32_t left = fixture->submits[index].output_max;
    for (const char *at = text; *at != '\0' && left > 0; at++, left--) {
        fixture->now_us += 1000;
        api_fixture_token(fixture, index, (unsigned char)*at);
        if (left == 1) {
            api_fixture_finish(fixture, index, FINISH_REASON_LENGTH);
        }
        api_fixture_turn(fixture);
    }
}

// ---- answers -----------------------------------------------------------------------------------

static const char *answer_text(const struct api_fixture_client *client) {
    return buf_cstr((struct buf *)(uintptr_t)&client->answer);
}

int api_fixture_status(const struct api_fixture_client *client) {
    int status = 0;
    ck_assert_msg(sscanf(answer_text(client), "HTTP/1.1 %d", &status) == 1, "no answer: %s",
                  answer_text(client));
    return status;
}

const char *api_fixture_field(const struct api_fixture_client *client, const char *name) {
    static char value[1024];
    char line[128];
    snprintf(line, sizeof line, "\r\n%s: ", name);
    const char *end = strstr(answer_text(client), "\r\n\r\n");
    const char *at = strstr(answer_text(client), line);
    if (at == NULL || end == NULL || at > end) {
        return NULL;
    }
    at += strlen(line);
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
    return value;
}

const char *api_fixture_body(const struct api_fixture_client *client, bool *whole) {
    static char *body = NULL;
    const char *at = strstr(answer_text(client), "\r\n\r\n");
    ck_assert_ptr_nonnull(at);
    at += 4;
    free(body);
    body = calloc(1, client->answer.bytes_used + 1);
    bool chunked = api_fixture_field(client, "transfer-encoding") != NULL;
    if (!chunked) {
        memcpy(body, at, strlen(at));
        return body;
    }
    size_t used = 0;
    bool ended = false;
    while (*at != '\0' && !ended) {
        char *size_end = NULL;
        size_t size = strtoul(at, &size_end, 16);
        ck_assert_msg(strncmp(size_end, "\r\n", 2) == 0, "broken chunk: %s", at);
        memcpy(body + used, size_end + 2, size);
        used += size;
        ck_assert_msg(strncmp(size_end + 2 + size, "\r\n", 2) == 0, "broken chunk end");
        at = size_end + 2 + size + 2;
        ended = size == 0;
    }
    if (whole != NULL) {
        *whole = ended;
    }
    return body;
}

struct json_doc *api_fixture_json(const struct api_fixture_client *client) {
    const char *body = api_fixture_body(client, NULL);
    struct json_doc *doc = NULL;
    struct error err = {0};
    ck_assert_msg(json_parse(body, strlen(body), &doc, &err) == STATUS_OK, "%s in %s", err.message,
                  body);
    return doc;
}

// The text of event `index` without "data: "; counts events when `index` is UINT32_MAX.
static const char *find_event(const char *body, uint32_t index, size_t *byte_count,
                              uint32_t *count) {
    *count = 0;
    const char *at = body;
    while (*at != '\0') {
        if (*at == '\n') {
            at++;    // a keep-alive
            continue;
        }
        ck_assert_msg(strncmp(at, "data: ", 6) == 0, "not an event: %s", at);
        const char *end = strstr(at, "\n\n");
        ck_assert_msg(end != NULL, "an event without its end: %s", at);
        ck_assert_msg(memchr(at, '\n', (size_t)(end - at)) == NULL, "two lines: %s", at);
        if (strncmp(at, "data: [DONE]\n", 13) != 0) {
            if (*count == index) {
                *byte_count = (size_t)(end - at) - 6;
                return at + 6;
            }
            (*count)++;
        }
        at = end + 2;
    }
    return NULL;
}

struct json_doc *api_fixture_event(const struct api_fixture_client *client, uint32_t index) {
    size_t byte_count = 0;
    uint32_t count = 0;
    const char *text = find_event(api_fixture_body(client, NULL), index, &byte_count, &count);
    if (text == NULL) {
        return NULL;
    }
    struct json_doc *doc = NULL;
    struct error err = {0};
    ck_assert_msg(json_parse(text, byte_count, &doc, &err) == STATUS_OK, "%s in %s", err.message,
                  text);
    return doc;
}

uint32_t api_fixture_event_count(const struct api_fixture_client *client) {
    size_t byte_count = 0;
    uint32_t count = 0;
    find_event(api_fixture_body(client, NULL), UINT32_MAX, &byte_count, &count);
    return count;
}

// ---- JSON --------------------------------------------------------------------------------------

const struct json *json_walk(const struct json *value, const char *path) {
    char part[64];
    while (*path != '\0' && value != NULL) {
        size_t length = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        value = json_kind(value) == JSON_KIND_ARRAY ? json_at(value, strtoul(part, NULL, 10))
                                                    : json_get(value, part);
        path += length + (path[length] == '.' ? 1 : 0);
    }
    return value;
}

const char *json_walk_text(const struct json *value, const char *path) {
    const char *text = json_text(json_walk(value, path), NULL);
    return text != NULL ? text : "";
}
