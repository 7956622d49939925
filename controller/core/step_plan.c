// SPDX-License-Identifier: Apache-2.0
#include "controller/core/step_plan.h"

#include "common/invariant.h"
#include "common/memory.h"

struct step_plan {
    uint32_t seqs_max;
    struct plan_admit *admits;
    struct plan_update *updates;
    struct plan_retire *retires;
    struct plan_prefill *prefills;
    struct plan_move moves[BOUND_KV_MOVES];
    struct plan plan;
};

enum status step_plan_create(uint32_t seqs_max, struct step_plan **out, struct error *err) {
    struct step_plan *plan = memory_zalloc(sizeof *plan);
    if (plan == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a plan");
    }
    plan->seqs_max = seqs_max;
    plan->admits = memory_array(seqs_max, sizeof *plan->admits);
    plan->updates = memory_array(seqs_max, sizeof *plan->updates);
    plan->retires = memory_array(seqs_max, sizeof *plan->retires);
    plan->prefills = memory_array(seqs_max, sizeof *plan->prefills);
    if (plan->admits == NULL || plan->updates == NULL || plan->retires == NULL ||
        plan->prefills == NULL) {
        step_plan_destroy(plan);
        return error_set(err, STATUS_EXHAUSTED, "no memory for plans of %u sequences", seqs_max);
    }
    step_plan_reset(plan);
    *out = plan;
    return STATUS_OK;
}

void step_plan_destroy(struct step_plan *plan) {
    if (plan == NULL) {
        return;
    }
    memory_free(plan->admits);
    memory_free(plan->updates);
    memory_free(plan->retires);
    memory_free(plan->prefills);
    memory_free(plan);
}

void step_plan_reset(struct step_plan *plan) {
    plan->plan = (struct plan){.admits = plan->admits,
                               .updates = plan->updates,
                               .retires = plan->retires,
                               .prefills = plan->prefills,
                               .moves = plan->moves};
}

void step_plan_admit(struct step_plan *plan, const struct plan_admit *admit) {
    INVARIANT(plan->plan.admit_count < plan->seqs_max);
    plan->admits[plan->plan.admit_count++] = *admit;
}

void step_plan_update(struct step_plan *plan, const struct plan_update *update) {
    INVARIANT(plan->plan.update_count < plan->seqs_max);
    plan->updates[plan->plan.update_count++] = *update;
}

void step_plan_retire(struct step_plan *plan, struct slot_ref ref) {
    INVARIANT(plan->plan.retire_count < plan->seqs_max);
    plan->retires[plan->plan.retire_count++].ref = ref;
}

void step_plan_prefill(struct step_plan *plan, const struct plan_prefill *chunk) {
    INVARIANT(plan->plan.prefill_count < plan->seqs_max);
    plan->prefills[plan->plan.prefill_count++] = *chunk;
}

void step_plan_move(struct step_plan *plan, const struct plan_move *move) {
    INVARIANT(plan->plan.move_count < BOUND_KV_MOVES);
    plan->moves[plan->plan.move_count++] = *move;
}

void step_plan_kv_blocks(struct step_plan *plan, uint32_t kv_blocks) {
    plan->plan.kv_blocks = kv_blocks;
}

void step_plan_decode_rows(struct step_plan *plan, uint32_t rows) {
    plan->plan.decode_rows = rows;
}

bool step_plan_empty(const struct step_plan *plan) {
    const struct plan *p = &plan->plan;
    return p->admit_count == 0 && p->update_count == 0 && p->retire_count == 0 &&
           p->prefill_count == 0 && p->decode_rows == 0 && p->move_count == 0 && p->kv_blocks == 0;
}

const struct plan *step_plan_finish(struct step_plan *plan, const struct plan_place *place) {
    INVARIANT(place->base_seq < place->seq && place->seq - place->base_seq <= UINT32_MAX);
    plan->plan.group = place->group;
    plan->plan.epoch = place->epoch;
    plan->plan.seq = place->seq;
    plan->plan.undone = (uint32_t)(place->seq - 1 - place->base_seq);
    return &plan->plan;
}
