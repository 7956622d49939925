// SPDX-License-Identifier: Apache-2.0
// Goal: streams are journalled before their events leave and until their end, are served without a
// journal that has room, and bytes that nobody wrote break nothing. Method: the first of two APIs
// is played; its entry is cut and changed at every byte before the second one gets it.
#include "tests/unit/controller/http/two_lives.h"
#include "tests/unit/suites.h"

START_TEST(only_streams_and_until_their_end) {
    api_fixture_post(lives.a, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":1}");
    api_fixture_play(lives.a, 0, "x");
    api_fixture_get(lives.a, "/healthz/step");
    api_fixture_play(lives.a, 1, "x");
    ck_assert_uint_eq(lives.first_journal.count, 0);
    two_lives_begin_one("");
    ck_assert_uint_eq(lives.first_journal.count, 1);
    // Its client leaves.
    struct http_handler handler = api_handler(lives.a->api);
    lives.a->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &lives.a->client.exchange, HTTP_GONE_REASON_CLIENT,
                    lives.a->now_us);
    ck_assert(!lives.first_journal.entries[0].open);
    // It fails.
    api_fixture_post(lives.a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    ck_assert(lives.first_journal.entries[1].open);
    api_fixture_finish(lives.a, lives.a->submit_count - 1, FINISH_REASON_FAULT);
    api_fixture_turn(lives.a);
    ck_assert(!lives.first_journal.entries[1].open);
    // It is refused.
    api_fixture_post(lives.a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    api_fixture_reject(lives.a, lives.a->submit_count - 1, REJECT_REASON_QUEUE_FULL, 5);
    api_fixture_turn(lives.a);
    ck_assert(!lives.first_journal.entries[2].open);
    ck_assert_uint_eq(lives.first_journal.ends, 3);
    // The journal has no room: served all the same.
    lives.first_journal.refuse_step = true;
    api_fixture_post(lives.a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"stream\":true,\"max_tokens\":2}");
    api_fixture_play(lives.a, lives.a->submit_count - 1, "ok");
    ck_assert_uint_eq(api_fixture_event_count(&lives.a->client), 2);
    ck_assert_uint_eq(lives.a->client.exchange.receipt, 0);
    lives.first_journal.refuse_begin = true;
    api_fixture_post(lives.a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"stream\":true,\"max_tokens\":2}");
    api_fixture_play(lives.a, lives.a->submit_count - 1, "ok");
    ck_assert_uint_eq(api_fixture_event_count(&lives.a->client), 2);
    ck_assert_uint_eq(lives.first_journal.count, 4);
}
END_TEST

START_TEST(a_step_is_journalled_before_its_events_are_there) {
    api_fixture_post(lives.a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    size_t before = lives.first_journal.entries[0].steps.bytes_used;
    api_fixture_token(lives.a, 0, 'x');
    ck_assert_uint_eq(lives.first_journal.entries[0].steps.bytes_used, before);
    ck_assert_uint_eq(lives.a->client.exchange.out.bytes_used, 0);
    api_fixture_turn(lives.a);
    ck_assert_uint_gt(lives.first_journal.entries[0].steps.bytes_used, before);
    ck_assert_uint_eq(api_fixture_event_count(&lives.a->client), 1);
}
END_TEST

START_TEST(bytes_that_nobody_wrote_are_refused) {
    two_lives_begin_one("");
    struct journal_entry *entry = &lives.first_journal.entries[0];
    size_t whole = entry->begin.bytes_used;
    for (size_t size = 0; size < whole; size++) {
        entry->begin.bytes_used = size;
        ck_assert(!two_lives_give(0, lives.b->now_us + TWO_LIVES_LATER_US));
    }
    entry->begin.bytes_used = whole;
    // Steps: cut, and each byte another one. Whatever comes out, nothing breaks.
    size_t steps = entry->steps.bytes_used;
    for (size_t at = 0; at < steps; at++) {
        for (int change = 0; change < 3; change++) {
            static const uint8_t masks[] = {0x01, 0x80, 0xFF};
            entry->steps.data[at] ^= masks[change];
            ck_assert(two_lives_give(steps, lives.b->now_us + TWO_LIVES_LATER_US));
            api_fixture_ready(lives.b);
            api_streams_turn(lives.b->api, lives.b->now_us);
            two_lives_ask(two_lives_body_id(), 0);
            int status = api_fixture_status(&lives.b->client);
            ck_assert(status == 200 || status == 410);
            entry->steps.data[at] ^= masks[change];
            two_lives_end_second();
            two_lives_begin_second();
        }
        ck_assert(two_lives_give(at, lives.b->now_us + TWO_LIVES_LATER_US));
        api_fixture_ready(lives.b);
        api_streams_turn(lives.b->api, lives.b->now_us);
        two_lives_end_second();
        two_lives_begin_second();
    }
}
END_TEST

Suite *suite_api_journal(void) {
    Suite *suite = suite_create("controller/http/api_journal");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, two_lives_setup, two_lives_teardown);
    tcase_add_test(tc, only_streams_and_until_their_end);
    tcase_add_test(tc, a_step_is_journalled_before_its_events_are_there);
    tcase_add_test(tc, bytes_that_nobody_wrote_are_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
