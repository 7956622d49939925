// SPDX-License-Identifier: Apache-2.0
#include "controller/core/scheduler.h"

#include "common/invariant.h"
#include "common/memory.h"

struct slot {
    uint32_t request;    // REQUEST_NONE when free
    uint32_t gen;
    bool told_paused;    // the worker was told to pause it
    bool to_retire;      // the worker still knows it; the next plan retires it
};

struct scheduler {
    struct scheduler_options options;
    struct safety_tree *safety;
    struct slot *slots;      // [seqs_max]
    uint32_t *free_slots;    // stack
    uint32_t free_slot_count;
    uint32_t *block_ids;    // [seqs_max, blocks_per_seq_max]
    uint32_t *order;        // [seqs_max] running slots, in order of admission
    uint32_t running;
    // Of the group, once a worker is there.
    uint32_t seqs;
    uint32_t step_tokens;
    uint32_t seq_tokens;
    uint32_t block_tokens;
    uint32_t blocks_per_seq;
    uint32_t retire_count;    // slots with to_retire
};

enum status scheduler_create(const struct scheduler_options *options, struct scheduler **out,
                             struct error *err) {
    struct scheduler *s = memory_zalloc(sizeof *s);
    if (s == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a scheduler");
    }
    s->options = *options;
    s->slots = memory_array(options->seqs_max, sizeof *s->slots);
    s->free_slots = memory_array(options->seqs_max, sizeof *s->free_slots);
    s->order = memory_array(options->seqs_max, sizeof *s->order);
    // Touched only as far as sequences grow: most of it never becomes resident.
    s->block_ids =
        memory_array((size_t)options->seqs_max * options->blocks_per_seq_max, sizeof *s->block_ids);
    enum status status = safety_tree_create(options->blocks_per_seq_max, &s->safety, err);
    if (status == STATUS_OK &&
        (s->slots == NULL || s->free_slots == NULL || s->order == NULL || s->block_ids == NULL)) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for %u slots", options->seqs_max);
    }
    if (status != STATUS_OK) {
        scheduler_destroy(s);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

void scheduler_destroy(struct scheduler *s) {
    if (s == NULL) {
        return;
    }
    safety_tree_destroy(s->safety);
    memory_free(s->slots);
    memory_free(s->free_slots);
    memory_free(s->order);
    memory_free(s->block_ids);
    memory_free(s);
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

void scheduler_start(struct scheduler *s, const struct message_capacity *capacity) {
    const struct envelope *e = &capacity->envelope;
    INVARIANT(s->running == 0);
    INVARIANT(e->blocks_per_seq <= s->options.blocks_per_seq_max);
    s->seqs = smaller(e->seqs, s->options.seqs_max);
    s->step_tokens = smaller(e->tokens, s->options.step_tokens_max);
    s->seq_tokens = e->seq_tokens;
    s->block_tokens = capacity->block_tokens;
    s->blocks_per_seq = e->blocks_per_seq;
    s->retire_count = 0;
    kv_blocks_reset(s->options.blocks, capacity->kv_blocks);
    safety_tree_reset(s->safety, e->blocks_per_seq);
    s->free_slot_count = s->seqs;
    for (uint32_t i = 0; i < s->seqs; i++) {
        s->slots[i] = (struct slot){.request = REQUEST_NONE};
        s->free_slots[i] = s->seqs - 1 - i;
    }
}

static uint32_t *blocks_of(struct scheduler *s, uint32_t slot) {
    return s->block_ids + (size_t)slot * s->options.blocks_per_seq_max;
}

static uint32_t blocks_for(const struct scheduler *s, uint32_t tokens) {
    return (tokens + s->block_tokens - 1) / s->block_tokens;
}

static struct request *owner(struct scheduler *s, uint32_t slot) {
    return request_at(s->options.requests, s->slots[slot].request);
}

uint32_t scheduler_owner(const struct scheduler *s, struct slot_ref ref) {
    if (ref.slot >= s->seqs || s->slots[ref.slot].gen != ref.gen) {
        return REQUEST_NONE;
    }
    return s->slots[ref.slot].request;
}

uint32_t scheduler_slot_request(const struct scheduler *s, uint32_t slot) {
    return slot < s->seqs ? s->slots[slot].request : REQUEST_NONE;
}

// The last token of a sequence is drawn but never computed, so its position needs no block.
static uint32_t positions_max(uint32_t len_max, uint32_t prompt) {
    return len_max > prompt ? len_max - 1 : len_max;
}

bool scheduler_too_large(const struct scheduler *s, const struct core_request *spec) {
    uint64_t len = (uint64_t)spec->prompt_count + spec->output_max;
    return len > s->seq_tokens || blocks_for(s, (uint32_t)len) > kv_blocks_total(s->options.blocks);
}

bool scheduler_misfit(const struct scheduler *s, const struct request *request) {
    uint64_t len = (uint64_t)request->spec.prompt_count + request->spec.output_max;
    uint32_t len_max = (uint32_t)(len < s->seq_tokens ? len : s->seq_tokens);
    bool no_room = request->known > len_max || (request->known == len_max && len > len_max);
    return no_room || blocks_for(s, len_max) > kv_blocks_total(s->options.blocks);
}

// ---- claims ------------------------------------------------------------------------------------

static struct safety_claim claim_of(const struct scheduler *s, const struct request *request) {
    uint32_t total = blocks_for(s, positions_max(request->len_max, request->spec.prompt_count));
    INVARIANT(request->block_count <= total);
    return (struct safety_claim){total - request->block_count, request->block_count};
}

static void set_claim(struct scheduler *s, struct request *request) {
    request->claim = claim_of(s, request);
    safety_tree_add(s->safety, request->claim);
}

// What will be free in the end without anybody finishing: quarantine is already coming back.
static uint32_t reachable_free(const struct scheduler *s) {
    return kv_blocks_free(s->options.blocks) + kv_blocks_quarantined(s->options.blocks);
}

// Takes `count` blocks for the request if they are free and everybody can still finish then.
static bool take_blocks(struct scheduler *s, struct request *request, uint32_t slot,
                        uint32_t count) {
    if (kv_blocks_free(s->options.blocks) < count) {
        return false;
    }
    bool registered = request->state != REQUEST_WAITING;
    if (registered) {
        safety_tree_remove(s->safety, request->claim);
    }
    request->block_count += count;
    set_claim(s, request);
    if (safety_tree_demand(s->safety) > reachable_free(s) - count) {
        safety_tree_remove(s->safety, request->claim);
        request->block_count -= count;
        if (registered) {
            set_claim(s, request);
        }
        return false;
    }
    uint32_t *ids = blocks_of(s, slot) + request->block_count - count;
    enum status status = kv_blocks_take(s->options.blocks, count, ids);
    INVARIANT(status == STATUS_OK);
    return true;
}

// ---- decoding ----------------------------------------------------------------------------------

static struct slot_ref ref_of(const struct scheduler *s, uint32_t slot) {
    return (struct slot_ref){slot, s->slots[slot].gen};
}

// One more position for a decoding sequence: a new block when it crosses a border, else a pause.
static bool make_room(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    struct request *request = owner(s, slot);
    bool crosses = request->known > request->block_count * s->block_tokens;
    struct plan_update update = {.ref = ref_of(s, slot)};
    if (crosses) {
        if (!take_blocks(s, request, slot, 1)) {
            request->paused = true;
            if (!s->slots[slot].told_paused) {
                s->slots[slot].told_paused = true;
                update.pause = true;
                step_plan_update(plan, &update);
            }
            return false;
        }
        update.append_count = 1;
        update.append_blocks = blocks_of(s, slot) + request->block_count - 1;
    }
    update.resume = s->slots[slot].told_paused;
    if (update.append_count > 0 || update.resume) {
        step_plan_update(plan, &update);
    }
    s->slots[slot].told_paused = false;
    request->paused = false;
    return true;
}

// All running sequences that decode, in order of admission: the oldest gets its block first.
static uint32_t plan_decodes(struct scheduler *s, struct step_plan *plan) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        struct request *request = owner(s, slot);
        request->in_flight = 0;
        if (request->state != REQUEST_DECODING) {
            continue;
        }
        // Envelope: a row more than the step has place for waits, and so is paused for one step.
        if (rows == s->step_tokens) {
            if (!s->slots[slot].told_paused) {
                s->slots[slot].told_paused = true;
                step_plan_update(plan,
                                 &(struct plan_update){.ref = ref_of(s, slot), .pause = true});
            }
            request->paused = true;
            continue;
        }
        if (make_room(s, plan, slot)) {
            request->in_flight = 1;
            rows++;
        }
    }
    return rows;
}

// ---- prompts -----------------------------------------------------------------------------------

static void plan_chunk(struct scheduler *s, struct step_plan *plan, uint32_t slot,
                       uint32_t tokens) {
    struct request *request = owner(s, slot);
    uint32_t start = request->computed;
    bool last = start + tokens == request->known;
    bool scored = request->spec.sampling.want_prompt_logprobs && !last;
    request->in_flight = tokens;
    step_plan_prefill(plan, &(struct plan_prefill){
                                .ref = ref_of(s, slot),
                                .start_pos = start,
                                .token_count = tokens,
                                .tokens = request->spec.tokens + start,
                                .next_token = scored ? request->spec.tokens[start + tokens] : -1,
                                .last = last,
                            });
}

// First come, first served, until the step's prompt tokens are used up. Returns what is left.
static uint32_t plan_prefills(struct scheduler *s, struct step_plan *plan, uint32_t from,
                              uint32_t budget) {
    for (uint32_t i = from; i < s->running && budget > 0; i++) {
        struct request *request = owner(s, s->order[i]);
        if (request->state != REQUEST_PREFILLING || request->in_flight > 0) {
            continue;
        }
        uint32_t tokens = smaller(request->known - request->computed, budget);
        plan_chunk(s, plan, s->order[i], tokens);
        budget -= tokens;
    }
    return budget;
}

// ---- admission ---------------------------------------------------------------------------------

static bool try_admit(struct scheduler *s, struct step_plan *plan, uint32_t index) {
    struct request *request = request_at(s->options.requests, index);
    if (s->free_slot_count == 0) {
        return false;
    }
    uint32_t slot = s->free_slots[s->free_slot_count - 1];
    uint64_t len_max = (uint64_t)request->spec.prompt_count + request->spec.output_max;
    request->len_max = (uint32_t)(len_max < s->seq_tokens ? len_max : s->seq_tokens);
    request->block_count = 0;
    if (!take_blocks(s, request, slot, blocks_for(s, request->known))) {
        return false;
    }
    request_waiting_leave(s->options.requests, index);
    s->free_slot_count--;
    s->order[s->running++] = slot;
    request->state = REQUEST_PREFILLING;
    request->slot = slot;
    request->computed = 0;
    request->in_flight = 0;
    request->paused = false;
    s->slots[slot].request = index;
    s->slots[slot].gen++;
    s->slots[slot].told_paused = false;
    step_plan_admit(plan, &(struct plan_admit){
                              .ref = ref_of(s, slot),
                              .prompt_tokens = request->spec.prompt_count,
                              .len_max = request->len_max,
                              .block_count = request->block_count,
                              .blocks = blocks_of(s, slot),
                              .sampling = request->spec.sampling,
                          });
    return true;
}

// Strict order: the head of the line is never overtaken in this version. Nobody is admitted while a
// running sequence is paused for lack of blocks.
static bool anybody_paused(const struct scheduler *s) {
    for (uint32_t i = 0; i < s->running; i++) {
        if (request_at(s->options.requests, s->slots[s->order[i]].request)->paused) {
            return true;
        }
    }
    return false;
}

static uint32_t admit_some(struct scheduler *s, struct step_plan *plan, uint32_t budget) {
    if (budget == 0 || anybody_paused(s)) {
        return budget;
    }
    uint32_t index = request_waiting_first(s->options.requests);
    while (index != REQUEST_NONE && budget > 0) {
        uint32_t next = request_waiting_next(s->options.requests, index);
        uint32_t first = s->running;
        if (!try_admit(s, plan, index)) {
            break;
        }
        budget = plan_prefills(s, plan, first, budget);
        index = next;
    }
    return budget;
}

// ---- the step ----------------------------------------------------------------------------------

static void plan_retirements(struct scheduler *s, struct step_plan *plan) {
    for (uint32_t slot = 0; slot < s->seqs && s->retire_count > 0; slot++) {
        if (s->slots[slot].to_retire) {
            step_plan_retire(plan, ref_of(s, slot));
            s->slots[slot].to_retire = false;
            s->retire_count--;
            s->free_slots[s->free_slot_count++] = slot;
        }
    }
}

bool scheduler_plan(struct scheduler *s, struct step_plan *plan) {
    plan_retirements(s, plan);
    uint32_t rows = plan_decodes(s, plan);
    step_plan_decode_rows(plan, rows);
    uint32_t budget = s->step_tokens - rows;
    if (rows > 0) {
        budget = smaller(budget, BOUND_PREFILL_CONTENDED_TOKENS);
    }
    budget = plan_prefills(s, plan, 0, budget);
    admit_some(s, plan, budget);
    return !step_plan_empty(plan);
}

void scheduler_complete(struct scheduler *s, uint64_t seq) {
    kv_blocks_complete(s->options.blocks, seq);
    for (uint32_t i = 0; i < s->running; i++) {
        struct request *request = owner(s, s->order[i]);
        request->computed += request->in_flight;
        INVARIANT(request->computed <= request->known);
        request->in_flight = 0;
        if (request->state == REQUEST_PREFILLING && request->computed == request->known) {
            request->state = REQUEST_DECODING;
        }
    }
}

static void leave_order(struct scheduler *s, uint32_t slot) {
    uint32_t at = 0;
    while (s->order[at] != slot) {
        at++;
        INVARIANT(at < s->running);
    }
    for (; at + 1 < s->running; at++) {
        s->order[at] = s->order[at + 1];
    }
    s->running--;
}

void scheduler_release(struct scheduler *s, uint32_t index, uint64_t next_seq) {
    struct request *request = request_at(s->options.requests, index);
    INVARIANT(request->state == REQUEST_PREFILLING || request->state == REQUEST_DECODING);
    uint32_t slot = request->slot;
    safety_tree_remove(s->safety, request->claim);
    kv_blocks_retire(s->options.blocks, blocks_of(s, slot), request->block_count, next_seq);
    leave_order(s, slot);
    s->slots[slot].request = REQUEST_NONE;
    s->slots[slot].to_retire = true;
    s->retire_count++;
    request->slot = REQUEST_NONE;
    request->block_count = 0;
}

void scheduler_stop(struct scheduler *s) {
    // From the last admitted to the first, each to the front: the old order is kept.
    while (s->running > 0) {
        uint32_t slot = s->order[--s->running];
        uint32_t index = s->slots[slot].request;
        struct request *request = request_at(s->options.requests, index);
        request->slot = REQUEST_NONE;
        request->block_count = 0;
        request->computed = 0;
        request->in_flight = 0;
        request->paused = false;
        s->slots[slot].request = REQUEST_NONE;
        request_waiting_enter_front(s->options.requests, index);
    }
    kv_blocks_reset(s->options.blocks, 0);
    safety_tree_reset(s->safety, 0);
    s->seqs = 0;
    s->free_slot_count = 0;
    s->retire_count = 0;
}

void scheduler_count(const struct scheduler *s, struct scheduler_counts *out) {
    *out = (struct scheduler_counts){0};
    for (uint32_t i = 0; i < s->running; i++) {
        const struct request *request =
            request_at(s->options.requests, s->slots[s->order[i]].request);
        out->prefilling += request->state == REQUEST_PREFILLING ? 1 : 0;
        out->decoding += request->state == REQUEST_DECODING ? 1 : 0;
        out->paused += request->paused ? 1 : 0;
    }
}

void scheduler_audit(const struct scheduler *s) {
    kv_blocks_audit(s->options.blocks);
    uint32_t held = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        INVARIANT(slot < s->seqs);
        const struct request *request = request_at(s->options.requests, s->slots[slot].request);
        INVARIANT(request->slot == slot);
        INVARIANT(request->known <= request->len_max);
        INVARIANT(request->computed + request->in_flight <= request->block_count * s->block_tokens);
        held += request->block_count;
    }
    INVARIANT(held == kv_blocks_held(s->options.blocks));
    INVARIANT(s->running + s->free_slot_count + s->retire_count == s->seqs);
    // The promise: everybody who runs can finish.
    INVARIANT(s->seqs == 0 || safety_tree_demand(s->safety) <= reachable_free(s));
}
