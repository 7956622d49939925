// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CONTROLLER_H
#define CONTROLLER_CONTROLLER_H

#include "common/config.h"
#include "common/status.h"
#include <stdint.h>

// The controller: owns every module and wires sockets to the core and back.
//
// The idea: callbacks only enqueue inputs; a turn drains the links, ticks the core until its queue
// is empty, and sends what the actions brought. One turn runs each time before the loop sleeps.
//
//   start-up      model text, keys -> core, API, server (503 until ready) -> links, admin socket
//                 -> worker's capacity
//   drain         new requests 503, running ones finish, worker told to leave, server closed
//   end           or the deadline of the drain: everything ends now, streams get an error event
//
//   Owns       everything, for the life of the process.
//   Thread     the loop thread.
//   Allocates  at start, and per request in the API.
//   Fails      create: the sentence for the person who started it.

struct controller;
struct uv_loop_s;

// Keeps `config` and `loop`.
enum status controller_create(const struct config *config, struct uv_loop_s *loop,
                              struct controller **out, struct error *err) MUST_USE;
// What can be wrong with keys, tokenizer and template, without serving (--check).
enum status controller_check(const struct config *config, struct error *err) MUST_USE;
void controller_destroy(struct controller *controller);    // accepts NULL

enum { CONTROLLER_FDS = 3 };
int controller_fd(const struct controller *controller, uint32_t index);    // poll for reading

// Before the loop sleeps. True: there is more to do at once, so it should not sleep.
bool controller_turn(struct controller *controller);
// After it, with all that belongs to the turn done: judges how long it took.
void controller_turned(struct controller *controller);
// From a timer: ten times a second while it returns true (there is work), else once a second.
bool controller_timer(struct controller *controller, uint64_t late_us);
// Either may come again, and at any time.
void controller_drain(struct controller *controller);
void controller_end(struct controller *controller);       // now
void controller_reload(struct controller *controller);    // SIGHUP: reads the API keys again

// True when the process may end; `exit_code` as in common/exit_code.h.
bool controller_done(const struct controller *controller, int *exit_code);

#endif
