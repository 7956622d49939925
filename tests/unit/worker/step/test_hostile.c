// SPDX-License-Identifier: Apache-2.0
// Goal: whatever a controller sends, the worker stays whole. A refused plan changes nothing, an
// accepted one stays inside the envelope and the pools, no plan allocates, and legal work goes on
// with the same bits. Method: a script of legal plans at the brim of a small envelope, and between
// its steps plans that were legal before one to three of their numbers were changed.
#include "common/hash.h"
#include "common/integers.h"
#include "common/memory.h"
#include "tests/unit/suites.h"
#include "tests/unit/worker/step/script.h"

#include <math.h>
#include <string.h>

enum {
    PLANS = 200000,
    SCRIPTS = 20,
    AFTER = 10,    // changed plans on top of one that was carried out
};

static uint32_t below(struct rng *rng, uint32_t limit) {
    return (uint32_t)rng_below(rng, limit);
}

// ---- changing a plan ---------------------------------------------------------------------------

static uint32_t wild(struct rng *rng, uint32_t value, uint32_t limit) {
    switch (below(rng, 7)) {
    case 0:
        return value + 1;
    case 1:
        return value - 1;
    case 2:
        return limit;
    case 3:
        return limit - 1;
    case 4:
        return UINT32_MAX - below(rng, 2);
    case 5:
        return below(rng, limit + 2);
    default:
        return (uint32_t)rng_u64(rng);
    }
}

static float wild_real(struct rng *rng) {
    static const float values[] = {0.0f,     -1.0f, 1e30f, -0.0f,  1.0f,
                                   INFINITY, NAN,   2.5f,  1e-38f, 100.0f};
    return values[below(rng, sizeof values / sizeof *values)];
}

static void change_sampling(struct sampling_params *s, struct rng *rng) {
    float *const reals[] = {
        &s->temperature,      &s->top_p, &s->min_p, &s->repetition_penalty, &s->presence_penalty,
        &s->frequency_penalty};
    switch (below(rng, 6)) {
    case 0:
        s->top_logprobs = wild(rng, s->top_logprobs, BOUND_LOGPROBS + 1);
        break;
    case 1:
        s->stop_token_count = below(rng, 2) == 0 ? BOUND_STOP_TOKENS + 1 : 1;
        s->stop_tokens[0] = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    case 2:
        s->bias_count = below(rng, 2) == 0 ? BOUND_LOGIT_BIAS + 1 : 2;
        break;
    case 3:
        s->want_prompt_logprobs = !s->want_prompt_logprobs;
        break;
    case 4:
        s->want_logprobs = !s->want_logprobs;
        s->top_k = wild(rng, s->top_k, VOCABULARY);
        break;
    default:
        *reals[below(rng, 6)] = wild_real(rng);
        break;
    }
}

static void change_ref(struct slot_ref *ref, struct rng *rng) {
    if (below(rng, 2) == 0) {
        ref->slot = wild(rng, ref->slot, SEQS);
    } else {
        ref->gen = wild(rng, ref->gen, ref->gen + 1);
    }
}

static void change_admit(struct script_parts *p, uint32_t i, struct rng *rng) {
    struct plan_admit *admit = &p->admits[i];
    switch (below(rng, 6)) {
    case 0:
        change_ref(&admit->ref, rng);
        break;
    case 1:
        admit->prompt_tokens = wild(rng, admit->prompt_tokens, SEQ_TOKENS);
        break;
    case 2:
        admit->len_max = wild(rng, admit->len_max, SEQ_TOKENS + 1);
        break;
    case 3:
        admit->block_count = below(rng, BLOCKS_CAP + 1);
        break;
    case 4:
        p->admit_blocks[i][below(rng, BLOCKS_CAP)] = wild(rng, 0, BLOCKS);
        break;
    default:
        change_sampling(&admit->sampling, rng);
        break;
    }
}

static void change_update(struct script_parts *p, uint32_t i, struct rng *rng) {
    struct plan_update *update = &p->updates[i];
    switch (below(rng, 5)) {
    case 0:
        change_ref(&update->ref, rng);
        break;
    case 1:
        update->append_count = below(rng, BLOCKS_CAP + 1);
        break;
    case 2:
        p->update_blocks[i][below(rng, BLOCKS_CAP)] = wild(rng, 0, BLOCKS);
        break;
    case 3:
        update->pause = !update->pause;
        break;
    default:
        update->resume = !update->resume;
        break;
    }
}

static void change_chunk(struct script_parts *p, uint32_t i, struct rng *rng) {
    struct plan_prefill *chunk = &p->prefills[i];
    switch (below(rng, 6)) {
    case 0:
        change_ref(&chunk->ref, rng);
        break;
    case 1:
        chunk->start_pos = wild(rng, chunk->start_pos, SEQ_TOKENS);
        break;
    case 2:
        chunk->token_count = below(rng, TOKENS_CAP + 1);
        break;
    case 3:
        p->tokens[i][below(rng, TOKENS_CAP)] = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    case 4:
        chunk->next_token = (int32_t)wild(rng, 0, VOCABULARY);
        break;
    default:
        chunk->last = !chunk->last;
        break;
    }
}

// Moves out of nowhere: now and then one that a shrinking pool could have asked for.
static void change_moves(struct script_parts *p, struct rng *rng) {
    p->plan.move_count = 1 + below(rng, below(rng, 16) == 0 ? MOVES_CAP : 6);
    for (uint32_t i = 0; i < p->plan.move_count; i++) {
        uint32_t slot = below(rng, SEQS);
        p->moves[i] =
            (struct plan_move){.ref = {slot, 1 + below(rng, 3)},
                               .index = below(rng, BLOCKS_EACH + 1),
                               .block = below(rng, 2) == 0 ? below(rng, 4) : wild(rng, 0, BLOCKS)};
    }
    p->plan.kv_blocks = below(rng, 2) == 0 ? 0 : wild(rng, BLOCKS, BLOCKS);
}

// A list longer or shorter than it was; what it grows by are copies of its entries, or zeroes.
static void change_count(struct script_parts *p, struct rng *rng) {
    uint32_t *const counts[] = {&p->plan.admit_count, &p->plan.update_count, &p->plan.retire_count,
                                &p->plan.prefill_count};
    uint32_t to = below(rng, LIST_CAP);
    uint32_t from = below(rng, LIST_CAP);
    uint32_t list = below(rng, 4);
    switch (list) {
    case 0:
        p->admits[to] = p->admits[from];
        break;
    case 1:
        p->updates[to] = p->updates[from];
        break;
    case 2:
        p->retires[to] = p->retires[from];
        break;
    default:
        p->prefills[to] = p->prefills[from];
        break;
    }
    *counts[list] = below(rng, LIST_CAP + 1);
}

// A little more work, coherent with the slots: what is wrong with it, if anything, is the sum.
static void overload(struct script_parts *p, struct rng *rng) {
    struct plan *plan = &p->plan;
    for (uint32_t i = 0; i < plan->update_count; i++) {
        if (plan->updates[i].pause && below(rng, 2) == 0) {
            p->updates[i].pause = false;
            p->updates[i].resume = true;
            plan->decode_rows++;
            return;
        }
    }
    if (plan->prefill_count > 0) {
        uint32_t i = below(rng, plan->prefill_count);
        p->prefills[i].token_count = u32_min(p->prefills[i].token_count + 1, TOKENS_CAP);
    }
}

static void change(struct script_parts *p, struct rng *rng) {
    struct plan *plan = &p->plan;
    uint32_t kind = below(rng, 18);
    if (kind >= 16) {
        change_moves(p, rng);
        return;
    }
    if (kind < 4 && plan->admit_count > 0) {
        change_admit(p, below(rng, plan->admit_count), rng);
    } else if (kind < 7 && plan->update_count > 0) {
        change_update(p, below(rng, plan->update_count), rng);
    } else if (kind < 11 && plan->prefill_count > 0) {
        change_chunk(p, below(rng, plan->prefill_count), rng);
    } else if (kind < 12 && plan->retire_count > 0) {
        change_ref(&p->retires[below(rng, plan->retire_count)].ref, rng);
    } else if (kind < 13) {
        plan->decode_rows = wild(rng, plan->decode_rows, SEQS + 1);
    } else if (kind < 14) {
        plan->seq = below(rng, 2) == 0 ? rng_u64(rng) : plan->seq + 1;
    } else if (kind < 15 && below(rng, 8) == 0) {
        plan->epoch = rng_u64(rng);
    } else {
        change_count(p, rng);
    }
}

// ---- judging what happened ---------------------------------------------------------------------

// All that a refused plan must leave alone.
static uint64_t state_of(const struct script_worker *w) {
    uint64_t state = batch_digest(w->batch) ^ executor_applied_seq(w->executor);
    for (int i = POOL_KV; i <= POOL_STEP; i++) {
        state = hash_u64(state ^ hash_bytes(w->pools[i].base, w->pools[i].bytes));
    }
    return state;
}

// What plans must have been refused for by the end.
static const char *const reasons[] = {
    "plan of another epoch",
    "plan goes on from another one",
    "admission into a used slot",
    "update of an unknown slot",
    "too many blocks for slot",
    "prompt chunk for a wrong slot",
    "prompt chunk of slot",
    "prompt of slot",
    "slot ",
    "block count",
    "block id",
    "len_max",
    "prompt_tokens",
    "end of a prompt chunk",
    "prompt token",
    "next prompt token",
    "decode rows",
    "retirement of an unknown slot",
    "rows of the step",
    "sequences of the step",
    "logit rows of the step",
    "logprob rows of the step",
    "prompt logit rows",
    "attended context of the step",
    "temperature",
    "top_p",
    "logit_bias count",

    "two moves share",
    "move in an unknown slot",
    "move of a block that is not",
    "a block moves to",
    "KV blocks asked for",
};
enum { REASON_COUNT = sizeof reasons / sizeof *reasons };

// True when the changed plan was carried out.
static bool attack(struct script_worker *w, const struct script_parts *legal,
                   struct script_parts *copy, struct rng *rng, uint32_t seen[REASON_COUNT]) {
    *copy = *legal;
    script_parts_bind(copy);
    copy->plan.seq = executor_applied_seq(w->executor) + 1;
    if (below(rng, 4) == 0) {
        overload(copy, rng);
    } else {
        for (uint32_t changes = 1 + below(rng, 3); changes > 0; changes--) {
            change(copy, rng);
        }
    }
    uint64_t before = state_of(w);
    struct step_result result;
    executor_run(w->executor, &copy->plan, &result);
    if (result.status == RESULT_STATUS_OK) {
        script_check(w, &result);
        batch_audit(w->batch);
        return true;
    }
    MUST(result.row_count == 0);
    MUST(result.message[0] != '\0');
    if (state_of(w) != before) {
        ck_abort_msg("a refused plan left a trace: %s", result.message);
    }
    for (uint32_t i = 0; i < REASON_COUNT; i++) {
        seen[i] += strncmp(result.message, reasons[i], strlen(reasons[i])) == 0 ? 1 : 0;
    }
    return false;
}

struct tally {
    uint32_t refused, accepted, whole;
    uint32_t seen[REASON_COUNT];
};

static void replay(struct script_worker *w, const struct script *script,
                   const struct script_bits *expected) {
    struct script_bits bits;
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        script_run(w, &script->steps[i], &bits);
        MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
    }
}

// One pass over the script under attack. Once a changed plan was carried out the script no longer
// fits: some attacks more, then the pass is over.
static void run_pass(struct script_worker *w, const struct script *script,
                     const struct script_bits *expected, struct rng *rng, struct tally *tally) {
    static struct script_parts copy;
    struct script_bits bits;
    executor_reset(w->executor, 1);
    uint32_t left = AFTER;
    for (uint32_t i = 0; i < STEPS && left > 0; i++) {
        for (uint32_t tries = below(rng, 12); tries > 0 && left > 0; tries--) {
            bool taken = attack(w, &script->steps[i], &copy, rng, tally->seen);
            tally->accepted += taken ? 1 : 0;
            tally->refused += taken ? 0 : 1;
            left -= taken || left < AFTER ? 1 : 0;
        }
        if (left == AFTER) {
            script_run(w, &script->steps[i], &bits);
            MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
            tally->whole++;
        }
    }
}

START_TEST(a_hostile_controller_cannot_break_a_worker) {
    static struct script_worker w;
    static struct script_bits expected[STEPS];
    static struct tally tally;
    script_worker_init(&w);
    uint64_t violations = memory_guard_violations();
    for (uint32_t seed = 1; seed <= SCRIPTS; seed++) {
        static struct script script;
        memset(&script, 0, sizeof script);
        struct rng rng;
        rng_init(&rng, seed);
        executor_reset(w.executor, 1);
        for (uint32_t i = 0; i < STEPS; i++) {
            script_write(&script, &script.steps[i], &rng, i + 1);
            script_run(&w, &script.steps[i], &expected[i]);
        }
        while (tally.refused + tally.accepted < PLANS / SCRIPTS * seed) {
            run_pass(&w, &script, expected, &rng, &tally);
        }
        replay(&w, &script, expected);    // as if nothing had been
        script_worker_check(&w);
    }
    ck_assert_uint_ge(tally.refused + tally.accepted, PLANS);
    ck_assert_uint_gt(tally.accepted, 2000);
    ck_assert_uint_gt(tally.whole, 2000);
    for (uint32_t i = 0; i < REASON_COUNT; i++) {
        ck_assert_msg(tally.seen[i] > 0, "no plan was refused for '%s'", reasons[i]);
    }
    ck_assert_uint_eq(memory_guard_violations(), violations);
    script_worker_deinit(&w);
}
END_TEST

Suite *suite_hostile(void) {
    Suite *suite = suite_create("worker/step/hostile");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, a_hostile_controller_cannot_break_a_worker);
    suite_add_tcase(suite, tc);
    return suite;
}
