// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_THREAD_POOL_H
#define WORKER_DEVICE_THREAD_POOL_H

#include "common/status.h"
#include "kernels/ops.h"
#include <stdint.h>

// The compute threads behind op_ctx.parallel: fork and join over small tasks, thousands a second.
//
// The idea: one counter of open tasks. The caller sets it, everyone (the caller included) takes
// tasks from it one by one, and the caller returns when the last one is finished. Nothing is
// assigned in advance, so a thread that the operating system takes away delays the job by the one
// task it holds, not by its share. An idle thread spins for some ten microseconds, long enough to
// bridge the gap between two operations of one step, then sleeps in the kernel at no cost.
//
//   Owns       its threads and one heap block.
//   Thread     create, run and destroy belong to one thread (the step thread), which works as
//              thread 0.
//   Allocates  in create only.
//   Fails      create: INVALID (count out of range), EXHAUSTED (memory or threads).

struct thread_pool;

// Starts `thread_count - 1` threads; 1 gives a pool that runs everything on the caller.
enum status thread_pool_create(uint32_t thread_count, struct thread_pool **out,
                               struct error *err) MUST_USE;
void thread_pool_destroy(struct thread_pool *pool);    // accepts NULL

// op_ctx.parallel with op_ctx.pool = the pool: fn(arg, i, thread) for each i in 0..task_count-1.
// Tasks with small numbers start first. Not to be called from inside a task.
void thread_pool_run(void *pool, uint32_t task_count, op_task_fn fn, void *arg);

uint32_t thread_pool_thread_count(const struct thread_pool *pool);

#endif
