// SPDX-License-Identifier: Apache-2.0
// Goal: blocks that move between steps keep every bit. Method: a script of legal plans without
// moves, and once more with random ones, the old places overwritten.
#include "tests/unit/suites.h"
#include "tests/unit/worker/step/script.h"

#include <string.h>

static uint32_t below(struct rng *rng, uint32_t limit) {
    return (uint32_t)rng_below(rng, limit);
}

// Which block of which slot lies in each spare place: slot * BLOCKS_EACH + index, or NOBODY.
enum { NOBODY = UINT16_MAX };

static bool is_retired(const struct plan *plan, uint32_t slot) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        if (plan->retires[i].ref.slot == slot) {
            return true;
        }
    }
    return false;
}

// Moves a random block of a slot into each free spare place, now and then.
static void add_moves(struct script_parts *p, const uint32_t *held, const uint32_t *gens,
                      uint32_t spare[SPARE], struct rng *rng) {
    p->plan.move_count = 0;
    for (uint32_t place = 0; place < SPARE; place++) {
        uint32_t slot = below(rng, SEQS);
        if (spare[place] != NOBODY || held[slot] == 0 || is_retired(&p->plan, slot)) {
            continue;
        }
        uint32_t index = below(rng, held[slot]);
        bool there = false;
        for (uint32_t k = 0; k < SPARE; k++) {
            there = there || spare[k] == slot * BLOCKS_EACH + index;
        }
        if (!there) {
            spare[place] = slot * BLOCKS_EACH + index;
            p->moves[p->plan.move_count++] = (struct plan_move){{slot, gens[slot]}, index, place};
        }
    }
}

// What the worker holds after the plan.
static void follow(const struct plan *plan, uint32_t *held, uint32_t *gens, uint32_t spare[SPARE]) {
    for (uint32_t i = 0; i < plan->retire_count; i++) {
        uint32_t slot = plan->retires[i].ref.slot;
        held[slot] = 0;
        for (uint32_t k = 0; k < SPARE; k++) {
            spare[k] = spare[k] / BLOCKS_EACH == slot ? NOBODY : spare[k];
        }
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        held[plan->admits[i].ref.slot] = plan->admits[i].block_count;
        gens[plan->admits[i].ref.slot] = plan->admits[i].ref.gen;
    }
    for (uint32_t i = 0; i < plan->update_count; i++) {
        held[plan->updates[i].ref.slot] += plan->updates[i].append_count;
    }
}

static uint32_t run_moving(struct script_worker *w, struct script *script, uint64_t seed) {
    static struct script_bits expected[STEPS];
    struct script_bits bits;
    struct rng rng;
    uint32_t held[SEQS] = {0}, gens[SEQS] = {0}, spare[SPARE];
    uint32_t moved = 0;
    rng_init(&rng, seed);
    memset(script, 0, sizeof *script);
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        script_write(script, &script->steps[i], &rng, i + 1);
        script_run(w, &script->steps[i], &expected[i]);
    }
    for (uint32_t k = 0; k < SPARE; k++) {
        spare[k] = NOBODY;
    }
    executor_reset(w->executor, 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct script_parts *step = &script->steps[i];
        add_moves(step, held, gens, spare, &rng);
        script_run(w, step, &bits);
        MUST(memcmp(&bits, &expected[i], sizeof bits) == 0);
        // Nobody reads the old places any more.
        struct batch_copies copies = batch_copies(w->batch);
        MUST(copies.count == step->plan.move_count);
        for (uint32_t k = 0; k < copies.count; k++) {
            size_t stride = w->kv.block_stride_bytes;
            memset(w->pools[POOL_KV].base + copies.from[k] * stride, 0x7C, stride);
        }
        moved += copies.count;
        follow(&step->plan, held, gens, spare);
    }
    return moved;
}

START_TEST(moved_blocks_keep_every_bit) {
    static struct script_worker w;
    static struct script script;
    uint32_t moved = 0;
    script_worker_init(&w);
    for (uint64_t seed = 1; seed <= 50; seed++) {
        moved += run_moving(&w, &script, seed);
    }
    ck_assert_uint_gt(moved, 150);
    script_worker_deinit(&w);
}
END_TEST

Suite *suite_moves(void) {
    Suite *suite = suite_create("worker/step/moves");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, moved_blocks_keep_every_bit);
    suite_add_tcase(suite, tc);
    return suite;
}
