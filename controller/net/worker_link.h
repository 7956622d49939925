// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_NET_WORKER_LINK_H
#define CONTROLLER_NET_WORKER_LINK_H

#include "common/status.h"
#include "proto/link_keys.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// The controller's side of the links: messages to what the core is told of groups, plans to bytes.
//
// The idea: a worker is a name with a process behind it, and takes a place (group, rank) with
// HELLO. When every place of a group is taken, all are welcomed into one epoch, larger than any
// before and on disk before it is used; the group is ready when all have reported what they can do.
// One rank lost loses the group: the others are told at once to wait for it no longer (ABORT), keep
// weights and KV, and are welcomed into a new epoch when the rank is there again. What an older
// epoch says is dropped. What arrives is decoded, checked and handed to the sink; a body that does
// not pass ends its group's epoch, never the controller.
//
//   Owns       two listening channels, the registry of places, the epoch file.
//   Thread     the loop thread.
//   Allocates  while opening; capacity reports, once per join.
//   Fails      open: IO, PERMISSION, CORRUPT for the epoch file, INVALID for addresses and keys;
//              sends: BUSY, PEER_LOST.

struct worker_link;

struct worker_link_ready {
    uint32_t group;
    uint64_t epoch;
    uint32_t world;
    // The least that every rank can do; alive until the group is ready again.
    const struct message_capacity *capacity;
    // Every rank's KV memory holds what it held when the group was last ready, or wrote since.
    bool kv_kept;
};

// What the link tells. Pointers are alive during the call, but capacity.
struct worker_link_sink {
    void *ctx;
    void (*progress)(void *ctx, uint32_t group, uint32_t rank,
                     const struct message_progress *progress);
    // Again in the same epoch after a resize of the KV pool.
    void (*ready)(void *ctx, const struct worker_link_ready *ready);
    // `exit_code` of the worker that left by itself, else 0.
    void (*lost)(void *ctx, uint32_t group, const char *reason, uint32_t exit_code);
    void (*result)(void *ctx, uint32_t group, uint32_t rank, const struct step_result *result);
};

struct worker_link_options {
    const char *run_dir;    // gets plan.sock, control.sock and epoch
    struct worker_link_sink sink;
    uint32_t groups, world;    // expected
    double timer_scale;        // of all times here; 1
    // tcp://HOST:PORT to listen on besides the run directory, with our keys and the list of those
    // who may come. Kept.
    const char *const *binds;
    uint32_t bind_count;
    bool wildcard_allowed;    // listening on every interface of the host
    const struct link_key_pair *keys;
    const struct link_allow *allow;
};

enum status worker_link_open(const struct worker_link_options *options, struct worker_link **out,
                             struct error *err) MUST_USE;
void worker_link_close(struct worker_link *link);    // accepts NULL

enum { WORKER_LINK_FDS = 3 };
int worker_link_fd(const struct worker_link *link, uint32_t index);

// Receives what waits. Call on readiness, after every send, and on the timer, ten times a second
// while plans are outstanding and once a second else: `now_us` also decides which silent workers
// are lost, and a gap longer than that forgives their silence.
// True: a turn's share of time was over before the messages were, so come again without waiting.
bool worker_link_poll(struct worker_link *link, uint64_t now_us);

// To every rank of a ready group, encoded once. `plan_bytes`: length of the message. After a
// failure some ranks may have it and others not: begin a new epoch.
enum status worker_link_send_plan(struct worker_link *link, uint32_t group, const struct plan *plan,
                                  size_t *plan_bytes, struct error *err) MUST_USE;
// A new epoch for a group whose state is no longer ours, also from within the call of the sink that
// told of a result; READY follows. It begins later where others in a row came to the same end
// before a step was answered (registry_end).
void worker_link_welcome_again(struct worker_link *link, uint32_t group);
void worker_link_shutdown(struct worker_link *link);    // tells every worker to leave

struct worker_link_counters {
    uint64_t messages_in, messages_bad;
    uint64_t refused;                   // HELLOs
    uint64_t strangers;                 // connections whose key is not on the list
    uint64_t handshakes_refused;        // connections that did not get as far
    uint64_t resident_bytes;            // of all workers, last heartbeats
    uint64_t allocations_after_seal;    // the same
    uint64_t epoch;                     // the last one
    uint64_t heard_age_us;              // since the last word of the worker that is longest silent
};
void worker_link_count(const struct worker_link *link, uint64_t now_us,
                       struct worker_link_counters *out);

// One place, for people.
struct worker_link_member {
    const char *name;      // "" while nobody was ever there
    const char *state;     // "away", "joining", "loading", "ready"
    const char *device;    // "cpu"
    const char *user;      // of its key; "" on this host
    uint32_t pid;
    uint64_t epoch;           // 0: none
    uint64_t heard_age_us;    // 0 while it is away
    uint64_t applied_seq, completed_seq;
    uint64_t resident_bytes;
    uint32_t kv_blocks;    // its own; the group has the least of all
};
void worker_link_member(const struct worker_link *link, uint32_t group, uint32_t rank,
                        uint64_t now_us, struct worker_link_member *out);

#endif
