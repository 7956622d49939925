// SPDX-License-Identifier: Apache-2.0
// Goal: the KV pool changes its size under running sequences and costs none of them a token.
// Method: a worker whose blocks hold what was computed; core_audit after every tick.
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(an_idle_pool_shrinks_and_grows) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    resize(&w, 14);
    ck_assert_uint_eq(pool_of(&w), 14);    // at once
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 14);
    resize(&w, 40);
    ck_assert_uint_eq(pool_of(&w), 14);    // not before the memory is there
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 40);
    ck_assert_uint_eq(pool_of(&w), 40);
    ck_assert_str_eq(w.note, "the test's note");
    submit(&w, arrive(&w, 100, 90));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

// Sequences spread over the pool, whoever sits low ends, and the rest moves down.
START_TEST(a_busy_pool_shrinks_by_moving_blocks) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 3; i++) {
        submit(&w, arrive(&w, 40, 8));
    }
    for (int i = 0; i < 3; i++) {
        submit(&w, arrive(&w, 40, 60));
    }
    while (w.finished[FINISH_REASON_LENGTH] < 3) {
        answer(&w);
    }
    ck_assert_uint_eq(running(&w), 3);
    resize(&w, 1);
    uint32_t end = pool_of(&w);
    ck_assert_uint_lt(end, KV_BLOCKS);
    ck_assert_uint_gt(end,
                      6);    // each of three needs seven blocks in the end, one after the other
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_NEEDED, end);
    ck_assert_uint_gt(fake_worker_moves(w.lanes[0].worker), 0);
    ck_assert_uint_eq(core_counters(w.core)->kv_blocks_moved, fake_worker_moves(w.lanes[0].worker));
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 6);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    world_deinit(&w);
}
END_TEST

START_TEST(admissions_follow_the_pool) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    resize(&w, 12);
    run_dry(&w);
    // Each needs all of it: one at a time. The largest still fits, one token more does not.
    submit(&w, arrive(&w, 180, 12));
    submit(&w, arrive(&w, 180, 12));
    answer(&w);
    ck_assert_uint_eq(running(&w), 1);
    resize(&w, 30);
    for (int i = 0; i < 10; i++) {
        answer(&w);    // until the first prompt leaves tokens of a step to the second
    }
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    ck_assert_uint_eq(running(&w), 2);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 2);
    resize(&w, 6);
    run_dry(&w);
    submit(&w, arrive(&w, 90, 7));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_TOO_LARGE], 1);
    submit(&w, arrive(&w, 90, 6));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 3);
    world_deinit(&w);
}
END_TEST

START_TEST(who_waits_keeps_the_room_it_was_promised) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 10));
    submit(&w, arrive(&w, 150, 42));    // twelve blocks, still in the line
    resize(&w, 3);
    ck_assert_uint_eq(pool_of(&w), 12);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_NEEDED, 12);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 2);
    world_deinit(&w);
}
END_TEST

START_TEST(chunks_and_budgets_are_the_workers_word) {
    struct world w;
    world_init(&w);
    fake_worker_budget(w.lanes[0].worker, 5, 30);
    worker_ready(&w);
    resize(&w, 11);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_ROUNDED, 15);
    ck_assert_uint_eq(pool_of(&w), 15);
    resize(&w, 31);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_SHORT, 15);
    ck_assert_uint_eq(pool_of(&w), 15);
    resize(&w, 30);
    run_dry(&w);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    world_deinit(&w);
}
END_TEST

START_TEST(one_resize_at_a_time_and_none_without_a_worker) {
    struct world w;
    world_init(&w);
    resize(&w, 10);
    expect_resized(&w, RESIZE_OUTCOME_UNAVAILABLE, 0);
    worker_ready(&w);
    resize(&w, 12);
    resize(&w, 20);
    ck_assert_uint_eq(w.told_resizes, 2);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_BUSY);
    ck_assert_uint_eq(w.resized.resized.operation, 3);
    run_dry(&w);
    ck_assert_uint_eq(w.told_resizes, 3);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_DONE);
    ck_assert_uint_eq(w.resized.resized.operation, 2);
    world_deinit(&w);
}
END_TEST

START_TEST(a_worker_lost_during_a_resize_tells_its_size_anew) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    for (int i = 0; i < 4; i++) {
        submit(&w, arrive(&w, 40, 60));
    }
    for (int i = 0; i < 8; i++) {
        answer(&w);
    }
    resize(&w, 13);
    worker_lost(&w);
    expect_resized(&w, RESIZE_OUTCOME_LOST, KV_BLOCKS);
    worker_ready(&w);
    ck_assert_uint_eq(pool_of(&w), KV_BLOCKS);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 4);
    world_deinit(&w);
}
END_TEST

// Mapping may take long, and what waits behind it is not lost.
START_TEST(a_slow_resize_is_no_lost_step) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 20));
    answer(&w);
    resize(&w, 30);
    answer(&w);
    uint32_t blocks = 0;
    while (blocks == 0) {
        blocks = take_answer(&w);
        struct core_input input = {.kind = CORE_INPUT_RESULT,
                                   .result = {{0}, 0, &w.lanes[0].answered.result}};
        tick(&w, &input);
    }
    ck_assert(w.lanes[0].plan_waits);
    for (int seconds = 0; seconds < 120; seconds++) {
        w.now_us += 1000 * 1000;
        tick(&w, NULL);
    }
    ck_assert(!w.resync);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.step_overdue_us, 0);
    w.capacity.kv_blocks = blocks;
    struct core_input report = {.kind = CORE_INPUT_WORKER_READY,
                                .ready = {{0}, &w.capacity, w.lanes[0].epoch, 0, 1, false}};
    tick(&w, &report);
    expect_resized(&w, RESIZE_OUTCOME_DONE, 30);
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.step_overdue_us, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

// More sequences than a plan copies blocks share the beginning of a prompt, in a block above the
// new end: one copy, told to all of them.
START_TEST(a_block_of_very_many_sequences_moves) {
    enum { MANY = 96, TOKENS = 512, BLOCKS = 150 };
    struct world w;
    world_init(&w);
    world_deinit(&w);
    struct core_config config = {.seqs_max = MANY,
                                 .waiting_max = MANY,
                                 .step_tokens_max = TOKENS,
                                 .blocks_max = FAKE_BLOCKS_MAX,
                                 .group = 1,
                                 .depth = w.depth,
                                 .groups_max = 1,
                                 .tenant_max = 1};
    core_policy_defaults(&config.policy);
    ck_assert_int_eq(core_create(&config, &w.core, NULL), STATUS_OK);
    struct envelope *e = &w.capacity.envelope;
    e->seqs = MANY;
    e->tokens = e->logit_rows = e->prompt_logit_rows = e->logprob_rows = TOKENS;
    e->attended_tokens = MANY * SEQ_TOKENS;
    struct plan_limits limits = {*e, BLOCK_TOKENS, BLOCKS, VOCABULARY};
    w.lanes[0].worker = fake_worker_create(&limits);
    worker_ready(&w);
    // These take the low blocks, and leave once somebody has begun above them.
    uint64_t first = w.next_id + 1;
    for (int i = 0; i < 9; i++) {
        submit(&w, arrive(&w, 180, 12));
    }
    int32_t begin[SEQ_TOKENS] = {1, 2, 3, 4, 5};
    struct client *head = arrive_after(&w, begin, BLOCK_TOKENS, 20, 60);
    while (head->received < 8) {
        answer(&w);
    }
    for (uint64_t id = first; id < first + 9; id++) {
        struct core_input gone = {.kind = CORE_INPUT_CANCEL, .id = {id}};
        tick(&w, &gone);
    }
    for (int i = 0; i < 85; i++) {
        arrive_after(&w, begin, BLOCK_TOKENS, 20, 12);
    }
    for (int i = 0; i < 4; i++) {
        answer(&w);
    }
    ck_assert_uint_gt(running(&w), BOUND_KV_COPIES);
    resize(&w, 20);
    run_dry(&w);
    ck_assert_int_eq(w.resized.resized.outcome, RESIZE_OUTCOME_NEEDED);
    ck_assert_uint_lt(w.resized.resized.after, BLOCKS);
    ck_assert_uint_gt(core_counters(w.core)->kv_blocks_moved, 0);
    ck_assert_uint_gt(fake_worker_moves(w.lanes[0].worker), BOUND_KV_COPIES);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH] + w.finished[FINISH_REASON_CANCELLED], 95);
    world_deinit(&w);
}
END_TEST
Suite *suite_core_pool(void) {
    Suite *suite = suite_create("controller/core/pool");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, an_idle_pool_shrinks_and_grows);
    tcase_add_test(tc, a_busy_pool_shrinks_by_moving_blocks);
    tcase_add_test(tc, admissions_follow_the_pool);
    tcase_add_test(tc, who_waits_keeps_the_room_it_was_promised);
    tcase_add_test(tc, chunks_and_budgets_are_the_workers_word);
    tcase_add_test(tc, one_resize_at_a_time_and_none_without_a_worker);
    tcase_add_test(tc, a_worker_lost_during_a_resize_tells_its_size_anew);
    tcase_add_test(tc, a_slow_resize_is_no_lost_step);
    tcase_add_test(tc, a_block_of_very_many_sequences_moves);
    suite_add_tcase(suite, tc);
    return suite;
}
