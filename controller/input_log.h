// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_INPUT_LOG_H
#define CONTROLLER_INPUT_LOG_H

#include "common/buf.h"
#include "controller/core/core.h"

// Everything that the core was told, with its time, and a digest of everything that it planned.
//
// The idea: the core is a function of its inputs, so a file of them is the whole story of a
// controller: given to a core again, it must lead to the same plans, byte for byte. A record is one
// tick, or the digest of one plan; each carries its length and checksum, so that a file that a
// dying process left is used up to the last whole one.
//
// The file holds prompts (mode 0600): whoever may read it may read those.
//
//   Owns       the file.
//   Thread     the loop thread.
//   Allocates  buffers of one record.
//   Fails      create, replay: IO; replay: NOT_FOUND, CORRUPT naming the offset, VERSION. Writing
//              that fails ends the log with a warning, never the controller.

struct input_log;

// Ends by itself when the file has `bytes_max`. A file that is there is renamed to `path`.old.
enum status input_log_create(const char *path, uint64_t bytes_max, const struct core_config *config,
                             struct input_log **out, struct error *err) MUST_USE;
void input_log_close(struct input_log *log);    // accepts NULL

// Before the tick that takes them.
void input_log_tick(struct input_log *log, uint64_t now_us, const struct core_input *inputs,
                    uint32_t input_count);
// A plan of that tick, before anything else happens to it.
void input_log_plan(struct input_log *log, const struct plan *plan);

// Runs a core over the file and compares its plans with those that were recorded. `out`: what was
// replayed, or the first plan that differs, as it was and as it is. INVALID when one differs.
enum status input_log_replay(const char *path, struct buf *out, struct error *err) MUST_USE;
// The same of a file's bytes.
enum status input_log_replay_bytes(const uint8_t *bytes, size_t byte_count, struct buf *out,
                                   struct error *err) MUST_USE;

#endif
