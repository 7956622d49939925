// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_ACCESS_LOG_H
#define CONTROLLER_ACCESS_LOG_H

#include "common/buf.h"
#include "controller/http/api.h"

// One log line per request, written together once per turn of the loop.
//
//   Owns       the lines that wait.
//   Thread     the loop thread.
//   Allocates  up to a megabyte, when lines wait.
//   Fails      never; see common/log.h.

struct access_log {
    struct buf lines;
    struct buf message;
};

void access_log_init(struct access_log *log);
void access_log_deinit(struct access_log *log);    // writes what waits
void access_log_add(struct access_log *log, const struct api_access *access);
void access_log_write(struct access_log *log);

#endif
