// SPDX-License-Identifier: Apache-2.0
#include "controller/http/background.h"

#include "common/bounds.h"
#include "common/clock.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <uv.h>

struct runner {
    uv_work_t request;    // its `data` is the runner
    struct background *background;
    struct background_job *job;    // NULL: idle
};

struct background {
    uv_loop_t *loop;
    struct runner runners[BOUND_BACKGROUND_RUNNING];
    struct background_job *first, **end;    // in line
    uint32_t waiting_count, running_count;
};

struct background *background_create(struct uv_loop_s *loop) {
    struct background *background = memory_zalloc(sizeof *background);
    if (background == NULL) {
        return NULL;
    }
    background->loop = loop;
    background->end = &background->first;
    for (uint32_t i = 0; i < BOUND_BACKGROUND_RUNNING; i++) {
        background->runners[i].background = background;
        background->runners[i].request.data = &background->runners[i];
    }
    return background;
}

void background_destroy(struct background *background) {
    if (background == NULL) {
        return;
    }
    while (background->running_count > 0) {
        uv_run(background->loop, UV_RUN_ONCE);
    }
    memory_free(background);
}

// ---- running -----------------------------------------------------------------------------------

static void on_work(uv_work_t *request) {
    struct runner *runner = request->data;
    runner->job->work(runner->job);
}

static void start_next(struct background *background);

static void on_done(uv_work_t *request, int status) {
    struct runner *runner = request->data;
    struct background *background = runner->background;
    struct background_job *job = runner->job;
    INVARIANT(status == 0);    // nothing that libuv was given is ever cancelled
    runner->job = NULL;
    background->running_count--;
    start_next(background);
    job->done(job, clock_monotonic_us());
}

static void start_next(struct background *background) {
    for (uint32_t i = 0; i < BOUND_BACKGROUND_RUNNING && background->first != NULL; i++) {
        struct runner *runner = &background->runners[i];
        if (runner->job != NULL) {
            continue;
        }
        runner->job = background->first;
        background->first = runner->job->next;
        if (background->first == NULL) {
            background->end = &background->first;
        }
        background->waiting_count--;
        background->running_count++;
        int code = uv_queue_work(background->loop, &runner->request, on_work, on_done);
        INVARIANT(code == 0);    // it fails without a function only
    }
}

// ---- the line ----------------------------------------------------------------------------------

bool background_submit(struct background *background, struct background_job *job) {
    if (background->waiting_count == BOUND_BACKGROUND_WAITING) {
        return false;
    }
    job->next = NULL;
    *background->end = job;
    background->end = &job->next;
    background->waiting_count++;
    start_next(background);
    return true;
}

bool background_drop(struct background *background, struct background_job *job) {
    for (struct background_job **at = &background->first; *at != NULL; at = &(*at)->next) {
        if (*at == job) {
            *at = job->next;
            if (background->end == &job->next) {
                background->end = at;
            }
            background->waiting_count--;
            return true;
        }
    }
    return false;
}
