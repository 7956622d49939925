// SPDX-License-Identifier: Apache-2.0
// Another size of the KV pool, between the steps.
#include "common/invariant.h"
#include "controller/core/scheduler_internal.h"

uint32_t scheduler_pool_floor(struct scheduler *s) {
    uint32_t floor = scheduler_live_blocks(s) + safety_tree_demand(s->safety);
    for (uint32_t i = request_waiting_first(s->options.requests); i != REQUEST_NONE;
         i = request_waiting_next(s->options.requests, i)) {
        const struct request *request = request_at(s->options.requests, i);
        uint32_t need = scheduler_blocks_for(s, scheduler_length_max(s, &request->spec));
        floor = need > floor ? need : floor;
    }
    return floor > 0 ? floor : 1;
}

void scheduler_shrink(struct scheduler *s, uint32_t end) {
    INVARIANT(s->pool_phase == POOL_STEADY);
    kv_blocks_close(s->options.blocks, end);
    s->pool_end = end;
    s->pool_phase = POOL_MOVING;
}

void scheduler_grow(struct scheduler *s, uint32_t end) {
    INVARIANT(s->pool_phase == POOL_STEADY);
    s->pool_end = end;
    s->pool_phase = POOL_ASKING;
}

bool scheduler_resizing(const struct scheduler *s) {
    return s->pool_phase != POOL_STEADY;
}

bool scheduler_pool_answering(const struct scheduler *s) {
    return s->pool_phase == POOL_ANSWERING;
}

bool scheduler_set_pool(struct scheduler *s, uint32_t total) {
    if (total < kv_blocks_total(s->options.blocks)) {
        return false;
    }
    kv_blocks_open(s->options.blocks, total);
    s->pool_phase = POOL_STEADY;
    return true;
}

// Blocks above the end of a shrinking pool go to free places below it.
static void plan_moves(struct scheduler *s, struct step_plan *plan) {
    struct kv_blocks *blocks = s->options.blocks;
    uint32_t end = kv_blocks_total(blocks);
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        // What the worker was not told yet it will be told in a later plan, and moves after that.
        uint32_t known = s->slots[slot].applied.present ? s->slots[slot].applied.blocks : 0;
        for (uint32_t k = 0; k < known; k++) {
            uint32_t from = scheduler_blocks(s, slot)[k];
            uint32_t to = 0;
            if (from < end) {
                continue;
            }
            if (s->move_count == BOUND_KV_MOVES || kv_blocks_take(blocks, 1, &to) != STATUS_OK) {
                return;
            }
            s->moves[s->move_count++] = (struct move){slot, s->slots[slot].gen, k, from, to};
            s->change_count++;
            step_plan_move(plan, &(struct plan_move){scheduler_ref(s, slot), k, to});
        }
    }
}

void scheduler_plan_pool(struct scheduler *s, struct step_plan *plan) {
    if (s->pool_phase == POOL_MOVING && kv_blocks_above(s->options.blocks) == 0) {
        s->pool_phase = POOL_ASKING;
    }
    if (s->pool_phase == POOL_MOVING) {
        plan_moves(s, plan);
    } else if (s->pool_phase == POOL_ASKING) {
        s->pool_phase = POOL_ASKED;
        s->change_count++;
        step_plan_kv_blocks(plan, s->pool_end);
    }
}

// The plan was carried out: the worker names the new places, and the old ones are nobody's.
void scheduler_finish_moves(struct scheduler *s, uint64_t seq) {
    for (uint32_t i = 0; i < s->move_count; i++) {
        const struct move *move = &s->moves[i];
        const struct slot *slot = &s->slots[move->slot];
        if (slot->request == REQUEST_NONE || slot->gen != move->gen) {
            // Its request ended meanwhile; the worker forgets the new place with the slot.
            kv_blocks_retire(s->options.blocks, &move->to, 1, seq + 1);
            continue;
        }
        scheduler_blocks(s, move->slot)[move->index] = move->to;
        kv_blocks_give_back(s->options.blocks, &move->from, 1);
    }
    s->move_count = 0;
    if (s->pool_phase == POOL_ASKED) {
        s->pool_phase = POOL_ANSWERING;
    }
}

void scheduler_undo_moves(struct scheduler *s) {
    for (uint32_t i = 0; i < s->move_count; i++) {
        kv_blocks_give_back(s->options.blocks, &s->moves[i].to, 1);
    }
    s->move_count = 0;
    if (s->pool_phase == POOL_ASKED) {
        s->pool_phase = POOL_ASKING;
    }
}
