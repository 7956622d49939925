// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_ERRORS_H
#define CONTROLLER_HTTP_API_ERRORS_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stdint.h>

// What a client is told when something fails: one table of codes, one object.
//
// The idea: a function that judges a request returns false and fills one `struct api_failure`; the
// place that answers turns it into status, headers and the error object, whether as a whole answer
// or as the last event of a stream. Messages say what to change; they never repeat prompt text.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never: long messages are cut.

// name, HTTP status, type, code, retryable
#define API_CODE_TABLE(X)                                                                          \
    X(INVALID_HTTP, 400, "invalid_request_error", "invalid_value", false)                          \
    X(INVALID_JSON, 400, "invalid_request_error", "invalid_json", false)                           \
    X(MISSING_PARAMETER, 400, "invalid_request_error", "missing_required_parameter", false)        \
    X(INVALID_TYPE, 400, "invalid_request_error", "invalid_type", false)                           \
    X(INVALID_VALUE, 400, "invalid_request_error", "invalid_value", false)                         \
    X(UNSUPPORTED_PARAMETER, 400, "invalid_request_error", "unsupported_parameter", false)         \
    X(UNSUPPORTED_VALUE, 400, "invalid_request_error", "unsupported_value", false)                 \
    X(TOO_LARGE, 400, "invalid_request_error", "too_large", false)                                 \
    X(CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded", false)              \
    X(INVALID_API_KEY, 401, "authentication_error", "invalid_api_key", false)                      \
    X(FORBIDDEN, 403, "permission_error", "forbidden", false)                                      \
    X(MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found", false)                     \
    X(NOT_FOUND, 404, "invalid_request_error", "not_found", false)                                 \
    X(STREAM_NOT_FOUND, 404, "invalid_request_error", "stream_not_found", false)                   \
    X(METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed", false)               \
    X(REQUEST_TIMEOUT, 408, "invalid_request_error", "request_timeout", true)                      \
    X(STREAM_IN_USE, 409, "invalid_request_error", "stream_in_use", true)                          \
    X(NOT_RESUMABLE, 410, "invalid_request_error", "not_resumable", false)                         \
    X(REQUEST_TOO_LARGE, 413, "invalid_request_error", "request_too_large", false)                 \
    X(UNSUPPORTED_MEDIA_TYPE, 415, "invalid_request_error", "unsupported_media_type", false)       \
    X(EXPECTATION_FAILED, 417, "invalid_request_error", "invalid_value", false)                    \
    X(QUEUE_FULL, 429, "rate_limit_error", "queue_full", true)                                     \
    X(WOULD_MISS, 429, "rate_limit_error", "would_miss_deadline", true)                            \
    X(QUOTA, 429, "rate_limit_error", "quota", true)                                               \
    X(HEADERS_TOO_LARGE, 431, "invalid_request_error", "headers_too_large", false)                 \
    X(INTERNAL, 500, "server_error", "internal_error", true)                                       \
    X(UNSUPPORTED_ENDPOINT, 501, "server_error", "unsupported_endpoint", false)                    \
    X(MODEL_LOADING, 503, "server_error", "model_loading", true)                                   \
    X(UNAVAILABLE, 503, "server_error", "unavailable", true)                                       \
    X(DRAINING, 503, "server_error", "draining", true)                                             \
    X(INSTANCE_LOST, 503, "server_error", "instance_lost", true)                                   \
    X(DEADLINE_EXCEEDED, 504, "server_error", "deadline_exceeded", true)                           \
    X(VERSION_NOT_SUPPORTED, 505, "server_error", "unsupported_feature", false)

enum api_code {
#define X(name, http, type, code, retry) API_CODE_##name,
    API_CODE_TABLE(X)
#undef X
        API_CODE_COUNT
};

enum { API_PARAM_BYTES = 96, API_MESSAGE_BYTES = 512 };

struct api_failure {
    enum api_code code;
    bool retryable;
    char param[API_PARAM_BYTES];    // dotted path of the field; "" = null
    char message[API_MESSAGE_BYTES];
    uint32_t retry_after_ms;                   // 0 = no header
    uint32_t prompt_tokens, context_tokens;    // context overflow only; 0 elsewhere
};

// Fills the failure and returns false, so that callers write `return api_fail(...)`. `param` may be
// NULL. The first failure wins: a later call leaves a filled one alone.
bool api_fail(struct api_failure *failure, enum api_code code, const char *param,
              const char *format, ...) PRINTF_LIKE(4, 5);
bool api_failed(const struct api_failure *failure);

int api_code_http(enum api_code code);
const char *api_code_name(enum api_code code);    // "queue_full"
// The code for a refusal of the transport.
enum api_code api_code_of_http(int http_status);

// {"error":{...}} on one line, all four keys of OpenAI's schema and ours.
void api_failure_write(const struct api_failure *failure, struct buf *out);
// The retry header lines that belong to it, each ended by CR LF.
void api_failure_write_fields(const struct api_failure *failure, struct buf *out);

#endif
