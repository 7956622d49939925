// SPDX-License-Identifier: Apache-2.0
// One group: its worker's coming and going, plans out and results in.
#include "common/integers.h"
#include "common/invariant.h"
#include "controller/core/core_internal.h"
#include <string.h>

// ---- life cycle --------------------------------------------------------------------------------

enum status group_init(struct group *g, const struct core *core, uint32_t index,
                       struct error *err) {
    const struct core_config *config = &core->config;
    g->index = index;
    g->id = config->group + index;
    TRY(kv_blocks_create(config->blocks_max, &g->blocks, err));
    uint32_t rows = config->step_tokens_max + config->seqs_max;
    TRY(rank_answers_create(rows, config->ranks_max, &g->answers, err));
    struct scheduler_options options = {
        .requests = core->requests,
        .blocks = g->blocks,
        .seqs_max = config->seqs_max,
        .step_tokens_max = config->step_tokens_max,
        .blocks_per_seq_max = config->blocks_per_seq_max,
        .prefix_secret = config->prefix_secret,
        .tenant_max = config->tenant_max,
        .policy = config->policy,
    };
    return scheduler_create(&options, &g->scheduler, err);
}

void group_deinit(struct group *g) {
    scheduler_destroy(g->scheduler);
    kv_blocks_destroy(g->blocks);
    rank_answers_destroy(g->answers);
}

// ---- the worker --------------------------------------------------------------------------------

static void tell_resized(struct core *core, struct group *g, enum resize_outcome outcome,
                         uint32_t after, const char *note) {
    core_act(core, &(struct core_action){.kind = CORE_ACTION_RESIZED,
                                         .resized = {.operation = g->resize.operation,
                                                     .outcome = outcome,
                                                     .asked = g->resize.asked,
                                                     .before = g->resize.before,
                                                     .after = after,
                                                     .note = note}});
}

// The group's slots and blocks are gone, and with them a resize that was under way.
static void stop_scheduler(struct core *core, struct group *g) {
    bool resizing = scheduler_resizing(g->scheduler);
    scheduler_stop(g->scheduler);
    if (resizing) {
        tell_resized(core, g, RESIZE_OUTCOME_LOST, g->resize.before, NULL);
    }
}

static void forget_plans(struct group *g, uint32_t world) {
    g->outstanding_count = 0;
    g->refused = false;
    rank_answers_reset(g->answers, world);
}

// What ran has lost its KV: it waits again with its token log.
static void drop_running(struct core *core, struct group *g) {
    for (uint32_t slot = 0; slot < g->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(g->scheduler, slot);
        core->counters.tokens_recomputed +=
            index == REQUEST_NONE ? 0 : request_at(core->requests, index)->computed;
    }
    g->suspended = false;
    stop_scheduler(core, g);
}

// Others may take over those who wait; where there is none, they wait for a worker.
static void place_stranded(struct core *core, const struct group *g) {
    for (uint32_t i = 0; i < request_table_max(core->requests); i++) {
        if (request_is_live(core->requests, i) &&
            request_at(core->requests, i)->state == REQUEST_WAITING &&
            request_at(core->requests, i)->group == g->index) {
            core_place_again(core, i);
        }
    }
}

// Whose work was under way at too many losses, at the same point of it, fails.
static void count_losses(struct core *core, struct group *g) {
    for (uint32_t slot = 0; slot < g->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(g->scheduler, slot);
        if (index == REQUEST_NONE) {
            continue;
        }
        struct request *request = request_at(core->requests, index);
        if (request->planned == request->computed) {
            continue;
        }
        bool again = request->resumes > 0 && request->computed == request->lost_at;
        request->resumes = again ? (uint8_t)(request->resumes + 1) : 1;
        request->lost_at = request->computed;
        if (request->resumes > BOUND_RESUMES) {
            core_finish(core, index, FINISH_REASON_FAULT);
        }
    }
}

bool group_is_doubted(const struct group *g, uint64_t now_us) {
    return g->diverged_us[0] != 0 && now_us - g->diverged_us[0] < BOUND_DOUBT_US;
}

// Of ranks that diverged no KV is used again, nor after an answer that cannot be.
static bool is_kv_sound(enum epoch_end why) {
    return why == EPOCH_END_LOST || why == EPOCH_END_LATE || why == EPOCH_END_STATE;
}

static void lose_worker(struct core *core, struct group *g, enum epoch_end why) {
    if (!g->ready) {
        return;
    }
    g->ready = false;
    forget_plans(g, 1);
    g->away_since_us = core->now_us;
    g->stuck_since_us = g->progressed ? core->now_us : g->stuck_since_us;
    g->progressed = false;
    g->lost_why = why;
    core->counters.epochs_ended[why]++;
    if (why == EPOCH_END_DIVERGED) {
        g->diverged_us[0] = g->diverged_us[1];
        g->diverged_us[1] = core->now_us;
    }
    count_losses(core, g);
    g->suspended = is_kv_sound(why) && scheduler_suspend(g->scheduler);
    if (!g->suspended) {
        drop_running(core, g);
    }
    place_stranded(core, g);
}

void group_take_lost(struct core *core, struct group *g) {
    lose_worker(core, g, EPOCH_END_LOST);
}

// A new epoch, in which the worker is told everything anew.
static void resync(struct core *core, struct group *g, enum epoch_end why) {
    struct core_action action = {
        .kind = CORE_ACTION_RESYNC,
        .resync = {.worker = g->worker, .why = why, .missing = rank_answers_missing(g->answers)}};
    lose_worker(core, g, why);
    action.resync.doubted = why == EPOCH_END_DIVERGED && group_is_doubted(g, core->now_us);
    core_act(core, &action);
}

static void tell_recovered(struct core *core, const struct group *g, bool kv_kept) {
    core_act(core,
             &(struct core_action){.kind = CORE_ACTION_RECOVERED,
                                   .recovered = {.worker = g->worker,
                                                 .why = g->lost_why,
                                                 .kv_kept = kv_kept,
                                                 .away_us = core->now_us - g->away_since_us}});
}

// The worker's answer to a resize: what the pool has now.
static void take_pool(struct core *core, struct group *g, const struct message_capacity *capacity) {
    bool resizing = scheduler_resizing(g->scheduler);
    uint32_t after = capacity->kv_blocks;
    if (after > core->config.blocks_max) {
        after = core->config.blocks_max;
    }
    g->capacity = *capacity;
    g->capacity.kv_blocks = after;
    g->limits.kv_blocks = after;
    g->answered_us = core->now_us;    // the plan behind the resize begins only now
    if (!scheduler_set_pool(g->scheduler, after)) {
        resync(core, g, EPOCH_END_BROKEN);    // it gave away blocks that are in use
        return;
    }
    if (!resizing) {
        return;
    }
    enum resize_outcome outcome = RESIZE_OUTCOME_DONE;
    if (g->resize.needed) {
        outcome = RESIZE_OUTCOME_NEEDED;
    } else if (after < g->resize.asked) {
        outcome = RESIZE_OUTCOME_SHORT;
    } else if (after > g->resize.asked) {
        outcome = RESIZE_OUTCOME_ROUNDED;
    }
    tell_resized(core, g, outcome, after, capacity->kv_note);
}

void group_take_resize(struct core *core, struct group *g, const struct core_input *input) {
    INVARIANT(input->resize.blocks > 0);
    struct scheduler *scheduler = g->scheduler;
    uint32_t total = kv_blocks_total(g->blocks);
    uint32_t asked = input->resize.blocks;
    if (g->ready && scheduler_resizing(scheduler)) {
        struct core_action busy = {.kind = CORE_ACTION_RESIZED,
                                   .resized = {.operation = input->resize.operation,
                                               .outcome = RESIZE_OUTCOME_BUSY,
                                               .asked = asked,
                                               .before = total,
                                               .after = total}};
        core_act(core, &busy);
        return;
    }
    g->resize.operation = input->resize.operation;
    g->resize.asked = asked;
    g->resize.before = total;
    g->resize.needed = false;
    if (!g->ready) {
        tell_resized(core, g, RESIZE_OUTCOME_UNAVAILABLE, total, NULL);
        return;
    }
    uint32_t end = asked;
    if (asked < total) {
        uint32_t floor = scheduler_pool_floor(scheduler);
        g->resize.needed = floor > asked;
        end = floor > asked ? floor : asked;
    } else if (end > core->config.blocks_max) {
        end = core->config.blocks_max;
    }
    if (end < total) {
        scheduler_shrink(scheduler, end);
    } else if (end > total && asked > total) {
        scheduler_grow(scheduler, end);
    } else {
        tell_resized(core, g, g->resize.needed ? RESIZE_OUTCOME_NEEDED : RESIZE_OUTCOME_DONE, total,
                     NULL);
    }
}

// A worker may come back with less than it had. Who waits and can never run there goes elsewhere,
// or fails now: it would block the line for ever, or break the plan that admits it.
// Who waits for the worker of another group, which is away, may be served here.
static void place_waiting(struct core *core, struct group *g, uint32_t vocabulary_before) {
    bool fewer_tokens = g->limits.vocabulary < vocabulary_before;
    for (uint32_t i = 0; i < request_table_max(core->requests); i++) {
        if (!request_is_live(core->requests, i)) {
            continue;
        }
        const struct request *request = request_at(core->requests, i);
        if (request->state != REQUEST_WAITING) {
            continue;
        }
        if (request->group != g->index) {
            if (!core->groups[request->group].ready) {
                core_place_again(core, i);
            }
            continue;
        }
        // With fewer tokens, a prompt may hold one that is not there: rare enough to fail them all.
        if (fewer_tokens) {
            core_finish(core, i, FINISH_REASON_FAULT);
        } else if (scheduler_misfit(g->scheduler, request)) {
            core_place_again(core, i);
        }
    }
}

// Blocks mean the same as before, and what ran fits still.
static bool is_same_shape(const struct core *core, const struct group *g,
                          const struct message_capacity *capacity) {
    const struct envelope *a = &g->capacity.envelope;
    const struct envelope *b = &capacity->envelope;
    bool envelope =
        a->tokens == b->tokens && a->seqs == b->seqs && a->seq_tokens == b->seq_tokens &&
        a->logit_rows == b->logit_rows && a->prompt_logit_rows == b->prompt_logit_rows &&
        a->blocks_per_seq == b->blocks_per_seq && a->logprob_rows == b->logprob_rows &&
        a->draft_tokens == b->draft_tokens && a->attended_tokens_max == b->attended_tokens_max &&
        a->attended_tokens == b->attended_tokens;
    uint32_t blocks = u32_min(capacity->kv_blocks, core->config.blocks_max);
    return envelope && blocks == g->limits.kv_blocks &&
           capacity->block_tokens == g->limits.block_tokens &&
           capacity->vocabulary == g->limits.vocabulary;
}

void group_take_ready(struct core *core, struct group *g, const struct core_input *input) {
    const struct message_capacity *capacity = input->ready.capacity;
    uint32_t vocabulary = g->limits.vocabulary;
    if (g->ready && input->ready.epoch == g->epoch) {
        take_pool(core, g, capacity);
        return;
    }
    if (input->ready.epoch <= g->epoch) {
        return;    // an old report
    }
    if (g->ready) {
        lose_worker(core, g, EPOCH_END_LOST);
    }
    bool again = g->epoch != 0;
    bool kept = g->suspended && input->ready.kv_kept && is_same_shape(core, g, capacity);
    if (g->suspended && !kept) {
        drop_running(core, g);
    }
    g->ready = true;
    g->suspended = false;
    g->worker = input->ready.worker;
    g->epoch = input->ready.epoch;
    g->next_seq = 1;
    g->base_seq = 0;
    forget_plans(g, input->ready.world);
    g->condemned = false;
    g->answered_us = core->now_us;
    g->capacity = *capacity;
    g->limits = (struct plan_limits){.envelope = capacity->envelope,
                                     .block_tokens = capacity->block_tokens,
                                     .kv_blocks = capacity->kv_blocks,
                                     .vocabulary = capacity->vocabulary};
    if (g->limits.kv_blocks > core->config.blocks_max) {
        g->limits.kv_blocks = core->config.blocks_max;
        g->capacity.kv_blocks = core->config.blocks_max;
    }
    if (g->limits.envelope.seqs > core->config.seqs_max) {
        g->limits.envelope.seqs = core->config.seqs_max;
    }
    if (kept) {
        core->counters.losses_kept++;
        scheduler_resume(g->scheduler);
    } else {
        scheduler_start(g->scheduler, &g->capacity);
    }
    if (again) {
        tell_recovered(core, g, kept);
    }
    place_waiting(core, g, vocabulary);
}

enum { ROWS_AHEAD = 12 };

// ---- results -----------------------------------------------------------------------------------

static bool is_stop_token(const struct request *request, int32_t token) {
    if (request->stop_count == 0) {
        return false;
    }
    const struct sampling_params *sampling = &request->spec.sampling;
    for (uint32_t i = 1; i < request->stop_count; i++) {
        if (sampling->stop_tokens[i] == token) {
            return true;
        }
    }
    return request->stop_first == token;
}

// Each token log lies on a page of its own, so that the store waits for the page's address too: a
// few rows ahead is long enough before, and not so long that the address is forgotten again.
static void look_ahead(const struct request *request) {
    if (request != NULL && request->state != REQUEST_FREE) {
        __builtin_prefetch(&request->tokens[request->known], 1);
    }
}

static uint32_t index_of(const struct core *core, const struct request *request) {
    return (uint32_t)(request - request_table_entries(core->requests));
}

// One more token of the log. True when it is a stop token.
static bool append_token(struct core *core, struct group *g, struct request *request,
                         const struct result_row *row) {
    INVARIANT(row->position == request->known);
    INVARIANT(request->known < request->len_max);
    scheduler_advance(g->scheduler, request, row->position);
    request->tokens[request->known++] = row->token;
    if ((request->known - request->prompt_count) % CHARGED_OUTPUTS == 0) {
        scheduler_charge(g->scheduler, index_of(core, request), 0, CHARGED_OUTPUTS);
    }
    core->counters.tokens_generated++;
    return is_stop_token(request, row->token);
}

static void tell_token(struct core *core, const struct request *request,
                       const struct result_row *row, bool stop) {
    bool first = !row->is_prompt && row->position == request->prompt_count;
    struct core_action action;    // the largest kind is much larger: not zeroed for every token
    action.kind = CORE_ACTION_TOKEN;
    action.token.id = request->id;
    action.token.class_ = (enum request_class)request->class_;
    action.token.prefill_us = first ? core->now_us - request->admitted_us : 0;
    action.token.row = row;
    action.token.is_stop_token = stop;
    core_act(core, &action);
}

static void take_row(struct core *core, struct group *g, struct request *request,
                     const struct result_row *row) {
    if (row->is_prompt) {
        tell_token(core, request, row, false);
        return;
    }
    bool stop = append_token(core, g, request, row);
    tell_token(core, request, row, stop);
    if (stop || request->known == request->len_max) {
        scheduler_learn_output(g->scheduler, request->spec.class_,
                               request->known - request->spec.prompt_count);
        core_finish(core, index_of(core, request),
                    stop ? FINISH_REASON_STOP : FINISH_REASON_LENGTH);
    }
}

// A result is only believed as a whole: each generated row must continue the log it belongs to.
static bool result_fits(const struct core *core, const struct group *g,
                        const struct step_result *result) {
    scheduler_owners(g->scheduler, result->rows, result->row_count, core->owners);
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        struct request *request = core->owners[i];
        if (request == NULL) {
            continue;
        }
        bool continues = row->position == request->known && request->known < request->len_max;
        bool scores = row->position < request->prompt_count;
        if (row->is_prompt ? !scores : !continues) {
            return false;
        }
        if (!row->is_prompt) {
            // One generated row per sequence and step: a second one would not continue the log.
            if (request->answered_seq == (uint32_t)result->seq) {
                return false;
            }
            request->answered_seq = (uint32_t)result->seq;
        }
    }
    return true;
}

// Prompts that were only scored end when their last chunk is computed.
static void finish_scored(struct core *core, struct group *g) {
    if (core->scored_only == 0) {
        return;
    }
    for (uint32_t slot = 0; slot < g->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(g->scheduler, slot);
        if (index == REQUEST_NONE) {
            continue;
        }
        const struct request *request = request_at(core->requests, index);
        if (request->spec.output_max == 0 && request->computed == request->known) {
            core_finish(core, index, FINISH_REASON_LENGTH);
        }
    }
}

// A refused plan costs itself, and those sent behind it, which the worker did not do either: they
// never happened, the next plan goes on from the one before, the work comes back in smaller parts.
// Only where the slots are no longer the same on both sides a new epoch helps.
static void take_refusal(struct core *core, struct group *g) {
    core->counters.plan_refusals++;
    uint32_t guilty = REQUEST_NONE;
    enum scheduler_refusal refusal = scheduler_refuse(g->scheduler, &guilty);
    // Two condemned in a row without a step between them: it is not the requests.
    bool state =
        refusal == SCHEDULER_REFUSAL_STATE || (refusal == SCHEDULER_REFUSAL_GUILTY && g->condemned);
    if (state) {
        resync(core, g, EPOCH_END_STATE);
        return;
    }
    g->base_seq = g->refused_base;
    if (refusal == SCHEDULER_REFUSAL_GUILTY) {
        g->condemned = true;
        core_finish(core, guilty, FINISH_REASON_REFUSED);
    }
}

static const struct outstanding *oldest(const struct group *g) {
    return g->outstanding_count == 0 ? NULL : &g->outstanding[g->outstanding_first];
}

static void pop_oldest(struct core *core, struct group *g) {
    g->outstanding_first = (g->outstanding_first + 1) % SCHEDULER_DEPTH_MAX;
    g->outstanding_count--;
    g->answered_us = core->now_us;
}

// While plans behind a refused one are waited for, their answers say that they were not done.
static void take_undone(struct core *core, struct group *g, const struct step_result *result) {
    if (result->status == RESULT_STATUS_OK || result->status == RESULT_STATUS_FAULT) {
        resync(core, g, EPOCH_END_BROKEN);
        return;
    }
    pop_oldest(core, g);
    if (g->outstanding_count == 0) {
        g->refused = false;
        take_refusal(core, g);
    }
}

// All ranks have answered the oldest plan with this.
static void take_answer(struct core *core, struct group *g, const struct step_result *result) {
    const struct outstanding *plan = oldest(g);
    INVARIANT(plan != NULL && result->seq == plan->seq);
    if (result->status == RESULT_STATUS_REFUSED && !g->refused) {
        g->refused = true;
        g->refused_base = plan->base_seq;
    }
    if (g->refused) {
        take_undone(core, g, result);
        return;
    }
    if (result->status != RESULT_STATUS_OK) {
        resync(core, g, EPOCH_END_STATE);    // a plan or a peer was lost on the way
        return;
    }
    if (!result_fits(core, g, result)) {
        resync(core, g, EPOCH_END_BROKEN);
        return;
    }
    struct outstanding done = *plan;
    g->progressed = true;
    if (done.rows > 0 && !g->learnt) {
        g->learnt = true;
        core->learnt = true;
    }
    pop_oldest(core, g);
    g->late_losses = 0;
    g->condemned = g->condemned && done.rows == 0;
    core->counters.tokens_prompt_computed += done.prompt_rows;
    core->counters.kv_blocks_moved += done.moves;
    scheduler_complete(g->scheduler, result->seq, result->step_us);
    for (uint32_t i = 0; i < result->row_count; i++) {
        if (i + ROWS_AHEAD < result->row_count) {
            look_ahead(core->owners[i + ROWS_AHEAD]);
        }
        if (core->owners[i] != NULL) {    // else its request ended while the step ran
            take_row(core, g, core->owners[i], &result->rows[i]);
        }
    }
    finish_scored(core, g);
}

void group_take_result(struct core *core, struct group *g, uint32_t rank,
                       const struct step_result *result) {
    if (!g->ready || result->epoch != g->epoch ||
        !rank_answers_await(g->answers, rank, result->seq)) {
        core->counters.results_stale++;
        return;
    }
    if (result_validate(result, &g->limits, NULL) != STATUS_OK ||
        result->row_count > core->config.step_tokens_max + core->config.seqs_max) {
        resync(core, g, EPOCH_END_BROKEN);
        return;
    }
    enum rank_verdict verdict = rank_answers_take(g->answers, rank, result);
    if (verdict != RANK_VERDICT_FINE) {
        resync(core, g, verdict == RANK_VERDICT_DIVERGED ? EPOCH_END_DIVERGED : EPOCH_END_STATE);
        return;
    }
    const struct step_result *answer;
    while ((answer = rank_answers_oldest(g->answers)) != NULL) {
        rank_answers_pop(g->answers);
        take_answer(core, g, answer);
    }
    rank_answers_keep(g->answers);
}

// How long the oldest plan is out, since it could begin, and how long it may be.
static bool step_times(const struct core *core, const struct group *g, uint64_t now_us,
                       uint64_t *elapsed_us, uint64_t *allowed_us) {
    const struct outstanding *plan = oldest(g);
    if (plan == NULL) {
        return false;
    }
    uint64_t predicted = (uint64_t)(6.0 * plan->predicted_us);
    // Without experience any step may take long: the first one of a large model, for example. What
    // other groups do says something, but not all of it.
    uint64_t floor_us = BOUND_STEP_DEADLINE_US;
    if (!g->learnt) {
        floor_us = core->learnt ? BOUND_STEP_DEADLINE_NEW_US : BOUND_STEP_DEADLINE_FIRST_US;
    }
    if (scheduler_pool_answering(g->scheduler)) {
        floor_us = BOUND_RESIZE_US;
    }
    *allowed_us = predicted > floor_us ? predicted : floor_us;
    // It began when it was sent, or when the one before it was done.
    uint64_t begun_us = plan->sent_us > g->answered_us ? plan->sent_us : g->answered_us;
    *elapsed_us = now_us - begun_us;
    return true;
}

uint64_t group_overdue_us(const struct core *core, const struct group *g, uint64_t now_us) {
    uint64_t elapsed_us = 0, allowed_us = 0;
    bool out = step_times(core, g, now_us, &elapsed_us, &allowed_us);
    return out && elapsed_us > allowed_us ? elapsed_us - allowed_us : 0;
}

// Its result will not come: a message was lost, or a rank hangs. Or it is slower than ever before,
// which more patience finds out.
static bool is_step_lost(const struct core *core, const struct group *g) {
    uint64_t now_us = core->now_us;
    uint64_t elapsed_us = 0, allowed_us = 0;
    return step_times(core, g, now_us, &elapsed_us, &allowed_us) &&
           elapsed_us > (allowed_us + BOUND_STEP_LOST_US) << g->late_losses;
}

// ---- plans -------------------------------------------------------------------------------------

static uint32_t plan_rows(const struct plan *plan) {
    uint32_t rows = plan->decode_rows;
    for (uint32_t i = 0; i < plan->prefill_count; i++) {
        rows += plan->prefills[i].token_count;
    }
    return rows;
}

static void tell_admissions(struct core *core, struct group *g, const struct plan *plan) {
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        uint32_t index = scheduler_owner(g->scheduler, plan->admits[i].ref);
        struct request *request = request_at(core->requests, index);
        if (request->announced) {
            continue;    // resumed after a loss, or evicted before
        }
        request->announced = true;
        request->admitted_us = core->now_us;
        core->counters.prefix_queries += request->spec.prompt_count;
        core->counters.prefix_hits += request->cached;
        core->counters.tokens_prompt_cached += request->cached;
        core_act(core,
                 &(struct core_action){.kind = CORE_ACTION_ADMITTED,
                                       .admitted = {.id = request->spec.id,
                                                    .class_ = request->spec.class_,
                                                    .queue_us = core->now_us - request->arrived_us,
                                                    .cached_tokens = request->cached}});
    }
}

// A step that takes long gains nothing from a plan that waits behind it, and whoever arrives
// meanwhile would wait for both.
static bool may_send(const struct group *g, uint32_t depth) {
    const struct outstanding *plan = oldest(g);
    if (plan == NULL) {
        return true;
    }
    return g->outstanding_count < depth && plan->predicted_us <= BOUND_PIPELINED_STEP_US;
}

static bool send_plan(struct core *core, struct group *g) {
    if (!g->ready || g->refused || !may_send(g, core->config.depth)) {
        return false;
    }
    step_plan_reset(core->plan);
    if (!scheduler_plan(g->scheduler, core->plan, g->next_seq, core->now_us)) {
        return false;
    }
    struct plan_place place = {g->id, g->epoch, g->next_seq, g->base_seq};
    const struct plan *plan = step_plan_finish(core->plan, &place);
    struct error err = {0};
    enum status status = plan_validate(plan, &g->limits, &err);
    INVARIANT(status == STATUS_OK);
    uint32_t at = (g->outstanding_first + g->outstanding_count++) % SCHEDULER_DEPTH_MAX;
    uint32_t rows = plan_rows(plan);
    g->outstanding[at] = (struct outstanding){
        .seq = g->next_seq,
        .base_seq = g->base_seq,
        .sent_us = core->now_us,
        .rows = rows,
        .prompt_rows = rows - plan->decode_rows,
        .moves = plan->move_count,
        .predicted_us = scheduler_predicted_us(g->scheduler),
    };
    rank_answers_sent(g->answers, g->next_seq);
    g->base_seq = g->next_seq++;
    core->counters.plans++;
    struct core_action action = {.kind = CORE_ACTION_SEND_PLAN,
                                 .send = {.worker = g->worker, .plan = plan}};
    core_act(core, &action);
    tell_admissions(core, g, plan);
    return true;
}

// What the scheduler did beside the plan.
static void count_evictions(struct core *core, struct group *g) {
    uint64_t evictions = 0, tokens = 0;
    scheduler_evictions(g->scheduler, &evictions, &tokens);
    core->counters.preemptions += evictions - g->evictions_told;
    core->counters.tokens_recomputed += tokens - g->evicted_tokens_told;
    g->evictions_told = evictions;
    g->evicted_tokens_told = tokens;
}

void group_finish_running(struct core *core, struct group *g, enum finish_reason reason) {
    for (uint32_t slot = 0; slot < g->limits.envelope.seqs; slot++) {
        uint32_t index = scheduler_slot_request(g->scheduler, slot);
        if (index != REQUEST_NONE) {
            core_finish(core, index, reason);
        }
    }
}

void group_turn(struct core *core, struct group *g) {
    if (is_step_lost(core, g)) {
        g->late_losses = u32_min(g->late_losses + 1, BOUND_STEP_LOST_DOUBLINGS);
        resync(core, g, EPOCH_END_LATE);
    }
    // Also where it comes back again and again, and steps hang each time.
    if (g->suspended && core->now_us - g->stuck_since_us > BOUND_KV_AWAY_US &&
        core_is_ready(core)) {
        drop_running(core, g);
        place_stranded(core, g);
    }
    while (send_plan(core, g)) {
    }
    count_evictions(core, g);
}
