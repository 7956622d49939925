// SPDX-License-Identifier: Apache-2.0
#include "controller/core/prediction.h"

enum {
    ALONE_TOKENS = 256,     // of a step that computes one prompt
    PACE_SEQUENCES = 16,    // that ended while others waited, before their pace is believed
};

bool prediction_learnt(const struct group *group) {
    return scheduler_cost(group->scheduler)->steps >= COST_LEARNT_STEPS;
}

double prediction_alone_us(const struct group *group, uint64_t tokens) {
    struct cost_shape one = {0};
    cost_shape_add_chunk(&one, 0, ALONE_TOKENS);
    return (double)tokens * cost_model_us(scheduler_cost(group->scheduler), &one) / ALONE_TOKENS;
}

double prediction_token_us(const struct core *core, const struct group *group) {
    const struct core_policy *policy = &core->config.policy;
    const struct cost_model *cost = scheduler_cost(group->scheduler);
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
