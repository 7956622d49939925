// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CONTROLLER_INTERNAL_H
#define CONTROLLER_CONTROLLER_INTERNAL_H

#include "common/bounds.h"
#include "controller/access_log.h"
#include "controller/controller.h"
#include "controller/core/core.h"
#include "controller/http/admin.h"
#include "controller/http/api.h"
#include "controller/keys.h"
#include "controller/startup_text.h"
#include "controller/turn_watch.h"
#include "proto/link_keys.h"
#include <stdbool.h>

// What the files of the controller share: controller.c wires the modules, queues inputs and turns;
// controller_operator.c answers those who run it: scrapes, status, resize, signals. Nobody else
// includes this.
//
//   Owns, Thread, Allocates, Fails as controller.h.

enum {
    INPUTS_MAX = 16384,
    // Requests stop short of the end, so that every live sequence can still be cancelled or stopped
    // before the next tick.
    SUBMITS_MAX = 4096,
    HOST_BYTES = 256,
    PATH_BYTES = 4096,
};

// Inputs wait here until the next tick. Requests are copied beside them.
struct input_queue {
    struct core_input inputs[INPUTS_MAX];
    struct core_request requests[SUBMITS_MAX];
    uint32_t count;
    uint32_t request_count;
};

struct controller {
    const struct config *config;
    struct core *core;
    struct input_log *input_log;    // NULL: nothing is recorded
    struct api *api;
    struct background *background;
    struct http_server *server;
    struct http_server *admin_server;
    struct admin *admin;
    struct worker_link *link;
    struct stats *stats;
    struct resume *resume;
    struct access_log access_log;
    struct model_text *text;
    struct api_model model;
    const char *names[BOUND_NAMES];
    struct keys keys;
    const char *origins[BOUND_NAMES];
    char host_name[HOST_BYTES];
    char run_dir[PATH_BYTES];
    struct input_queue queues[2];    // one fills while the other is ticked
    uint32_t filling;
    bool ticking;
    uint64_t tick_us;    // when it began: the time of all its actions
    uint32_t groups;     // driven; a group is a worker to the core
    // Groups that a plan could not be sent to, or whose epoch must begin anew.
    bool resync_wanted;
    bool resync[BOUND_GROUPS];
    struct run_dir *run_dir_lock;
    struct link_key_pair link_keys;
    struct link_allow *link_allow;
    const char *binds[BOUND_NAMES];
    struct startup_bar bar;
    bool banner;
    bool announced;
    uint64_t start_us;
    bool draining;
    uint64_t deadline_us;    // of the drain; 0 = none
    bool drained;
    bool closing;
    bool closed;
    int exit_code;
    struct turn_watch turns;
    uint64_t computed_us;    // by the loop's thread, at the end of the last turn
    bool paused;             // the server takes no requests
};

// controller.c
// What must not be lost: a full queue is ticked first.
void controller_enqueue(struct controller *c, const struct core_input *input);
// Ticks the core until nothing is left to take in.
void controller_tick(struct controller *c);
// What a request may be long follows the pool at once, not only when its memory is gone.
void controller_follow_pool(struct controller *c);

// controller_operator.c
// The operators' socket, in the run directory.
enum status controller_operator_open(struct controller *c, struct uv_loop_s *loop,
                                     struct error *err) MUST_USE;
// Answers whoever asked for the resize that ended.
void controller_operator_resized(struct controller *c, const struct core_action *action);
void controller_operator_metrics(void *ctx, enum metric_format format, struct buf *out);

#endif
