// SPDX-License-Identifier: Apache-2.0
// Goal: a loop whose turns take too long is found out soon, and found well soon after. Method:
// invented turns.
#include "controller/turn_watch.h"

#include "common/bounds.h"
#include "tests/unit/suites.h"

START_TEST(one_in_a_hundred_is_too_many_and_one_alone_is_not) {
    struct turn_watch watch = {0};
    uint64_t now_us = 1000 * 1000;
    for (int i = 0; i < 199; i++) {
        turn_watch_add(&watch, now_us += 100, 50);
    }
    turn_watch_add(&watch, now_us += 100, BOUND_TURN_OVERLOAD_US + 1);
    ck_assert(!turn_watch_overloaded(&watch, now_us));
    turn_watch_add(&watch, now_us += 100, BOUND_TURN_OVERLOAD_US + 1);
    ck_assert(!turn_watch_overloaded(&watch, now_us));    // 2 of 201
    turn_watch_add(&watch, now_us += 100, BOUND_TURN_OVERLOAD_US + 1);
    ck_assert(turn_watch_overloaded(&watch, now_us));
    // A lone one in an idle loop, which has few turns.
    watch = (struct turn_watch){0};
    turn_watch_add(&watch, now_us, 1000 * 1000);
    ck_assert(!turn_watch_overloaded(&watch, now_us));
}
END_TEST

START_TEST(what_is_over_is_forgotten_without_any_turn) {
    struct turn_watch watch = {0};
    uint64_t now_us = 77 * 1000 * 1000;
    for (int i = 0; i < 5; i++) {
        turn_watch_add(&watch, now_us += 20 * 1000, 20 * 1000);
    }
    ck_assert(turn_watch_overloaded(&watch, now_us));
    ck_assert(turn_watch_overloaded(&watch, now_us + 100 * 1000));
    ck_assert(!turn_watch_overloaded(&watch, now_us + (TURN_SLICES + 1) * TURN_SLICE_US));
}
END_TEST

START_TEST(slow_turns_are_counted) {
    struct turn_watch watch = {0};
    turn_watch_add(&watch, 1, BOUND_TURN_SLOW_US);
    ck_assert_uint_eq(watch.slow, 0);
    turn_watch_add(&watch, 2, BOUND_TURN_SLOW_US + 1);
    turn_watch_add(&watch, 3, 10 * BOUND_TURN_OVERLOAD_US);
    ck_assert_uint_eq(watch.slow, 2);
}
END_TEST

Suite *suite_turn_watch(void) {
    Suite *suite = suite_create("controller/turn_watch");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, one_in_a_hundred_is_too_many_and_one_alone_is_not);
    tcase_add_test(tc, what_is_over_is_forgotten_without_any_turn);
    tcase_add_test(tc, slow_turns_are_counted);
    suite_add_tcase(suite, tc);
    return suite;
}
