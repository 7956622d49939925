// SPDX-License-Identifier: Apache-2.0
// Goal: each field of a plan, a result and a capacity report is accepted at its bound and refused
// one past it, by name. Method: one good message, one field changed at a time.
#include "proto/messages.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <string.h>

static const struct plan_limits limits = {{64, 8, 64, 64, 64, 4, 64, 0, 64, 512}, 16, 16, 100};

struct fixture {
    uint32_t blocks[5];
    int32_t tokens[65];
    struct plan_admit admit;
    struct plan_update update;
    struct plan_retire retire;
    struct plan_prefill prefill;
    struct plan_move moves[BOUND_KV_MOVES + 1];
    struct plan plan;
};

static void init(struct fixture *f) {
    memset(f, 0, sizeof *f);
    f->admit = (struct plan_admit){
        .ref = {7, 1},
        .prompt_tokens = 64,
        .len_max = 64,
        .block_count = 4,
        .blocks = f->blocks,
        .sampling = {.temperature = 100.0f, .top_p = 1.0f, .repetition_penalty = 10.0f}};
    f->blocks[3] = 15;
    f->tokens[0] = 99;
    f->update = (struct plan_update){{7, 1}, 4, f->blocks, false, true};
    f->retire.ref.slot = 7;
    f->prefill = (struct plan_prefill){{7, 1}, 0, 57, f->tokens, 99, false};
    f->plan = (struct plan){.decode_rows = 7,
                            .admit_count = 1,
                            .update_count = 1,
                            .retire_count = 1,
                            .prefill_count = 1,
                            .admits = &f->admit,
                            .updates = &f->update,
                            .retires = &f->retire,
                            .prefills = &f->prefill,
                            .move_count = BOUND_KV_MOVES < 16 ? BOUND_KV_MOVES : 16,
                            .moves = f->moves,
                            .kv_blocks = BOUND_BLOCKS};
    for (uint32_t i = 0; i <= BOUND_KV_MOVES; i++) {
        f->moves[i] = (struct plan_move){{7, 1}, i, i};    // 16 blocks, each place once
    }
}

static void refused(const struct fixture *f, const char *word) {
    struct error err = {0};
    ck_assert_int_eq(plan_validate(&f->plan, &limits, &err), STATUS_INVALID);
    ck_assert_msg(strstr(err.message, word) != NULL, "'%s' lacks '%s'", err.message, word);
}

START_TEST(a_plan_at_every_bound_is_good) {
    struct fixture f;
    init(&f);
    struct error err = {0};
    ck_assert_msg(plan_validate(&f.plan, &limits, &err) == STATUS_OK, "%s", err.message);
}
END_TEST

#define ONE_PAST(name, change, word)                                                               \
    START_TEST(name) {                                                                             \
        struct fixture f;                                                                          \
        init(&f);                                                                                  \
        change;                                                                                    \
        refused(&f, word);                                                                         \
    }                                                                                              \
    END_TEST

ONE_PAST(admit_slot, f.admit.ref.slot = 8, "slot")
ONE_PAST(admit_empty_prompt, f.admit.prompt_tokens = 0, "empty prompt")
ONE_PAST(admit_prompt_past_len_max, f.admit.len_max = 63, "prompt_tokens")
ONE_PAST(admit_len_max, f.admit.len_max = 65, "len_max")
ONE_PAST(admit_block_count, f.admit.block_count = 5, "block count")
ONE_PAST(admit_block_id, f.blocks[0] = 16, "block id")
ONE_PAST(update_slot, f.update.ref.slot = 8, "slot")
ONE_PAST(update_block_count, f.update.append_count = 5, "block count")
ONE_PAST(update_both_ways, f.update.pause = true, "paused and resumed")
ONE_PAST(retire_slot, f.retire.ref.slot = 8, "slot")
ONE_PAST(prefill_slot, f.prefill.ref.slot = 8, "slot")
ONE_PAST(prefill_empty, f.prefill.token_count = 0, "empty prompt chunk")
ONE_PAST(prefill_end, f.prefill.start_pos = 9, "end of a prompt chunk")
ONE_PAST(prefill_overflow, f.prefill.start_pos = UINT32_MAX, "end of a prompt chunk")
ONE_PAST(prefill_token, f.tokens[3] = 100, "prompt token")
ONE_PAST(prefill_negative_token, f.tokens[3] = -1, "prompt token")
ONE_PAST(prefill_next_token, f.prefill.next_token = 100, "next prompt token")
ONE_PAST(prefill_next_negative, f.prefill.next_token = -2, "next prompt token")
ONE_PAST(rows_of_the_step, f.prefill.token_count = 58, "rows of the step")
ONE_PAST(decode_rows, f.plan.decode_rows = 9, "decode rows")
ONE_PAST(sequences_of_the_step, f.plan.decode_rows = 8; f.prefill.token_count = 1, "sequences")
ONE_PAST(move_list, f.plan.move_count = BOUND_KV_MOVES + 1, "move count")
ONE_PAST(move_slot, f.moves[3].ref.slot = 8, "slot")
ONE_PAST(move_block, f.moves[3].block = 16, "block id")
ONE_PAST(move_to_one_place, f.moves[3].block = 2, "two moves share")
ONE_PAST(move_from_one_place, f.moves[3].index = 2, "two moves share")
ONE_PAST(kv_blocks, f.plan.kv_blocks = BOUND_BLOCKS + 1, "KV blocks asked for")
ONE_PAST(admit_list, f.plan.admit_count = 9, "admit count")
ONE_PAST(temperature, f.admit.sampling.temperature = 100.1f, "temperature")
ONE_PAST(temperature_nan, f.admit.sampling.temperature = NAN, "temperature")
ONE_PAST(top_p_zero, f.admit.sampling.top_p = 0.0f, "top_p")
ONE_PAST(min_p, f.admit.sampling.min_p = 1.1f, "min_p")
ONE_PAST(repetition, f.admit.sampling.repetition_penalty = 0.0f, "repetition_penalty")
ONE_PAST(presence, f.admit.sampling.presence_penalty = 2.1f, "presence_penalty")
ONE_PAST(frequency, f.admit.sampling.frequency_penalty = -2.1f, "frequency_penalty")
ONE_PAST(top_logprobs, f.admit.sampling.top_logprobs = BOUND_LOGPROBS + 1, "top_logprobs")
ONE_PAST(stop_count, f.admit.sampling.stop_token_count = BOUND_STOP_TOKENS + 1, "stop token count")
ONE_PAST(stop_token, f.admit.sampling.stop_token_count = 1;
         f.admit.sampling.stop_tokens[0] = 100, "stop token")
ONE_PAST(bias_count, f.admit.sampling.bias_count = BOUND_LOGIT_BIAS + 1, "logit_bias count")

// A block that many sequences hold is one to move; so many different ones are too many.
START_TEST(a_plan_moves_few_blocks_of_many_sequences) {
    static const struct plan_limits wide = {
        {64, 8, 4096, 64, 64, 256, 64, 0, 4096, 4096}, 16, 200, 100};
    struct plan_move moves[8 * BOUND_KV_COPIES];
    struct plan plan = {.moves = moves};
    for (uint32_t block = 0; block < BOUND_KV_COPIES; block++) {
        for (uint32_t slot = 0; slot < 8; slot++) {
            moves[plan.move_count++] = (struct plan_move){{slot, 1}, block, block};
        }
    }
    ck_assert_int_eq(plan_validate(&plan, &wide, NULL), STATUS_OK);
    moves[0].block = BOUND_KV_COPIES;
    struct error err = {0};
    ck_assert_int_eq(plan_validate(&plan, &wide, &err), STATUS_INVALID);
    ck_assert_msg(strstr(err.message, "blocks to move") != NULL, "%s", err.message);
}
END_TEST

START_TEST(result_rows_are_judged) {
    struct result_row row = {.ref = {7, 1}, .position = 63, .token = 99};
    struct step_result result = {.row_count = 1, .rows = &row};
    ck_assert_int_eq(result_validate(&result, &limits, NULL), STATUS_OK);
    row.token = 100;
    ck_assert_int_eq(result_validate(&result, &limits, NULL), STATUS_INVALID);
    row.token = 99;
    row.position = 64;
    ck_assert_int_eq(result_validate(&result, &limits, NULL), STATUS_INVALID);
    row.position = 63;
    row.ref.slot = 8;
    ck_assert_int_eq(result_validate(&result, &limits, NULL), STATUS_INVALID);
}
END_TEST

START_TEST(capacity_reports_are_judged) {
    struct message_capacity good = {
        .envelope = {512, 64, 8192, 512, 512, 256, 512, 0, 8192, 64 * 8192},
        .block_tokens = 32,
        .kv_blocks = 700,
        .vocabulary = 49152};
    ck_assert_int_eq(capacity_validate(&good, NULL), STATUS_OK);
    struct message_capacity bad = good;
    bad.envelope.blocks_per_seq = 257;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.envelope.seqs = BOUND_SEQS + 1;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.block_tokens = 0;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.kv_blocks = 0;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.envelope.attended_tokens_max = 8193;
    bad.envelope.attended_tokens = 64 * 8193;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.envelope.attended_tokens = 8191;    // less than one sequence may attend to
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.envelope.draft_tokens = 1;    // nobody drafts yet
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
    bad = good;
    bad.envelope.seq_tokens = 8 * BOUND_BLOCKS_PER_SEQ;
    bad.envelope.blocks_per_seq = BOUND_BLOCKS_PER_SEQ;
    bad.block_tokens = 8;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_OK);
    bad.envelope.seq_tokens++;
    bad.envelope.blocks_per_seq++;
    ck_assert_int_eq(capacity_validate(&bad, NULL), STATUS_INVALID);
}
END_TEST

START_TEST(a_step_is_judged_by_every_limit) {
    const struct envelope e = {.tokens = 10,
                               .seqs = 3,
                               .seq_tokens = 64,
                               .logit_rows = 9,
                               .prompt_logit_rows = 8,
                               .blocks_per_seq = 4,
                               .logprob_rows = 7,
                               .attended_tokens_max = 60,
                               .attended_tokens = 100};
    const struct step_size brim = {10, 3, 9, 8, 7, 60, 100};
    ck_assert_int_eq(step_size_validate(&brim, &e, NULL), STATUS_OK);
    struct step_size past[7] = {brim, brim, brim, brim, brim, brim, brim};
    past[0].tokens++;
    past[1].seqs++;
    past[2].logit_rows++;
    past[3].prompt_logit_rows++;
    past[4].logprob_rows++;
    past[5].attended_tokens_max++;
    past[6].attended_tokens++;
    static const char *const names[7] = {"rows of the step is 11; the limit is 10",
                                         "sequences of the step",
                                         "logit rows of the step",
                                         "prompt logit rows of the step",
                                         "logprob rows of the step",
                                         "longest attended context",
                                         "attended context of the step"};
    for (int i = 0; i < 7; i++) {
        struct error err = {0};
        ck_assert_int_eq(step_size_validate(&past[i], &e, &err), STATUS_INVALID);
        ck_assert_msg(strncmp(err.message, names[i], strlen(names[i])) == 0, "%s", err.message);
    }
}
END_TEST

static void expect_share(const struct step_chunk *chunk, uint32_t logits, uint32_t scores,
                         uint32_t logprobs) {
    struct step_share share = step_share_chunk(chunk);
    ck_assert_uint_eq(share.tokens, chunk->count);
    ck_assert_uint_eq(share.context, chunk->start + chunk->count);
    ck_assert_uint_eq(share.logit_rows, logits);
    ck_assert_uint_eq(share.prompt_logit_rows, scores);
    ck_assert_uint_eq(share.logprob_rows, logprobs);
}

START_TEST(shares_count_what_chunks_score_and_draw) {
    struct step_chunk chunk = {.start = 4, .count = 6, .prompt_tokens = 16, .len_max = 20};
    expect_share(&chunk, 0, 0, 0);
    chunk.want_prompt_logprobs = true;
    expect_share(&chunk, 6, 6, 6);
    chunk.start = 10;    // the end of the prompt, whose last row draws
    chunk.last = true;
    expect_share(&chunk, 6, 5, 5);
    chunk.want_logprobs = true;
    expect_share(&chunk, 6, 5, 6);
    chunk.len_max = 16;    // nothing to draw
    expect_share(&chunk, 5, 5, 5);
    // A sequence that came back with outputs: rows past the prompt score nothing.
    chunk = (struct step_chunk){.start = 14,
                                .count = 6,
                                .last = true,
                                .prompt_tokens = 16,
                                .len_max = 30,
                                .want_prompt_logprobs = true};
    expect_share(&chunk, 2, 1, 1);
}
END_TEST

START_TEST(hellos_are_judged) {
    const struct {
        struct message_hello hello;
        const char *because;
    } cases[] = {
        {{.world = 1}, NULL},
        {{.world = BOUND_RANKS, .rank = BOUND_RANKS - 1, .group = BOUND_GROUPS - 1}, NULL},
        {{.world = 0}, "a group of 0 ranks"},
        {{.world = BOUND_RANKS + 1}, "a group of 9 ranks"},
        {{.world = 2, .rank = 2}, "rank 2 of a group of 2"},
        {{.world = 1, .group = BOUND_GROUPS}, "group is 1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error err = {0};
        enum status status = hello_validate(&cases[i].hello, &err);
        ck_assert_int_eq(status, cases[i].because == NULL ? STATUS_OK : STATUS_INVALID);
        if (cases[i].because != NULL) {
            ck_assert_ptr_nonnull(strstr(err.message, cases[i].because));
        }
    }
}
END_TEST

Suite *suite_messages(void) {
    Suite *suite = suite_create("proto/messages");
    TCase *tc = tcase_create("all");
    const TTest *const tests[] = {
        a_plan_at_every_bound_is_good,
        admit_slot,
        admit_empty_prompt,
        admit_prompt_past_len_max,
        admit_len_max,
        admit_block_count,
        admit_block_id,
        update_slot,
        update_block_count,
        update_both_ways,
        retire_slot,
        prefill_slot,
        prefill_empty,
        prefill_end,
        prefill_overflow,
        prefill_token,
        prefill_negative_token,
        prefill_next_token,
        prefill_next_negative,
        rows_of_the_step,
        decode_rows,
        sequences_of_the_step,
        move_list,
        move_slot,
        move_block,
        move_to_one_place,
        move_from_one_place,
        kv_blocks,
        admit_list,
        temperature,
        temperature_nan,
        top_p_zero,
        min_p,
        repetition,
        presence,
        frequency,
        top_logprobs,
        stop_count,
        stop_token,
        bias_count,
        a_plan_moves_few_blocks_of_many_sequences,
        result_rows_are_judged,
        capacity_reports_are_judged,
        hellos_are_judged,
        a_step_is_judged_by_every_limit,
        shares_count_what_chunks_score_and_draw,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        tcase_add_test(tc, tests[i]);
    }
    suite_add_tcase(suite, tc);
    return suite;
}
