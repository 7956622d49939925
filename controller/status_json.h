// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_STATUS_JSON_H
#define CONTROLLER_STATUS_JSON_H

#include "common/buf.h"
#include "controller/stats.h"

// What `tare status` shows: one JSON object, base units with the unit in the key.
//
//   Owns nothing.  Thread any.  Allocates in `out`.  Fails never; a full `out` says so itself.

#define STATUS_JSON_GROUP "0"    // the only group of this version, as people name it

struct status_view {
    const char *model;
    const char *address;    // where clients reach it
    const char *state;      // "loading", "ready", "draining", "recovering"
    uint64_t uptime_us;
    uint64_t now_unix_ms;
    const struct stats_view *stats;
};

void status_json(const struct status_view *view, struct buf *out);

#endif
