// SPDX-License-Identifier: Apache-2.0
// Inputs, requests, and which group serves whom.
#include "controller/core/core.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/core_internal.h"
#include "controller/core/overload.h"
#include "controller/core/prediction.h"
#include <string.h>

// ---- classes -----------------------------------------------------------------------------------

static const char *const class_names[REQUEST_CLASS_COUNT] = {"realtime", "standard", "batch"};

const char *core_class_name(enum request_class class_) {
    return class_names[class_];
}

bool core_class_parse(const char *name, size_t name_bytes, enum request_class *out) {
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        if (strlen(class_names[c]) == name_bytes && memcmp(class_names[c], name, name_bytes) == 0) {
            *out = (enum request_class)c;
            return true;
        }
    }
    return false;
}

// ---- life cycle --------------------------------------------------------------------------------

void core_policy_defaults(struct core_policy *policy) {
    *policy = (struct core_policy){
        .itl_target_us = 100e3,
        .prefill_step_us = 500e3,
        .guard = {[REQUEST_CLASS_REALTIME] = 0.8,
                  [REQUEST_CLASS_STANDARD] = 0.95,
                  [REQUEST_CLASS_BATCH] = 0.95},
        .share_min = {[REQUEST_CLASS_STANDARD] = 0.1, [REQUEST_CLASS_BATCH] = 0.02},
        .hold_us = 2000 * 1000,
        .evictions_max = 2,
        .queued_tokens_max = CORE_QUEUED_TOKENS_AUTO,
    };
}

static bool in_range(double value, double least, double most) {
    return value >= least && value <= most;    // false for what is no number
}

static bool policy_in_bounds(const struct core_policy *policy) {
    const double longest_us = 1e15;
    bool sound = in_range(policy->itl_target_us, 0, longest_us) &&
                 in_range(policy->prefill_step_us, 0, longest_us) &&
                 policy->hold_us <= (uint64_t)longest_us;
    for (unsigned c = 0; c < REQUEST_CLASS_COUNT; c++) {
        sound = sound && in_range(policy->ttft_target_us[c], 0, longest_us) &&
                in_range(policy->guard[c], 0, 1) && in_range(policy->share_min[c], 0, 1);
    }
    return sound;
}

static enum status check_config(const struct core_config *config, struct error *err) {
    if (config->seqs_max == 0 || config->seqs_max > BOUND_SEQS ||
        config->waiting_max > BOUND_WAITING || config->step_tokens_max == 0 ||
        config->step_tokens_max > BOUND_STEP_TOKENS || config->blocks_max == 0 ||
        config->blocks_max > BOUND_BLOCKS || config->depth == 0 ||
        config->depth > SCHEDULER_DEPTH_MAX || config->groups_max == 0 ||
        config->groups_max > BOUND_GROUPS || config->tenant_max == 0 ||
        config->tenant_max > BOUND_TENANTS || config->ranks_max > BOUND_RANKS ||
        config->blocks_per_seq_max > BOUND_BLOCKS_PER_SEQ || !policy_in_bounds(&config->policy)) {
        return error_set(err, STATUS_INVALID, "core limits are outside their bounds");
    }
    return STATUS_OK;
}

static enum status create_parts(struct core *core, struct error *err) {
    const struct core_config *config = &core->config;
    uint32_t running = config->seqs_max * config->groups_max;
    TRY(request_table_create(running + config->waiting_max, &core->requests, err));
    TRY(step_plan_create(config->seqs_max, &core->plan, err));
    core->groups = memory_array(config->groups_max, sizeof *core->groups);
    core->owners = memory_array(BOUND_RESULT_ROWS, sizeof *core->owners);
    core->sweep_list = memory_array(request_table_max(core->requests), sizeof *core->sweep_list);
    if (core->groups == NULL || core->owners == NULL || core->sweep_list == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u groups", config->groups_max);
    }
    for (uint32_t i = 0; i < config->groups_max; i++) {
        TRY(group_init(&core->groups[i], core, i, err));
    }
    return STATUS_OK;
}

enum status core_create(const struct core_config *config, struct core **out, struct error *err) {
    TRY(check_config(config, err));
    struct core *core = memory_zalloc(sizeof *core);
    if (core == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the core");
    }
    core->config = *config;
    if (core->config.ranks_max == 0) {
        core->config.ranks_max = 1;
    }
    if (core->config.blocks_per_seq_max == 0) {
        core->config.blocks_per_seq_max = BOUND_BLOCKS_PER_SEQ;
    }
    enum status status = create_parts(core, err);
    if (status != STATUS_OK) {
        core_destroy(core);
        return status;
    }
    *out = core;
    return STATUS_OK;
}

void core_destroy(struct core *core) {
    if (core == NULL) {
        return;
    }
    for (uint32_t i = 0; core->groups != NULL && i < core->config.groups_max; i++) {
        group_deinit(&core->groups[i]);
    }
    memory_free(core->groups);
    memory_free(core->owners);
    memory_free(core->sweep_list);
    step_plan_destroy(core->plan);
    request_table_destroy(core->requests);
    memory_free(core);
}

// ---- actions -----------------------------------------------------------------------------------

void core_forget(struct core *core, uint32_t index) {
    core->scored_only -= request_at(core->requests, index)->spec.output_max == 0 ? 1 : 0;
    request_table_remove(core->requests, index);
}

// A slot came free.
static void learn_pace(const struct core *core, struct group *group) {
    bool behind = scheduler_waiting(group->scheduler) > 0;
    if (behind && group->last_end_us != 0) {
        double since_us = (double)(core->now_us - group->last_end_us);
        double part = group->ended_behind == 0 ? 1.0 : 0.1;
        group->us_per_end += part * (since_us - group->us_per_end);
        group->ended_behind++;
    }
    group->last_end_us = behind ? core->now_us : 0;
}

void core_finish(struct core *core, uint32_t index, enum finish_reason reason) {
    struct request *request = request_at(core->requests, index);
    struct group *group = &core->groups[request->group];
    struct core_action action = {
        .kind = CORE_ACTION_FINISHED,
        .finished = {.id = request->spec.id,
                     .reason = reason,
                     .prompt_count = request->spec.prompt_count,
                     .output_count = request->known - request->spec.prompt_count},
    };
    core->counters.requests_finished[request->spec.class_][reason]++;
    scheduler_charge(group->scheduler, index, 0, action.finished.output_count % CHARGED_OUTPUTS);
    if (request->state == REQUEST_WAITING) {
        scheduler_leave(group->scheduler, index);
    } else {
        scheduler_release(group->scheduler, index, group->next_seq);
        learn_pace(core, group);
    }
    core_forget(core, index);
    core_act(core, &action);
}

// ---- which group -------------------------------------------------------------------------------

// The ready group with the least cost, of those where it fits; NULL when there is none.
static struct group *choose_group(struct core *core, struct request *request) {
    struct group *best = NULL;
    double best_us = 0;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        struct group *group = &core->groups[i];
        if (!group->ready || scheduler_misfit(group->scheduler, request)) {
            continue;
        }
        if (core->config.groups_max == 1) {
            return group;
        }
        uint32_t cached = scheduler_overlap(group->scheduler, request) * group->limits.block_tokens;
        uint32_t uncached = cached < request->known ? request->known - cached : 1;
        double us = prediction_placement_us(core, group, request->known, uncached);
        if (best == NULL || us < best_us) {
            best = group;
            best_us = us;
        }
    }
    return best;
}

bool core_is_ready(const struct core *core) {
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        if (core->groups[i].ready) {
            return true;
        }
    }
    return false;
}

// One that had a worker before, and may have one again.
static struct group *any_group(struct core *core) {
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        if (core->groups[i].epoch != 0) {
            return &core->groups[i];
        }
    }
    return NULL;
}

void core_place_again(struct core *core, uint32_t index) {
    struct request *request = request_at(core->requests, index);
    INVARIANT(request->state == REQUEST_WAITING);
    struct group *now = &core->groups[request->group];
    struct group *group = choose_group(core, request);
    if (group == now || (group == NULL && !now->ready)) {
        return;    // it waits there for a worker
    }
    if (group == NULL) {
        core_finish(core, index, FINISH_REASON_FAULT);
        return;
    }
    scheduler_leave(now->scheduler, index);
    request->group = group->index;
    request->keys_known = 0;    // of blocks of another size, perhaps
    scheduler_enter(group->scheduler, index);
}

// ---- requests ----------------------------------------------------------------------------------

static bool has_output_or_score(const struct core_request *spec) {
    return spec->output_max > 0 || spec->sampling.want_prompt_logprobs;
}

static void check_spec(const struct core *core, const struct core_request *spec) {
    INVARIANT(spec->id.value != 0);
    INVARIANT(spec->prompt_count > 0);
    INVARIANT(has_output_or_score(spec));
    INVARIANT((uint64_t)spec->prompt_count + spec->output_max <= spec->token_capacity);
    INVARIANT(spec->resumed_count == 0 || spec->resumed_count < spec->output_max);
    INVARIANT(spec->class_ < REQUEST_CLASS_COUNT);
    INVARIANT(spec->tenant < core->config.tenant_max);
    INVARIANT(spec->weight >= 0 && spec->weight <= CORE_WEIGHT_MAX);
}

static void take_request(struct core *core, const struct core_request *spec) {
    check_spec(core, spec);
    struct refusal refusal;
    if (overload_refuses_spec(core, spec, &refusal)) {
        overload_reject(core, spec, &refusal);
        return;
    }
    uint32_t index = request_table_add(core->requests, spec);
    INVARIANT(index != REQUEST_NONE);    // it has room for who runs and who may wait
    struct request *request = request_at(core->requests, index);
    core->scored_only += spec->output_max == 0 ? 1 : 0;
    request->arrived_us = core->now_us;
    struct group *group = choose_group(core, request);
    group = group != NULL ? group : any_group(core);
    if (overload_refuses(core, index, group, &refusal)) {
        core_forget(core, index);
        overload_reject(core, spec, &refusal);
        return;
    }
    request->group = group->index;
    scheduler_enter(group->scheduler, index);
}

static void end_request(struct core *core, struct request_id id, enum finish_reason reason) {
    uint32_t index = request_find(core->requests, id);
    if (index != REQUEST_NONE) {
        core_finish(core, index, reason);
    }
}

// Finishes everything, running and waiting.
static void finish_all(struct core *core, enum finish_reason reason) {
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        group_finish_running(core, &core->groups[i], reason);
    }
    for (uint32_t i = 0; i < request_table_max(core->requests); i++) {
        if (request_is_live(core->requests, i)) {
            core_finish(core, i, reason);
        }
    }
}

// ---- the tick ----------------------------------------------------------------------------------

static struct group *group_of(struct core *core, struct worker_id worker) {
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        struct group *group = &core->groups[i];
        if (group->ready && group->worker.value == worker.value) {
            return group;
        }
    }
    return NULL;
}

static void take_result(struct core *core, const struct core_input *input) {
    struct group *group = group_of(core, input->result.worker);
    if (group == NULL) {
        core->counters.results_stale++;
    } else {
        group_take_result(core, group, input->result.rank, input->result.result);
    }
}

// Whoever waits for a group that is away goes to one that came.
static void gather_stranded(struct core *core) {
    for (uint32_t i = 0; i < request_table_max(core->requests); i++) {
        if (request_is_live(core->requests, i) &&
            request_at(core->requests, i)->state == REQUEST_WAITING &&
            !core->groups[request_at(core->requests, i)->group].ready) {
            core_place_again(core, i);
        }
    }
}

static void take_input(struct core *core, const struct core_input *input) {
    struct group *group = NULL;
    switch (input->kind) {
    case CORE_INPUT_REQUEST:
        take_request(core, input->request);
        break;
    case CORE_INPUT_CANCEL:
        end_request(core, input->id, FINISH_REASON_CANCELLED);
        break;
    case CORE_INPUT_STOP:
        end_request(core, input->id, FINISH_REASON_STOP);
        break;
    case CORE_INPUT_WORKER_READY:
        INVARIANT(input->ready.group < core->config.groups_max);
        INVARIANT(input->ready.world >= 1 && input->ready.world <= core->config.ranks_max);
        group_take_ready(core, &core->groups[input->ready.group], input);
        gather_stranded(core);
        break;
    case CORE_INPUT_WORKER_LOST:
        group = group_of(core, input->lost.worker);
        if (group != NULL) {
            group_take_lost(core, group);
        }
        break;
    case CORE_INPUT_RESULT:
        take_result(core, input);
        break;
    case CORE_INPUT_RESIZE_KV:
        INVARIANT(input->resize.group < core->config.groups_max);
        group_take_resize(core, &core->groups[input->resize.group], input);
        break;
    case CORE_INPUT_DRAIN:
        core->draining = true;
        break;
    case CORE_INPUT_ABORT_ALL:
        core->draining = true;
        finish_all(core, FINISH_REASON_SHUTDOWN);
        break;
    }
}

// No group has had a worker for too long.
static bool is_given_up(const struct core *core) {
    bool had_one = false;
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        const struct group *group = &core->groups[i];
        if (group->epoch == 0) {
            continue;
        }
        had_one = true;
        if (group->ready || core->now_us - group->away_since_us <= BOUND_RECOVERY_US) {
            return false;
        }
    }
    return had_one;
}

void core_tick(struct core *core, uint64_t now_us, const struct core_input *inputs,
               uint32_t input_count, core_action_fn action, void *ctx) {
    INVARIANT(now_us >= core->now_us);
    core->now_us = now_us;
    core->action = action;
    core->action_ctx = ctx;
    for (uint32_t i = 0; i < input_count; i++) {
        take_input(core, &inputs[i]);
    }
    if (is_given_up(core)) {
        finish_all(core, FINISH_REASON_FAULT);
    }
    overload_sweep(core);
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        group_turn(core, &core->groups[i]);
    }
    if (core->draining && !core->drained_told && request_table_count(core->requests) == 0) {
        core->drained_told = true;
        core_act(core, &(struct core_action){.kind = CORE_ACTION_DRAINED});
    }
}

// ---- queries -----------------------------------------------------------------------------------

const struct core_counters *core_counters(const struct core *core) {
    return &core->counters;
}

const struct message_capacity *core_group_capacity(const struct core *core, uint32_t group) {
    INVARIANT(group < core->config.groups_max);
    return core->groups[group].epoch == 0 ? NULL : &core->groups[group].capacity;
}

const struct message_capacity *core_capacity(const struct core *core) {
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        if (core->groups[i].epoch != 0) {
            return &core->groups[i].capacity;
        }
    }
    return NULL;
}

static void add_gauges(const struct core *core, const struct group *group, uint64_t now_us,
                       struct core_gauges *out) {
    struct scheduler_counts counts;
    scheduler_count(group->scheduler, &counts);
    struct scheduler_load load;
    scheduler_load(group->scheduler, &load);
    out->queued += scheduler_waiting(group->scheduler);
    out->queued_tokens += load.waiting_tokens;
    out->prefilling += counts.prefilling;
    out->decoding += counts.decoding;
    out->paused += counts.paused;
    out->kv_blocks_total += kv_blocks_total(group->blocks);
    out->kv_blocks_free += kv_blocks_free(group->blocks);
    out->kv_blocks_quarantined += kv_blocks_quarantined(group->blocks);
    out->kv_blocks_held += kv_blocks_held(group->blocks);
    out->kv_blocks_cached += kv_blocks_cached(group->blocks);
    out->kv_resizing = out->kv_resizing || scheduler_resizing(group->scheduler);
    out->ready = out->ready || group->ready;
    out->doubted = out->doubted || group_is_doubted(group, now_us);
    uint64_t overdue_us = group_overdue_us(core, group, now_us);
    out->step_overdue_us = overdue_us > out->step_overdue_us ? overdue_us : out->step_overdue_us;
}

static void add_waiting(const struct core *core, uint32_t group, uint64_t now_us,
                        struct core_gauges *out) {
    for (uint32_t i = 0; i < request_table_max(core->requests) && out->queued > 0; i++) {
        if (!request_is_live(core->requests, i)) {
            continue;
        }
        const struct request *request = request_at(core->requests, i);
        bool counts = group == UINT32_MAX || request->group == group;
        if (request->state != REQUEST_WAITING || !counts) {
            continue;
        }
        uint64_t age_us = now_us - request->arrived_us;
        out->queue_oldest_us = age_us > out->queue_oldest_us ? age_us : out->queue_oldest_us;
    }
}

void core_group_gauges(const struct core *core, uint32_t group, uint64_t now_us,
                       struct core_gauges *out) {
    INVARIANT(group < core->config.groups_max);
    *out = (struct core_gauges){.draining = core->draining};
    add_gauges(core, &core->groups[group], now_us, out);
    add_waiting(core, group, now_us, out);
}

void core_gauges(const struct core *core, uint64_t now_us, struct core_gauges *out) {
    *out = (struct core_gauges){.draining = core->draining};
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        add_gauges(core, &core->groups[i], now_us, out);
    }
    add_waiting(core, UINT32_MAX, now_us, out);
}

void core_audit(const struct core *core) {
    request_table_audit(core->requests);
    for (uint32_t i = 0; i < core->config.groups_max; i++) {
        scheduler_audit(core->groups[i].scheduler);
    }
}
