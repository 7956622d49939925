// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_STATUS_JSON_H
#define CONTROLLER_STATUS_JSON_H

#include "common/buf.h"
#include "controller/stats.h"
#include <stdint.h>

// What `tare status` shows: one JSON object, base units with the unit in the key.
//
//   Owns nothing.  Thread any.  Allocates in `out`.  Fails never; a full `out` says so itself.

#define STATUS_JSON_GROUP "0"    // the only group of this version, as people name it

// A worker's place in a group.
struct status_worker {
    const char *name;      // "g0r1"; "" while nobody was ever there
    const char *state;     // "away", "joining", "loading", "ready"
    const char *device;    // "cpu"
    const char *key;       // name of its key in the allow-list; "" on this host
    uint32_t pid;
    uint64_t epoch;    // 0: none
    uint64_t heartbeat_age_us;
    uint64_t applied_seq, completed_seq;
    uint64_t resident_bytes;
    uint32_t kv_blocks;
};

struct status_view {
    const char *model;
    const char *address;    // where clients reach it
    const char *state;      // "loading", "ready", "draining", "recovering"
    uint64_t uptime_us;
    uint64_t now_unix_ms;
    const struct stats_view *stats;
    uint32_t groups, world;
    void *ctx;
    void (*worker)(void *ctx, uint32_t group, uint32_t rank, struct status_worker *out);
    bool (*doubted)(void *ctx, uint32_t group);    // its ranks diverge too often
};

void status_json(const struct status_view *view, struct buf *out);

#endif
