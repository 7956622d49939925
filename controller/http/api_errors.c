// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_errors.h"

#include "common/json.h"
#include <stdio.h>
#include <string.h>

// Beyond two minutes a common client library stops retrying at once.
enum { RETRY_AFTER_MS_MAX = 120 * 1000 };

static const struct {
    int http;
    const char *type, *code;
    bool retryable;
} codes[API_CODE_COUNT] = {
#define X(name, http, type, code, retry) [API_CODE_##name] = {http, type, code, retry},
    API_CODE_TABLE(X)
#undef X
};

bool api_failed(const struct api_failure *failure) {
    return failure->message[0] != '\0';
}

bool api_fail(struct api_failure *failure, enum api_code code, const char *param,
              const char *format, ...) {
    if (api_failed(failure)) {
        return false;
    }
    failure->code = code;
    failure->retryable = codes[code].retryable;
    snprintf(failure->param, sizeof failure->param, "%s", param != NULL ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(failure->message, sizeof failure->message, format, args);
    va_end(args);
    return false;
}

int api_code_http(enum api_code code) {
    return codes[code].http;
}

const char *api_code_name(enum api_code code) {
    return codes[code].code;
}

enum api_code api_code_of_http(int http_status) {
    switch (http_status) {
    case 408:
        return API_CODE_REQUEST_TIMEOUT;
    case 413:
        return API_CODE_REQUEST_TOO_LARGE;
    case 417:
        return API_CODE_EXPECTATION_FAILED;
    case 431:
        return API_CODE_HEADERS_TOO_LARGE;
    case 503:
        return API_CODE_UNAVAILABLE;
    case 505:
        return API_CODE_VERSION_NOT_SUPPORTED;
    default:
        return API_CODE_INVALID_HTTP;
    }
}

static void write_text(struct buf *out, const char *text) {
    json_write_string(out, text, strlen(text));
}

void api_failure_write(const struct api_failure *failure, struct buf *out) {
    buf_append_str(out, "{\"error\":{\"message\":");
    write_text(out, failure->message);
    buf_append_str(out, ",\"type\":");
    write_text(out, codes[failure->code].type);
    buf_append_str(out, ",\"param\":");
    if (failure->param[0] != '\0') {
        write_text(out, failure->param);
    } else {
        buf_append_str(out, "null");
    }
    buf_append_str(out, ",\"code\":");
    write_text(out, codes[failure->code].code);
    buf_append_str(out, failure->retryable ? ",\"retryable\":true" : ",\"retryable\":false");
    if (failure->code == API_CODE_CONTEXT_LENGTH) {
        buf_append_str(out, ",\"n_prompt_tokens\":");
        buf_append_u64(out, failure->prompt_tokens);
        buf_append_str(out, ",\"n_ctx\":");
        buf_append_u64(out, failure->context_tokens);
    }
    buf_append_str(out, "}}");
}

void api_failure_write_fields(const struct api_failure *failure, struct buf *out) {
    int http = codes[failure->code].http;
    if (http != 408 && http != 429 && http < 500) {
        return;
    }
    if (failure->retryable && failure->retry_after_ms > 0) {
        uint32_t ms = failure->retry_after_ms < RETRY_AFTER_MS_MAX ? failure->retry_after_ms
                                                                   : RETRY_AFTER_MS_MAX;
        buf_append_str(out, "retry-after: ");
        buf_append_u64(out, (ms + 999) / 1000);
        buf_append_str(out, "\r\nretry-after-ms: ");
        buf_append_u64(out, ms);
        buf_append_str(out, "\r\n");
    }
    buf_append_str(out,
                   failure->retryable ? "x-should-retry: true\r\n" : "x-should-retry: false\r\n");
}
