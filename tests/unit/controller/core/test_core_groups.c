// SPDX-License-Identifier: Apache-2.0
// Goal: several groups in one core: requests go where their beginning is, else where there is
// least to do; what a lost group had goes on elsewhere. Method: three workers without arithmetic;
// core_audit after every tick.
#include "tests/unit/controller/core/core_world.h"
#include "tests/unit/suites.h"

#include <string.h>

static void three_groups(struct core_config *config) {
    config->groups_max = LANES;
    config->waiting_max = 60;
}

static void world_init_groups(struct world *w) {
    world_init_with(w, three_groups);
    for (uint32_t i = 0; i < LANES; i++) {
        lane_ready(w, i);
    }
}

static void answer_all(struct world *w) {
    for (uint32_t i = 0; i < LANES; i++) {
        if (w->lanes[i].plan_waits) {
            lane_answer(w, i);
        }
    }
}

START_TEST(a_request_goes_where_its_beginning_is) {
    struct world w;
    world_init_groups(&w);
    w.next_id = 100;    // nobody asks for prompt scores, which read no cache
    int32_t begins[LANES][64];
    uint32_t lanes[LANES];
    for (int k = 0; k < LANES; k++) {
        for (int i = 0; i < 64; i++) {
            begins[k][i] = (17 * k + 7 * i) % VOCABULARY;
        }
        struct client *client = arrive_after(&w, begins[k], 64, 70, 20);
        answer_all(&w);    // it has begun: the next one goes elsewhere
        run_dry(&w);
        lanes[k] = client->lane;
    }
    for (int round = 0; round < 8; round++) {
        int k = round * 2 % LANES;
        struct client *client = arrive_after(&w, begins[k], 64, 80, 4);
        run_dry(&w);
        ck_assert_uint_eq(client->lane, lanes[k]);
        ck_assert_uint_eq(client->cached, client->id % 5 == 0 ? 0 : 64);
    }
    world_deinit(&w);
}
END_TEST

START_TEST(equal_requests_are_spread_evenly) {
    struct world w;
    world_init_groups(&w);
    uint32_t tokens[LANES] = {0};
    for (int i = 0; i < 60; i++) {
        struct client *client = arrive(&w, 30, 10);
        submit(&w, client);
    }
    for (int i = 0; i < 2000; i++) {
        answer_all(&w);
        for (int k = 0; k < CLIENTS; k++) {
            struct client *client = &w.clients[k];
            if (!client->open && client->received > 0) {
                tokens[client->lane] += client->received;
                client->received = 0;
            }
        }
    }
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 60);
    for (int i = 0; i < LANES; i++) {
        ck_assert_uint_ge(tokens[i], 150);    // of 600
        ck_assert_uint_le(tokens[i], 250);
    }
    world_deinit(&w);
}
END_TEST

static uint32_t load_of(const struct world *w, uint32_t group) {
    struct core_gauges gauges;
    core_group_gauges(w->core, group, w->now_us, &gauges);
    return gauges.queued + gauges.prefilling + gauges.decoding;
}

// What one group has learnt about its device says more about others than their own guess.
START_TEST(a_group_that_comes_later_gets_its_share_at_once) {
    struct world w;
    world_init_with(&w, three_groups);
    w.token_us = 5;    // a fast device: the guess is 20 times that
    lane_ready(&w, 0);
    for (int i = 0; i < 100; i++) {
        submit(&w, arrive(&w, 30, 10));
        run_dry(&w);
    }
    lane_ready(&w, 1);
    lane_ready(&w, 2);
    for (int i = 0; i < 21; i++) {
        submit(&w, arrive(&w, 30, 10));
    }
    for (uint32_t i = 0; i < LANES; i++) {
        ck_assert_uint_ge(load_of(&w, i), 5);
        ck_assert_uint_le(load_of(&w, i), 9);
    }
    run_dry(&w);
    world_deinit(&w);
}
END_TEST

static bool is_doubted(const struct world *w, uint32_t group) {
    struct core_gauges gauges;
    core_group_gauges(w->core, group, w->now_us, &gauges);
    return gauges.doubted;
}

static void until_the_first_group_works(struct world *w) {
    for (int i = 0; i < 20 && !w->lanes[0].plan_waits; i++) {
        submit(w, arrive(w, 30, 10));
    }
    ck_assert(w->lanes[0].plan_waits);
}

static void first_group_diverges(struct world *w) {
    until_the_first_group_works(w);
    take_answer(w);
    lane_rank_answer(w, 0, 0, 1);
    lane_rank_answer(w, 0, 1, 2);
    ck_assert(w->resync);
    w->resync = false;
    lane_back(w, 0);
}

START_TEST(ranks_that_diverge_twice_are_avoided_for_an_hour) {
    struct world w;
    world_init_with(&w, three_groups);
    w.world = 2;
    for (uint32_t i = 0; i < LANES; i++) {
        lane_ready(&w, i);
    }
    first_group_diverges(&w);
    ck_assert(!w.doubted && !is_doubted(&w, 0));
    w.now_us += BOUND_DOUBT_US - 1000 * 1000;
    first_group_diverges(&w);
    ck_assert(w.doubted && is_doubted(&w, 0));
    for (int i = 0; i < 12; i++) {
        submit(&w, arrive(&w, 30, 10));
        ck_assert(!w.lanes[0].plan_waits);
    }
    run_dry(&w);
    // Without the others it serves all the same.
    lane_lost(&w, 1);
    lane_lost(&w, 2);
    submit(&w, arrive(&w, 30, 10));
    ck_assert(w.lanes[0].plan_waits);
    lane_back(&w, 1);
    lane_back(&w, 2);
    run_dry(&w);
    w.now_us += 1000 * 1000;
    tick(&w, NULL);
    ck_assert(!is_doubted(&w, 0));
    until_the_first_group_works(&w);
    run_dry(&w);
    ck_assert_uint_eq(open_count(&w), 0);
    world_deinit(&w);
}
END_TEST

START_TEST(what_a_lost_group_had_goes_on_elsewhere) {
    struct world w;
    world_init_groups(&w);
    for (int i = 0; i < 40; i++) {
        submit(&w, arrive(&w, 40, 30));
    }
    for (int i = 0; i < 20; i++) {
        answer_all(&w);
    }
    struct core_gauges gauges;
    core_group_gauges(w.core, 1, w.now_us, &gauges);
    ck_assert_uint_gt(gauges.queued, 0);
    ck_assert_uint_gt(gauges.decoding + gauges.prefilling, 0);
    // Those who wait go at once; those who run when their KV does not come back for a while.
    lane_lost(&w, 1);
    core_group_gauges(w.core, 1, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.queued, 0);
    ck_assert_uint_gt(gauges.decoding + gauges.prefilling, 0);
    for (int i = 0; i < 4; i++) {
        w.now_us += BOUND_KV_AWAY_US / 4;
        answer_all(&w);
    }
    core_group_gauges(w.core, 1, w.now_us, &gauges);
    ck_assert_uint_eq(gauges.queued + gauges.decoding + gauges.prefilling, 0);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 40);
    // With all of them gone requests wait, and with the first one back they go on.
    submit(&w, arrive(&w, 40, 30));
    lane_lost(&w, 0);
    lane_lost(&w, 2);
    ck_assert_uint_eq(open_count(&w), 1);
    lane_ready(&w, 1);
    run_dry(&w);
    ck_assert_uint_eq(w.finished[FINISH_REASON_LENGTH], 40 + 1);
    world_deinit(&w);
}
END_TEST

Suite *suite_core_groups(void) {
    Suite *suite = suite_create("controller/core/groups");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_request_goes_where_its_beginning_is);
    tcase_add_test(tc, equal_requests_are_spread_evenly);
    tcase_add_test(tc, a_group_that_comes_later_gets_its_share_at_once);
    tcase_add_test(tc, ranks_that_diverge_twice_are_avoided_for_an_hour);
    tcase_add_test(tc, what_a_lost_group_had_goes_on_elsewhere);
    suite_add_tcase(suite, tc);
    return suite;
}
