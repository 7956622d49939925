// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_STARTUP_TEXT_H
#define CONTROLLER_STARTUP_TEXT_H

#include "common/buf.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// What people see while the server starts: load bar, memory ledger, KV tokens, URL, a line to try.
//
// The idea: pure text from values; the caller decides where it goes. On a terminal the bar redraws
// in place; elsewhere a line is written per ten per cent.
//
//   Owns       nothing but the last state of the bar.
//   Thread     the loop thread.
//   Allocates  through the buffer.
//   Fails      never; a full buffer cuts the text.

struct startup_bar {
    bool terminal;
    uint32_t columns;    // of the bar itself
    int last_percent;    // -1 before the first
};

void startup_bar_init(struct startup_bar *bar, bool terminal);
// Appends what must be written now; nothing when the step is too small to show.
void startup_bar_draw(struct startup_bar *bar, const struct message_progress *progress,
                      struct buf *out);

struct startup_facts {
    const char *model_name;
    const char *host;
    uint16_t port;
    const char *uds;             // path of the unix socket listened on instead, or NULL
    const char *api_key_hint;    // NULL without a key: then the line to try needs none
    double start_seconds;
    const struct message_capacity *capacity;
};
// Ledger table, KV line, ready line and the line to try.
void startup_ready(const struct startup_facts *facts, struct buf *out);
// Only the ready line (--quiet).
void startup_ready_line(const struct startup_facts *facts, struct buf *out);

#endif
