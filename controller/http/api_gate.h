// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_GATE_H
#define CONTROLLER_HTTP_API_GATE_H

#include "common/buf.h"
#include "common/hash.h"
#include "controller/http/api_account.h"
#include "controller/http/api_errors.h"
#include "controller/http/http_parse.h"
#include <stdbool.h>
#include <stdint.h>

// Who may ask: keys, the Host rule, origins of browsers, and content types. Pure functions over a
// request head.
//
// The idea: a server on a laptop must not be drivable by any web page its user visits. Three rules
// close that: JSON posts that a page could send without asking (no or a form content type) are
// refused when an Origin is present; without a key on loopback, Host must name this machine, which
// stops DNS rebinding; and no origin but local ones is allowed unless the operator lists it.
//
//   Owns       nothing; the rules belong to the caller and are kept by pointer.
//   Thread     any.
//   Allocates  never.
//   Fails      false with the failure filled.

struct api_key {
    uint8_t digest[HASH_SHA256_BYTES];    // of the key; the key itself is kept nowhere
    struct api_account *account;          // NULL: a standard one without limits
};

struct api_gate {
    const struct api_key *keys;
    uint32_t key_count;
    bool metrics_require_key;
    bool loopback_only;            // no address but loopback is listened on
    const char *host_name;         // of the machine; NULL when unknown
    const char *const *origins;    // allowed origins; "*" = any; none given = local ones
    uint32_t origin_count;
    bool allow_credentials;
};

// Stands for the key where what was computed or answered for it is kept; the same for all
// processes.
uint64_t api_key_salt(const struct api_key *key);
void api_key_digest(const char *key, size_t byte_count, uint8_t out[HASH_SHA256_BYTES]);

// Host of a server that anybody on this machine can reach without a key.
bool api_gate_host(const struct api_gate *gate, const struct http_request *request,
                   struct api_failure *failure);
// Looks for the key in Authorization, x-api-key and api-key. `*key` is NULL when none is
// configured.
bool api_gate_key(const struct api_gate *gate, const struct http_request *request,
                  const struct api_key **key, struct api_failure *failure);
bool api_gate_content_type(const struct http_request *request, struct api_failure *failure);

// True when the request's Origin may read the answer. False without an Origin.
bool api_gate_origin(const struct api_gate *gate, const struct http_request *request);
// Appends the Access-Control lines of an answer to an allowed origin.
void api_gate_write_cors(const struct api_gate *gate, const struct http_request *request,
                         struct buf *out);
// Appends those of a preflight as well; nothing when the origin is not allowed.
void api_gate_write_preflight(const struct api_gate *gate, const struct http_request *request,
                              struct buf *out);

// 1 to 128 printable ASCII characters without spaces: fit to be echoed.
bool api_gate_request_id(const struct http_request *request, struct http_span *out);

#endif
