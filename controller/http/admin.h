// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_ADMIN_H
#define CONTROLLER_HTTP_ADMIN_H

#include "common/status.h"
#include "controller/http/http_config.h"

// The operators' side: /admin/v1/* on a listener of its own, a unix socket in the run directory.
//
// The idea: who can open the socket (mode 0600 in a directory of mode 0700) is the operator; there
// is no key. The public port knows none of these paths. Answers are made whole, at once.
//
//   GET /admin/v1/status    one JSON object (controller/status_json.h)
//
//   Owns       nothing but itself.
//   Thread     the loop thread.
//   Allocates  at creation, and the buffer of an answer.
//   Fails      create: EXHAUSTED.

struct admin;

struct admin_config {
    void *ctx;
    void (*status)(void *ctx, struct buf *json);    // writes the object
};

enum status admin_create(const struct admin_config *config, struct admin **out,
                         struct error *err) MUST_USE;
void admin_destroy(struct admin *admin);    // accepts NULL
struct http_handler admin_handler(struct admin *admin);

#endif
