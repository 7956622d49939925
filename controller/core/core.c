// SPDX-License-Identifier: Apache-2.0
#include "controller/core/core.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/kv_blocks.h"
#include "controller/core/request.h"
#include "controller/core/scheduler.h"
#include "controller/core/step_plan.h"
#include <string.h>

// A plan that is out.
struct outstanding {
    uint64_t seq, sent_us;
    uint32_t rows, prompt_rows, moves;
};

struct core {
    struct core_config config;
    struct request_table *requests;
    struct kv_blocks *blocks;
    struct scheduler *scheduler;
    struct step_plan *plan;
    struct core_counters counters;
    // The worker of the group.
    bool ready;
    struct worker_id worker;
    uint64_t epoch;
    uint64_t next_seq;
    struct outstanding outstanding[SCHEDULER_DEPTH_MAX];    // ring of plans without a result
    uint32_t outstanding_first, outstanding_count;
    uint64_t answered_us;    // when the last result came
    // A plan was refused: those behind it are not done either, and are waited for.
    bool refused;
    uint64_t refused_seq;
    bool condemned;    // a request was failed for a refused plan, and no row was computed since
    uint64_t away_since_us;    // when the worker was lost, while !ready
    struct message_capacity capacity;
    struct plan_limits limits;
    struct {
        uint64_t operation;
        uint32_t asked, before;
        bool needed;    // the end is not as low as asked
    } resize;           // while scheduler_resizing
    bool draining;
    bool drained_told;
    // Predictions.
    double us_per_row;       // of a step, smoothed
    double us_per_finish;    // between terminal actions, smoothed
    uint64_t last_finish_us;
    // Of the running tick.
    uint64_t now_us;
    core_action_fn action;
    void *action_ctx;
};

// ---- life cycle --------------------------------------------------------------------------------

static enum status check_config(const struct core_config *config, struct error *err) {
    if (config->seqs_max == 0 || config->seqs_max > BOUND_SEQS ||
        config->waiting_max > BOUND_WAITING || config->step_tokens_max == 0 ||
        config->step_tokens_max > BOUND_STEP_TOKENS || config->blocks_max == 0 ||
        config->blocks_max > BOUND_BLOCKS || config->depth == 0 ||
        config->depth > SCHEDULER_DEPTH_MAX) {
        return error_set(err, STATUS_INVALID, "core limits are outside their bounds");
    }
    return STATUS_OK;
}

static enum status create_parts(struct core *core, struct error *err) {
    const struct core_config *config = &core->config;
    TRY(request_table_create(config->seqs_max + config->waiting_max, &core->requests, err));
    TRY(kv_blocks_create(config->blocks_max, &core->blocks, err));
    TRY(step_plan_create(config->seqs_max, &core->plan, err));
    struct scheduler_options options = {
        .requests = core->requests,
        .blocks = core->blocks,
        .seqs_max = config->seqs_max,
        .step_tokens_max = config->step_tokens_max,
        .blocks_per_seq_max = BOUND_BLOCKS_PER_SEQ,
        .prefix_secret = config->prefix_secret,
    };
    return scheduler_create(&options, &core->scheduler, err);
}

enum status core_create(const struct core_config *config, struct core **out, struct error *err) {
    TRY(check_config(config, err));
    struct core *core = memory_zalloc(sizeof *core);
    if (core == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the core");
    }
    core->config = *config;
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
    scheduler_destroy(core->scheduler);
    step_plan_destroy(core->plan);
    kv_blocks_destroy(core->blocks);
    request_table_destroy(core->requests);
    memory_free(core);
}

// ---- actions -----------------------------------------------------------------------------------

static void act(struct core *core, const struct core_action *action) {
    core->action(core->action_ctx, action);
}

static bool is_running(const struct request *request) {
    return request->state == REQUEST_PREFILLING || request->state == REQUEST_DECODING;
}

// The one way out for a request that was accepted.
static void finish(struct core *core, uint32_t index, enum finish_reason reason) {
    struct request *request = request_at(core->requests, index);
    struct core_action action = {
        .kind = CORE_ACTION_FINISHED,
        .finished = {.id = request->spec.id,
                     .reason = reason,
                     .prompt_count = request->spec.prompt_count,
                     .output_count = request->known - request->spec.prompt_count},
    };
    core->counters.requests_finished[request->spec.class_][reason]++;
    if (is_running(request)) {
        scheduler_release(core->scheduler, index, core->next_seq);
    }
    request_table_remove(core->requests, index);
    uint64_t since_us = core->now_us - core->last_finish_us;
    core->us_per_finish =
        core->last_finish_us == 0 ? 0.0 : 0.9 * core->us_per_finish + 0.1 * (double)since_us;
    core->last_finish_us = core->now_us;
    act(core, &action);
}

static void reject(struct core *core, const struct core_request *spec, enum reject_reason reason,
                   uint32_t retry_after_ms) {
    core->counters.requests_rejected[spec->class_][reason]++;
    struct core_action action = {
        .kind = CORE_ACTION_REJECTED,
        .rejected = {.id = spec->id, .reason = reason, .retry_after_ms = retry_after_ms},
    };
    act(core, &action);
}

// ---- requests ----------------------------------------------------------------------------------

// Time until half of the line is served, at the recent pace.
static uint32_t retry_after_ms(const struct core *core) {
    double waiting = (double)request_waiting_count(core->requests);
    double ms = waiting * 0.5 * core->us_per_finish / 1000.0;
    if (ms < 1000.0) {
        return 1000;
    }
    return ms > BOUND_RETRY_AFTER_MS ? BOUND_RETRY_AFTER_MS : (uint32_t)ms;
}

static bool has_output_or_score(const struct core_request *spec) {
    return spec->output_max > 0 || spec->sampling.want_prompt_logprobs;
}

static void take_request(struct core *core, const struct core_request *spec) {
    INVARIANT(spec->id.value != 0);
    INVARIANT(spec->prompt_count > 0);
    INVARIANT(has_output_or_score(spec));
    INVARIANT((uint64_t)spec->prompt_count + spec->output_max <= spec->token_capacity);
    INVARIANT(spec->class_ < REQUEST_CLASS_COUNT);
    if (core->draining) {
        reject(core, spec, REJECT_REASON_DRAINING, 1000);
        return;
    }
    if (core->epoch == 0) {
        reject(core, spec, REJECT_REASON_UNAVAILABLE, 1000);
        return;
    }
    if (core->ready && scheduler_too_large(core->scheduler, spec)) {
        reject(core, spec, REJECT_REASON_TOO_LARGE, 0);
        return;
    }
    bool full = request_waiting_count(core->requests) >= core->config.waiting_max;
    if (full || request_table_add(core->requests, spec) == REQUEST_NONE) {
        reject(core, spec, REJECT_REASON_QUEUE_FULL, retry_after_ms(core));
        return;
    }
    request_at(core->requests, request_find(core->requests, spec->id))->arrived_us = core->now_us;
}

static void end_request(struct core *core, struct request_id id, enum finish_reason reason) {
    uint32_t index = request_find(core->requests, id);
    if (index != REQUEST_NONE) {
        finish(core, index, reason);
    }
}

// Finishes everything, running and waiting, in the order of the table.
static void finish_all(struct core *core, enum finish_reason reason) {
    for (uint32_t slot = 0; slot < core->limits.envelope.seqs; slot++) {
        // Any generation will do: ask for the one that is there.
        uint32_t index = scheduler_slot_request(core->scheduler, slot);
        if (index != REQUEST_NONE) {
            finish(core, index, reason);
        }
    }
    uint32_t index;
    while ((index = request_waiting_first(core->requests)) != REQUEST_NONE) {
        finish(core, index, reason);
    }
}

// ---- the worker --------------------------------------------------------------------------------

// A worker may come back with less than it had. Who waits and can never run there fails now: it
// would block the line for ever, or break the plan that admits it.
static void drop_misfits(struct core *core, uint32_t vocabulary_before) {
    bool fewer_tokens = core->limits.vocabulary < vocabulary_before;
    uint32_t index = request_waiting_first(core->requests);
    while (index != REQUEST_NONE) {
        uint32_t next = request_waiting_next(core->requests, index);
        // With fewer tokens, a prompt may hold one that is not there: rare enough to fail them all.
        if (fewer_tokens || scheduler_misfit(core->scheduler, request_at(core->requests, index))) {
            finish(core, index, FINISH_REASON_FAULT);
        }
        index = next;
    }
}

static void tell_resized(struct core *core, enum resize_outcome outcome, uint32_t after,
                         const char *note) {
    act(core, &(struct core_action){.kind = CORE_ACTION_RESIZED,
                                    .resized = {.operation = core->resize.operation,
                                                .outcome = outcome,
                                                .asked = core->resize.asked,
                                                .before = core->resize.before,
                                                .after = after,
                                                .note = note}});
}

// The group's slots and blocks are gone, and with them a resize that was under way.
static void stop_scheduler(struct core *core) {
    bool resizing = scheduler_resizing(core->scheduler);
    scheduler_stop(core->scheduler);
    if (resizing) {
        tell_resized(core, RESIZE_OUTCOME_LOST, core->resize.before, NULL);
    }
}

static void forget_plans(struct core *core) {
    core->outstanding_count = 0;
    core->refused = false;
}

// Running requests wait again with their token logs. Who was lost too often fails.
static void lose_worker(struct core *core) {
    if (!core->ready) {
        return;
    }
    core->ready = false;
    forget_plans(core);
    core->away_since_us = core->now_us;
    for (uint32_t slot = 0; slot < core->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(core->scheduler, slot);
        if (index == REQUEST_NONE) {
            continue;
        }
        struct request *request = request_at(core->requests, index);
        core->counters.tokens_recomputed += request->computed;
        if (++request->resumes > BOUND_RESUMES) {
            finish(core, index, FINISH_REASON_FAULT);
        }
    }
    stop_scheduler(core);
}

static void take_lost(struct core *core, const struct core_input *input) {
    if (core->ready && core->worker.value == input->lost.worker.value) {
        lose_worker(core);
    }
}

static void resync(struct core *core) {
    struct core_action action = {.kind = CORE_ACTION_RESYNC, .resync = {.worker = core->worker}};
    core->counters.resyncs++;
    lose_worker(core);
    act(core, &action);
}

// The worker's answer to a resize: what the pool has now.
static void take_pool(struct core *core, const struct message_capacity *capacity) {
    bool resizing = scheduler_resizing(core->scheduler);
    uint32_t after = capacity->kv_blocks;
    if (after > core->config.blocks_max) {
        after = core->config.blocks_max;
    }
    core->capacity = *capacity;
    core->capacity.kv_blocks = after;
    core->limits.kv_blocks = after;
    core->answered_us = core->now_us;    // the plan behind the resize begins only now
    if (!scheduler_set_pool(core->scheduler, after)) {
        resync(core);    // it gave away blocks that are in use
        return;
    }
    if (!resizing) {
        return;
    }
    enum resize_outcome outcome = RESIZE_OUTCOME_DONE;
    if (core->resize.needed) {
        outcome = RESIZE_OUTCOME_NEEDED;
    } else if (after < core->resize.asked) {
        outcome = RESIZE_OUTCOME_SHORT;
    } else if (after > core->resize.asked) {
        outcome = RESIZE_OUTCOME_ROUNDED;
    }
    tell_resized(core, outcome, after, capacity->kv_note);
}

static void take_resize(struct core *core, const struct core_input *input) {
    INVARIANT(input->resize.blocks > 0);
    struct scheduler *scheduler = core->scheduler;
    uint32_t total = kv_blocks_total(core->blocks);
    uint32_t asked = input->resize.blocks;
    if (core->ready && scheduler_resizing(scheduler)) {
        struct core_action busy = {.kind = CORE_ACTION_RESIZED,
                                   .resized = {.operation = input->resize.operation,
                                               .outcome = RESIZE_OUTCOME_BUSY,
                                               .asked = asked,
                                               .before = total,
                                               .after = total}};
        act(core, &busy);
        return;
    }
    core->resize.operation = input->resize.operation;
    core->resize.asked = asked;
    core->resize.before = total;
    core->resize.needed = false;
    if (!core->ready) {
        tell_resized(core, RESIZE_OUTCOME_UNAVAILABLE, total, NULL);
        return;
    }
    uint32_t end = asked;
    if (asked < total) {
        uint32_t floor = scheduler_pool_floor(scheduler);
        core->resize.needed = floor > asked;
        end = floor > asked ? floor : asked;
    } else if (end > core->config.blocks_max) {
        end = core->config.blocks_max;
    }
    if (end < total) {
        scheduler_shrink(scheduler, end);
    } else if (end > total && asked > total) {
        scheduler_grow(scheduler, end);
    } else {
        tell_resized(core, core->resize.needed ? RESIZE_OUTCOME_NEEDED : RESIZE_OUTCOME_DONE, total,
                     NULL);
    }
}

static void take_ready(struct core *core, const struct core_input *input) {
    const struct message_capacity *capacity = input->ready.capacity;
    uint32_t vocabulary = core->limits.vocabulary;
    if (core->ready && input->ready.epoch == core->epoch) {
        take_pool(core, capacity);
        return;
    }
    if (input->ready.epoch <= core->epoch) {
        return;    // an old report
    }
    if (core->ready) {
        stop_scheduler(core);
    }
    core->ready = true;
    core->worker = input->ready.worker;
    core->epoch = input->ready.epoch;
    core->next_seq = 1;
    forget_plans(core);
    core->condemned = false;
    core->capacity = *capacity;
    core->limits = (struct plan_limits){.envelope = capacity->envelope,
                                        .block_tokens = capacity->block_tokens,
                                        .kv_blocks = capacity->kv_blocks,
                                        .vocabulary = capacity->vocabulary};
    if (core->limits.kv_blocks > core->config.blocks_max) {
        core->limits.kv_blocks = core->config.blocks_max;
        core->capacity.kv_blocks = core->config.blocks_max;
    }
    if (core->limits.envelope.seqs > core->config.seqs_max) {
        core->limits.envelope.seqs = core->config.seqs_max;
    }
    scheduler_start(core->scheduler, &core->capacity);
    drop_misfits(core, vocabulary);
}

// ---- results -----------------------------------------------------------------------------------

static bool is_stop_token(const struct sampling_params *sampling, int32_t token) {
    for (uint32_t i = 0; i < sampling->stop_token_count; i++) {
        if (sampling->stop_tokens[i] == token) {
            return true;
        }
    }
    return false;
}

static void take_row(struct core *core, const struct result_row *row) {
    uint32_t index = scheduler_owner(core->scheduler, row->ref);
    if (index == REQUEST_NONE) {
        return;    // its request ended while the step ran
    }
    struct request *request = request_at(core->requests, index);
    bool stop = false;
    if (!row->is_prompt) {
        INVARIANT(row->position == request->known);
        INVARIANT(request->known < request->len_max);
        scheduler_advance(core->scheduler, index, row->position);
        request->spec.tokens[request->known++] = row->token;
        core->counters.tokens_generated++;
        stop = is_stop_token(&request->spec.sampling, row->token);
    }
    bool first = !row->is_prompt && row->position == request->spec.prompt_count;
    struct core_action action = {
        .kind = CORE_ACTION_TOKEN,
        .token = {.id = request->spec.id,
                  .class_ = request->spec.class_,
                  .prefill_us = first ? core->now_us - request->admitted_us : 0,
                  .row = row,
                  .is_stop_token = stop},
    };
    act(core, &action);
    if (row->is_prompt) {
        return;
    }
    if (stop) {
        finish(core, index, FINISH_REASON_STOP);
    } else if (request->known == request->len_max) {
        finish(core, index, FINISH_REASON_LENGTH);
    }
}

// A result is only believed as a whole: each generated row must continue the log it belongs to.
static bool result_fits(const struct core *core, const struct step_result *result) {
    if (result_validate(result, &core->limits, NULL) != STATUS_OK) {
        return false;
    }
    // One generated row per sequence and step: a second one would not continue the log.
    bool generated[BOUND_SEQS] = {false};    // by slot
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        uint32_t index = scheduler_owner(core->scheduler, row->ref);
        if (index == REQUEST_NONE) {
            continue;
        }
        const struct request *request = request_at(core->requests, index);
        bool continues = row->position == request->known && request->known < request->len_max;
        bool scores = row->position < request->spec.prompt_count;
        if (row->is_prompt ? !scores : !continues) {
            return false;
        }
        if (!row->is_prompt) {
            INVARIANT(row->ref.slot < BOUND_SEQS);
            if (generated[row->ref.slot]) {
                return false;
            }
            generated[row->ref.slot] = true;
        }
    }
    return true;
}

// Prompts that were only scored end when their last chunk is computed.
static void finish_scored(struct core *core) {
    for (uint32_t slot = 0; slot < core->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(core->scheduler, slot);
        if (index == REQUEST_NONE) {
            continue;
        }
        const struct request *request = request_at(core->requests, index);
        if (request->spec.output_max == 0 && request->computed == request->known) {
            finish(core, index, FINISH_REASON_LENGTH);
        }
    }
}

static void learn_pace(struct core *core, const struct outstanding *plan,
                       const struct step_result *result) {
    if (plan->rows == 0) {
        return;
    }
    double us = (double)result->step_us / plan->rows;
    core->us_per_row = core->us_per_row == 0.0 ? us : 0.9 * core->us_per_row + 0.1 * us;
}

// A refused plan costs itself, and those sent behind it, which the worker did not do either: they
// never happened, its number is used again, the work comes back in smaller parts. Only where the
// slots are no longer the same on both sides a new epoch helps.
static void take_refusal(struct core *core, uint64_t refused_seq) {
    core->counters.plan_refusals++;
    uint32_t guilty = REQUEST_NONE;
    enum scheduler_refusal refusal = scheduler_refuse(core->scheduler, &guilty);
    // Two condemned in a row without a step between them: it is not the requests.
    bool state = refusal == SCHEDULER_REFUSAL_STATE ||
                 (refusal == SCHEDULER_REFUSAL_GUILTY && core->condemned);
    if (state) {
        resync(core);
        return;
    }
    core->next_seq = refused_seq;
    if (refusal == SCHEDULER_REFUSAL_GUILTY) {
        core->condemned = true;
        finish(core, guilty, FINISH_REASON_REFUSED);
    }
}

static const struct outstanding *oldest(const struct core *core) {
    return core->outstanding_count == 0 ? NULL : &core->outstanding[core->outstanding_first];
}

static void pop_oldest(struct core *core) {
    core->outstanding_first = (core->outstanding_first + 1) % SCHEDULER_DEPTH_MAX;
    core->outstanding_count--;
    core->answered_us = core->now_us;
}

// While plans behind a refused one are waited for, their answers say that they were not done.
static void take_undone(struct core *core, const struct step_result *result) {
    if (result->status == RESULT_STATUS_OK || result->status == RESULT_STATUS_FAULT) {
        resync(core);
        return;
    }
    uint64_t first = core->refused_seq;
    pop_oldest(core);
    if (core->outstanding_count == 0) {
        core->refused = false;
        take_refusal(core, first);
    }
}

static void take_result(struct core *core, const struct core_input *input) {
    const struct step_result *result = input->result.result;
    const struct outstanding *plan = oldest(core);
    bool ours = core->ready && core->worker.value == input->result.worker.value &&
                result->epoch == core->epoch && plan != NULL && result->seq == plan->seq;
    if (!ours) {
        core->counters.results_stale++;
        return;
    }
    if (result->status == RESULT_STATUS_REFUSED && !core->refused) {
        core->refused = true;
        core->refused_seq = result->seq;
    }
    if (core->refused) {
        take_undone(core, result);
        return;
    }
    if (result->status != RESULT_STATUS_OK || !result_fits(core, result)) {
        resync(core);
        return;
    }
    struct outstanding done = *plan;
    pop_oldest(core);
    core->condemned = core->condemned && done.rows == 0;
    core->counters.tokens_prompt_computed += done.prompt_rows;
    core->counters.kv_blocks_moved += done.moves;
    learn_pace(core, &done, result);
    scheduler_complete(core->scheduler, result->seq);
    for (uint32_t i = 0; i < result->row_count; i++) {
        take_row(core, &result->rows[i]);
    }
    finish_scored(core);
}

// A step is overdue past six times its predicted time, and never before a second.
static uint64_t step_overdue_us(const struct core *core, uint64_t now_us) {
    const struct outstanding *plan = oldest(core);
    if (plan == NULL) {
        return 0;
    }
    uint64_t predicted = (uint64_t)(6.0 * core->us_per_row * plan->rows);
    // Without experience any step may take long: the first one of a large model, for example.
    uint64_t floor_us = core->us_per_row == 0.0 ? 30u * 1000 * 1000 : 1000 * 1000;
    if (scheduler_pool_answering(core->scheduler)) {
        floor_us = BOUND_RESIZE_US;
    }
    uint64_t allowed = predicted > floor_us ? predicted : floor_us;
    // It began when it was sent, or when the one before it was done.
    uint64_t begun_us = plan->sent_us > core->answered_us ? plan->sent_us : core->answered_us;
    uint64_t elapsed = now_us - begun_us;
    return elapsed > allowed ? elapsed - allowed : 0;
}

// ---- the tick ----------------------------------------------------------------------------------

static void take_input(struct core *core, const struct core_input *input) {
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
        take_ready(core, input);
        break;
    case CORE_INPUT_WORKER_LOST:
        take_lost(core, input);
        break;
    case CORE_INPUT_RESULT:
        take_result(core, input);
        break;
    case CORE_INPUT_RESIZE_KV:
        take_resize(core, input);
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

static uint32_t plan_rows(const struct plan *plan) {
    uint32_t rows = plan->decode_rows;
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        rows += plan->prefills[i].token_count;
    }
    return rows;
}

static void tell_admissions(struct core *core, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        uint32_t index = scheduler_owner(core->scheduler, plan->admits[i].ref);
        struct request *request = request_at(core->requests, index);
        if (request->admitted_us != 0) {
            continue;    // resumed after a loss
        }
        request->admitted_us = core->now_us;
        core->counters.prefix_queries += request->spec.prompt_count;
        core->counters.prefix_hits += request->cached;
        core->counters.tokens_prompt_cached += request->cached;
        act(core, &(struct core_action){.kind = CORE_ACTION_ADMITTED,
                                        .admitted = {.id = request->spec.id,
                                                     .class_ = request->spec.class_,
                                                     .queue_us = core->now_us - request->arrived_us,
                                                     .cached_tokens = request->cached}});
    }
}

// A step that takes long gains nothing from a plan that waits behind it, and whoever arrives
// meanwhile would wait for both.
static bool may_send(const struct core *core) {
    const struct outstanding *plan = oldest(core);
    if (plan == NULL) {
        return true;
    }
    return core->outstanding_count < core->config.depth &&
           core->us_per_row * plan->rows <= BOUND_PIPELINED_STEP_US;
}

static bool send_plan(struct core *core) {
    if (!core->ready || core->refused || !may_send(core)) {
        return false;
    }
    step_plan_reset(core->plan);
    if (!scheduler_plan(core->scheduler, core->plan, core->next_seq)) {
        return false;
    }
    const struct plan *plan =
        step_plan_finish(core->plan, core->config.group, core->epoch, core->next_seq);
    struct error err = {0};
    enum status status = plan_validate(plan, &core->limits, &err);
    INVARIANT(status == STATUS_OK);
    uint32_t at = (core->outstanding_first + core->outstanding_count++) % SCHEDULER_DEPTH_MAX;
    uint32_t rows = plan_rows(plan);
    core->outstanding[at] = (struct outstanding){core->next_seq++, core->now_us, rows,
                                                 rows - plan->decode_rows, plan->move_count};
    core->counters.plans++;
    struct core_action action = {.kind = CORE_ACTION_SEND_PLAN,
                                 .send = {.worker = core->worker, .plan = plan}};
    act(core, &action);
    tell_admissions(core, plan);
    return true;
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
    if (step_overdue_us(core, now_us) > BOUND_STEP_LOST_US) {
        resync(core);    // its result will not come: a message was lost, or the worker hangs
    }
    bool given_up =
        !core->ready && core->epoch != 0 && now_us - core->away_since_us > BOUND_RECOVERY_US;
    if (given_up) {
        finish_all(core, FINISH_REASON_FAULT);
    }
    while (send_plan(core)) {
    }
    if (core->draining && !core->drained_told && request_table_count(core->requests) == 0) {
        core->drained_told = true;
        act(core, &(struct core_action){.kind = CORE_ACTION_DRAINED});
    }
}

// ---- queries -----------------------------------------------------------------------------------

const struct core_counters *core_counters(const struct core *core) {
    return &core->counters;
}

const struct message_capacity *core_capacity(const struct core *core) {
    return core->epoch == 0 ? NULL : &core->capacity;
}

void core_gauges(const struct core *core, uint64_t now_us, struct core_gauges *out) {
    struct scheduler_counts counts;
    scheduler_count(core->scheduler, &counts);
    *out = (struct core_gauges){
        .queued = request_waiting_count(core->requests),
        .prefilling = counts.prefilling,
        .decoding = counts.decoding,
        .kv_blocks_total = kv_blocks_total(core->blocks),
        .kv_blocks_free = kv_blocks_free(core->blocks),
        .kv_blocks_quarantined = kv_blocks_quarantined(core->blocks),
        .kv_blocks_held = kv_blocks_held(core->blocks),
        .kv_blocks_cached = kv_blocks_cached(core->blocks),
        .kv_resizing = scheduler_resizing(core->scheduler),
        .ready = core->ready,
        .draining = core->draining,
        .step_overdue_us = step_overdue_us(core, now_us),
    };
    uint32_t first = request_waiting_first(core->requests);
    if (first != REQUEST_NONE) {
        out->queue_oldest_us = now_us - request_at(core->requests, first)->arrived_us;
    }
    for (uint32_t i = first; i != REQUEST_NONE; i = request_waiting_next(core->requests, i)) {
        out->queued_tokens += request_at(core->requests, i)->known;
    }
}

void core_audit(const struct core *core) {
    request_table_audit(core->requests);
    scheduler_audit(core->scheduler);
}
