// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_NET_REGISTRY_H
#define CONTROLLER_NET_REGISTRY_H

#include "common/arena.h"
#include "common/bounds.h"
#include "common/status.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// Who is there: the members of every group, what each said of itself, how long each is silent, when
// the group's next epoch may begin, and which plans are not answered yet.
//
// The idea: a group acts as one, so it exists only while every rank is there in the same epoch. A
// member is a place (group, rank) that a process takes with HELLO; the process may go and another
// one come, the place stays, and with it what is known of the KV memory that outlives a process.
// worker_link sends and receives; here it is only decided, without socket or clock.
//
//   member   AWAY ── hello ──► GREETED ── all are there ──► WELCOMED ── capacity ──► READY
//               ▲                 ▲        (new epoch)          │                      │
//               │                 └──── another rank is lost ───┴──────────────────────┤
//               └──────────────── left, died, silent, broke the protocol ──────────────┘
//
//   Owns       all places, fixed at create.
//   Thread     the loop thread.
//   Allocates  in create; capacity reports, once per report.
//   Fails      create: EXHAUSTED; hello: INVALID or VERSION with the sentence for the worker.

enum member_state {
    MEMBER_STATE_AWAY,
    MEMBER_STATE_GREETED,
    MEMBER_STATE_WELCOMED,
    MEMBER_STATE_READY
};

enum { MEMBER_NAME_BYTES = 64, MEMBER_DIGEST_BYTES = 72, MEMBER_DEVICE_BYTES = 32 };

struct member {
    uint32_t group, rank;
    enum member_state state;
    // As the process introduced itself. Both stay when it goes.
    char name[MEMBER_NAME_BYTES];
    char peer[MEMBER_NAME_BYTES];    // its end of the channels
    char user[MEMBER_NAME_BYTES];    // of its key; "" on this host
    char device[MEMBER_DEVICE_BYTES];
    char model_digest[MEMBER_DIGEST_BYTES], config_digest[MEMBER_DIGEST_BYTES];
    uint32_t pid;
    bool took_welcome;                  // it has said so by a heartbeat of the epoch
    bool unreachable;                   // its connection has ended, as far as was seen
    bool reported;                      // since the epoch, or the last resize
    uint64_t reports;                   // of the epoch that have come: the number of the last
    uint64_t silent_us;                 // while our own loop was on time
    uint64_t heard_us;                  // last word
    uint64_t welcomed_us;               // last WELCOME
    uint64_t challenged_us;             // another process wants the place since then; 0: nobody
    uint64_t unanswered_us;             // since the WELCOME it has not taken
    uint64_t sent_seq, answered_seq;    // plans and results of the epoch
    struct message_heartbeat heartbeat;
    struct message_capacity capacity;    // points into the arena
    struct arena arena;
    // When the group was last ready.
    uint64_t known_stamp;
    uint32_t known_blocks;
};

struct group_place {
    struct member *members;    // [world]
    uint64_t epoch;            // 0 while it has none
    bool ready;
    bool answered;         // a step of this epoch, by every rank, and the answers were believed
    uint32_t futile;       // epochs in a row that ended before the group was ready
    uint32_t fruitless;    // given up in a row before a step of theirs was answered
    uint64_t retry_us;     // no epoch begins before, when there were many
    char comm_id[MESSAGE_COMM_ID_DIGITS + 1];
    uint64_t plan_us;    // last plan
    uint64_t said_us;    // last heartbeat to it
    // The least that every rank can do, alive until the next report that makes the group ready.
    struct message_capacity capacity;
    struct arena arena;
};

struct registry_options {
    uint32_t groups, world;
    double timer_scale;    // 1; larger on machines that are slow on purpose
};

struct registry;

enum status registry_create(const struct registry_options *options, struct registry **out,
                            struct error *err) MUST_USE;
void registry_destroy(struct registry *registry);    // accepts NULL

uint32_t registry_groups(const struct registry *registry);
uint32_t registry_world(const struct registry *registry);
struct group_place *registry_group(struct registry *registry, uint32_t group);
// By the end of its last process, also when that is gone; NULL for a stranger.
struct member *registry_find(struct registry *registry, const char *peer);

// ---- joining -----------------------------------------------------------------------------------

// Whether this process may take its place, as far as the HELLO alone says. INVALID or VERSION names
// the difference and both sides of it. One that could not open its model has no digest of it: it is
// let in to say why, and no epoch begins with it.
enum status registry_judge(struct registry *registry, const struct message_hello *hello,
                           struct error *err) MUST_USE;
// The member at the place of a judged HELLO, taken or not.
struct member *registry_place(struct registry *registry, const struct message_hello *hello);
// The place is this process's now: GREETED.
void registry_take(struct registry *registry, struct member *member, const char *peer,
                   const char *user, const struct message_hello *hello);

// Every rank is there, with its model.
bool registry_complete(const struct registry *registry, uint32_t group);

// ---- epochs ------------------------------------------------------------------------------------

// Every rank is there, in no epoch, and the next one need not wait.
bool registry_may_begin(const struct registry *registry, uint32_t group, uint64_t now_us);
// All are welcomed into this epoch.
void registry_begin(struct registry *registry, uint32_t group, uint64_t epoch, const char *comm_id);
// The epoch is over: who is still there waits for the next one. When more than
// REGISTRY_FUTILE_EPOCHS in a row ended before the group was ready, that is not at once: after
// REGISTRY_RETRY_US, and twice as long each time, up to REGISTRY_RETRY_MAX_US. So it is when more
// than REGISTRY_FRUITLESS_EPOCHS in a row were `given_up`, with every rank there, before a step was
// answered: ranks that always answer wrongly. A rank that is lost, or another process in its place,
// makes nobody wait for that.
void registry_end(struct registry *registry, uint32_t group, bool given_up, uint64_t now_us);
enum {
    REGISTRY_FUTILE_EPOCHS = 3,
    REGISTRY_FRUITLESS_EPOCHS = 1,
    REGISTRY_RETRY_US = 50 * 1000,
    REGISTRY_RETRY_DOUBLINGS = 6,
    REGISTRY_RETRY_MAX_US = REGISTRY_RETRY_US << REGISTRY_RETRY_DOUBLINGS,
};

// ---- plans -------------------------------------------------------------------------------------

// The group's first `rank_count` ranks were sent this plan.
void registry_sent(struct registry *registry, uint32_t group, uint32_t rank_count, uint64_t seq,
                   uint64_t now_us);
void registry_answered(struct member *member, uint64_t seq);
// Nobody had anything against the group's answers so far: when all ranks have given theirs to this
// plan, the epoch was of use.
void registry_believed(struct registry *registry, uint32_t group, uint64_t seq);
// A rank has not answered all that it was sent.
bool registry_outstanding(const struct registry *registry, uint32_t group);

// ---- capacity ----------------------------------------------------------------------------------

// Reports of an epoch are numbered: false for one that came before. 0 is no number.
bool registry_is_new_report(struct member *member, uint64_t number);
// A member's report, copied. True when it was the last one that was missing: the group's capacity
// is the least of all then, and `*kv_kept` says whether every rank's KV memory is as it was known.
// INVALID when ranks differ in what must be equal.
enum status registry_report(struct registry *registry, struct member *member,
                            const struct message_capacity *capacity, bool *complete, bool *kv_kept,
                            struct error *err) MUST_USE;

// ---- silence -----------------------------------------------------------------------------------

// A word of it has come.
void registry_heard(struct member *member, uint64_t now_us);
uint64_t registry_age_us(const struct member *member, uint64_t now_us);    // since it was heard
// `elapsed_us` passed while our own loop was on time.
void registry_pass(struct registry *registry, uint64_t elapsed_us);
// Why a member counts as lost now; NULL when it does not. A worker beats ten times a second while
// it has plans, and for REGISTRY_PACE_US after: three beats missed while a step is outstanding are
// enough. Idle it beats once a second, and again three may be missed.
const char *registry_suspicion(const struct registry *registry, const struct member *member,
                               uint64_t now_us);
enum { REGISTRY_PACE_US = 10 * 1000 * 1000 };

#endif
