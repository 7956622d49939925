// SPDX-License-Identifier: Apache-2.0
// Groups that are lost and come back with their KV, and ranks that answer for one group.
#include "common/bounds.h"
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

static struct client *run_one(struct world *w, uint32_t prompt, uint32_t output, bool penalised) {
    struct client *client = arrive(w, prompt, output);
    client->penalised = penalised;
    submit(w, client);
    return client;
}

static uint64_t computed_prompt(const struct world *w) {
    return core_counters(w->core)->tokens_prompt_computed;
}

// Lost after `_i` answers, with a plan under way: what was answered is not computed again.
START_TEST(what_was_computed_stays_computed) {
    struct world w;
    world_init_depth(&w, 1 + (uint32_t)_i % SCHEDULER_DEPTH_MAX);
    worker_ready(&w);
    run_one(&w, 60, 40, false);
    run_one(&w, 17, 50, true);
    run_one(&w, 1, 30, false);
    for (int i = 0; i < _i && w.lanes[0].plan_waits; i++) {
        answer(&w);
    }
    uint64_t before = computed_prompt(&w);
    worker_lost(&w);
    ck_assert(!w.lanes[0].plan_waits);
    tick(&w, NULL);
    lane_back(&w, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 3);
    const struct core_counters *counters = core_counters(w.core);
    ck_assert_uint_eq(counters->tokens_recomputed, 0);
    ck_assert_uint_eq(counters->epochs_ended[EPOCH_END_LOST], 1);
    ck_assert_uint_eq(counters->losses_kept, 1);
    ck_assert_uint_eq(w.recovered, 1);
    ck_assert(w.recovery.recovered.kv_kept);
    ck_assert_int_eq(w.recovery.recovered.why, EPOCH_END_LOST);
    // The prompts' tokens once each, and of each sequence that ran at most the last one again.
    ck_assert_uint_ge(computed_prompt(&w), 78);
    ck_assert_uint_le(computed_prompt(&w), 78 + 3);
    ck_assert_uint_le(before, 78);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(a_group_that_comes_back_changed_computes_anew) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    run_one(&w, 60, 40, false);
    for (int i = 0; i < 10; i++) {
        answer(&w);
    }
    worker_lost(&w);
    fake_worker_budget(w.lanes[0].worker, 1, FAKE_BLOCKS_MAX);
    w.capacity.envelope.logprob_rows--;    // another envelope
    fake_worker_reset(w.lanes[0].worker, w.lanes[0].epoch + 1);
    lane_back(&w, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_gt(core_counters(w.core)->tokens_recomputed, 60);
    ck_assert_uint_eq(core_counters(w.core)->losses_kept, 0);
    world_deinit(&w);
}
END_TEST

// Requests come, end and are cancelled while the group is away.
START_TEST(life_goes_on_while_the_group_is_away) {
    struct world w;
    world_init_depth(&w, 2);
    worker_ready(&w);
    struct client *first = run_one(&w, 60, 40, false);
    struct client *second = run_one(&w, 50, 40, false);
    for (int i = 0; i < 12; i++) {
        answer(&w);
    }
    worker_lost(&w);
    cancel(&w, first);
    run_one(&w, 20, 10, false);
    lane_back(&w, 0);
    for (int i = 0; i < 3; i++) {
        answer(&w);
    }
    worker_lost(&w);    // before everybody is told of again, perhaps
    lane_back(&w, 0);
    worker_lost(&w);
    cancel(&w, second);
    lane_back(&w, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_CANCELLED], 2);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    expect_all_blocks_free(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(losses_without_progress_are_counted_and_with_progress_forgiven) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    struct client *client = run_one(&w, 10, 100, false);
    for (uint32_t i = 0; i < 10 * BOUND_RESUMES; i++) {
        uint32_t received = client->received;
        while (client->received == received) {
            answer(&w);
        }
        worker_lost(&w);
        lane_back(&w, 0);
    }
    ck_assert(client->open);
    for (uint32_t i = 0; i < BOUND_RESUMES; i++) {
        ck_assert(client->open);
        worker_lost(&w);
        lane_back(&w, 0);
    }
    ck_assert(!client->open);
    ck_assert_uint_eq(w.finished[FINISH_REASON_FAULT], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(a_plan_is_answered_when_all_ranks_have_answered) {
    struct world w;
    world_init_depth(&w, 2);
    w.world = 4;
    worker_ready(&w);
    struct client *client = run_one(&w, 10, 5, false);
    static const uint32_t order[4] = {2, 0, 3, 1};
    take_answer(&w);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(client->received, 0);
        lane_rank_answer(&w, 0, order[i], 7);
        lane_rank_answer(&w, 0, order[i], 7);    // twice
    }
    ck_assert_uint_eq(client->received, 1);
    ck_assert_uint_eq(core_counters(w.core)->results_stale, 4);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert(!w.resync);
    world_deinit(&w);
}
END_TEST

// No token of ranks that have diverged reaches a client, and none of their KV is used again.
START_TEST(ranks_that_diverge_begin_a_new_epoch_without_their_kv) {
    struct world w;
    world_init(&w);
    w.world = 2;
    worker_ready(&w);
    struct client *client = run_one(&w, 10, 5, false);
    answer(&w);
    ck_assert_uint_eq(client->received, 1);
    take_answer(&w);
    lane_rank_answer(&w, 0, (uint32_t)_i, 1);
    lane_rank_answer(&w, 0, 1 - (uint32_t)_i, 2);
    ck_assert_uint_eq(client->received, 1);
    ck_assert(w.resync);
    ck_assert_uint_eq(core_counters(w.core)->epochs_ended[EPOCH_END_DIVERGED], 1);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 10);
    lane_back(&w, 0);
    ck_assert_uint_eq(core_counters(w.core)->losses_kept, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

START_TEST(a_rank_that_does_not_answer_is_named) {
    struct world w;
    world_init(&w);
    w.world = 4;
    worker_ready(&w);
    struct client *client = run_one(&w, 10, 5, false);
    answer(&w);
    take_answer(&w);
    lane_rank_answer(&w, 0, 0, 1);
    lane_rank_answer(&w, 0, 1, 1);
    lane_rank_answer(&w, 0, 3, 1);
    ck_assert_uint_eq(client->received, 1);
    w.now_us += 4 * (uint64_t)BOUND_STEP_LOST_US;
    tick(&w, NULL);
    ck_assert(w.resync);
    ck_assert_uint_eq(w.missing, 1u << 2);
    lane_back(&w, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_eq(core_counters(w.core)->tokens_recomputed, 0);
    world_deinit(&w);
}
END_TEST

// A request whose first outputs were drawn before this core knew of it.
START_TEST(a_token_log_from_before_is_continued) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    struct client *client = arrive(&w, 20, 30);
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t at = client->prompt_count + client->received++;
        client->tokens[at] = fake_worker_next(client->tokens, at, VOCABULARY);
    }
    submit(&w, client);
    run_dry(&w);
    ck_assert_uint_eq(client->received, 30);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    ck_assert_uint_eq(core_counters(w.core)->tokens_generated, 18);
    world_deinit(&w);
}
END_TEST

Suite *suite_core_recovery(void) {
    Suite *suite = suite_create("controller/core/recovery");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, what_was_computed_stays_computed, 0, 60);
    tcase_add_test(tc, a_group_that_comes_back_changed_computes_anew);
    tcase_add_test(tc, life_goes_on_while_the_group_is_away);
    tcase_add_test(tc, losses_without_progress_are_counted_and_with_progress_forgiven);
    tcase_add_test(tc, a_plan_is_answered_when_all_ranks_have_answered);
    tcase_add_loop_test(tc, ranks_that_diverge_begin_a_new_epoch_without_their_kv, 0, 2);
    tcase_add_test(tc, a_rank_that_does_not_answer_is_named);
    tcase_add_test(tc, a_token_log_from_before_is_continued);
    suite_add_tcase(suite, tc);
    return suite;
}
