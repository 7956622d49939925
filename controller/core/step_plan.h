// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_STEP_PLAN_H
#define CONTROLLER_CORE_STEP_PLAN_H

#include "proto/messages.h"

// Builder of one plan: lists of fixed capacity that become a `struct plan` without copying.
//
// The idea: the scheduler appends, the core sends, the builder is reset. Appending past a list's
// capacity cannot happen: each list has one entry per slot, and a slot is named at most once in
// each.
//
//   Owns       its lists.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      create: EXHAUSTED.

struct step_plan;

enum status step_plan_create(uint32_t seqs_max, struct step_plan **out, struct error *err) MUST_USE;
void step_plan_destroy(struct step_plan *plan);

void step_plan_reset(struct step_plan *plan);
void step_plan_admit(struct step_plan *plan, const struct plan_admit *admit);
void step_plan_update(struct step_plan *plan, const struct plan_update *update);
void step_plan_retire(struct step_plan *plan, struct slot_ref ref);
void step_plan_prefill(struct step_plan *plan, const struct plan_prefill *chunk);
void step_plan_move(struct step_plan *plan, const struct plan_move *move);    // BOUND_KV_MOVES
void step_plan_kv_blocks(struct step_plan *plan, uint32_t kv_blocks);
void step_plan_decode_rows(struct step_plan *plan, uint32_t rows);

bool step_plan_empty(const struct step_plan *plan);
// Where a plan stands: it goes on from plan `base_seq`, and those between the two were refused.
struct plan_place {
    uint64_t group, epoch, seq, base_seq;
};
// Points into the builder; alive until the next reset.
const struct plan *step_plan_finish(struct step_plan *plan, const struct plan_place *place);

#endif
