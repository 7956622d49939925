// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_ADMIN_H
#define CONTROLLER_HTTP_ADMIN_H

#include "common/status.h"
#include "controller/http/http_config.h"
#include <stdbool.h>
#include <stdint.h>

// The operators' side: /admin/v1/* on a listener of its own, a unix socket in the run directory.
//
// The idea: who can open the socket (mode 0600 in a directory of mode 0700) is the operator; there
// is no key. The public port knows none of these paths. Answers are made whole: at once, or when
// the operation has ended that a call waits for. A caller that leaves does not end its operation.
//
//   GET /admin/v1/status        one JSON object (controller/status_json.h)
//   POST /admin/v1/resize/kv    {"group":"0","amount":N,"unit":"blocks"|"bytes","relative":bool,
//                               "wait":bool,"reason":"..."}: one JSON object, the operation
//
//   Owns       nothing but itself.
//   Thread     the loop thread.
//   Allocates  at creation, and while a call is read and answered.
//   Fails      create: EXHAUSTED.

struct admin;

struct admin_resize {
    const char *group;
    int64_t amount;
    bool bytes;       // else blocks
    bool relative;    // to what there is; else what there is to be
    const char *reason;
    uint64_t operation;    // comes back with admin_resized
};

struct admin_config {
    void *ctx;
    void (*status)(void *ctx, struct buf *json);    // writes the object
    // Starts it; admin_resized may follow before this returns. INVALID, NOT_FOUND, BUSY: nothing
    // was started.
    enum status (*resize_kv)(void *ctx, const struct admin_resize *ask, struct error *err);
};

enum status admin_create(const struct admin_config *config, struct admin **out,
                         struct error *err) MUST_USE;
void admin_destroy(struct admin *admin);    // accepts NULL
struct http_handler admin_handler(struct admin *admin);

// How an operation ended. `state`: "done", "partial", "refused", "unavailable".
struct admin_outcome {
    uint64_t operation;
    const char *state;
    uint32_t blocks_asked, blocks_before, blocks_after;
    uint64_t block_bytes;
    const char *reason;    // "" when there is nothing to say
};
void admin_resized(struct admin *admin, const struct admin_outcome *outcome);

#endif
