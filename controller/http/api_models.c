// SPDX-License-Identifier: Apache-2.0
// The list of models, and the names that requests may use.
#include "controller/http/api_reading.h"

#include "common/json.h"
#include <stdio.h>
#include <string.h>

enum { NAME_SHOWN_BYTES = 64 };

static bool is_served(const struct api_facts *facts, const char *name, size_t byte_count) {
    struct http_span span = {name, byte_count};
    for (uint32_t i = 0; i < facts->model->name_count; i++) {
        if (http_span_is(span, facts->model->names[i])) {
            return true;
        }
    }
    return false;
}

// The pair of type and code is what LiteLLM recognises; a name is no prompt text and is shown.
static bool fail_unknown(const char *name, size_t byte_count, struct api_failure *failure) {
    int shown = byte_count > NAME_SHOWN_BYTES ? NAME_SHOWN_BYTES : (int)byte_count;
    return api_fail(failure, API_CODE_MODEL_NOT_FOUND, "model", "The model '%.*s' does not exist.",
                    shown, name);
}

bool api_check_model(const struct api_facts *facts, const struct json_fields *body,
                     struct api_failure *failure) {
    struct http_span name;
    if (!api_field_text(body, "model", &name, failure)) {
        return false;
    }
    if (name.byte_count == 0 || facts->any_model_name ||
        is_served(facts, name.text, name.byte_count)) {
        return true;
    }
    return fail_unknown(name.text, name.byte_count, failure);
}

static void write_model(const struct api *api, const char *name, struct buf *out) {
    buf_append_str(out, "{\"id\":");
    json_write_string(out, name, strlen(name));
    buf_append_str(out, ",\"object\":\"model\",\"created\":");
    buf_append_u64(out, api->facts.model->created_unix_s);
    buf_append_str(out, ",\"owned_by\":\"tare\",\"root\":");
    json_write_string(out, api->facts.model->names[0], strlen(api->facts.model->names[0]));
    buf_append_str(out, ",\"parent\":null,\"permission\":[],\"max_model_len\":");
    buf_append_u64(out, api->facts.context_tokens);
    buf_append_str(out, "}");
}

// Before the first capacity nobody can use a model, and an empty list would look like an answer.
static bool models_known(const struct api *api, struct api_failure *failure) {
    if (api->state == API_STATE_STARTING || api->facts.model == NULL) {
        return api_can_serve(api, failure) ||
               api_fail(failure, API_CODE_MODEL_LOADING, NULL, "The model is loading.");
    }
    return true;
}

void api_models(struct api_visit *visit) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    if (!models_known(api, &failure)) {
        api_answer_failure(visit, &failure);
        return;
    }
    struct buf *body = &api->body;
    buf_reset(body);
    buf_append_str(body, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < api->facts.model->name_count; i++) {
        buf_append_str(body, i > 0 ? "," : "");
        write_model(api, api->facts.model->names[i], body);
    }
    buf_append_str(body, "]}");
    api_answer_json(visit, 200, body);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Undoes percent escapes; a broken one stays as it is.
void api_unescape(struct http_span text, struct buf *out) {
    for (size_t i = 0; i < text.byte_count; i++) {
        int high = i + 2 < text.byte_count ? hex_digit(text.text[i + 1]) : -1;
        int low = i + 2 < text.byte_count ? hex_digit(text.text[i + 2]) : -1;
        if (text.text[i] == '%' && high >= 0 && low >= 0) {
            buf_append_byte(out, (uint8_t)(high * 16 + low));
            i += 2;
        } else {
            buf_append_byte(out, (uint8_t)text.text[i]);
        }
    }
}

void api_model(struct api_visit *visit) {
    struct api *api = visit->api;
    struct api_failure failure = {0};
    if (!models_known(api, &failure)) {
        api_answer_failure(visit, &failure);
        return;
    }
    // The id is everything behind "models/", slashes included.
    struct http_span path = visit->exchange->request->path;
    static const char mark[] = "models/";
    const char *at = memmem(path.text, path.byte_count, mark, sizeof mark - 1);
    struct http_span id = {at + sizeof mark - 1, 0};
    id.byte_count = path.byte_count - (size_t)(id.text - path.text);
    if (id.byte_count > 0 && id.text[id.byte_count - 1] == '/') {
        id.byte_count--;
    }
    struct buf *body = &api->body;
    buf_reset(body);
    api_unescape(id, body);
    const char *name = NULL;
    for (uint32_t i = 0; i < api->facts.model->name_count; i++) {
        struct http_span wanted = {buf_cstr(body), body->bytes_used};
        if (http_span_is(wanted, api->facts.model->names[i])) {
            name = api->facts.model->names[i];
        }
    }
    if (name == NULL) {
        fail_unknown(buf_cstr(body), body->bytes_used, &failure);
        api_answer_failure(visit, &failure);
        return;
    }
    buf_reset(body);
    write_model(api, name, body);
    api_answer_json(visit, 200, body);
}
