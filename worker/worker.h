// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "common/status.h"
#include "worker/engine.h"

// The computing half of a worker: the child process.
//
// The idea: two threads. The step thread owns the engine and does nothing but start it and run
// plans; the I/O thread owns the links to the controller and answers heartbeats while a step
// computes. They exchange bytes through two bounded queues.
//
//   HELLO -> WELCOME(epoch) -> PROGRESS ... -> CAPACITY -> (PLAN -> RESULT)* -> SHUTDOWN -> GOODBYE
//
//   Owns       everything, for the life of the process.
//   Thread     worker_run on the main thread.
//   Allocates  during start-up.
//   Fails      with a process exit code: what main returns (see exit_code.h).

struct worker_options {
    struct engine_options engine;
    const char *controller;    // ipc:///dir with plan.sock and control.sock, or tcp://host:port
    const char *key_file, *controller_key_file;    // with tcp
    const char *worker_id;
    const char *model_name;
    const _Atomic int *stop;    // set by a signal
};

// Returns the exit code.
int worker_run(const struct worker_options *options);

#endif
