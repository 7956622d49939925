// SPDX-License-Identifier: Apache-2.0
// What holds when plans did not happen: one was refused, or the group was lost with those that were
// out.
#include "common/invariant.h"
#include "controller/core/scheduler_internal.h"

// Its admission was refused: back to the line. The worker never saw its blocks.
static void take_back(struct scheduler *s, uint32_t slot) {
    uint32_t index = s->owners[slot].request;
    struct request *request = scheduler_request(s, slot);
    scheduler_drop_claim(s, request);
    // The shared ones may have come out of quarantine: whoever gave them up keeps them on the
    // worker until the next plan, which has the refused one's number.
    uint32_t *ids = scheduler_blocks(s, slot);
    uint32_t shared = request->cached / s->block_tokens;
    kv_blocks_retire(s->options.blocks, ids, shared, s->flights[s->flight_first].seq);
    kv_blocks_give_back(s->options.blocks, ids + shared, request->block_count - shared);
    scheduler_leave_slot(s, request);
    s->owners[slot].request = REQUEST_NONE;
    scheduler_enter(s, index);
}

// What plans that never happened leave behind.
struct undone {
    uint32_t suspect;       // of those whose work was in them, the first admitted; or REQUEST_NONE
    uint32_t admissions;    // of them
};

// Everybody who runs falls back to what is applied and computed; whose admission never was goes
// back to the line, unless its KV stands there from before.
static struct undone fall_back(struct scheduler *s) {
    struct undone undone = {.suspect = REQUEST_NONE};
    scheduler_close_order(s);
    // From the last admitted to the first, so that those who go back to the line keep their order.
    for (uint32_t i = s->running; i > 0; i--) {
        uint32_t slot = s->order[i - 1];
        struct request *request = scheduler_request(s, slot);
        const struct told *applied = &s->slots[slot].applied;
        bool known = applied->present && applied->gen == s->owners[slot].gen;
        if (request->planned > request->computed) {
            scheduler_set_suspect(s, request, true);
            undone.suspect = s->owners[slot].request;
            undone.admissions += known ? 0 : 1;
        }
        if (request->state == REQUEST_PREFILLING) {
            s->prefill_tokens -= request->prefill_end - request->planned;
        }
        request->planned = request->computed;
        request->steady_end = 0;
        request->state =
            request->computed < request->prefill_end ? REQUEST_PREFILLING : REQUEST_DECODING;
        if (request->state == REQUEST_PREFILLING) {
            s->prefill_tokens += request->prefill_end - request->planned;
        }
        if (!known && !s->slots[slot].kept) {
            take_back(s, slot);
            s->order_count = --s->running;
            INVARIANT(i - 1 == s->running);    // admissions are the last in the order
        }
    }
    for (uint32_t i = 0; i < s->envelope.seqs; i++) {
        s->slots[i].told = s->slots[i].applied;
    }
    scheduler_list_free_slots(s);
    return undone;
}

enum scheduler_refusal scheduler_refuse(struct scheduler *s, uint32_t *guilty) {
    INVARIANT(s->flight_count > 0);
    const struct flight *flight = &s->flights[s->flight_first];
    bool alone = s->flight_count == 1;
    uint32_t seqs = flight->size.seqs, rows = flight->size.tokens;
    scheduler_undo_moves(s);
    struct undone undone = fall_back(s);
    *guilty = undone.suspect;
    uint32_t other_changes = flight->change_count - (alone ? undone.admissions : 0);
    s->flight_count = 0;
    s->split.passed = 0;
    s->split.seqs = seqs > 1 ? seqs / 2 : 1;
    s->split.tokens = rows > 1 ? rows / 2 : 1;
    if (rows == 0) {
        return SCHEDULER_REFUSAL_STATE;
    }
    if (rows > 1 || !alone) {
        return SCHEDULER_REFUSAL_SPLIT;
    }
    s->split.changes_only = other_changes > 0;
    // Its request may have ended meanwhile: then the slot's retirement follows.
    return other_changes > 0 || *guilty == REQUEST_NONE ? SCHEDULER_REFUSAL_SPLIT
                                                        : SCHEDULER_REFUSAL_GUILTY;
}

// ---- the group is lost -------------------------------------------------------------------------

bool scheduler_suspend(struct scheduler *s) {
    // Blocks on their way: nobody knows which place holds what.
    if (s->pool_phase != POOL_STEADY) {
        return false;
    }
    scheduler_clear_suspects(s);
    fall_back(s);
    scheduler_clear_suspects(s);    // it was not their work that was refused
    s->flight_count = 0;
    return true;
}

// Steps go on from its last token, which is computed anew.
static void go_on_from_log(struct scheduler *s, struct request *request) {
    request->steady_end = 0;
    if (request->state == REQUEST_DECODING) {
        request->state = REQUEST_PREFILLING;
        request->prefill_end = request->known;
        s->prefill_tokens += request->prefill_end - request->planned;
    }
    request->answered_seq = 0;    // numbers of plans begin anew with an epoch
}

// No plan can carry all tokens of the longest ones, where penalties count them: they start over.
static void give_up_long_histories(struct scheduler *s) {
    scheduler_close_order(s);
    for (uint32_t i = s->order_count; i > 0; i--) {
        uint32_t index = s->owners[s->order[i - 1]].request;
        struct request *request = request_at(s->options.requests, index);
        if (sampling_uses_history(&request->spec.sampling) &&
            request->computed > BOUND_STEP_TOKENS) {
            scheduler_release(s, index, 0);
            scheduler_enter(s, index);
        }
    }
}

void scheduler_resume(struct scheduler *s) {
    for (uint32_t i = 0; i < s->envelope.seqs; i++) {
        struct slot *slot = &s->slots[i];
        slot->told = (struct told){0};
        slot->applied = (struct told){0};
        slot->kept = s->owners[i].request != REQUEST_NONE;
        if (slot->kept) {
            go_on_from_log(s, scheduler_request(s, i));
        }
    }
    s->split = (struct split){.seqs = s->envelope.seqs, .tokens = s->envelope.tokens};
    scheduler_list_free_slots(s);
    give_up_long_histories(s);
    // No step of the epochs before can touch them any more, and numbers of plans begin anew.
    kv_blocks_complete(s->options.blocks, UINT64_MAX);
}

// One that runs and that the worker does not know: admitted with all that is computed. Who decodes
// takes part in this step. False when the plan has no place for it.
static bool restate_slot(struct scheduler *s, struct step_plan *plan, uint32_t slot) {
    struct request *request = scheduler_request(s, slot);
    uint32_t rest = request->prefill_end - request->planned;
    bool decodes = rest == 1;
    bool history = sampling_uses_history(&request->spec.sampling);
    if (!scheduler_admission_fits(s, request, request->block_count,
                                  history ? request->computed : 0) ||
        (decodes && scheduler_chunk_that_fits(s, request, 1) == 0)) {
        return false;
    }
    if (request->planned >= request->block_count * s->block_tokens &&
        !scheduler_take_block(s, slot)) {
        scheduler_set_paused(s, request, true);
        return true;    // others are not in its way
    }
    scheduler_set_paused(s, request, false);
    scheduler_tell_admission(s, plan, slot, request->computed);
    s->untold--;
    if (decodes) {
        scheduler_plan_chunk(s, plan, slot, 1);
        request->state = REQUEST_PREFILLING;    // its row is this one, until the next step
    }
    return true;
}

void scheduler_end_restate(struct scheduler *s) {
    for (uint32_t i = 0; i < s->running; i++) {
        struct request *request = scheduler_request(s, s->order[i]);
        if (request->planned == request->prefill_end) {
            request->state = REQUEST_DECODING;
        }
    }
}

uint32_t scheduler_restate(struct scheduler *s, struct step_plan *plan) {
    uint32_t rows = s->size.tokens;
    for (uint32_t i = 0; i < s->running && s->untold > 0; i++) {
        uint32_t slot = s->order[i];
        if (s->slots[slot].told.present || !scheduler_may_run(s, scheduler_request(s, slot))) {
            continue;
        }
        if (!restate_slot(s, plan, slot)) {
            s->prompt_waits = true;    // nobody overtakes it
            break;
        }
    }
    return s->size.tokens - rows;
}

void scheduler_stop(struct scheduler *s) {
    s->flight_count = 0;
    s->envelope.seqs = 0;    // nothing of this worker is found any more
    scheduler_close_order(s);
    while (s->running > 0) {
        uint32_t slot = s->order[--s->running];
        uint32_t index = s->owners[slot].request;
        struct request *request = request_at(s->options.requests, index);
        scheduler_drop_claim(s, request);
        scheduler_leave_slot(s, request);
        scheduler_set_suspect(s, request, false);
        request->keys_known = 0;    // the next worker may have other blocks
        s->owners[slot].request = REQUEST_NONE;
        scheduler_enter(s, index);
    }
    s->order_count = 0;
    scheduler_clear_suspects(s);    // of the worker that is gone
    s->move_count = 0;
    s->move_blocks = 0;
    s->pool_phase = POOL_STEADY;
    kv_blocks_reset(s->options.blocks, 0);
    safety_tree_reset(s->safety, 0);
    s->free_slot_count = 0;
    s->retire_count = 0;
    s->untold = 0;
    s->wanted_blocks = 0;
    s->wanted_slots = 0;
    s->best_effort_short = false;
}
