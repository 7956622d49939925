// SPDX-License-Identifier: Apache-2.0
#include "controller/core/prediction.h"

#include "common/bounds.h"

enum {
    ALONE_TOKENS = 256,     // of a step that computes one prompt
    PACE_SEQUENCES = 16,    // that ended while others waited, before their pace is believed
    PRICE_STEPS = 32,       // with prompts, before a group's own cost is compared with others'
};
static const double END_US = 50000;    // until a sequence ends, before a pace is known

bool prediction_learnt(const struct group *group) {
    return scheduler_cost(group->scheduler)->steps >= COST_LEARNT_STEPS;
}

static double alone_us(const struct cost_model *cost, uint64_t tokens) {
    struct cost_shape one = {0};
    cost_shape_add_chunk(&one, 0, ALONE_TOKENS);
    return (double)tokens * cost_model_us(cost, &one) / ALONE_TOKENS;
}

double prediction_alone_us(const struct group *group, uint64_t tokens) {
    return alone_us(scheduler_cost(group->scheduler), tokens);
}

static double token_us(const struct core *core, const struct group *group,
                       const struct cost_model *cost) {
    const struct core_policy *policy = &core->config.policy;
    struct scheduler_load load;
    scheduler_load(group->scheduler, &load);
    struct cost_shape step = {0};
    if (load.running > 0) {
        step.decode_rows = load.decode_rows;
        step.decode_context = load.decode_context;
    }
    uint32_t room = load.step_tokens > step.decode_rows ? load.step_tokens - step.decode_rows : 1;
    double budget_us = step.decode_rows == 0 ? policy->prefill_step_us : policy->itl_target_us;
    uint32_t chunk = cost_model_chunk(cost, &step, 0, room, budget_us);
    uint32_t least = group->limits.block_tokens < room ? group->limits.block_tokens : room;
    chunk = chunk > least ? chunk : least;    // as the scheduler does
    cost_shape_add_chunk(&step, 0, chunk);
    return chunk == 0 ? 0.0 : cost_model_us(cost, &step) / chunk;
}

double prediction_token_us(const struct core *core, const struct group *group) {
    return token_us(core, group, scheduler_cost(group->scheduler));
}

double prediction_first_token_us(const struct core *core, const struct group *group,
                                 const struct waiting_ahead *ahead, uint32_t uncached) {
    struct scheduler_load load;
    scheduler_load(group->scheduler, &load);
    uint64_t tokens = ahead->tokens + load.prefill_tokens + uncached;
    double compute_us = (double)tokens * prediction_token_us(core, group);
    double slot_us = 0;
    uint64_t wanted = (uint64_t)load.running + ahead->requests + 1;
    if (wanted > load.slots && group->ended_behind >= PACE_SEQUENCES) {
        slot_us = (double)(wanted - load.slots) * group->us_per_end;
    }
    return compute_us > slot_us ? compute_us : slot_us;
}

double prediction_allowed_us(const struct group *group, const struct core_request *spec,
                             double ttft_target_us) {
    return ttft_target_us + 2 * prediction_alone_us(group, spec->prompt_count);
}

// ---- comparing groups --------------------------------------------------------------------------

// Groups have alike devices: one that has computed few prompts is priced as the one that has
// computed the most, or its own guess would keep it idle, or flood it.
static const struct cost_model *price(const struct core *core, const struct group *group) {
    const struct cost_model *best = scheduler_cost(group->scheduler);
    for (uint32_t i = 0; i < core->config.groups_max && best->prompt_steps < PRICE_STEPS; i++) {
        const struct cost_model *other = scheduler_cost(core->groups[i].scheduler);
        best = other->prompt_steps > best->prompt_steps ? other : best;
    }
    return best;
}

// Until so many who have no slot now have one.
static double slots_us(const struct group *group, uint64_t requests) {
    bool known = group->ended_behind >= PACE_SEQUENCES;
    return (double)requests * (known ? group->us_per_end : END_US);
}

double prediction_placement_us(const struct core *core, const struct group *group, uint32_t known,
                               uint32_t uncached) {
    const struct cost_model *cost = price(core, group);
    struct scheduler_load load;
    scheduler_load(group->scheduler, &load);
    uint64_t tokens = load.waiting_tokens + load.prefill_tokens + uncached;
    double us = (double)tokens * token_us(core, group, cost);
    uint64_t wanted = (uint64_t)load.running + scheduler_waiting(group->scheduler) + 1;
    us += wanted > load.slots ? slots_us(group, wanted - load.slots) : 0;
    // Nothing wrong comes from a doubted one, but pauses do, and from one whose steps hang: it
    // serves where others are late.
    bool doubted = group_is_doubted(group, core->now_us) || group->late_losses > 1;
    us += doubted ? BOUND_DOUBTED_COST_US : 0;
    double filled = load.slots == 0 ? 1.0 : (double)load.running / load.slots;
    double held = load.blocks_total == 0 ? 1.0 : 1.0 - (double)load.blocks_free / load.blocks_total;
    double full = filled > held ? filled : held;
    // A full group makes it wait about as long as a prompt of its own length, over again.
    return us + full * full * alone_us(cost, known);
}
