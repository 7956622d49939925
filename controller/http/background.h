// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_BACKGROUND_H
#define CONTROLLER_HTTP_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

// Work that would hold up the loop, on a few helper threads.
//
// The idea: a job is a function of memory that nobody else touches while it runs. Few run at once
// (the machine's cores belong to the worker), some wait in line, more are refused. One that waits
// can be dropped; one that runs runs to its end, and its `done` is called on the loop in any case.
//
//   Owns       the line; jobs are their callers', from submit until `done` or a drop.
//   Thread     the loop thread, but for a job's `work`.
//   Allocates  in create only.
//   Fails      submit: false when the line is full. create: NULL without memory.

struct uv_loop_s;
struct background;

struct background_job {
    void (*work)(struct background_job *job);                     // on a helper thread
    void (*done)(struct background_job *job, uint64_t now_us);    // then on the loop; may free it
    struct background_job *next;                                  // in line
};

struct background *background_create(struct uv_loop_s *loop);
// Waits for every job that was submitted (turns the loop).
void background_destroy(struct background *background);    // accepts NULL

bool background_submit(struct background *background, struct background_job *job);
// True: the job had not begun and will not; `done` is not called. False: it runs.
bool background_drop(struct background *background, struct background_job *job);

#endif
