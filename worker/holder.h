// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_HOLDER_H
#define WORKER_HOLDER_H

#include "common/status.h"
#include "worker/kv/kv_stamp.h"
#include <stdbool.h>
#include <stdint.h>

// The holding half of a worker: the parent process.
//
// The idea: the parent owns memory files (repacked weights, KV pool, a page of notes) and does
// nothing that can fail. When the child that computes dies, the parent starts another one, which
// finds its weights where they were and attaches instead of loading. Nobody else has to supervise
// ranks.
//
// A child can also stand still: stopped, or stuck in its I/O thread. Nobody hears from it then, and
// it holds its place in the group. So the I/O thread counts its turns in the notes, and the parent
// kills a child that counts no further. Only that thread counts: how long a step may take is known
// to the controller, which ends the epoch of one that is late, and a step thread that does not come
// to the next epoch is noticed by the I/O thread, which ends the process (controller_link.h). Until
// the engine is ready nobody looks, however long a start takes; nor does anybody kill a child that
// is debugged. By how much the parent was late itself does not count: the machine stood still then.
//
//   Owns       the memory files and the child process.
//   Thread     the main thread, before any other exists.
//   Allocates  never after start.
//   Fails      with an exit code: the child's own when a restart cannot help (bad flags, bad files,
//              no memory), else when more than HOLDER_FUTILE_LIVES_MAX children in a row died
//              before they had carried out a plan, or been ready for one after a second of life:
//              a child that was of use is followed by another one however often it dies.

enum {
    HOLDER_FUTILE_LIVES_MAX = 3,
    HOLDER_PATIENCE_US = 1000 * 1000,         // with a child that has plans
    HOLDER_PATIENCE_IDLE_US = 4000 * 1000,    // its I/O thread turns once a second then
};

// Written by the child, read by the parent.
struct holder_watch {
    _Atomic uint64_t plans;          // carried out
    _Atomic uint64_t turns;          // of the I/O thread, since the engine was ready
    _Atomic uint64_t patience_us;    // until the next one; 0: nobody is to look
};

struct holder_fds {
    int weights;
    int kv;
    int notes;
};

// What a child leaves to the next one, besides memory.
struct holder_notes {
    char magic[16];
    _Atomic uint64_t epoch;    // the largest one that it was welcomed into
    _Atomic bool joined;       // some child was ready in one
    struct kv_stamp kv;
    struct holder_watch watch;
};
// In both halves: the notes, alive as long as the process; new ones where there is no file.
enum status holder_notes_open(int fd, struct holder_notes **out, struct error *err) MUST_USE;

// True when argv[1] names inherited descriptors: this process is the child. The word is removed.
bool holder_is_child(int *argc, char **argv, struct holder_fds *fds);

// In the child, once its signal handlers stand: the parent blocks the signals that it waits for.
void holder_unblock_signals(void);

// In the child: ends the process at once, whatever its threads are doing.
_Noreturn void holder_end_child(int exit_code);

// Runs the parent; returns the exit code. SIGTERM and SIGINT are passed on to the child.
int holder_run(char **argv);

#endif
