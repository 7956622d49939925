// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_CORE_INTERNAL_H
#define CONTROLLER_CORE_CORE_INTERNAL_H

#include "controller/core/core.h"
#include "controller/core/kv_blocks.h"
#include "controller/core/rank_answers.h"
#include "controller/core/request.h"
#include "controller/core/scheduler.h"
#include "controller/core/step_plan.h"

// What the files of the core share: core.c takes inputs and knows requests and groups, core_group.c
// is one group and its worker, prediction.c says how long a group takes and overload.c who is
// refused. Nobody else includes this.
//
//   Owns, Thread, Allocates, Fails as core.h.

// A plan that is out.
struct outstanding {
    uint64_t seq, base_seq, sent_us;
    uint32_t rows, prompt_rows, moves;
    double predicted_us;
};

// One model instance: its scheduler, and the worker that it has at the moment.
struct group {
    uint32_t index;
    uint64_t id;
    struct kv_blocks *blocks;
    struct scheduler *scheduler;
    bool ready;
    struct worker_id worker;
    uint64_t epoch;    // 0: never had a worker
    uint64_t next_seq;
    uint64_t base_seq;    // the plan that the next one goes on from: the last that was not refused
    struct rank_answers *answers;
    struct outstanding outstanding[SCHEDULER_DEPTH_MAX];    // ring of plans without a result
    uint32_t outstanding_first, outstanding_count;
    uint64_t answered_us;    // when the last result came
    // A plan was refused: those behind it are not done either, and are waited for.
    bool refused;
    uint64_t refused_base;    // that it went on from
    bool condemned;    // a request was failed for a refused plan, and no row was computed since
    bool learnt;       // a step was answered: predictions mean something
    uint32_t late_losses;       // by a step without an answer, since one was answered
    uint64_t away_since_us;     // when the worker was lost, while !ready
    bool progressed;            // a step was answered since it was last ready
    uint64_t stuck_since_us;    // of the losses without such a step between them, the first
    enum epoch_end lost_why;
    uint64_t diverged_us[2];    // the last two times, the older one first; 0: never
    bool suspended;    // those who ran keep slots and blocks until it is back, while !ready
    // The pace at which sequences end while others wait for their slots.
    double us_per_end;        // smoothed
    uint32_t ended_behind;    // so many were seen
    uint64_t last_end_us;     // 0: nobody waited then
    struct message_capacity capacity;
    struct plan_limits limits;
    struct {
        uint64_t operation;
        uint32_t asked, before;
        bool needed;    // the end is not as low as asked
    } resize;           // while scheduler_resizing
    uint64_t evictions_told, evicted_tokens_told;
};

struct core {
    struct core_config config;
    struct request_table *requests;
    struct group *groups;    // [groups_max]
    struct step_plan *plan;
    struct request **owners;    // [BOUND_RESULT_ROWS] of the result being taken
    struct core_counters counters;
    bool learnt;             // some group has answered a step
    uint32_t scored_only;    // live requests that draw nothing
    bool draining;
    bool drained_told;
    uint32_t *sweep_list;    // [requests] scratch of overload.c
    uint64_t swept_us;
    // Of the running tick.
    uint64_t now_us;
    core_action_fn action;
    void *action_ctx;
};

enum { CHARGED_OUTPUTS = 64 };    // drawn tokens after which a tenant is charged for them

// ---- core.c ------------------------------------------------------------------------------------

static inline void core_act(struct core *core, const struct core_action *action) {
    core->action(core->action_ctx, action);
}
// Takes it out of the table; it is in no line and no slot.
void core_forget(struct core *core, uint32_t index);
// The one way out for a request that was accepted.
void core_finish(struct core *core, uint32_t index, enum finish_reason reason);
bool core_is_ready(const struct core *core);    // some group is
// A request of a group that cannot serve it any more goes to one that can, or fails.
void core_place_again(struct core *core, uint32_t index);

// ---- core_group.c ------------------------------------------------------------------------------

enum status group_init(struct group *group, const struct core *core, uint32_t index,
                       struct error *err) MUST_USE;
void group_deinit(struct group *group);
void group_take_ready(struct core *core, struct group *group, const struct core_input *input);
void group_take_lost(struct core *core, struct group *group);
void group_take_result(struct core *core, struct group *group, uint32_t rank,
                       const struct step_result *result);
void group_take_resize(struct core *core, struct group *group, const struct core_input *input);
// Finishes everything that runs there.
void group_finish_running(struct core *core, struct group *group, enum finish_reason reason);
// Overdue steps, workers that stay away, and the next plans.
void group_turn(struct core *core, struct group *group);
uint64_t group_overdue_us(const struct core *core, const struct group *group, uint64_t now_us);
// Its ranks diverged twice within an hour: requests go elsewhere where they are not late
// (serving.md 4.6).
bool group_is_doubted(const struct group *group, uint64_t now_us);

#endif
