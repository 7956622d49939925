// SPDX-License-Identifier: Apache-2.0
// Goal: a plan is carried out whole or refused whole, whatever it says; rows, logits and results
// are those of the plan. Method: hand-made plans against a small table, and thousands of random
// ones, with the table audited after each.
#include "common/memory.h"
#include "common/rng.h"
#include "tests/unit/suites.h"
#include "worker/step/batch.h"

#include <string.h>

enum { SEQS = 4, TOKENS = 16, SEQ_TOKENS = 64, BLOCK = 16, BLOCKS = 12, VOCABULARY = 50 };

struct fixture {
    struct batch *batch;
    void *step_memory;
    int32_t *history;
    struct result_row rows[TOKENS + SEQS];
};

static const struct plan_limits limits = {{TOKENS, SEQS, SEQ_TOKENS, TOKENS, TOKENS,
                                           SEQ_TOKENS / BLOCK, TOKENS, 0, SEQ_TOKENS,
                                           SEQS *SEQ_TOKENS},
                                          BLOCK,
                                          BLOCKS,
                                          VOCABULARY};

static void init(struct fixture *f) {
    f->step_memory = memory_aligned(64, batch_step_bytes(&limits));
    f->history = memory_array((size_t)SEQS * SEQ_TOKENS, sizeof(int32_t));
    struct batch_options options = {limits, NULL, f->history};
    ck_assert_int_eq(batch_create(&options, f->step_memory, &f->batch, NULL), STATUS_OK);
}

static void deinit(struct fixture *f) {
    batch_destroy(f->batch);
    memory_free(f->step_memory);
    memory_free(f->history);
}

static const int32_t tokens[SEQ_TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8};
static const uint32_t some_blocks[4] = {3, 7, 9, 11};

static struct plan_admit admit_of(uint32_t slot, uint32_t prompt, uint32_t len_max) {
    return (struct plan_admit){.ref = {slot, 1},
                               .prompt_tokens = prompt,
                               .len_max = len_max,
                               .block_count = (prompt + BLOCK - 1) / BLOCK,
                               .blocks = some_blocks,
                               .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
}

static struct plan_prefill chunk_of(uint32_t slot, uint32_t start, uint32_t count, bool last) {
    return (struct plan_prefill){{slot, 1}, start, count, tokens, -1, last};
}

static enum status apply(struct fixture *f, const struct plan *plan, struct error *err) {
    enum status status = batch_apply(f->batch, plan, err);
    if (status == STATUS_OK) {
        // Every logit row draws its position modulo the vocabulary.
        for (uint32_t i = 0; i < batch_logit_count(f->batch); i++) {
            struct op_sample_row *row = &batch_sample_rows(f->batch)[i];
            row->token = (int32_t)(row->position % VOCABULARY);
        }
        batch_commit(f->batch, f->rows);
    }
    batch_audit(f->batch);
    return status;
}

START_TEST(prefill_in_chunks_then_decode) {
    struct fixture f;
    init(&f);
    struct plan_admit admit = admit_of(1, 8, 12);
    struct plan_prefill chunk = chunk_of(1, 0, 5, false);
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step(f.batch)->row_count, 5);
    ck_assert_uint_eq(batch_logit_count(f.batch), 0);
    chunk = chunk_of(1, 5, 3, true);
    plan = (struct plan){.prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_logit_count(f.batch), 1);
    ck_assert_uint_eq(f.rows[0].position, 8);
    for (uint32_t position = 9; position < 12; position++) {
        plan = (struct plan){.decode_rows = 1};
        ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
        const struct op_step *step = batch_step(f.batch);
        ck_assert_uint_eq(step->row_count, 1);
        ck_assert_uint_eq(step->position[0], position - 1);
        ck_assert_int_eq(step->token[0], (int32_t)(position - 1));
        ck_assert_uint_eq(step->block_table[0], 3);
        ck_assert_uint_eq(f.rows[0].position, position);
    }
    plan = (struct plan){.decode_rows = 1};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step(f.batch)->row_count, 0);    // len_max is reached
    deinit(&f);
}
END_TEST

START_TEST(prompt_scores_name_the_token_they_score) {
    struct fixture f;
    init(&f);
    struct plan_admit admit = admit_of(0, 8, 8);    // nothing to generate
    admit.sampling.want_prompt_logprobs = true;
    struct plan_prefill chunk = chunk_of(0, 0, 5, false);
    chunk.next_token = 6;
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_logit_count(f.batch), 5);
    ck_assert(f.rows[4].is_prompt);
    ck_assert_uint_eq(f.rows[4].position, 5);
    ck_assert_int_eq(f.rows[4].token, 6);
    chunk = (struct plan_prefill){{0, 1}, 5, 3, tokens + 5, -1, true};
    plan = (struct plan){.prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_logit_count(f.batch),
                      2);    // the last row has nothing to score or draw
    deinit(&f);
}
END_TEST

static void refused(struct fixture *f, const struct plan *plan, const char *word) {
    struct error err = {0};
    ck_assert_int_eq(apply(f, plan, &err), STATUS_INVALID);
    ck_assert_msg(strstr(err.message, word) != NULL, "'%s' lacks '%s'", err.message, word);
    // Nothing has changed: the same good step goes on.
    struct plan good = {.decode_rows = 1};
    ck_assert_int_eq(apply(f, &good, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step(f->batch)->row_count, 1);
}

START_TEST(wrong_plans_leave_no_trace) {
    struct fixture f;
    init(&f);
    struct plan_admit admit = admit_of(2, 8, 64);
    struct plan_prefill chunk = chunk_of(2, 0, 8, true);
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);

    refused(&f, &(struct plan){.admit_count = 1, .admits = &admit, .decode_rows = 1}, "used slot");
    struct plan_retire unknown = {{3, 1}};
    refused(&f, &(struct plan){.retire_count = 1, .retires = &unknown, .decode_rows = 1},
            "unknown");
    struct plan_retire old = {{2, 9}};
    refused(&f, &(struct plan){.retire_count = 1, .retires = &old, .decode_rows = 1}, "unknown");
    struct plan_update update = {{2, 1}, 4, some_blocks, false, false};
    refused(&f, &(struct plan){.update_count = 1, .updates = &update, .decode_rows = 1},
            "too many");
    refused(&f, &(struct plan){.prefill_count = 1, .prefills = &chunk, .decode_rows = 1},
            "wrong slot");
    refused(&f, &(struct plan){.decode_rows = 0}, "rows decode");

    struct plan_admit other = admit_of(0, 20, 30);
    struct plan_prefill early = chunk_of(0, 4, 4, false);
    refused(&f,
            &(struct plan){.admit_count = 1,
                           .admits = &other,
                           .prefill_count = 1,
                           .prefills = &early,
                           .decode_rows = 1},
            "starts at 4");
    other.block_count = 0;
    struct plan_prefill first = chunk_of(0, 0, 4, false);
    refused(&f,
            &(struct plan){.admit_count = 1,
                           .admits = &other,
                           .prefill_count = 1,
                           .prefills = &first,
                           .decode_rows = 1},
            "holds 0 blocks");
    deinit(&f);
}
END_TEST

START_TEST(decode_stops_at_the_end_of_the_blocks) {
    struct fixture f;
    init(&f);
    struct plan_admit admit = admit_of(0, 16, 64);
    struct plan_prefill chunk = chunk_of(0, 0, 16, true);
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    struct error err = {0};
    plan = (struct plan){.decode_rows = 1};
    ck_assert_int_eq(apply(&f, &plan, &err), STATUS_INVALID);
    ck_assert(strstr(err.message, "holds 1 blocks") != NULL);
    struct plan_update pause = {{0, 1}, 0, NULL, true, false};
    plan = (struct plan){.update_count = 1, .updates = &pause};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step(f.batch)->row_count, 0);
    struct plan_update resume = {{0, 1}, 1, some_blocks + 1, false, true};
    plan = (struct plan){.update_count = 1, .updates = &resume, .decode_rows = 1};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step(f.batch)->row_count, 1);
    deinit(&f);
}
END_TEST

static enum status run_mixed(const struct envelope *envelope, struct error *err) {
    struct fixture f;
    f.step_memory = memory_aligned(64, batch_step_bytes(&limits));
    f.history = memory_array((size_t)SEQS * SEQ_TOKENS, sizeof(int32_t));
    struct batch_options options = {limits, NULL, f.history};
    options.limits.envelope = *envelope;
    ck_assert_int_eq(batch_create(&options, f.step_memory, &f.batch, NULL), STATUS_OK);
    // Two that decode at contexts 9 and 5, the first with logprobs; one scores 3 prompt tokens.
    struct plan_admit admits[2] = {admit_of(0, 8, 64), admit_of(1, 4, 64)};
    admits[0].sampling.want_logprobs = true;
    struct plan_prefill chunks[2] = {chunk_of(0, 0, 8, true), chunk_of(1, 0, 4, true)};
    for (int i = 0; i < 2; i++) {
        struct plan plan = {
            .admit_count = 1, .admits = &admits[i], .prefill_count = 1, .prefills = &chunks[i]};
        struct plan_update pause = {{0, 1}, 0, NULL, true, false};
        plan.update_count = i == 1 ? 1 : 0;
        plan.updates = &pause;
        ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    }
    struct plan_update resume = {{0, 1}, 0, NULL, false, true};
    struct plan_admit scored = admit_of(2, 20, 64);
    scored.sampling.want_prompt_logprobs = true;
    struct plan_prefill part = chunk_of(2, 0, 3, false);
    part.next_token = 4;
    struct plan plan = {.decode_rows = 2,
                        .update_count = 1,
                        .updates = &resume,
                        .admit_count = 1,
                        .admits = &scored,
                        .prefill_count = 1,
                        .prefills = &part};
    enum status status = apply(&f, &plan, err);
    deinit(&f);
    return status;
}

// A step at the brim of every limit passes; each limit one lower refuses it, by name.
START_TEST(a_step_is_refused_one_past_every_limit) {
    const struct envelope brim = {.tokens = 8,    // the first prompt alone
                                  .seqs = 3,
                                  .seq_tokens = SEQ_TOKENS,
                                  .logit_rows = 5,
                                  .prompt_logit_rows = 3,
                                  .blocks_per_seq = SEQ_TOKENS / BLOCK,
                                  .logprob_rows = 4,
                                  .attended_tokens_max = 9,
                                  .attended_tokens = 9 + 5 + 3};
    struct error err = {0};
    ck_assert_msg(run_mixed(&brim, &err) == STATUS_OK, "%s", err.message);
    struct envelope lower[4] = {brim, brim, brim, brim};
    lower[0].logit_rows--;
    lower[1].prompt_logit_rows--;
    lower[2].logprob_rows--;
    lower[3].attended_tokens--;
    static const char *const names[4] = {"logit rows", "prompt logit rows", "logprob rows",
                                         "attended context of the step"};
    for (int i = 0; i < 4; i++) {
        err = (struct error){0};
        ck_assert_int_eq(run_mixed(&lower[i], &err), STATUS_INVALID);
        ck_assert_msg(strncmp(err.message, names[i], strlen(names[i])) == 0, "%s", err.message);
    }
}
END_TEST

static void refused_move(struct fixture *f, const struct plan_move *moves, uint32_t count,
                         const char *word) {
    refused(f, &(struct plan){.decode_rows = 1, .move_count = count, .moves = moves}, word);
}

// Slot 0 holds blocks 3 and 7 (of 12): they move to 1 and 0, and the step reads them there.
START_TEST(moves_change_the_table_and_name_the_copies) {
    struct fixture f;
    init(&f);
    struct plan_admit admit = admit_of(0, 20, 64);
    int32_t prompt[20] = {1, 2, 3};
    struct plan_prefill chunks[2] = {{{0, 1}, 0, 16, prompt, -1, false},
                                     {{0, 1}, 16, 4, prompt, -1, true}};
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = chunks};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    plan = (struct plan){.prefill_count = 1, .prefills = chunks + 1};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_copies(f.batch).count, 0);

    refused_move(&f, (struct plan_move[]){{{0, 2}, 0, 1}}, 1, "unknown");
    refused_move(&f, (struct plan_move[]){{{1, 1}, 0, 1}}, 1, "unknown");
    refused_move(&f, (struct plan_move[]){{{0, 1}, 2, 1}}, 1, "not of");
    refused_move(&f, (struct plan_move[]){{{0, 1}, 0, 3}}, 1, "not below");
    refused_move(&f, (struct plan_move[]){{{0, 1}, 0, 1}, {{0, 1}, 1, 5}}, 2, "not below");
    refused_move(&f, (struct plan_move[]){{{0, 1}, 0, 1}, {{0, 1}, 1, 1}}, 2, "share");
    refused_move(&f, (struct plan_move[]){{{0, 1}, 0, 1}, {{0, 1}, 0, 2}}, 2, "share");
    refused(&f, &(struct plan){.decode_rows = 1, .kv_blocks = 7}, "above the pool's new end");

    struct plan_move moves[2] = {{{0, 1}, 0, 1}, {{0, 1}, 1, 0}};
    plan = (struct plan){.decode_rows = 1, .move_count = 2, .moves = moves, .kv_blocks = 2};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    struct batch_copies copies = batch_copies(f.batch);
    ck_assert_uint_eq(copies.count, 2);
    ck_assert_uint_eq(copies.from[0], 3);
    ck_assert_uint_eq(copies.to[0], 1);
    ck_assert_uint_eq(copies.from[1], 7);
    ck_assert_uint_eq(copies.to[1], 0);
    ck_assert_uint_eq(batch_step(f.batch)->block_table[0], 1);
    ck_assert_uint_eq(batch_step(f.batch)->block_table[1], 0);
    plan = (struct plan){.decode_rows = 1};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_copies(f.batch).count, 0);    // not again
    deinit(&f);
}
END_TEST

// A hostile controller: random plans with mostly legal numbers. None may break the table.
START_TEST(random_plans_never_break_the_table) {
    struct fixture f;
    init(&f);
    struct rng rng;
    rng_init(&rng, (uint64_t)_i);
    uint32_t applied = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t slot = (uint32_t)rng_below(&rng, SEQS + (rng_below(&rng, 50) == 0 ? 1 : 0));
        uint32_t gen = 1 + (uint32_t)rng_below(&rng, 2);
        uint32_t prompt = 1 + (uint32_t)rng_below(&rng, 30);
        struct plan_admit admit = admit_of(slot, prompt, prompt + (uint32_t)rng_below(&rng, 34));
        admit.ref.gen = gen;
        admit.block_count = (uint32_t)rng_below(&rng, 5);
        admit.sampling.want_prompt_logprobs = rng_below(&rng, 2) == 0;
        struct plan_update update = {
            {slot, gen}, (uint32_t)rng_below(&rng, 4), some_blocks, rng_below(&rng, 4) == 0, false};
        struct plan_retire retire = {{slot, gen}};
        struct plan_prefill chunk = {
            {slot, gen}, (uint32_t)rng_below(&rng, 3) * 8, (uint32_t)rng_below(&rng, 12),
            tokens,      rng_below(&rng, 2) == 0 ? 3 : -1, rng_below(&rng, 2) == 0};
        struct plan plan = {.decode_rows = SEQS,
                            .admit_count = (uint32_t)rng_below(&rng, 2),
                            .admits = &admit,
                            .update_count = (uint32_t)rng_below(&rng, 2),
                            .updates = &update,
                            .retire_count = (uint32_t)rng_below(&rng, 2),
                            .retires = &retire,
                            .prefill_count = (uint32_t)rng_below(&rng, 2),
                            .prefills = &chunk};
        applied += apply(&f, &plan, NULL) == STATUS_OK ? 1 : 0;
    }
    ck_assert_uint_gt(applied, 1000);
    deinit(&f);
}
END_TEST

// What ranks compare: two tables that were given the same are equal, and one difference shows.
enum difference {
    SAME,
    BLOCK_ID,
    SEED,
    BIAS,
    STOP,
    APPENDED,
    PAUSED,
    MOVED,
    DRAWN,
    GENERATION,
    DIFFERENCE_COUNT,
};

static uint64_t run_differently(enum difference what) {
    struct fixture f;
    init(&f);
    uint32_t blocks[2] = {7, what == BLOCK_ID ? 8 : 9};
    const struct token_bias bias[2] = {{3, 1.0f}, {4, what == BIAS ? 2.0f : 1.0f}};
    uint32_t gen = what == GENERATION ? 2 : 1;
    struct plan_admit admit = admit_of(1, 20, 60);
    admit.ref.gen = gen;
    admit.blocks = blocks;
    admit.sampling.seed = what == SEED ? 5 : 4;
    admit.sampling.bias = bias;
    admit.sampling.bias_count = 2;
    admit.sampling.stop_tokens[0] = what == STOP ? 11 : 12;
    admit.sampling.stop_token_count = 1;
    // What lies behind the values that count, is no difference.
    admit.sampling.stop_tokens[1] = what == SAME ? 7 : 8;
    struct plan_prefill chunk = {{1, gen}, 0, 16, tokens, -1, false};
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    chunk = (struct plan_prefill){{1, gen}, 16, 4, tokens, -1, true};
    plan = (struct plan){.prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    if (what == DRAWN) {
        f.rows[0].token++;
    }
    const uint32_t more = what == APPENDED ? 10 : 11;
    struct plan_update update = {
        .ref = {1, gen}, .append_count = 1, .append_blocks = &more, .pause = what == PAUSED};
    const struct plan_move move = {{1, gen}, 0, what == MOVED ? 2 : 3};
    plan = (struct plan){.decode_rows = what == PAUSED ? 0 : 1,
                         .update_count = 1,
                         .updates = &update,
                         .move_count = 1,
                         .moves = &move};
    if (what != DRAWN) {
        ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    }
    uint64_t digest = batch_step_digest(f.batch, f.rows, batch_logit_count(f.batch));
    deinit(&f);
    return digest;
}

START_TEST(one_difference_shows_in_the_digest_of_a_step) {
    uint64_t digests[DIFFERENCE_COUNT];
    for (unsigned what = SAME; what < DIFFERENCE_COUNT; what++) {
        digests[what] = run_differently((enum difference)what);
        ck_assert_uint_eq(digests[what], run_differently((enum difference)what));
        for (unsigned other = SAME; other < what; other++) {
            ck_assert_msg(digests[what] != digests[other], "%u and %u look the same", what, other);
        }
    }
}
END_TEST

START_TEST(nothing_of_a_slot_that_was_freed_is_left_in_the_digest) {
    struct fixture f;
    init(&f);
    uint64_t empty = batch_step_digest(f.batch, f.rows, 0);
    struct plan_admit admit = admit_of(3, 8, 64);
    struct plan_prefill chunk = chunk_of(3, 0, 8, false);
    struct plan plan = {.admit_count = 1, .admits = &admit, .prefill_count = 1, .prefills = &chunk};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_ne(batch_step_digest(f.batch, f.rows, 0), empty);
    struct plan_retire retire = {.ref = {3, 1}};
    plan = (struct plan){.retire_count = 1, .retires = &retire};
    ck_assert_int_eq(apply(&f, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(batch_step_digest(f.batch, f.rows, 0), empty);
    deinit(&f);
}
END_TEST

Suite *suite_batch(void) {
    Suite *suite = suite_create("worker/step/batch");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, prefill_in_chunks_then_decode);
    tcase_add_test(tc, prompt_scores_name_the_token_they_score);
    tcase_add_test(tc, wrong_plans_leave_no_trace);
    tcase_add_test(tc, decode_stops_at_the_end_of_the_blocks);
    tcase_add_test(tc, a_step_is_refused_one_past_every_limit);
    tcase_add_test(tc, moves_change_the_table_and_name_the_copies);
    tcase_add_test(tc, one_difference_shows_in_the_digest_of_a_step);
    tcase_add_test(tc, nothing_of_a_slot_that_was_freed_is_left_in_the_digest);
    tcase_add_loop_test(tc, random_plans_never_break_the_table, 0, 4);
    suite_add_tcase(suite, tc);
    return suite;
}
