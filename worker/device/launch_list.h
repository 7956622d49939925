// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_LAUNCH_LIST_H
#define WORKER_DEVICE_LAUNCH_LIST_H

#include "kernels/ops.h"
#include <stddef.h>
#include <stdint.h>

// A graph on a device whose operations are C functions: the list of calls, arguments and all.
//
// The idea: capture hands out an operation table that looks like the real one and appends each call
// to the list instead of running it. A call keeps the addresses it was given, scratch included, and
// reads live row counts from the step descriptor (op_rows), so a replay is a walk down the list:
// nothing is planned, nothing allocated, no model code entered.
//
//   Owns       nothing: lies in the caller's memory.
//   Thread     one at a time.
//   Allocates  never.
//   Fails      never: more launches than announced are our bug (INVARIANT).

struct launch_list;

size_t launch_list_bytes(uint32_t launch_count);
// `memory`: launch_list_bytes(launch_max) bytes, 64-byte aligned.
struct launch_list *launch_list_init(void *memory, uint32_t launch_max);
uint32_t launch_list_count(const struct launch_list *list);

// The table and context through which calls are recorded into `list`; scratch questions are
// answered by `ops`. Both outputs must live until recording ends.
void launch_list_record(struct launch_list *list, const struct ops *ops, const struct op_ctx *ctx,
                        struct ops *ops_out, struct op_ctx *ctx_out);

// Makes the calls, in order, with the scratch each was recorded with.
void launch_list_replay(const struct launch_list *list, const struct ops *ops,
                        const struct op_ctx *ctx);

#endif
