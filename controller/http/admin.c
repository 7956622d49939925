// SPDX-License-Identifier: Apache-2.0
#include "controller/http/admin.h"

#include "common/bounds.h"
#include "common/json.h"
#include "common/memory.h"
#include <string.h>

enum { WAITING_MAX = 16 };    // as many as may connect

struct admin {
    struct admin_config config;
    uint64_t operations;    // started so far
    struct {
        struct http_exchange *exchange;    // NULL: free
        uint64_t operation;
    } waiting[WAITING_MAX];
};

static void respond(struct http_exchange *exchange, int status, const char *body,
                    size_t body_bytes) {
    http_exchange_respond(exchange, &(struct http_response){.status = status,
                                                            .content_type = "application/json",
                                                            .body = body,
                                                            .body_bytes = body_bytes});
}

static void refuse(struct http_exchange *exchange, int status, const char *message) {
    struct buf body;
    buf_init(&body, 4096);
    buf_append_str(&body, "{\"error\":{\"message\":");
    json_write_string(&body, message, strlen(message));
    buf_append_str(&body, "}}\n");
    respond(exchange, status, buf_cstr(&body), body.bytes_used);
    buf_deinit(&body);
}

static void on_head(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)ctx;
    (void)exchange;
    (void)now_us;
}

// ---- resize ------------------------------------------------------------------------------------

static int status_of(const char *state) {
    if (strcmp(state, "refused") == 0) {
        return 409;
    }
    return strcmp(state, "unavailable") == 0 ? 503 : 200;
}

static void put_number(struct buf *out, const char *key, uint64_t value) {
    buf_printf(out, ",\"%s\":%llu", key, (unsigned long long)value);
}

static void answer_resize(struct http_exchange *exchange, const struct admin_outcome *outcome) {
    struct buf body;
    buf_init(&body, 16 * 1024);
    buf_printf(&body,
               "{\"apiVersion\":\"v1\",\"kind\":\"Operation\",\"operation\":%llu,"
               "\"verb\":\"resize kv\",\"state\":\"%s\"",
               (unsigned long long)outcome->operation, outcome->state);
    if (strcmp(outcome->state, "running") != 0) {
        put_number(&body, "blocks_asked", outcome->blocks_asked);
        put_number(&body, "blocks_before", outcome->blocks_before);
        put_number(&body, "blocks_after", outcome->blocks_after);
        put_number(&body, "bytes_before", outcome->blocks_before * outcome->block_bytes);
        put_number(&body, "bytes_after", outcome->blocks_after * outcome->block_bytes);
    }
    buf_append_str(&body, ",\"reason\":");
    json_write_string(&body, outcome->reason, strlen(outcome->reason));
    buf_append_str(&body, "}\n");
    respond(exchange, status_of(outcome->state), buf_cstr(&body), body.bytes_used);
    buf_deinit(&body);
}

void admin_resized(struct admin *admin, const struct admin_outcome *outcome) {
    for (uint32_t i = 0; i < WAITING_MAX; i++) {
        struct http_exchange *exchange = admin->waiting[i].exchange;
        if (exchange != NULL && admin->waiting[i].operation == outcome->operation) {
            admin->waiting[i].exchange = NULL;
            answer_resize(exchange, outcome);
        }
    }
}

static enum status read_resize(const struct json *body, struct admin_resize *out, bool *wait,
                               struct error *err) {
    const char *unit = NULL;
    size_t bytes = 0;
    bool found = false;
    out->reason = "";
    *wait = true;
    if (json_kind(body) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_INVALID, "The body must be an object.");
    }
    TRY(json_field_string(body, "group", &out->group, &bytes, &found, err));
    if (!found) {
        return error_set(err, STATUS_INVALID, "field 'group' is missing");
    }
    const struct json_range_int any = {INT64_MIN, INT64_MAX};
    TRY(json_field_int(body, "amount", any, &out->amount, &found, err));
    if (!found) {
        return error_set(err, STATUS_INVALID, "field 'amount' is missing");
    }
    TRY(json_field_string(body, "unit", &unit, &bytes, &found, err));
    out->bytes = found && strcmp(unit, "bytes") == 0;
    if (found && !out->bytes && strcmp(unit, "blocks") != 0) {
        return error_set(err, STATUS_INVALID, "field 'unit' must be 'blocks' or 'bytes'");
    }
    TRY(json_field_bool(body, "relative", &out->relative, &found, err));
    TRY(json_field_bool(body, "wait", wait, &found, err));
    return json_field_string(body, "reason", &out->reason, &bytes, &found, err);
}

static int refusal_status(enum status status) {
    switch (status) {
    case STATUS_NOT_FOUND:
        return 404;
    case STATUS_BUSY:
        return 503;
    default:
        return 400;
    }
}

static void start_resize(struct admin *admin, struct http_exchange *exchange,
                         struct admin_resize *ask, bool wait) {
    uint32_t at = 0;
    while (at < WAITING_MAX && admin->waiting[at].exchange != NULL) {
        at++;
    }
    if (at == WAITING_MAX) {
        refuse(exchange, 503, "Too many operations are being waited for.");
        return;
    }
    ask->operation = ++admin->operations;
    admin->waiting[at].exchange = exchange;
    admin->waiting[at].operation = ask->operation;
    struct error err = {0};
    enum status status = admin->config.resize_kv(admin->config.ctx, ask, &err);
    bool answered = admin->waiting[at].exchange == NULL;
    if (answered) {
        return;
    }
    if (status != STATUS_OK || !wait) {
        admin->waiting[at].exchange = NULL;
    }
    if (status != STATUS_OK) {
        refuse(exchange, refusal_status(status), err.message);
    } else if (!wait) {
        const struct admin_outcome running = {
            .operation = ask->operation, .state = "running", .reason = ""};
        answer_resize(exchange, &running);
    }
}

static void on_resize(struct admin *admin, struct http_exchange *exchange) {
    struct json_doc *doc = NULL;
    struct error err = {0};
    struct admin_resize ask = {0};
    bool wait = true;
    enum status status = json_parse(exchange->body, exchange->body_bytes, &doc, &err);
    if (status == STATUS_OK) {
        status = read_resize(json_root(doc), &ask, &wait, &err);
    }
    if (status != STATUS_OK) {
        refuse(exchange, 400, err.message);
    } else {
        start_resize(admin, exchange, &ask, wait);
    }
    json_destroy(doc);
}

// ---- calls -------------------------------------------------------------------------------------

static void on_request(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)now_us;
    struct admin *admin = ctx;
    const struct http_request *request = exchange->request;
    if (http_span_is(request->path, "/admin/v1/resize/kv")) {
        if (request->method == HTTP_METHOD_POST) {
            on_resize(admin, exchange);
        } else {
            refuse(exchange, 405, "/admin/v1/resize/kv takes POST.");
        }
        return;
    }
    if (!http_span_is(request->path, "/admin/v1/status")) {
        refuse(exchange, 404,
               "There is no such admin call; GET /admin/v1/status is one, POST "
               "/admin/v1/resize/kv another.");
        return;
    }
    if (request->method != HTTP_METHOD_GET && request->method != HTTP_METHOD_HEAD) {
        refuse(exchange, 405, "/admin/v1/status answers GET.");
        return;
    }
    struct buf body;
    buf_init(&body, BOUND_HTTP_RESPONSE_BYTES);
    admin->config.status(admin->config.ctx, &body);
    if (buf_status(&body) == STATUS_OK) {
        respond(exchange, 200, buf_cstr(&body), body.bytes_used);
    } else {
        refuse(exchange, 500, "There is no memory for the answer.");
    }
    buf_deinit(&body);
}

static void on_refused(void *ctx, struct http_exchange *exchange, int status, const char *message,
                       uint64_t now_us) {
    (void)ctx;
    (void)now_us;
    refuse(exchange, status, message);
}

// Its operation goes on without a listener.
static void on_gone(void *ctx, struct http_exchange *exchange, enum http_gone_reason reason,
                    uint64_t now_us) {
    (void)reason;
    (void)now_us;
    struct admin *admin = ctx;
    for (uint32_t i = 0; i < WAITING_MAX; i++) {
        if (admin->waiting[i].exchange == exchange) {
            admin->waiting[i].exchange = NULL;
        }
    }
}

static void on_alarm(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)ctx;
    (void)exchange;
    (void)now_us;
}

enum status admin_create(const struct admin_config *config, struct admin **out, struct error *err) {
    struct admin *admin = memory_zalloc(sizeof *admin);
    if (admin == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the admin calls");
    }
    admin->config = *config;
    *out = admin;
    return STATUS_OK;
}

void admin_destroy(struct admin *admin) {
    memory_free(admin);
}

struct http_handler admin_handler(struct admin *admin) {
    return (struct http_handler){admin, on_head, on_request, on_refused, on_gone, on_alarm, NULL};
}
