// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_RUN_DIR_H
#define CONTROLLER_RUN_DIR_H

#include "common/status.h"

// The run directory: where one controller at a time has its sockets and keeps its last epoch.
//
// The idea: whoever holds the lock on the file `lock` is the controller. A lock goes with its
// process, however it ended, so what a dead controller left is taken over and what a living one has
// never is. The epoch stays behind when the controller leaves: the next one goes on above it.
//
//   Owns       the lock; removes the sockets when it leaves.
//   Thread     one.
//   Allocates  on take.
//   Fails      BUSY naming the process that has it; IO, PERMISSION.

struct run_dir;

// Makes the directory if need be, mode 0700.
enum status run_dir_take(const char *path, struct run_dir **out, struct error *err) MUST_USE;
void run_dir_leave(struct run_dir *run_dir);    // accepts NULL

#endif
