// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_gate.h"

#include <string.h>

uint64_t api_key_salt(const struct api_key *key) {
    return hash_bytes(key->digest, sizeof key->digest);
}

void api_key_digest(const char *key, size_t byte_count, uint8_t out[HASH_SHA256_BYTES]) {
    hash_sha256(key, byte_count, out);
}

// ---- host --------------------------------------------------------------------------------------

// The host without its port: up to the last colon that is not inside brackets.
static struct http_span strip_port(struct http_span host) {
    for (size_t i = host.byte_count; i > 0; i--) {
        char c = host.text[i - 1];
        if (c == ':') {
            host.byte_count = i - 1;
            break;
        }
        if (c < '0' || c > '9') {
            break;
        }
    }
    return host;
}

bool api_gate_host(const struct api_gate *gate, const struct http_request *request,
                   struct api_failure *failure) {
    if (!gate->loopback_only || gate->key_count > 0 || request->host.text == NULL) {
        return true;
    }
    struct http_span host = strip_port(request->host);
    if (http_span_is_caseless(host, "localhost") || http_span_is(host, "127.0.0.1") ||
        http_span_is(host, "[::1]") ||
        (gate->host_name != NULL && http_span_is_caseless(host, gate->host_name))) {
        return true;
    }
    return api_fail(failure, API_CODE_FORBIDDEN, NULL,
                    "This server listens on this machine only; call it as localhost.");
}

// ---- keys --------------------------------------------------------------------------------------

static struct http_span bearer(const struct http_request *request) {
    struct http_span value = http_request_field(request, "authorization");
    static const char scheme[] = "bearer ";
    const size_t scheme_bytes = sizeof scheme - 1;
    struct http_span start = {value.text, scheme_bytes};
    if (value.byte_count <= scheme_bytes || !http_span_is_caseless(start, scheme)) {
        return (struct http_span){NULL, 0};
    }
    value.text += scheme_bytes;
    value.byte_count -= scheme_bytes;
    while (value.byte_count > 0 && value.text[0] == ' ') {
        value.text++;
        value.byte_count--;
    }
    return value;
}

// Compares with every key, in the same time whichever matches.
static const struct api_key *match_key(const struct api_gate *gate, struct http_span presented) {
    if (presented.text == NULL) {
        return NULL;
    }
    uint8_t digest[HASH_SHA256_BYTES];
    api_key_digest(presented.text, presented.byte_count, digest);
    const struct api_key *found = NULL;
    for (uint32_t i = 0; i < gate->key_count; i++) {
        bool equal = hash_equal(gate->keys[i].digest, digest, sizeof digest);
        found = equal ? &gate->keys[i] : found;
    }
    return found;
}

bool api_gate_key(const struct api_gate *gate, const struct http_request *request,
                  const struct api_key **key, struct api_failure *failure) {
    *key = NULL;
    if (gate->key_count == 0) {
        return true;
    }
    const struct http_span presented[] = {bearer(request), http_request_field(request, "x-api-key"),
                                          http_request_field(request, "api-key")};
    bool any = false;
    for (size_t i = 0; i < sizeof presented / sizeof presented[0]; i++) {
        any = any || presented[i].text != NULL;
        const struct api_key *found = match_key(gate, presented[i]);
        *key = found != NULL ? found : *key;
    }
    if (*key != NULL) {
        return true;
    }
    return api_fail(failure, API_CODE_INVALID_API_KEY, NULL,
                    any ? "The API key is not valid here."
                        : "An API key is needed: send 'Authorization: Bearer KEY'.");
}

// ---- content type ------------------------------------------------------------------------------

// The media type in front of any parameters.
static struct http_span media_type(struct http_span value) {
    const char *semicolon = value.text == NULL ? NULL : memchr(value.text, ';', value.byte_count);
    if (semicolon != NULL) {
        value.byte_count = (size_t)(semicolon - value.text);
    }
    while (value.byte_count > 0 &&
           (value.text[value.byte_count - 1] == ' ' || value.text[value.byte_count - 1] == '\t')) {
        value.byte_count--;
    }
    return value;
}

bool api_gate_content_type(const struct http_request *request, struct api_failure *failure) {
    struct http_span encoding = http_request_field(request, "content-encoding");
    if (encoding.byte_count > 0 && !http_span_is_caseless(encoding, "identity")) {
        return api_fail(failure, API_CODE_UNSUPPORTED_MEDIA_TYPE, NULL,
                        "Send the body as it is: 'Content-Encoding' is not understood.");
    }
    struct http_span type = media_type(http_request_field(request, "content-type"));
    if (http_span_is_caseless(type, "application/json")) {
        return true;
    }
    // curl sends a form type by default. From a page these need no preflight, hence the Origin.
    bool lazy =
        type.byte_count == 0 || http_span_is_caseless(type, "application/x-www-form-urlencoded");
    if (lazy && http_request_field(request, "origin").text == NULL) {
        return true;
    }
    return api_fail(failure, API_CODE_UNSUPPORTED_MEDIA_TYPE, NULL,
                    "Send the body as 'Content-Type: application/json'.");
}

// ---- origins -----------------------------------------------------------------------------------

// `origin` is `prefix`, alone or followed by a port.
static bool is_local_origin(struct http_span origin, const char *prefix) {
    size_t prefix_bytes = strlen(prefix);
    struct http_span start = {origin.text, prefix_bytes};
    if (origin.byte_count < prefix_bytes || !http_span_is_caseless(start, prefix)) {
        return false;
    }
    if (origin.byte_count == prefix_bytes) {
        return true;
    }
    if (origin.text[prefix_bytes] != ':' || origin.byte_count == prefix_bytes + 1) {
        return false;
    }
    for (size_t i = prefix_bytes + 1; i < origin.byte_count; i++) {
        if (origin.text[i] < '0' || origin.text[i] > '9') {
            return false;
        }
    }
    return true;
}

// The scheme may be that of a proxy in front, which keeps Host.
static bool is_own_origin(struct http_span origin, struct http_span host) {
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; host.text != NULL && i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t scheme_bytes = strlen(schemes[i]);
        if (origin.byte_count == scheme_bytes + host.byte_count &&
            memcmp(origin.text, schemes[i], scheme_bytes) == 0 &&
            memcmp(origin.text + scheme_bytes, host.text, host.byte_count) == 0) {
            return true;
        }
    }
    return false;
}

bool api_gate_origin(const struct api_gate *gate, const struct http_request *request) {
    struct http_span origin = http_request_field(request, "origin");
    if (origin.text == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < gate->origin_count; i++) {
        if (strcmp(gate->origins[i], "*") == 0 || http_span_is(origin, gate->origins[i])) {
            return true;
        }
    }
    if (gate->origin_count > 0) {
        return false;
    }
    bool local = gate->key_count == 0 && (is_local_origin(origin, "http://localhost") ||
                                          is_local_origin(origin, "http://127.0.0.1"));
    return local || is_own_origin(origin, request->host);
}

void api_gate_write_cors(const struct api_gate *gate, const struct http_request *request,
                         struct buf *out) {
    if (!api_gate_origin(gate, request)) {
        return;
    }
    struct http_span origin = http_request_field(request, "origin");
    buf_append_str(out, "access-control-allow-origin: ");
    buf_append(out, origin.text, origin.byte_count);
    buf_append_str(out, "\r\nvary: origin\r\n"
                        "access-control-expose-headers: x-request-id, retry-after\r\n");
    if (gate->allow_credentials) {
        buf_append_str(out, "access-control-allow-credentials: true\r\n");
    }
}

// A list of header names, or a method: nothing that could end the line or begin another.
static bool is_name_list(struct http_span value) {
    for (size_t i = 0; i < value.byte_count; i++) {
        char c = value.text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && c != '-' && c != '_' && c != ',' && c != ' ') {
            return false;
        }
    }
    return value.byte_count > 0;
}

void api_gate_write_preflight(const struct api_gate *gate, const struct http_request *request,
                              struct buf *out) {
    if (!api_gate_origin(gate, request)) {
        return;
    }
    api_gate_write_cors(gate, request, out);
    // By name: "*" would not cover Authorization, and SDKs add a dozen names of their own.
    struct http_span method = http_request_field(request, "access-control-request-method");
    if (is_name_list(method)) {
        buf_append_str(out, "access-control-allow-methods: ");
        buf_append(out, method.text, method.byte_count);
        buf_append_str(out, "\r\n");
    }
    struct http_span names = http_request_field(request, "access-control-request-headers");
    if (is_name_list(names)) {
        buf_append_str(out, "access-control-allow-headers: ");
        buf_append(out, names.text, names.byte_count);
        buf_append_str(out, "\r\n");
    }
    buf_append_str(out, "access-control-max-age: 600\r\n");
}

// ---- request id --------------------------------------------------------------------------------

bool api_gate_request_id(const struct http_request *request, struct http_span *out) {
    struct http_span id = http_request_field(request, "x-request-id");
    bool fit = id.byte_count >= 1 && id.byte_count <= 128;
    for (size_t i = 0; fit && i < id.byte_count; i++) {
        fit = id.text[i] > 0x20 && id.text[i] < 0x7F;
    }
    *out = id;
    return fit;
}
