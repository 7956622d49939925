// SPDX-License-Identifier: Apache-2.0
// Goal: a request is refused in the order of serving.md 1.8, early, with a time that means
// something; nobody is refused that began, nor for a guess; whoever is taken is served in time.
// Method: a worker whose steps take time by their rows, and invented time.
#include "common/hash.h"
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_US = 1000, TARGET_US = 100 * 1000 };

static void no_bounds(struct core_config *config) {
    config->policy.queued_tokens_max = 0;
}

static void hundred_tokens(struct core_config *config) {
    config->policy.queued_tokens_max = 100;
}

static void deadlines(struct core_config *config) {
    config->policy.queued_tokens_max = 0;
    config->policy.ttft_target_us[REQUEST_CLASS_STANDARD] = TARGET_US;
}

static void deadlines_and_bound(struct core_config *config) {
    config->policy.ttft_target_us[REQUEST_CLASS_STANDARD] = TARGET_US;
}

// A world whose cost model knows what a token costs.
static void world_init_learnt(struct world *w, void (*configure)(struct core_config *config)) {
    world_init_with(w, configure);
    worker_ready(w);
    w->token_us = TOKEN_US;
    for (uint32_t i = 0; i < 30; i++) {
        submit(w, arrive(w, 1 + i * 5, 1 + i % 3));
        run_dry(w);
    }
    memset(w->finished, 0, sizeof w->finished);
    memset(w->rejected, 0, sizeof w->rejected);
}

static uint32_t refused(const struct world *w) {
    uint32_t count = 0;
    for (int i = 0; i < REJECT_REASON_COUNT; i++) {
        count += w->rejected[i];
    }
    return count;
}

// Somebody runs, and its step is out: whoever comes now waits.
static void occupy(struct world *w) {
    submit(w, arrive(w, 10, 100));
    ck_assert(w->lanes[0].plan_waits);
}

START_TEST(waiting_prompt_tokens_are_bounded) {
    struct world w;
    world_init_with(&w, hundred_tokens);
    worker_ready(&w);
    submit(&w, arrive(&w, 150, 10));    // alone: more than the bound
    ck_assert_uint_eq(refused(&w), 0);
    for (int i = 0; i < 5; i++) {
        submit(&w, arrive(&w, 20, 10));
    }
    ck_assert_uint_eq(refused(&w), 0);
    submit(&w, arrive(&w, 1, 10));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_QUEUE_TOKENS], 1);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 6);
    world_deinit(&w);
}
END_TEST

// What is cached already is no work.
START_TEST(cached_beginnings_do_not_count) {
    struct world w;
    world_init_with(&w, hundred_tokens);
    worker_ready(&w);
    int32_t begin[96];
    for (int i = 0; i < 96; i++) {
        begin[i] = 7 * i % VOCABULARY;
    }
    w.next_id = 100;    // nobody asks for prompt scores, which read no cache
    arrive_after(&w, begin, 96, 97, 10);
    run_dry(&w);
    occupy(&w);
    for (int i = 0; i < 2; i++) {
        arrive_after(&w, begin, 96, 100, 10);    // four tokens each
    }
    ck_assert_uint_eq(refused(&w), 0);
    struct core_gauges gauges;
    core_gauges(w.core, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.queued_tokens, 8);
    submit(&w, arrive(&w, 100, 10));
    ck_assert_uint_eq(w.rejected[REJECT_REASON_QUEUE_TOKENS], 1);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(without_a_number_the_bound_is_what_the_target_allows) {
    struct world w;
    world_init_learnt(&w, deadlines_and_bound);
    occupy(&w);
    uint32_t taken = 0;
    for (; taken < WAITING && refused(&w) == 0; taken++) {
        submit(&w, arrive(&w, 20, 1));
    }
    // A hundred tokens in a hundred milliseconds, and twice its own.
    ck_assert_uint_eq(w.rejected[REJECT_REASON_QUEUE_TOKENS], 1);
    ck_assert_uint_ge(taken, 6);
    ck_assert_uint_le(taken, 9);
    // A class without a target has no bound.
    struct client *client = arrive(&w, 150, 1);
    client->class_ = REQUEST_CLASS_BATCH;
    submit(&w, client);
    ck_assert_uint_eq(refused(&w), 1);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

START_TEST(who_would_miss_its_deadline_is_refused_and_who_is_taken_keeps_it) {
    struct world w;
    world_init_learnt(&w, deadlines);
    struct client *clients[WAITING];
    uint64_t arrived_us[WAITING];
    occupy(&w);
    for (uint32_t i = 0; i < WAITING; i++) {
        clients[i] = arrive(&w, 20, 1);
        arrived_us[i] = w.now_us;
        submit(&w, clients[i]);
        clients[i]->open = true;    // keeps its place here
    }
    uint32_t taken = 0;
    for (uint32_t i = 0; i < WAITING; i++) {
        clients[i]->open = !clients[i]->rejected;
        taken += clients[i]->rejected ? 0 : 1;
    }
    ck_assert_uint_eq(w.rejected[REJECT_REASON_WOULD_MISS], WAITING - taken);
    ck_assert_uint_ge(taken, 4);
    ck_assert_uint_le(taken, 10);
    run_dry(&w);
    // Allowed: the target and twice its own prompt; a fifth more for the prediction.
    for (uint32_t i = 0; i < WAITING; i++) {
        if (!clients[i]->rejected) {
            ck_assert_uint_ge(clients[i]->first_us, arrived_us[i]);
            ck_assert_uint_le(clients[i]->first_us - arrived_us[i],
                              (TARGET_US + 2 * 20 * TOKEN_US) * 6 / 5 + 50 * 1000);
        } else {
            ck_assert_uint_ge(clients[i]->retry_after_ms, 800);
            ck_assert_uint_le(clients[i]->retry_after_ms, 1200);
        }
    }
    world_deinit(&w);
}
END_TEST

START_TEST(nobody_is_refused_for_a_guess) {
    struct world w;
    world_init_with(&w, deadlines_and_bound);
    worker_ready(&w);
    occupy(&w);
    for (int i = 0; i < WAITING; i++) {
        submit(&w, arrive(&w, 150, 1));
    }
    w.now_us += 10 * 1000 * 1000;
    tick(&w, NULL);
    ck_assert_uint_eq(refused(&w), 0);
    world_deinit(&w);
}
END_TEST

START_TEST(who_can_no_longer_keep_its_deadline_is_refused_while_it_waits) {
    struct world w;
    world_init_learnt(&w, deadlines);
    occupy(&w);
    for (int i = 0; i < 3; i++) {
        submit(&w, arrive(&w, 20, 5));
    }
    ck_assert_uint_eq(refused(&w), 0);
    w.now_us += TARGET_US / 2;
    tick(&w, NULL);
    ck_assert_uint_eq(refused(&w), 0);
    w.now_us += 2 * TARGET_US;    // the step that is out takes its time
    tick(&w, NULL);
    ck_assert_uint_eq(w.rejected[REJECT_REASON_MISSED], 3);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);    // who had begun
    world_deinit(&w);
}
END_TEST

START_TEST(who_has_begun_is_never_refused) {
    struct world w;
    world_init_learnt(&w, deadlines);
    struct client *client = arrive(&w, 20, 50);
    submit(&w, client);
    while (client->received < 10) {
        answer(&w);
    }
    worker_lost(&w);
    w.now_us += 1000 * 1000;
    worker_ready(&w);
    w.now_us += 1000 * 1000;
    tick(&w, NULL);
    run_dry(&w);
    ck_assert_uint_eq(refused(&w), 0);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 1);
    world_deinit(&w);
}
END_TEST

// Others of a higher class came in between: of two that would miss it, the dearer one goes.
START_TEST(of_those_that_would_miss_the_dearest_goes_first) {
    struct world w;
    world_init_learnt(&w, deadlines);
    occupy(&w);
    struct client *cheap = arrive(&w, 10, 5);
    submit(&w, cheap);
    struct client *dear = arrive(&w, 30, 5);
    submit(&w, dear);
    for (int i = 0; i < 12; i++) {
        struct client *other = arrive(&w, 20, 1);
        other->class_ = REQUEST_CLASS_REALTIME;
        submit(&w, other);
    }
    ck_assert_uint_eq(refused(&w), 0);
    w.now_us += 10 * 1000;
    while (refused(&w) == 0 && w.now_us < 1000ull * 1000 * 1000) {
        tick(&w, NULL);
    }
    ck_assert(dear->rejected);
    ck_assert(!cheap->rejected);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

// One tenant's line is no other tenant's wait.
START_TEST(a_tenant_is_not_refused_for_what_another_one_sends) {
    struct world w;
    world_init_learnt(&w, deadlines);
    occupy(&w);
    uint32_t sent = 0;
    for (; sent < WAITING - 2 && refused(&w) == 0; sent++) {
        struct client *client = arrive(&w, 20, 1);
        client->tenant = 1;
        submit(&w, client);
    }
    ck_assert_uint_eq(w.rejected[REJECT_REASON_WOULD_MISS], 1);
    struct client *client = arrive(&w, 20, 1);
    client->tenant = 2;
    submit(&w, client);
    ck_assert(!client->rejected);
    run_dry(&w);
    ck_assert_uint_gt(client->first_us, 0);
    world_deinit(&w);
}
END_TEST

START_TEST(a_group_that_stays_away_takes_nobody) {
    struct world w;
    world_init(&w);
    worker_ready(&w);
    worker_lost(&w);
    submit(&w, arrive(&w, 20, 5));
    w.now_us += BOUND_AWAY_US / 2;
    submit(&w, arrive(&w, 20, 5));
    ck_assert_uint_eq(refused(&w), 0);
    w.now_us += 9 * BOUND_AWAY_US;
    struct client *client = arrive(&w, 20, 5);
    submit(&w, client);
    ck_assert(client->rejected);
    ck_assert_int_eq(client->reason, REJECT_REASON_UNAVAILABLE);
    ck_assert_uint_ge(client->retry_after_ms, 15000);    // as long again, or so
    ck_assert_uint_le(client->retry_after_ms, 25000);
    worker_ready(&w);
    submit(&w, arrive(&w, 20, 5));
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 3);
    world_deinit(&w);
}
END_TEST

static enum reject_reason reason_of(struct world *w, uint32_t prompt, uint32_t output) {
    struct client *client = arrive(w, prompt, output);
    submit(w, client);
    ck_assert(client->rejected);
    return client->reason;
}

START_TEST(the_first_test_that_fails_is_the_answer) {
    struct world w;
    world_init_with(&w, hundred_tokens);
    worker_ready(&w);
    occupy(&w);
    struct core_input drain = {.kind = CORE_INPUT_DRAIN};
    for (int i = 0; i < 4; i++) {
        submit(&w, arrive(&w, 20, 5));
    }
    tick(&w, &drain);
    ck_assert_int_eq(reason_of(&w, 10, 5), REJECT_REASON_DRAINING);
    ck_assert_int_eq(reason_of(&w, 30, 5), REJECT_REASON_QUEUE_TOKENS);
    ck_assert_int_eq(reason_of(&w, SEQ_TOKENS - 10, 11), REJECT_REASON_TOO_LARGE);
    run_dry(&w);
    ck_assert(w.drained);
    world_deinit(&w);
    world_init_with(&w, no_bounds);
    worker_ready(&w);
    occupy(&w);
    for (int i = 0; i < WAITING; i++) {
        submit(&w, arrive(&w, 20, 5));
    }
    tick(&w, &drain);
    ck_assert_int_eq(reason_of(&w, 20, 5), REJECT_REASON_QUEUE_FULL);
    ck_assert_int_eq(reason_of(&w, SEQ_TOKENS - 10, 11), REJECT_REASON_TOO_LARGE);
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

// Sixty requests that each take seconds: the line has a pace, and half of it is worth a while.
static void refuse_many(uint32_t token_us, uint32_t out[30]) {
    struct world w;
    world_init_with(&w, no_bounds);
    worker_ready(&w);
    w.token_us = token_us;
    uint32_t count = 0;
    for (int i = 0; i < 4000 && count < 30; i++) {
        struct client *client = arrive(&w, 20, 10);
        submit(&w, client);
        if (client->rejected && w.finished[FINISH_REASON_LENGTH] > 60) {
            ck_assert_int_eq(client->reason, REJECT_REASON_QUEUE_FULL);
            out[count++] = client->retry_after_ms;
        } else if (client->rejected) {
            answer(&w);
        }
    }
    ck_assert_uint_eq(count, 30);
    run_dry(&w);
    world_deinit(&w);
}

START_TEST(the_time_told_follows_the_pace_of_the_line) {
    uint32_t fast[30], slow[30], again[30], endless[30];
    refuse_many(1000, fast);
    refuse_many(20 * 1000, slow);
    refuse_many(20 * 1000, again);
    refuse_many(1000 * 1000, endless);
    bool scattered = false;
    for (int i = 0; i < 30; i++) {
        // 30 rows a sequence: 20 of a prompt and 9 or 10 decoded; the half of the line is ten.
        ck_assert_uint_ge(fast[i], 800);
        ck_assert_uint_le(fast[i], 1200);
        ck_assert_uint_ge(slow[i], 10 * 20 * 30 / 2);
        ck_assert_uint_le(slow[i], 10 * 20 * 30 * 2);
        ck_assert_uint_eq(slow[i], again[i]);    // a replay says the same
        ck_assert_uint_ge(endless[i], BOUND_RETRY_AFTER_MS * 8 / 10);
        ck_assert_uint_le(endless[i], BOUND_RETRY_AFTER_MS * 12 / 10);
        scattered = scattered || endless[i] * 10ull < BOUND_RETRY_AFTER_MS * 9ull;
    }
    ck_assert(scattered);
}
END_TEST

Suite *suite_core_overload(void) {
    Suite *suite = suite_create("controller/core/overload");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, waiting_prompt_tokens_are_bounded);
    tcase_add_test(tc, cached_beginnings_do_not_count);
    tcase_add_test(tc, without_a_number_the_bound_is_what_the_target_allows);
    tcase_add_test(tc, who_would_miss_its_deadline_is_refused_and_who_is_taken_keeps_it);
    tcase_add_test(tc, nobody_is_refused_for_a_guess);
    tcase_add_test(tc, who_can_no_longer_keep_its_deadline_is_refused_while_it_waits);
    tcase_add_test(tc, who_has_begun_is_never_refused);
    tcase_add_test(tc, of_those_that_would_miss_the_dearest_goes_first);
    tcase_add_test(tc, a_tenant_is_not_refused_for_what_another_one_sends);
    tcase_add_test(tc, a_group_that_stays_away_takes_nobody);
    tcase_add_test(tc, the_first_test_that_fails_is_the_answer);
    tcase_add_test(tc, the_time_told_follows_the_pace_of_the_line);
    suite_add_tcase(suite, tc);
    return suite;
}
