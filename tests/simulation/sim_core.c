// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_core.h"

#include "common/memory.h"
#include "controller/core/core.h"
#include "controller/core/prefix_index.h"
#include "tests/simulation/sim_fail.h"

enum { INPUTS_MAX = 256, FIRST_GROUP = 1 };

const char *const sim_end_name[SIM_END_COUNT] = {
    "none",    "stop",       "length",    "cancelled",   "fault",    "shutdown",
    "refused", "queue_full", "too_large", "unavailable", "draining",
};

struct sim_core {
    struct core *core;
    struct sim_listener listener;
    struct core_input inputs[INPUTS_MAX];
    struct core_request requests[INPUTS_MAX];
    uint32_t input_count;
};

static void set_policy(struct core_policy *policy, const struct sim_core_options *options) {
    core_policy_defaults(policy);
    policy->itl_target_us *= options->time_scale;
    policy->prefill_step_us *= options->time_scale;
    policy->hold_us = (uint64_t)((double)policy->hold_us * options->time_scale);
    for (int i = 0; i < REQUEST_CLASS_COUNT; i++) {
        if (options->ttft_target_s > 0 && i != REQUEST_CLASS_BATCH) {
            policy->ttft_target_us[i] = options->ttft_target_s * 1e6;
        }
        policy->guard[i] = options->no_guard ? 0 : policy->guard[i];
    }
}

struct sim_core *sim_core_create(const struct sim_core_options *options,
                                 const struct sim_listener *listener) {
    struct sim_core *core = memory_zalloc(sizeof *core);
    SIM_CHECK(core != NULL, "no memory for a core");
    core->listener = *listener;
    struct core_config config = {
        .seqs_max = options->seqs_max,
        .waiting_max = options->waiting_max,
        .step_tokens_max = options->step_tokens_max,
        .blocks_max = options->blocks_max,
        .group = FIRST_GROUP,
        .groups_max = options->groups,
        .ranks_max = options->ranks,
        .tenant_max = options->tenants,
        .blocks_per_seq_max = options->blocks_per_seq,
        .depth = options->depth,
        .prefix_secret = "simulated world",
    };
    set_policy(&config.policy, options);
    struct error err = {0};
    enum status status = core_create(&config, &core->core, &err);
    SIM_CHECK(status == STATUS_OK, "core_create: %s", err.message);
    return core;
}

void sim_core_destroy(struct sim_core *core) {
    if (core != NULL) {
        core_destroy(core->core);
        memory_free(core);
    }
}

// ---- inputs ------------------------------------------------------------------------------------

static struct core_input *add(struct sim_core *core, enum core_input_kind kind) {
    SIM_CHECK(core->input_count < INPUTS_MAX, "too many inputs for one tick");
    struct core_input *input = &core->inputs[core->input_count++];
    *input = (struct core_input){.kind = kind};
    return input;
}

bool sim_core_full(const struct sim_core *core) {
    return core->input_count + 8 >= INPUTS_MAX;
}

static enum request_class class_of(enum sim_class class_) {
    switch (class_) {
    case SIM_REALTIME:
        return REQUEST_CLASS_REALTIME;
    case SIM_BATCH:
        return REQUEST_CLASS_BATCH;
    default:
        return REQUEST_CLASS_STANDARD;
    }
}

void sim_core_request(struct sim_core *core, const struct sim_request *request) {
    struct core_request *out = &core->requests[core->input_count];
    *out = (struct core_request){
        .id = {request->id},
        .class_ = class_of(request->class_),
        .tenant = request->tenant,
        .tokens = request->tokens,
        .token_capacity = request->prompt_count + request->output_max,
        .prompt_count = request->prompt_count,
        .output_max = request->output_max,
        .sampling = {.top_p = 1.0f,
                     .repetition_penalty = 1.0f,
                     .seed = request->seed,
                     .want_logprobs = request->want_logprobs,
                     .want_prompt_logprobs = request->want_prompt_logprobs,
                     .presence_penalty = request->penalties ? 1.0f : 0.0f,
                     .stop_token_count = 1,
                     .stop_tokens = {0}},
        .keys = request->keys,
        .key_capacity = request->key_capacity,
        .salt = request->salt,
    };
    add(core, CORE_INPUT_REQUEST)->request = out;
}

void *sim_core_keys(uint32_t tokens, uint32_t *capacity) {
    *capacity = tokens / CORE_KEY_TOKENS;
    void *keys = memory_array(*capacity + 1, sizeof(struct prefix_key));
    SIM_CHECK(keys != NULL, "no memory for keys");
    return keys;
}

void sim_core_cancel(struct sim_core *core, uint64_t id) {
    add(core, CORE_INPUT_CANCEL)->id = (struct request_id){id};
}

void sim_core_stop(struct sim_core *core, uint64_t id) {
    add(core, CORE_INPUT_STOP)->id = (struct request_id){id};
}

void sim_core_ready(struct sim_core *core, const struct sim_ready *ready) {
    struct core_input *input = add(core, CORE_INPUT_WORKER_READY);
    input->ready.worker = (struct worker_id){ready->worker};
    input->ready.capacity = ready->capacity;
    input->ready.epoch = ready->epoch;
    input->ready.group = ready->group;
    input->ready.world = ready->ranks;
    input->ready.kv_kept = ready->kv_kept;
}

void sim_core_lost(struct sim_core *core, uint32_t worker) {
    struct core_input *input = add(core, CORE_INPUT_WORKER_LOST);
    input->lost.worker = (struct worker_id){worker};
    input->lost.reason = "simulated";
}

void sim_core_result(struct sim_core *core, uint32_t worker, uint32_t rank,
                     const struct step_result *result) {
    struct core_input *input = add(core, CORE_INPUT_RESULT);
    input->result.worker = (struct worker_id){worker};
    input->result.rank = rank;
    input->result.result = result;
}

void sim_core_resize(struct sim_core *core, uint32_t group, uint32_t blocks) {
    struct core_input *input = add(core, CORE_INPUT_RESIZE_KV);
    input->resize.operation = 1;
    input->resize.blocks = blocks;
    input->resize.group = group;
}

void sim_core_drain(struct sim_core *core) {
    add(core, CORE_INPUT_DRAIN);
}

void sim_core_abort_all(struct sim_core *core) {
    add(core, CORE_INPUT_ABORT_ALL);
}

// ---- actions -----------------------------------------------------------------------------------

static enum sim_end end_of_finish(enum finish_reason reason) {
    switch (reason) {
    case FINISH_REASON_STOP:
        return SIM_END_STOP;
    case FINISH_REASON_LENGTH:
        return SIM_END_LENGTH;
    case FINISH_REASON_CANCELLED:
        return SIM_END_CANCELLED;
    case FINISH_REASON_FAULT:
        return SIM_END_FAULT;
    case FINISH_REASON_SHUTDOWN:
        return SIM_END_SHUTDOWN;
    case FINISH_REASON_REFUSED:
        return SIM_END_REFUSED;
    default:
        sim_fail("a finish reason that nobody knows: %d", (int)reason);
    }
}

static enum sim_end end_of_reject(enum reject_reason reason) {
    switch (reason) {
    case REJECT_REASON_QUEUE_FULL:
    case REJECT_REASON_QUEUE_TOKENS:
    case REJECT_REASON_WOULD_MISS:
    case REJECT_REASON_MISSED:
        return SIM_END_QUEUE_FULL;
    case REJECT_REASON_TOO_LARGE:
        return SIM_END_TOO_LARGE;
    case REJECT_REASON_UNAVAILABLE:
        return SIM_END_UNAVAILABLE;
    case REJECT_REASON_DRAINING:
        return SIM_END_DRAINING;
    default:
        sim_fail("a reject reason that nobody knows: %d", (int)reason);
    }
}

static void act(void *ctx, const struct core_action *action) {
    struct sim_core *core = ctx;
    const struct sim_listener *to = &core->listener;
    switch (action->kind) {
    case CORE_ACTION_SEND_PLAN:
        to->plan(to->ctx, (uint32_t)(action->send.plan->group - FIRST_GROUP), action->send.plan);
        break;
    case CORE_ACTION_ADMITTED:
        to->admitted(to->ctx, action->admitted.id.value, action->admitted.cached_tokens);
        break;
    case CORE_ACTION_TOKEN:
        to->token(to->ctx, action->token.id.value, action->token.row);
        break;
    case CORE_ACTION_FINISHED:
        to->ended(to->ctx, action->finished.id.value, end_of_finish(action->finished.reason),
                  action->finished.output_count, 0);
        break;
    case CORE_ACTION_REJECTED:
        to->ended(to->ctx, action->rejected.id.value, end_of_reject(action->rejected.reason), 0,
                  action->rejected.retry_after_ms);
        break;
    case CORE_ACTION_DRAINED:
        to->drained(to->ctx);
        break;
    case CORE_ACTION_RESYNC:
        to->resync(to->ctx, action->resync.worker.value);
        break;
    case CORE_ACTION_RECOVERED:
        break;
    case CORE_ACTION_RESIZED:
        to->resized(to->ctx, action->resized.after);
        break;
    }
}

void sim_core_tick(struct sim_core *core, uint64_t now_us) {
    uint32_t count = core->input_count;
    core->input_count = 0;
    core_tick(core->core, now_us, core->inputs, count, act, core);
}

// ---- queries -----------------------------------------------------------------------------------

static void fill_state(const struct sim_core *core, const struct core_gauges *gauges,
                       struct sim_core_state *out) {
    const struct core_counters *counters = core_counters(core->core);
    uint64_t losses = 0;
    for (uint32_t why = 0; why < EPOCH_END_COUNT; why++) {
        losses += counters->epochs_ended[why];
    }
    *out = (struct sim_core_state){
        .queued = gauges->queued,
        .prefilling = gauges->prefilling,
        .decoding = gauges->decoding,
        .paused = gauges->paused,
        .blocks_total = gauges->kv_blocks_total,
        .blocks_free = gauges->kv_blocks_free,
        .blocks_quarantined = gauges->kv_blocks_quarantined,
        .blocks_held = gauges->kv_blocks_held,
        .blocks_cached = gauges->kv_blocks_cached,
        .resizing = gauges->kv_resizing,
        .plans = counters->plans,
        .generated = counters->tokens_generated,
        .prompt_computed = counters->tokens_prompt_computed,
        .recomputed = counters->tokens_recomputed,
        .preemptions = counters->preemptions,
        .refusals = counters->plan_refusals,
        .divergences = counters->epochs_ended[EPOCH_END_DIVERGED],
        .losses = losses,
        .losses_kept = counters->losses_kept,
        .prefix_queries = counters->prefix_queries,
        .prefix_hits = counters->prefix_hits,
    };
}

void sim_core_state(const struct sim_core *core, uint64_t now_us, struct sim_core_state *out) {
    struct core_gauges gauges;
    core_gauges(core->core, now_us, &gauges);
    fill_state(core, &gauges, out);
}

void sim_core_group_state(const struct sim_core *core, uint32_t group, uint64_t now_us,
                          struct sim_core_state *out) {
    struct core_gauges gauges;
    core_group_gauges(core->core, group, now_us, &gauges);
    fill_state(core, &gauges, out);
}

void sim_core_audit(const struct sim_core *core) {
    core_audit(core->core);
}

uint32_t sim_core_resumes_max(void) {
    return BOUND_RESUMES;
}

uint64_t sim_core_recovery_us(void) {
    return BOUND_RECOVERY_US;
}

uint64_t sim_core_step_lost_us(void) {
    return BOUND_STEP_LOST_US;
}

uint32_t sim_core_evictions_max(enum sim_class class_) {
    struct core_policy policy;
    core_policy_defaults(&policy);
    return class_ == SIM_BATCH ? policy.evictions_max : 0;
}
