// SPDX-License-Identifier: Apache-2.0
#include "controller/http/admin.h"

#include "common/bounds.h"
#include "common/json.h"
#include "common/memory.h"
#include <string.h>

struct admin {
    struct admin_config config;
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

static void on_request(void *ctx, struct http_exchange *exchange, uint64_t now_us) {
    (void)now_us;
    const struct admin *admin = ctx;
    const struct http_request *request = exchange->request;
    if (!http_span_is(request->path, "/admin/v1/status")) {
        refuse(exchange, 404, "There is no such admin call; GET /admin/v1/status is one.");
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

// Nothing is kept between calls, so nobody who leaves is missed and nothing has an alarm.
static void on_gone(void *ctx, struct http_exchange *exchange, enum http_gone_reason reason,
                    uint64_t now_us) {
    (void)ctx;
    (void)exchange;
    (void)reason;
    (void)now_us;
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
    return (struct http_handler){admin, on_head, on_request, on_refused, on_gone, on_alarm};
}
