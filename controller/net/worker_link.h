// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_NET_WORKER_LINK_H
#define CONTROLLER_NET_WORKER_LINK_H

#include "common/status.h"
#include "controller/core/core.h"
#include "proto/messages.h"
#include <stdint.h>

// The controller's side of the links: messages to core inputs, core actions to messages.
//
// The idea: a worker is a name with a process behind it. HELLO of a new process under a known name
// means the old one is gone. Every join gets a new epoch, larger than any before, so nothing that
// an older process says is believed. What arrives is decoded, checked and handed to the sink;
// bodies that do not pass end that worker's epoch, never the controller.
//
//   Owns       two listening channels and the registry.
//   Thread     the loop thread.
//   Allocates  while opening; capacity reports, once per join.
//   Fails      open: IO, PERMISSION; sends: BUSY, PEER_LOST.

struct worker_link;

// What the link tells. Pointers are alive during the call, but capacity: until the worker's next
// join.
struct worker_link_sink {
    void *ctx;
    void (*progress)(void *ctx, struct worker_id worker, const struct message_progress *progress);
    void (*ready)(void *ctx, struct worker_id worker, uint64_t epoch,
                  const struct message_capacity *capacity);
    void (*lost)(void *ctx, struct worker_id worker, const char *reason, uint32_t exit_code);
    void (*result)(void *ctx, struct worker_id worker, const struct step_result *result);
};

struct worker_link_options {
    const char *run_dir;    // gets plan.sock and control.sock
    struct worker_link_sink sink;
    uint64_t first_epoch;    // epochs start above this
};

enum status worker_link_open(const struct worker_link_options *options, struct worker_link **out,
                             struct error *err) MUST_USE;
void worker_link_close(struct worker_link *link);    // accepts NULL

enum { WORKER_LINK_FDS = 2 };
int worker_link_fd(const struct worker_link *link, uint32_t index);

// Receives what waits. Call on readiness, after every send, and on the timer: `now_us`
// also decides which silent workers are lost.
// True: a turn's share of time was over before the messages were, so come again without waiting.
bool worker_link_poll(struct worker_link *link, uint64_t now_us);

// `plan_bytes`: length of the message that was sent.
enum status worker_link_send_plan(struct worker_link *link, struct worker_id worker,
                                  const struct plan *plan, size_t *plan_bytes,
                                  struct error *err) MUST_USE;
// A new epoch for a worker whose state is no longer ours; READY follows.
void worker_link_welcome_again(struct worker_link *link, struct worker_id worker);
void worker_link_shutdown(struct worker_link *link);    // tells every worker to leave

struct worker_link_counters {
    uint64_t messages_in, messages_bad;
    uint64_t resident_bytes;            // of the worker, last heartbeat
    uint64_t allocations_after_seal;    // last heartbeat
    uint64_t epoch;
    uint64_t heard_age_us;    // since the last word of the worker
};
void worker_link_count(const struct worker_link *link, uint64_t now_us,
                       struct worker_link_counters *out);

#endif
