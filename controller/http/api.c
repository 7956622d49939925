// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api.h"

#include "common/bounds.h"
#include "common/clock.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "common/version.h"
#include "controller/http/api_call.h"
#include "controller/http/api_reading.h"
#include "controller/http/api_streams.h"
#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

// ---- routes ------------------------------------------------------------------------------------

typedef void (*route_fn)(struct api_visit *visit);

enum route_flag {
    ROUTE_OPEN = 1,        // needs no key
    ROUTE_POST = 2,        // POST with a JSON body; without this flag GET and HEAD
    ROUTE_GET_TOO = 4,     // with ROUTE_POST: GET and HEAD as well
    ROUTE_PREFIX = 8,      // everything below the path
    ROUTE_LATER = 16,      // known, not built: 501
    ROUTE_METRICS = 32,    // open unless metrics_require_key
    ROUTE_QUOTA = 64,      // counts against the key's quotas
};

struct route {
    const char *path;
    unsigned flags;
    route_fn fn;
};

static const struct route routes[] = {
    {"/v1/chat/completions", ROUTE_POST | ROUTE_QUOTA, api_chat_completions},
    {"/v1/completions", ROUTE_POST | ROUTE_QUOTA, api_completions},
    {"/v1/streams/", ROUTE_PREFIX, api_stream},
    {"/v1/models", 0, api_models},
    {"/v1/models/", ROUTE_PREFIX, api_model},
    {"/tokenize", ROUTE_POST, api_tokenize},
    {"/v1/tokenize", ROUTE_POST, api_tokenize},
    {"/detokenize", ROUTE_POST, api_detokenize},
    {"/v1/detokenize", ROUTE_POST, api_detokenize},
    {"/health", ROUTE_OPEN, api_health},
    {"/ready", ROUTE_OPEN, api_ready},
    {"/livez", ROUTE_OPEN, api_livez},
    {"/readyz", ROUTE_OPEN, api_ready},
    {"/healthz", ROUTE_OPEN, api_health},
    {"/healthz/step", 0, api_step_health},
    {"/metrics", ROUTE_METRICS, api_metrics},
    {"/version", 0, api_version},
    // The same under the names of other servers, and without the prefix that users forget.
    {"/chat/completions", ROUTE_POST | ROUTE_QUOTA, api_chat_completions},
    {"/completions", ROUTE_POST | ROUTE_QUOTA, api_completions},
    {"/models", 0, api_models},
    {"/models/", ROUTE_PREFIX, api_model},
    {"/ping", ROUTE_OPEN | ROUTE_POST | ROUTE_GET_TOO, api_health},
    {"/v1/health", 0, api_health},
    {"/health_generate", 0, api_step_health},
    {"/v2/health/live", 0, api_livez},
    {"/v2/health/ready", 0, api_ready},
    {"/v1/responses", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/messages", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/messages/count_tokens", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/embeddings", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/rerank", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/score", ROUTE_POST | ROUTE_LATER, NULL},
    {"/v1/audio/", ROUTE_POST | ROUTE_LATER | ROUTE_PREFIX, NULL},
    {"/v1/images/", ROUTE_POST | ROUTE_LATER | ROUTE_PREFIX, NULL},
};

// A trailing slash means the same.
static const struct route *find_route(struct http_span path) {
    struct http_span bare = path;
    if (bare.byte_count > 1 && bare.text[bare.byte_count - 1] == '/') {
        bare.byte_count--;
    }
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        size_t path_bytes = strlen(routes[i].path);
        bool prefix = (routes[i].flags & ROUTE_PREFIX) != 0;
        if (prefix
                ? bare.byte_count > path_bytes && memcmp(bare.text, routes[i].path, path_bytes) == 0
                : http_span_is(bare, routes[i].path)) {
            return &routes[i];
        }
    }
    return NULL;
}

static bool method_fits(const struct route *route, enum http_method method) {
    if (method == HTTP_METHOD_POST) {
        return (route->flags & ROUTE_POST) != 0;
    }
    bool get = (route->flags & ROUTE_POST) == 0 || (route->flags & ROUTE_GET_TOO) != 0;
    return get && (method == HTTP_METHOD_GET || method == HTTP_METHOD_HEAD);
}

static const char *allowed_methods(const struct route *route) {
    if ((route->flags & ROUTE_POST) == 0) {
        return "GET, HEAD, OPTIONS";
    }
    return (route->flags & ROUTE_GET_TOO) != 0 ? "GET, HEAD, POST, OPTIONS" : "POST, OPTIONS";
}

// ---- answering ---------------------------------------------------------------------------------

void api_make_id(struct api *api, char out[API_REQUEST_ID_BYTES]) {
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    for (int half = 0; half < 2; half++) {
        uint64_t bits = rng_u64(&api->ids);
        for (int i = 0; i < 12; i++) {
            out[half * 12 + i] = letters[bits % 36];
            bits /= 36;
        }
    }
    out[24] = '\0';
}

void api_begin_fields(const struct api_visit *visit) {
    struct api *api = visit->api;
    uint64_t unix_s = clock_unix_s();
    if (unix_s != api->date_unix_s) {
        api->date_unix_s = unix_s;
        http_date(unix_s, api->date);
    }
    struct buf *fields = &api->fields;
    buf_reset(fields);
    buf_append_str(fields, "date: ");
    buf_append_str(fields, api->date);
    buf_append_str(fields, "\r\nx-request-id: ");
    buf_append_str(fields, visit->request_id);
    buf_append_str(fields, "\r\n");
    if (api->config.server_header) {
        buf_append_str(fields, "server: tare/");
        buf_append_str(fields, api->config.version);
        buf_append_str(fields, "\r\n");
    }
    if (visit->exchange->request != NULL) {
        api_gate_write_cors(&api->config.gate, visit->exchange->request, fields);
    }
}

void api_log_access(struct api_visit *visit, struct api_access *access) {
    struct api *api = visit->api;
    const struct http_request *request = visit->exchange->request;
    if (api->config.stats != NULL && access->status > 0) {
        stats_response(api->config.stats, access->status);
    }
    if (api->config.access == NULL) {
        return;
    }
    if (request != NULL) {
        access->method = request->method_name;
        access->path = request->path;
    }
    access->request_id = visit->request_id;
    access->key_name = visit->account != NULL ? visit->account->name : "";
    access->model = access->model != NULL ? access->model : "";
    access->finish = access->finish != NULL ? access->finish : "";
    uint64_t arrived_us = visit->exchange->arrived_us;
    access->total_us = visit->now_us > arrived_us ? visit->now_us - arrived_us : 0;
    access->probe = visit->probe;
    api->config.access(api->config.ctx, access);
}

// Answers with the fields that were begun.
static void answer(struct api_visit *visit, const struct http_response *response,
                   const char *finish) {
    struct api *api = visit->api;
    if (buf_status(&api->fields) != STATUS_OK) {
        http_exchange_break(visit->exchange);    // no memory even for a head
        return;
    }
    struct api_access access = {.status = response->status, .finish = finish};
    api_log_access(visit, &access);    // first: the request's memory goes with the answer
    http_exchange_respond(visit->exchange, response);
}

void api_answer(struct api_visit *visit, int status, const char *content_type, const char *body,
                size_t body_bytes) {
    api_begin_fields(visit);
    const struct http_response response = {.status = status,
                                           .content_type = content_type,
                                           .fields = &visit->api->fields,
                                           .body = body,
                                           .body_bytes = body_bytes};
    answer(visit, &response, NULL);
}

void api_answer_json(struct api_visit *visit, int status, const struct buf *body) {
    if (buf_status(body) != STATUS_OK) {
        struct api_failure failure = {0};
        api_fail(&failure, API_CODE_INTERNAL, NULL, "The answer does not fit the memory.");
        api_answer_failure(visit, &failure);
        return;
    }
    api_answer(visit, status, "application/json", (const char *)body->data, body->bytes_used);
}

void api_answer_failure(struct api_visit *visit, const struct api_failure *failure) {
    struct api *api = visit->api;
    api_begin_fields(visit);
    api_failure_write_fields(failure, &api->fields);
    int status = api_code_http(failure->code);
    if (status == 401) {
        buf_append_str(&api->fields, "www-authenticate: Bearer\r\n");
    }
    struct buf *body = &api->body;
    buf_reset(body);
    api_failure_write(failure, body);
    const struct http_response response = {.status = status,
                                           .content_type = "application/json",
                                           .fields = &api->fields,
                                           .body = (const char *)body->data,
                                           .body_bytes = body->bytes_used};
    answer(visit, &response, api_code_name(failure->code));
}

// ---- arrivals ----------------------------------------------------------------------------------

static void begin_visit(struct api_visit *visit, struct api *api, struct http_exchange *exchange,
                        uint64_t now_us) {
    *visit = (struct api_visit){.api = api, .exchange = exchange, .now_us = now_us};
    struct http_span id = {NULL, 0};
    if (exchange->request != NULL && api_gate_request_id(exchange->request, &id)) {
        memcpy(visit->request_id, id.text, id.byte_count);
        visit->request_id[id.byte_count] = '\0';
        visit->id_is_clients = true;
    } else {
        api_make_id(api, visit->request_id);
    }
}

static void answer_options(struct api_visit *visit, const struct route *route) {
    struct api *api = visit->api;
    api_begin_fields(visit);
    buf_reset(&api->body);
    buf_append_str(&api->fields, "allow: ");
    buf_append_str(&api->fields,
                   route != NULL ? allowed_methods(route) : "GET, HEAD, POST, OPTIONS");
    buf_append_str(&api->fields, "\r\n");
    api_gate_write_preflight(&api->config.gate, visit->exchange->request, &api->fields);
    const struct http_response response = {.status = 204, .fields = &api->fields};
    answer(visit, &response, NULL);
}

static void answer_wrong_method(struct api_visit *visit, const struct route *route) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    api_fail(&failure, API_CODE_METHOD_NOT_ALLOWED, NULL, "This path answers %s.",
             allowed_methods(route));
    api_begin_fields(visit);
    buf_append_str(&api->fields, "allow: ");
    buf_append_str(&api->fields, allowed_methods(route));
    buf_append_str(&api->fields, "\r\n");
    buf_reset(&api->body);
    api_failure_write(&failure, &api->body);
    const struct http_response response = {.status = 405,
                                           .content_type = "application/json",
                                           .fields = &api->fields,
                                           .body = (const char *)api->body.data,
                                           .body_bytes = api->body.bytes_used};
    answer(visit, &response, api_code_name(failure.code));
}

static bool needs_key(const struct api *api, const struct route *route) {
    if (route == NULL) {
        return true;
    }
    if ((route->flags & ROUTE_METRICS) != 0) {
        return api->config.gate.metrics_require_key;
    }
    return (route->flags & ROUTE_OPEN) == 0;
}

// Everything a head can be refused for. False when it was answered.
static bool admit(struct api_visit *visit, const struct route **out) {
    struct api *api = visit->api;
    const struct http_request *request = visit->exchange->request;
    const struct route *route = find_route(request->path);
    struct api_failure failure = {0};
    *out = route;
    if (!api_gate_host(&api->config.gate, request, &failure)) {
        api_answer_failure(visit, &failure);
        return false;
    }
    if (request->method == HTTP_METHOD_OPTIONS) {
        answer_options(visit, route);
        return false;
    }
    const struct api_key *key = NULL;
    if (needs_key(api, route) && !api_gate_key(&api->config.gate, request, &key, &failure)) {
        api_answer_failure(visit, &failure);
        return false;
    }
    if (key != NULL) {
        visit->account = key->account;
        visit->salt = api_key_salt(key);
    }
    if (route == NULL) {
        api_fail(&failure, API_CODE_NOT_FOUND, NULL, "There is nothing at this path.");
        api_answer_failure(visit, &failure);
        return false;
    }
    if (!method_fits(route, request->method)) {
        answer_wrong_method(visit, route);
        return false;
    }
    if ((route->flags & ROUTE_LATER) != 0) {
        api_fail(&failure, API_CODE_UNSUPPORTED_ENDPOINT, NULL,
                 "This endpoint is not supported by this server.");
        api_answer_failure(visit, &failure);
        return false;
    }
    bool body = request->method == HTTP_METHOD_POST && (route->flags & ROUTE_GET_TOO) == 0;
    if (body && !api_gate_content_type(request, &failure)) {
        api_answer_failure(visit, &failure);
        return false;
    }
    return true;
}

bool api_judge_quota(struct api_visit *visit, struct api_failure *failure) {
    if (visit->account == NULL || api_account_judge(visit->account, visit->now_us, failure)) {
        return true;
    }
    if (visit->api->config.stats != NULL) {
        stats_over_quota(visit->api->config.stats, visit->account->class_);
    }
    return false;
}

static void on_head(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    struct api_visit visit;
    const struct route *route = NULL;
    bool has_body = exchange->request->chunked || exchange->request->content_length > 0;
    if (!has_body) {
        return;    // on_request follows at once and judges it
    }
    begin_visit(&visit, ctx, exchange, now_us);
    // A large body is not even read for a key whose quota is used up.
    bool large = exchange->request->content_length > BOUND_HTTP_INLINE_BODY_BYTES;
    struct api_failure failure = {0};
    if (admit(&visit, &route) && large && (route->flags & ROUTE_QUOTA) != 0 &&
        !api_judge_quota(&visit, &failure)) {
        api_answer_failure(&visit, &failure);
    }
}

static void on_request(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    struct api_visit visit;
    const struct route *route = NULL;
    begin_visit(&visit, ctx, exchange, now_us);
    if (admit(&visit, &route)) {
        route->fn(&visit);
        api_turn_end(ctx, now_us);    // what needs no engine is answered now
    }
}

static void on_refused(void *ctx, struct http_exchange *exchange, int status, const char *message,
                       uint64_t now_us) {
    struct api_visit visit;
    begin_visit(&visit, ctx, exchange, now_us);
    struct api_failure failure = {0};
    api_fail(&failure, api_code_of_http(status), NULL, "%s", message);
    if (status == 503) {
        failure.retry_after_ms = 1000;
    }
    api_answer_failure(&visit, &failure);
}

static void on_gone(void *ctx, struct http_exchange *exchange, enum http_gone_reason reason,
                    uint64_t now_us) {
    struct api_call *call = exchange->user;
    if (call != NULL) {
        api_call_gone(call, reason, now_us);
        api_turn_end(ctx, now_us);
    } else if (!api_streams_gone(ctx, exchange, reason, now_us)) {
        api_read_gone(ctx, exchange, reason, now_us);
    }
}

static void on_alarm(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    struct api_call *call = exchange->user;
    if (call != NULL) {
        api_call_alarm(call, now_us);
        api_turn_end(ctx, now_us);
    }
}

static void on_receipt(void *ctx, uint64_t receipt) {
    const struct api *api = ctx;
    api->config.journal.end(api->config.journal.ctx, receipt);
}

const char *api_gone_name(enum http_gone_reason reason) {
    return reason == HTTP_GONE_REASON_SLOW ? "slow_client" : "client_abort";
}

struct http_handler api_handler(struct api *api) {
    return (struct http_handler){api,     on_head,  on_request, on_refused,
                                 on_gone, on_alarm, on_receipt};
}

// ---- life cycle --------------------------------------------------------------------------------

void api_defaults(struct api_config *config) {
    *config = (struct api_config){
        .version = VERSION_NUMBER,
        .commit = VERSION_COMMIT,
        .server_header = true,
        .logprobs_max = BOUND_LOGPROBS,
        .sequences_max = BOUND_SEQUENCES_PER_REQUEST,
        .head_delay_us = 10u * 1000 * 1000,
        .keepalive_us = 15u * 1000 * 1000,
        .canary_us = 5u * 1000 * 1000,
    };
}

void api_set_keys(struct api *api, const struct api_key *keys, uint32_t key_count) {
    api->config.gate.keys = keys;
    api->config.gate.key_count = key_count;
}

enum status api_create(const struct api_config *config, struct api **out, struct error *err) {
    INVARIANT(config->submit != NULL);
    INVARIANT(config->logprobs_max <= BOUND_LOGPROBS);
    INVARIANT(config->sequences_max <= BOUND_SEQUENCES_PER_REQUEST);
    struct api *api = memory_zalloc(sizeof *api);
    if (api == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the API");
    }
    api->config = *config;
    api->facts.logprobs_max = config->logprobs_max;
    api->facts.any_model_name = config->any_model_name;
    rng_init(&api->ids, config->id_seed);
    rng_init(&api->seeds, config->seed);
    buf_init(&api->body, BOUND_HTTP_RESPONSE_BYTES);
    buf_init(&api->fields, BOUND_HTTP_HEAD_BYTES);
    snprintf(api->fingerprint, sizeof api->fingerprint, "tare-%s-tp1-%.8s", config->version,
             config->commit);
    api->slot_free = API_SLOT_NONE;
    api->dirty_end = &api->dirty;
    *out = api;
    return STATUS_OK;
}

void api_destroy(struct api *api) {
    if (api == NULL) {
        return;
    }
    INVARIANT(api->readings == NULL);
    while (api->calls != NULL) {
        api->calls->dirty = false;
        api_call_destroy(api->calls);
    }
    api_streams_destroy(api);
    buf_deinit(&api->body);
    buf_deinit(&api->fields);
    memory_free(api->slots);
    memory_free(api);
}

uint32_t api_open_calls(const struct api *api) {
    return api->open_calls;
}

uint32_t api_live_sequences(const struct api *api) {
    return api->live_sequences;
}
