// SPDX-License-Identifier: Apache-2.0
// Another size of the KV pool, between the steps.
#include "common/invariant.h"
#include "controller/core/scheduler_internal.h"

uint32_t scheduler_pool_floor(struct scheduler *s) {
    uint32_t floor = scheduler_live_blocks(s) + safety_tree_demand(s->safety);
    scheduler_close_order(s);
    for (uint32_t i = 0; i < request_table_max(s->options.requests); i++) {
        if (waiting_line_holds(s->waiting, i)) {
            const struct request *request = request_at(s->options.requests, i);
            uint32_t need = scheduler_blocks_for(s, scheduler_length_max(s, &request->spec));
            floor = need > floor ? need : floor;
        }
    }
    for (uint32_t i = 0; i < s->running; i++) {
        const struct request *request = scheduler_request(s, s->order[i]);
        if (request->guaranteed) {
            continue;
        }
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

// What the worker was not told yet it will be told in a later plan, and moves after that.
static uint32_t blocks_applied(const struct scheduler *s, uint32_t slot) {
    const struct told *applied = &s->slots[slot].applied;
    return applied->present && applied->gen == s->owners[slot].gen ? applied->blocks : 0;
}

static bool is_moving(const struct scheduler *s, uint32_t from) {
    for (uint32_t i = 0; i < s->move_count; i++) {
        if (s->moves[i].from == from) {
            return true;
        }
    }
    return false;
}

// One move for each sequence that holds block `from`, which is the same block of all of them. False
// when the plan has no place for all, or the pool none for the block.
static bool plan_move(struct scheduler *s, struct step_plan *plan, uint32_t from, uint32_t index) {
    uint32_t holders = kv_blocks_holders(s->options.blocks, from), to = 0;
    // Alone in a plan, a block always has place: no two holders are one slot.
    if (s->move_blocks == BOUND_KV_COPIES || s->move_count + holders > BOUND_KV_MOVES ||
        kv_blocks_take(s->options.blocks, 1, &to) != STATUS_OK) {
        return false;
    }
    uint32_t first = s->move_count;
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        if (index < blocks_applied(s, slot) && scheduler_blocks(s, slot)[index] == from) {
            s->moves[s->move_count++] = (struct move){slot, s->owners[slot].gen, index, from, to};
        }
    }
    if (s->move_count - first < holders) {    // one of them is not told yet
        s->move_count = first;
        kv_blocks_give_back(s->options.blocks, &to, 1);
        return true;
    }
    for (uint32_t i = first; i < s->move_count; i++) {
        s->change_count++;
        step_plan_move(plan, &(struct plan_move){scheduler_ref(s, s->moves[i].slot), index, to});
    }
    s->move_blocks++;
    return true;
}

// Blocks above the end of a shrinking pool go to free places below it.
static void plan_moves(struct scheduler *s, struct step_plan *plan) {
    uint32_t end = kv_blocks_total(s->options.blocks);
    for (uint32_t i = 0; i < s->running; i++) {
        uint32_t slot = s->order[i];
        for (uint32_t k = 0; k < blocks_applied(s, slot); k++) {
            uint32_t from = scheduler_blocks(s, slot)[k];
            if (from >= end && !is_moving(s, from) && !plan_move(s, plan, from, k)) {
                return;
            }
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
        const struct slot_owner *owner = &s->owners[move->slot];
        bool is_first = i == 0 || s->moves[i - 1].from != move->from;
        if (is_first && kv_blocks_holders(s->options.blocks, move->from) == 0) {
            // All who held it ended meanwhile; the worker forgets the new place with their slots.
            kv_blocks_retire(s->options.blocks, &move->to, 1, seq + 1);
        } else if (is_first) {
            kv_blocks_moved(s->options.blocks, move->from, move->to);
        }
        if (owner->request != REQUEST_NONE && owner->gen == move->gen) {
            scheduler_blocks(s, move->slot)[move->index] = move->to;
        }
    }
    s->move_count = 0;
    s->move_blocks = 0;
    if (s->pool_phase == POOL_ASKED) {
        s->pool_phase = POOL_ANSWERING;
    }
}

void scheduler_undo_moves(struct scheduler *s) {
    for (uint32_t i = 0; i < s->move_count; i++) {
        if (i == 0 || s->moves[i - 1].to != s->moves[i].to) {
            kv_blocks_give_back(s->options.blocks, &s->moves[i].to, 1);
        }
    }
    s->move_count = 0;
    s->move_blocks = 0;
    if (s->pool_phase == POOL_ASKED) {
        s->pool_phase = POOL_ASKING;
    }
}
