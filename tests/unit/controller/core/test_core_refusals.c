// SPDX-License-Identifier: Apache-2.0
// Goal: a plan that a worker refuses costs no token and fails at most the request that is at fault.
// Method: workers that are smaller than they told, or refuse one sequence; core_audit after every
// tick.
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <string.h>

// One limit of the worker's that it did not tell, at half of what steps would reach.
START_TEST(refused_plans_are_split_and_cost_no_token) {
    struct world w;
    world_init(&w);
    struct envelope secret = w.capacity.envelope;
    switch (_i) {
    case 0:
        secret.tokens = 3;
        break;
    case 1:
        secret.seqs = 2;
        break;
    case 2:
        secret.logit_rows = 2;
        break;
    case 3:
        secret.logprob_rows = 1;
        break;
    case 4:
        secret.prompt_logit_rows = 2;
        break;
    default:
        secret.attended_tokens = 150;
        break;
    }
    fake_worker_narrow(w.lanes[0].worker, &secret, -1);
    worker_ready(&w);
    for (int i = 0; i < 15; i++) {
        submit(&w, arrive(&w, 40, 50));
    }
    run_dry(&w);
    ck_assert_uint_gt(core_counters(w.core)->plan_refusals, 0);
    ck_assert_uint_eq(core_counters(w.core)->plan_refusals,
                      fake_worker_refusals(w.lanes[0].worker));
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 15);
    ck_assert(!w.resync);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(what_no_step_has_a_row_for_is_refused_at_once) {
    struct world w;
    world_init(&w);
    w.capacity.envelope.logprob_rows = 0;
    worker_ready(&w);
    for (int i = 0; i < 15; i++) {
        submit(&w, arrive(&w, 10, 10));    // every third and every fifth wants logprobs
    }
    ck_assert_uint_eq(w.rejected[REJECT_REASON_TOO_LARGE], 7);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 8);
    world_deinit(&w);
}
END_TEST

START_TEST(a_request_that_is_always_refused_fails_alone) {
    struct world w;
    world_init(&w);
    fake_worker_narrow(w.lanes[0].worker, &w.capacity.envelope, 77);
    worker_ready(&w);
    for (int i = 0; i < 12; i++) {
        struct client *client = arrive(&w, 40, 50);
        client->tokens[0] = i == 3 || i == 9 ? 77 : 5;
        submit(&w, client);
    }
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_REFUSED], 2);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 10);
    ck_assert(!w.resync);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

// A worker that refuses whatever comes is not cured by failing one request after another.
START_TEST(a_worker_that_refuses_everything_gets_a_new_epoch) {
    struct world w;
    world_init(&w);
    struct envelope nothing = w.capacity.envelope;
    nothing.tokens = 0;
    worker_ready(&w);
    for (int i = 0; i < 4; i++) {
        submit(&w, arrive(&w, 10, 50));
    }
    answer(&w);
    fake_worker_narrow(w.lanes[0].worker, &nothing, -1);
    for (int i = 0; i < 200 && !w.resync; i++) {
        answer(&w);
    }
    ck_assert(w.resync);
    ck_assert_uint_le(w.finished[FINISH_REASON_REFUSED], 1);
    fake_worker_narrow(w.lanes[0].worker, &w.capacity.envelope, -1);
    worker_ready(&w);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH] + w.finished[FINISH_REASON_REFUSED], 4);
    world_deinit(&w);
}
END_TEST

// A refusal that comes twice is not an answer to the plan that is made instead.
START_TEST(a_doubled_refusal_refuses_nothing_else) {
    struct world w;
    world_init(&w);
    struct envelope secret = w.capacity.envelope;
    secret.tokens = 3;
    fake_worker_narrow(w.lanes[0].worker, &secret, -1);
    worker_ready(&w);
    submit(&w, arrive(&w, 40, 10));
    for (int i = 0; i < 200 && w.lanes[0].plan_waits; i++) {
        take_answer(&w);
        lane_rank_answer(&w, 0, 0, 0);
        lane_rank_answer(&w, 0, 0, 0);
    }
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_gt(core_counters(w.core)->plan_refusals, 1);
    ck_assert_uint_eq(core_counters(w.core)->plan_refusals,
                      fake_worker_refusals(w.lanes[0].worker));
    ck_assert_uint_gt(core_counters(w.core)->results_stale, 10);
    ck_assert(!w.resync);
    world_deinit(&w);
}
END_TEST

Suite *suite_core_refusals(void) {
    Suite *suite = suite_create("controller/core/refusals");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, refused_plans_are_split_and_cost_no_token, 0, 6);
    tcase_add_test(tc, what_no_step_has_a_row_for_is_refused_at_once);
    tcase_add_test(tc, a_request_that_is_always_refused_fails_alone);
    tcase_add_test(tc, a_worker_that_refuses_everything_gets_a_new_epoch);
    tcase_add_test(tc, a_doubled_refusal_refuses_nothing_else);
    suite_add_tcase(suite, tc);
    return suite;
}
