// SPDX-License-Identifier: Apache-2.0
#include "controller/core/scheduler.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "controller/core/scheduler_internal.h"
#include <string.h>

enum {
    SPLIT_PLANS = 16,    // that pass before a lowered row count is doubled
    ORDER_HOLES = 8,     // one to so many running: the order is closed
};
static const double FIRST_TOKEN_US = 100;    // what a prompt token costs, before anything is known

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *err) {
    struct scheduler *s = memory_zalloc(sizeof *s);
    if (s == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a scheduler");
    }
    s->options = *options;
    s->requests = request_table_entries(options->requests);
    s->slots = memory_array(options->seqs_max, sizeof *s->slots);
    s->owners = memory_array(options->seqs_max, sizeof *s->owners);
    s->free_slots = memory_array(options->seqs_max, sizeof *s->free_slots);
    s->prompt_slots = memory_array(options->seqs_max, sizeof *s->prompt_slots);
    s->order = memory_array(2 * (size_t)options->seqs_max, sizeof *s->order);
    // Touched only as far as sequences grow: most of it never becomes resident.
    s->block_ids =
        memory_array((size_t)options->seqs_max * options->blocks_per_seq_max, sizeof *s->block_ids);
    bool whole = s->slots != NULL && s->owners != NULL && s->free_slots != NULL &&
                 s->prompt_slots != NULL && s->order != NULL && s->block_ids != NULL;
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX; i++) {
        struct flight *flight = &s->flights[i];
        flight->chunks = memory_array(options->seqs_max, sizeof *flight->chunks);
        flight->told = memory_array(options->seqs_max, sizeof *flight->told);
        whole = whole && flight->chunks != NULL && flight->told != NULL;
    }
    struct waiting_options waiting = {.request_max = request_table_max(options->requests),
                                      .tenant_max = options->tenant_max};
    memcpy(waiting.share_min, options->policy.share_min, sizeof waiting.share_min);
    enum status status = safety_tree_create(options->blocks_per_seq_max, &s->safety, err);
    if (status == STATUS_OK) {
        status = waiting_line_create(&waiting, &s->waiting, err);
    }
    if (status == STATUS_OK && !whole) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for %u slots", options->seqs_max);
    }
    if (status != STATUS_OK) {
        scheduler_destroy(s);
        return status;
    }
    s->ticket = REQUEST_NONE;
    cost_model_init(&s->cost, FIRST_TOKEN_US);
    *out = s;
    return STATUS_OK;
}

void scheduler_destroy(struct scheduler *s) {
    if (s == NULL) {
        return;
    }
    safety_tree_destroy(s->safety);
    waiting_line_destroy(s->waiting);
    for (uint32_t i = 0; i < SCHEDULER_DEPTH_MAX; i++) {
        memory_free(s->flights[i].chunks);
        memory_free(s->flights[i].told);
    }
    memory_free(s->slots);
    memory_free(s->owners);
    memory_free(s->free_slots);
    memory_free(s->prompt_slots);
    memory_free(s->order);
    memory_free(s->block_ids);
    memory_free(s);
}

// Free: without a request, and unknown to the worker. The lowest is on top.
void scheduler_list_free_slots(struct scheduler *s) {
    s->free_slot_count = 0;
    s->retire_count = 0;
    s->untold = 0;
    for (uint32_t i = s->envelope.seqs; i > 0; i--) {
        const struct slot *slot = &s->slots[i - 1];
        if (s->owners[i - 1].request != REQUEST_NONE) {
            s->untold += slot->told.present ? 0 : 1;
        } else if (slot->told.present) {
            s->retire_count++;
        } else {
            s->free_slots[s->free_slot_count++] = i - 1;
        }
    }
}

// Keys are of blocks of one size.
static void forget_keys(struct scheduler *s, uint32_t block_tokens) {
    for (uint32_t i = 0; i < request_table_max(s->options.requests); i++) {
        if (block_tokens != s->block_tokens && waiting_line_holds(s->waiting, i)) {
            request_at(s->options.requests, i)->keys_known = 0;
        }
    }
}

void scheduler_start(struct scheduler *s, const struct message_capacity *capacity) {
    const struct envelope *e = &capacity->envelope;
    INVARIANT(s->running == 0);
    INVARIANT(e->blocks_per_seq <= s->options.blocks_per_seq_max);
    s->envelope = *e;
    s->envelope.seqs = u32_min(e->seqs, s->options.seqs_max);
    s->envelope.tokens = u32_min(e->tokens, s->options.step_tokens_max);
    // A longer sequence could be admitted, but not reach its end.
    s->envelope.seq_tokens = u32_min(e->seq_tokens, e->attended_tokens_max);
    forget_keys(s, capacity->block_tokens);
    s->block_tokens = capacity->block_tokens;
    s->retire_count = 0;
    s->flight_count = 0;
    s->pool_phase = POOL_STEADY;
    s->move_count = 0;
    s->move_blocks = 0;
    s->split = (struct split){.seqs = s->envelope.seqs, .tokens = s->envelope.tokens};
    kv_blocks_reset(s->options.blocks, capacity->kv_blocks);
    safety_tree_reset(s->safety, e->blocks_per_seq);
    for (uint32_t i = 0; i < s->envelope.seqs; i++) {
        s->slots[i] = (struct slot){0};
        s->owners[i] = (struct slot_owner){.request = REQUEST_NONE};
    }
    scheduler_list_free_slots(s);
}

uint32_t scheduler_owner(const struct scheduler *s, struct slot_ref ref) {
    if (ref.slot >= s->envelope.seqs || s->owners[ref.slot].gen != ref.gen) {
        return REQUEST_NONE;
    }
    return s->owners[ref.slot].request;
}

// Requests lie far from each other: their first lines are fetched while the next ones are found.
void scheduler_owners(const struct scheduler *s, const struct result_row *rows, uint32_t row_count,
                      struct request **out) {
    for (uint32_t i = 0; i < row_count; i++) {
        uint32_t index = scheduler_owner(s, rows[i].ref);
        out[i] = index == REQUEST_NONE ? NULL : &s->requests[index];
        if (out[i] != NULL) {
            __builtin_prefetch(out[i], 1);
        }
    }
}

uint32_t scheduler_slot_request(const struct scheduler *s, uint32_t slot) {
    return slot < s->envelope.seqs ? s->owners[slot].request : REQUEST_NONE;
}

// Steps without place for a row that scores or tells logprobs never have one.
static bool rows_lack(const struct scheduler *s, const struct sampling_params *sampling) {
    const struct envelope *e = &s->envelope;
    bool tells = sampling->want_logprobs || sampling->want_prompt_logprobs;
    return (tells && e->logprob_rows == 0) ||
           (sampling->want_prompt_logprobs && e->prompt_logit_rows == 0);
}

bool scheduler_too_large(const struct scheduler *s, const struct core_request *spec) {
    if (rows_lack(s, &spec->sampling)) {
        return true;
    }
    uint64_t len = (uint64_t)spec->prompt_count + spec->output_max;
    return len > s->envelope.seq_tokens ||
           scheduler_blocks_for(s, (uint32_t)len) > kv_blocks_total(s->options.blocks);
}

bool scheduler_misfit(const struct scheduler *s, const struct request *request) {
    uint64_t len = (uint64_t)request->spec.prompt_count + request->spec.output_max;
    uint32_t len_max = scheduler_length_max(s, &request->spec);
    bool no_room = request->known > len_max || (request->known == len_max && len > len_max);
    return no_room || rows_lack(s, &request->spec.sampling) ||
           scheduler_blocks_for(s, len_max) > kv_blocks_total(s->options.blocks);
}

// ---- what a step may hold ----------------------------------------------------------------------

void scheduler_set_suspect(struct scheduler *s, struct request *request, bool suspect) {
    if (request->suspect != suspect) {
        s->suspect_count += suspect ? 1 : UINT32_MAX;
    }
    request->suspect = suspect;
}

void scheduler_set_paused(struct scheduler *s, struct request *request, bool paused) {
    request->steady_end = paused ? 0 : request->steady_end;
    if (request->guaranteed && request->paused != paused) {
        s->paused_count += paused ? 1 : UINT32_MAX;
    }
    request->paused = paused;
}

static void open_step(struct scheduler *s) {
    s->size = (struct step_size){0};
    s->change_count = 0;
    s->prompt_waits = false;
    s->history_left = BOUND_STEP_TOKENS;
    s->admit_bytes_left = BOUND_PLAN_ADMIT_BYTES;
    s->allowed = s->envelope;
    s->allowed.tokens = s->split.tokens;
    s->shape = (struct cost_shape){0};
    s->suspects_only = s->suspect_count > 0;    // steps are theirs alone
    if (s->suspects_only) {
        s->allowed.seqs = s->split.changes_only ? 0 : s->split.seqs;
    }
}

// A decode row within what the step may hold.
static bool decode_fits(const struct scheduler *s, uint32_t context, bool want_logprobs) {
    const struct step_size *size = &s->size;
    const struct envelope *e = &s->allowed;
    return size->tokens < e->tokens && size->seqs < e->seqs && size->logit_rows < e->logit_rows &&
           (!want_logprobs || size->logprob_rows < e->logprob_rows) &&
           context <= e->attended_tokens_max &&
           size->attended_tokens + context <= e->attended_tokens;
}

// Decode rows that are not in the step yet.
struct decodes {
    uint32_t rows, logprob_rows, context_max;
    uint64_t contexts;
};

static void add_decodes(struct scheduler *s, const struct decodes *decodes) {
    struct step_size *size = &s->size;
    size->tokens += decodes->rows;
    size->seqs += decodes->rows;
    size->logit_rows += decodes->rows;
    size->logprob_rows += decodes->logprob_rows;
    size->attended_tokens += decodes->contexts;
    if (decodes->context_max > size->attended_tokens_max) {
        size->attended_tokens_max = decodes->context_max;
    }
    cost_shape_add_decodes(&s->shape, decodes->rows, decodes->contexts);
}

bool scheduler_may_run(const struct scheduler *s, const struct request *request) {
    return !s->suspects_only || request->suspect;
}

// ---- decoding ----------------------------------------------------------------------------------

// The slot's `told` changes with the plan being made.
struct told *scheduler_tell(struct scheduler *s, uint32_t slot) {
    struct flight *flight = scheduler_open_flight(s);
    if (s->slots[slot].told_step != s->step) {
        s->slots[slot].told_step = s->step;
        flight->told[flight->told_count++].slot = slot;
    }
    return &s->slots[slot].told;
}

static void pause_slot(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    scheduler_set_paused(s, scheduler_request(s, slot), true);
    if (!s->slots[slot].told.paused) {
        scheduler_tell(s, slot)->paused = true;
        s->change_count++;
        step_plan_update(plan, &(struct plan_update){.ref = scheduler_ref(s, slot), .pause = true});
    }
}

// How far a request can decode as it is: no block, no pause, nothing to tell. See request.h.
static void set_steady_end(const struct scheduler *s, struct request *request) {
    uint32_t room = u32_min(request->block_count * s->block_tokens, request->len_max - 1);
    request->steady_end = request->want_logprobs ? 0 : room;
}

// One more position for a decoding sequence: a new block when it crosses a border, else a pause.
static bool make_room(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    const struct told *told = &s->slots[slot].told;
    bool crosses = request->planned >= request->block_count * s->block_tokens;
    if (crosses && !scheduler_take_block(s, slot)) {
        pause_slot(s, plan, slot);
        return false;
    }
    struct plan_update update = {
        .ref = scheduler_ref(s, slot),
        .append_count = request->block_count - told->blocks,
        .append_blocks = scheduler_blocks(s, slot) + told->blocks,
        .resume = told->paused,
    };
    if (update.append_count > 0 || update.resume) {
        step_plan_update(plan, &update);
        scheduler_tell(s, slot)->blocks = request->block_count;
        scheduler_tell(s, slot)->paused = false;
    }
    scheduler_set_paused(s, request, false);
    set_steady_end(s, request);
    return true;
}

// What is not steady. Envelope: whoever the step has no place for waits, and so is paused for one
// step.
static bool plan_decode(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    uint32_t context = request->planned + 1;
    if (!scheduler_may_run(s, request) || !decode_fits(s, context, request->want_logprobs)) {
        pause_slot(s, plan, slot);
        return false;
    }
    if (!make_room(s, plan, slot)) {
        return false;
    }
    add_decodes(s, &(struct decodes){.rows = 1,
                                     .logprob_rows = request->want_logprobs ? 1 : 0,
                                     .context_max = context,
                                     .contexts = context});
    request->planned = context;
    return true;
}

// A row for every steady sequence would fit, as long as contexts do.
static bool has_place_for_all(const struct scheduler *s) {
    uint32_t rows = s->size.tokens + s->running;
    const struct envelope *e = &s->allowed;
    return !s->suspects_only && rows <= e->tokens && rows <= e->logit_rows &&
           s->size.seqs + s->running <= e->seqs;
}

// All running sequences that decode, in order of admission: the oldest gets its block first. Most
// are steady, and cost one line of their request. Those whose prompt goes on are listed on the way.
static uint32_t plan_decodes(struct scheduler *s, struct step_plan *plan) {
    uint32_t rows = 0;
    bool place = has_place_for_all(s);
    uint64_t contexts_max = s->allowed.attended_tokens;
    struct decodes steady = {0};
    s->prompt_slot_count = 0;
    for (uint32_t i = 0; i < s->order_count; i++) {
        uint32_t slot = s->order[i];
        if (slot == SLOT_NONE) {
            continue;
        }
        struct request *request = scheduler_request(s, slot);
        uint32_t context = request->planned + 1;
        uint64_t attended = s->size.attended_tokens + steady.contexts + context;
        if (request->planned < request->steady_end && place && attended <= contexts_max) {
            request->planned = context;
            steady.rows++;
            steady.contexts += context;
            steady.context_max = context > steady.context_max ? context : steady.context_max;
        } else if (request->state == REQUEST_PREFILLING) {
            s->prompt_slots[s->prompt_slot_count++] = slot;
        } else if (context < request->len_max) {    // else its last token is on its way
            add_decodes(s, &steady);
            rows += steady.rows;
            steady = (struct decodes){0};
            rows += plan_decode(s, plan, slot) ? 1 : 0;
        }
    }
    add_decodes(s, &steady);
    return rows + steady.rows;
}

// ---- the step ----------------------------------------------------------------------------------

static void plan_retirements(struct scheduler *s, struct step_plan *plan) {
    for (uint32_t i = 0; i < s->envelope.seqs && s->retire_count > 0; i++) {
        struct slot *slot = &s->slots[i];
        if (s->owners[i].request == REQUEST_NONE && slot->told.present) {
            step_plan_retire(plan, (struct slot_ref){i, slot->told.gen});
            *scheduler_tell(s, i) = (struct told){0};
            s->change_count++;
            s->retire_count--;
            s->free_slots[s->free_slot_count++] = i;
        }
    }
}

void scheduler_clear_suspects(struct scheduler *s) {
    s->split.changes_only = false;
    for (uint32_t i = 0; i < request_table_max(s->options.requests) && s->suspect_count > 0; i++) {
        if (request_is_live(s->options.requests, i)) {
            struct request *request = request_at(s->options.requests, i);
            bool ours = waiting_line_holds(s->waiting, i) ||
                        (request->state != REQUEST_WAITING && request->slot < s->envelope.seqs &&
                         s->owners[request->slot].request == i);
            if (ours) {
                scheduler_set_suspect(s, request, false);
            }
        }
    }
}

// Few holes are cheaper than closing them with every step.
static bool needs_closed_order(const struct scheduler *s) {
    uint32_t holes = s->order_count - s->running;
    return holes > s->running / ORDER_HOLES || s->untold > 0 || s->pool_phase != POOL_STEADY;
}

static void plan_step(struct scheduler *s, struct step_plan *plan, uint64_t seq) {
    open_step(s);
    scheduler_evict(s, seq);
    if (needs_closed_order(s)) {
        scheduler_close_order(s);
    }
    plan_retirements(s, plan);
    uint32_t restated = scheduler_restate(s, plan);
    uint32_t rows = plan_decodes(s, plan);
    step_plan_decode_rows(plan, rows);
    if (restated > 0) {
        scheduler_end_restate(s);
        rows += restated;
    }
    scheduler_plan_pool(s, plan);    // before prompts and admissions, which could take the places
    uint32_t budget = scheduler_open_prompts(s, rows);
    budget = scheduler_plan_prompts(s, plan, budget);
    scheduler_admit(s, plan, budget);
}

uint32_t scheduler_outstanding(const struct scheduler *s) {
    return s->flight_count;
}

double scheduler_predicted_us(const struct scheduler *s) {
    INVARIANT(s->flight_count > 0);
    uint32_t newest = (s->flight_first + s->flight_count - 1) % SCHEDULER_DEPTH_MAX;
    return cost_model_late_us(&s->cost, &s->flights[newest].cost);
}

// A plan made behind others would be wrong where their answers decide what it says: what is divided
// after a refusal, and where blocks are while they move.
static bool must_wait(const struct scheduler *s) {
    bool alone = s->split.changes_only || s->split.tokens < s->envelope.tokens ||
                 s->split.seqs < s->envelope.seqs || s->pool_phase != POOL_STEADY ||
                 s->suspect_count > 0;
    return s->flight_count == SCHEDULER_DEPTH_MAX || (s->flight_count > 0 && alone);
}

static void open_flight(struct scheduler *s, struct flight *flight) {
    s->step++;
    flight->chunk_count = 0;
    flight->told_count = 0;
}

bool scheduler_plan(struct scheduler *s, struct step_plan *plan, uint64_t seq, uint64_t now_us) {
    s->now_us = now_us;
    if (must_wait(s)) {
        return false;
    }
    struct flight *flight = scheduler_open_flight(s);
    open_flight(s, flight);
    plan_step(s, plan, seq);
    if (step_plan_empty(plan) && s->suspects_only) {
        // Suspects wait for blocks that others hold: the step is everybody's again.
        scheduler_clear_suspects(s);
        open_flight(s, flight);
        plan_step(s, plan, seq);
    }
    if (step_plan_empty(plan) && s->flight_count == 0 &&
        kv_blocks_quarantined(s->options.blocks) > 0) {
        // They wait for a plan that was refused, and there is no other to send: no plan is out and
        // the worker has no slot to give back, so nothing can touch them.
        kv_blocks_complete(s->options.blocks, UINT64_MAX);
        open_flight(s, flight);
        plan_step(s, plan, seq);
    }
    INVARIANT(step_size_fits(&s->size, &s->envelope));
    if (step_plan_empty(plan)) {
        return false;
    }
    flight->seq = seq;
    flight->size = s->size;
    flight->cost = s->shape;
    flight->change_count = s->change_count;
    for (uint32_t i = 0; i < flight->told_count; i++) {
        flight->told[i].told = s->slots[flight->told[i].slot].told;
    }
    s->flight_count++;
    return true;
}

// ---- answers -----------------------------------------------------------------------------------

// Plans that pass give back what a refused one took.
static void grow_back(struct scheduler *s) {
    struct split *split = &s->split;
    split->changes_only = false;
    split->seqs = u32_min(2 * split->seqs, s->envelope.seqs);
    if (split->tokens < s->envelope.tokens && ++split->passed >= SPLIT_PLANS) {
        split->passed = 0;
        split->tokens = u32_min(2 * split->tokens, s->envelope.tokens);
    }
}

void scheduler_advance_further(struct scheduler *s, struct request *request) {
    scheduler_set_suspect(s, request, false);
    if (request->computed >= request->publish_at) {
        scheduler_publish(s, request);
    }
}

void scheduler_complete(struct scheduler *s, uint64_t seq, uint32_t step_us) {
    INVARIANT(s->flight_count > 0);
    const struct flight *flight = &s->flights[s->flight_first];
    INVARIANT(flight->seq == seq);
    if (flight->size.tokens > 0) {
        cost_model_learn(&s->cost, &flight->cost, step_us);
    }
    kv_blocks_complete(s->options.blocks, seq);
    scheduler_finish_moves(s, seq);
    grow_back(s);
    for (uint32_t i = 0; i < flight->told_count; i++) {
        struct slot *slot = &s->slots[flight->told[i].slot];
        slot->applied = flight->told[i].told;
        slot->kept = slot->kept && !slot->applied.present;
    }
    for (uint32_t i = 0; i < flight->chunk_count; i++) {
        const struct flight_chunk *chunk = &flight->chunks[i];
        uint32_t index = scheduler_owner(s, (struct slot_ref){chunk->slot, chunk->gen});
        if (index != REQUEST_NONE) {
            scheduler_advance(s, &s->requests[index], chunk->end);
        }
    }
    s->flight_first = (s->flight_first + 1) % SCHEDULER_DEPTH_MAX;
    s->flight_count--;
}

// Without its blocks, which the caller has disposed of.
void scheduler_leave_slot(struct scheduler *s, struct request *request) {
    if (request->state == REQUEST_PREFILLING) {
        s->prefill_tokens -= request->prefill_end - request->planned;
    }
    scheduler_set_paused(s, request, false);
    request->slot = REQUEST_NONE;
    request->block_count = 0;
    request->exclusive = 0;
    request->expected = 0;
    request->computed = 0;
    request->cached = 0;
    request->published = 0;
    request->publish_at = UINT32_MAX;
    request->planned = 0;
    request->steady_end = 0;
}

void scheduler_close_order(struct scheduler *s) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->order_count && s->order_count > s->running; i++) {
        uint32_t slot = s->order[i];
        if (slot != SLOT_NONE) {
            s->slots[slot].order_at = count;
            s->order[count++] = slot;
        }
    }
    s->order_count = s->running;
}

static void leave_order(struct scheduler *s, uint32_t slot) {
    uint32_t at = s->slots[slot].order_at;
    INVARIANT(at < s->order_count && s->order[at] == slot);
    s->order[at] = SLOT_NONE;
    s->running--;
}

void scheduler_release(struct scheduler *s, uint32_t index, uint64_t next_seq) {
    struct request *request = request_at(s->options.requests, index);
    INVARIANT(request->state == REQUEST_PREFILLING || request->state == REQUEST_DECODING);
    uint32_t slot = request->slot;
    scheduler_drop_claim(s, request);
    kv_blocks_retire(s->options.blocks, scheduler_blocks(s, slot), request->block_count, next_seq);
    leave_order(s, slot);
    s->owners[slot].request = REQUEST_NONE;
    s->slots[slot].kept = false;
    if (s->slots[slot].told.present) {
        s->retire_count++;
    } else {
        s->untold--;    // told of in no plan of this epoch
        s->free_slots[s->free_slot_count++] = slot;
    }
    scheduler_leave_slot(s, request);
    scheduler_set_suspect(s, request, false);
}

void scheduler_learn_output(struct scheduler *s, enum request_class class_, uint32_t tokens) {
    double *mean = &s->mean_output[class_];
    *mean += (*mean == 0 ? 1.0 : 0.05) * (tokens - *mean);
}

void scheduler_load(const struct scheduler *s, struct scheduler_load *out) {
    *out = (struct scheduler_load){
        .waiting_tokens = s->waiting_tokens,
        .prefill_tokens = s->prefill_tokens,
        .decode_rows = s->shape.decode_rows,
        .decode_context = s->shape.decode_context,
        .step_tokens = s->envelope.tokens,
        .running = s->running,
        .slots = s->envelope.seqs,
        .blocks_free = s->envelope.seqs == 0 ? 0 : scheduler_reachable_free(s),
        .blocks_total = kv_blocks_total(s->options.blocks),
    };
}

const struct cost_model *scheduler_cost(const struct scheduler *s) {
    return &s->cost;
}

void scheduler_count(const struct scheduler *s, struct scheduler_counts *out) {
    *out = (struct scheduler_counts){0};
    for (uint32_t i = 0; i < s->order_count; i++) {
        if (s->order[i] == SLOT_NONE) {
            continue;
        }
        const struct request *request = &s->requests[s->owners[s->order[i]].request];
        out->prefilling += request->state == REQUEST_PREFILLING ? 1 : 0;
        out->decoding += request->state == REQUEST_DECODING ? 1 : 0;
        out->paused += request->paused ? 1 : 0;
    }
}

void scheduler_evictions(const struct scheduler *s, uint64_t *count, uint64_t *tokens) {
    *count = s->evictions;
    *tokens = s->evicted_tokens;
}

void scheduler_audit(const struct scheduler *s) {
    kv_blocks_audit(s->options.blocks);
    waiting_line_audit(s->waiting);
    uint64_t held = 0, prefill = 0;
    uint32_t paused = 0, best_effort = 0, untold = 0;
    uint32_t running = 0;
    for (uint32_t i = 0; i < s->order_count; i++) {
        uint32_t slot = s->order[i];
        if (slot == SLOT_NONE) {
            continue;
        }
        running++;
        INVARIANT(slot < s->envelope.seqs && s->slots[slot].order_at == i);
        const struct request *request = request_at(s->options.requests, s->owners[slot].request);
        INVARIANT(request->slot == slot);
        INVARIANT(request->known <= request->len_max);
        INVARIANT(request->computed <= request->planned);
        INVARIANT(request->planned <= request->block_count * s->block_tokens);
        INVARIANT(request->planned < request->known + s->flight_count ||
                  request->planned == request->computed || request->state == REQUEST_PREFILLING);
        const struct told *told = &s->slots[slot].told;
        INVARIANT(told->present || s->slots[slot].kept);
        INVARIANT(!told->present || told->gen == s->owners[slot].gen);
        INVARIANT(told->blocks <= request->block_count);
        if (request->steady_end > 0) {
            INVARIANT(request->state == REQUEST_DECODING && !request->paused);
            INVARIANT(told->present && !told->paused && told->blocks == request->block_count);
            INVARIANT(request->steady_end <= request->block_count * s->block_tokens);
            INVARIANT(request->steady_end < request->len_max && !request->want_logprobs);
        }
        untold += told->present ? 0 : 1;
        held += request->block_count;
        prefill +=
            request->state == REQUEST_PREFILLING ? request->prefill_end - request->planned : 0;
        paused += request->paused && request->guaranteed ? 1 : 0;
        best_effort += request->guaranteed ? 0 : request->exclusive;
        INVARIANT(request->exclusive <= request->block_count);
        INVARIANT(request->claim.held == request->exclusive);
        uint32_t owned = 0;
        for (uint32_t k = 0; k < request->block_count; k++) {
            uint32_t id = s->block_ids[(size_t)slot * s->options.blocks_per_seq_max + k];
            uint32_t owner = kv_blocks_owner(s->options.blocks, id);
            owned += owner == s->owners[slot].request ? 1 : 0;
            INVARIANT(owner == KV_OWNER_NONE || kv_blocks_holders(s->options.blocks, id) == 1);
        }
        INVARIANT(owned == request->exclusive);
    }
    INVARIANT(running == s->running && s->order_count <= 2 * s->options.seqs_max);
    INVARIANT(prefill == s->prefill_tokens);
    INVARIANT(paused == s->paused_count);
    INVARIANT(untold == s->untold);
    INVARIANT(best_effort == s->best_effort);
    INVARIANT(held + s->move_blocks == kv_blocks_holdings(s->options.blocks));
    INVARIANT(kv_blocks_above(s->options.blocks) == 0 || s->pool_phase == POOL_MOVING);
    INVARIANT(s->running + s->free_slot_count + s->retire_count == s->envelope.seqs);
    // The promise: everybody who runs can finish.
    INVARIANT(s->envelope.seqs == 0 ||
              safety_tree_demand(s->safety) <= scheduler_reachable_free(s));
}
