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
//   Owns       the memory files and the child process.
//   Thread     the main thread, before any other exists.
//   Allocates  never after start.
//   Fails      with an exit code: the child's own when a restart cannot help (bad flags, bad files,
//              no memory), else when more than HOLDER_SHORT_LIVES_MAX children in a row lived less
//              than a second and took part in no epoch: a child that has served is started again
//              however often it dies.

enum { HOLDER_SHORT_LIVES_MAX = 5 };

struct holder_fds {
    int weights;
    int kv;
    int notes;
};

// What a child leaves to the next one, besides memory.
struct holder_notes {
    char magic[16];
    _Atomic uint64_t epoch;    // the largest one that it was welcomed into
    struct kv_stamp kv;
};
// In the child: the notes, alive as long as the process; new ones where there is no file.
enum status holder_notes_open(int fd, struct holder_notes **out, struct error *err) MUST_USE;

// True when argv[1] names inherited descriptors: this process is the child. The word is removed.
bool holder_is_child(int *argc, char **argv, struct holder_fds *fds);

// In the child, once its signal handlers stand: the parent blocks the signals that it waits for.
void holder_unblock_signals(void);

// Runs the parent; returns the exit code. SIGTERM and SIGINT are passed on to the child.
int holder_run(char **argv);

#endif
