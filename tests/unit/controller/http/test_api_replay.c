// SPDX-License-Identifier: Apache-2.0
// Goal: a response that an earlier controller left unfinished is continued as if nothing had been.
// Method: one API is played to the end; its journal as it was after every turn is given to another
// one, which must give what is left, byte for byte, after every event that a client may have seen.
#include "tests/unit/controller/http/two_lives.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static uint32_t event_count(const char *body) {
    uint32_t count = 0;
    for (const char *at = body; (at = strstr(at, "\n\n")) != NULL; at += 2) {
        count++;
    }
    return count;
}

static const char *behind_events(const char *body, uint32_t count) {
    for (; count > 0; count--) {
        body = strstr(body, "\n\n") + 2;
    }
    return body;
}

// ---- scripts -----------------------------------------------------------------------------------

enum {
    ENDS_BY_STOP = -1,
    ENDS_BY_LENGTH = -2,
    SCORES = -3,
    ADMITTED = -4,
    NOTHING = -9,
    ITEMS_MAX = 6
};

struct item {
    int choice, token;
};

// What one tick brings.
struct turn {
    struct item items[ITEMS_MAX];
    int count;
};

static void admit(struct api_fixture *f, uint32_t submit, uint32_t cached_tokens) {
    const struct core_action action = {
        .kind = CORE_ACTION_ADMITTED,
        .admitted = {.id = f->submits[submit].id, .cached_tokens = cached_tokens}};
    api_on_action(f->api, &action, f->now_us);
}

static void play_item(struct api_fixture *f, uint32_t submit, int token) {
    static const int32_t tops[] = {'x', TOKEN_HE, 'y'};
    static const float logprobs[] = {-0.5f, -1.25f, -2.0f};
    const struct core_request *request = &f->submits[submit];
    struct result_row row = {.token = token,
                             .has_logprob = request->sampling.want_logprobs,
                             .logprob = -0.25f - (float)(token % 7) / 8,
                             .top_count = request->sampling.top_logprobs,
                             .top_tokens = tops,
                             .top_logprobs = logprobs};
    if (token == ADMITTED) {
        admit(f, submit, 3);
    } else if (token == SCORES) {
        for (uint32_t i = 1; i < request->prompt_count; i++) {
            row.is_prompt = true;
            row.position = i;
            row.token = request->tokens[i];
            api_fixture_row(f, submit, &row);
        }
    } else if (token == ENDS_BY_STOP || token == ENDS_BY_LENGTH) {
        api_fixture_finish(f, submit,
                           token == ENDS_BY_STOP ? FINISH_REASON_STOP : FINISH_REASON_LENGTH);
    } else {
        api_fixture_row(f, submit, &row);
    }
}

// The submit of each choice; UINT32_MAX: it has none.
struct submits {
    uint32_t of[8];
};

static void play_turn(struct api_fixture *f, const struct submits *submits,
                      const struct turn *turn) {
    f->now_us += 1000;
    for (int i = 0; i < turn->count; i++) {
        uint32_t submit = submits->of[turn->items[i].choice];
        if (submit != UINT32_MAX && f->alive[submit]) {
            play_item(f, submit, turn->items[i].token);
        }
    }
    // The client may not be there yet.
    api_turn_end(f->api, f->now_us);
    if (f->client.exchange.request != NULL) {
        api_fixture_collect(&f->client);
    }
}

// What is submitted again continues what was drawn. Returns the submits by choice.
static struct submits match_submits(uint32_t choices) {
    struct submits submits;
    uint32_t next = 0;
    for (uint32_t i = 0; i < 8; i++) {
        submits.of[i] = UINT32_MAX;
    }
    for (uint32_t i = 0; i < choices && next < lives.b->submit_count; i++) {
        const struct core_request *then = &lives.a->submits[i], *now = &lives.b->submits[next];
        if (then->sampling.stream != now->sampling.stream ||
            then->prompt_count != now->prompt_count) {
            continue;    // this one was finished
        }
        ck_assert_uint_eq(now->sampling.seed, then->sampling.seed);
        ck_assert_uint_eq(now->output_max, then->output_max);
        ck_assert_uint_eq(now->class_, then->class_);
        ck_assert_uint_eq(now->salt, then->salt);
        submits.of[i] = next++;
    }
    ck_assert_uint_eq(next, lives.b->submit_count);
    return submits;
}

static uint32_t drawn(const struct turn *turns, uint32_t turn_count, int choice,
                      int32_t tokens[64]) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < turn_count; i++) {
        for (int k = 0; k < turns[i].count; k++) {
            if (turns[i].items[k].choice == choice && turns[i].items[k].token >= 0) {
                tokens[count++] = turns[i].items[k].token;
            }
        }
    }
    return count;
}

static int32_t prompts[8][64];    // of the first API's submits: its own go with their calls

static void check_tokens(const struct submits *submits, const struct turn *turns,
                         uint32_t turn_count, uint32_t choices) {
    for (uint32_t i = 0; i < choices; i++) {
        int32_t tokens[64];
        if (submits->of[i] == UINT32_MAX) {
            continue;
        }
        const struct core_request *now = &lives.b->submits[submits->of[i]];
        uint32_t count = drawn(turns, turn_count, (int)i, tokens);
        ck_assert_uint_eq(now->resumed_count, count);
        ck_assert_mem_eq(now->tokens, prompts[i], now->prompt_count * sizeof *now->tokens);
        if (count > 0) {
            ck_assert_mem_eq(now->tokens + now->prompt_count, tokens, count * sizeof tokens[0]);
        }
    }
}

// The second life, from the journal after `cut` turns; its client has `after` events and comes
// when `come` further turns were played.
static void second_life(const struct turn *turns, uint32_t turn_count, uint32_t cut,
                        size_t steps_bytes, uint32_t choices, const char *whole, uint32_t after,
                        uint32_t come) {
    ck_assert(two_lives_give(steps_bytes, lives.b->now_us + TWO_LIVES_LATER_US));
    ck_assert(!api_streams_turn(lives.b->api, lives.b->now_us));    // no worker yet
    ck_assert_uint_eq(lives.b->submit_count, 0);
    api_fixture_ready(lives.b);
    ck_assert(!api_streams_turn(lives.b->api, lives.b->now_us));    // there was one
    struct submits submits = match_submits(choices);
    check_tokens(&submits, turns, cut, choices);
    for (uint32_t i = 0; i < lives.b->submit_count; i++) {
        if (lives.b->submits[i].resumed_count > 0) {
            admit(lives.b, i, 1);    // what is found now is not what was found then
        }
        if (lives.b->submits[i].sampling.want_prompt_logprobs) {
            play_item(lives.b, i, SCORES);    // a core scores prompts again, known or not
        }
    }
    for (uint32_t i = cut; i < turn_count; i++) {
        if (i - cut == come) {
            two_lives_ask(two_lives_body_id(), after);
        }
        play_turn(lives.b, &submits, &turns[i]);
    }
    if (turn_count - cut <= come) {
        two_lives_ask(two_lives_body_id(), after);
    }
    bool ended = false;
    ck_assert_int_eq(api_fixture_status(&lives.b->client), 200);
    ck_assert_str_eq(api_fixture_field(&lives.b->client, "content-type"),
                     "text/event-stream; charset=utf-8");
    ck_assert_str_eq(api_fixture_body(&lives.b->client, &ended), behind_events(whole, after));
    ck_assert(ended);
    ck_assert_uint_eq(api_streams_resumed(lives.b->api), 1);
    ck_assert_uint_eq(api_open_calls(lives.b->api), 0);
    // The entry ends once the client has it all, and not before.
    ck_assert_uint_eq(lives.second_journal.ends, 0);
    ck_assert_uint_eq(lives.b->client.exchange.receipt, 100);
    struct http_handler handler = api_handler(lives.b->api);
    handler.on_receipt(handler.ctx, 100);
    ck_assert_uint_eq(lives.second_journal.ends, 1);
    two_lives_end_second();
    two_lives_begin_second();
}

static void compare_all(const char *path, const char *body, const struct turn *turns,
                        uint32_t turn_count, uint32_t choices) {
    enum { TURNS_MAX = 32 };
    size_t steps_bytes[TURNS_MAX];
    uint32_t events[TURNS_MAX];
    struct submits submits;
    ck_assert_uint_lt(turn_count, TURNS_MAX);
    api_fixture_post(lives.a, path, body);
    ck_assert_uint_eq(lives.first_journal.count, 1);
    for (uint32_t i = 0; i < 8; i++) {
        submits.of[i] = i < lives.a->submit_count ? i : UINT32_MAX;
        if (i < lives.a->submit_count) {
            ck_assert_uint_le(lives.a->submits[i].prompt_count, 64);
            memcpy(prompts[i], lives.a->submits[i].tokens,
                   lives.a->submits[i].prompt_count * sizeof prompts[i][0]);
        }
    }
    for (uint32_t i = 0; i <= turn_count; i++) {
        steps_bytes[i] = lives.first_journal.entries[0].steps.bytes_used;
        bool said = lives.a->client.answer.bytes_used > 0;
        events[i] = said ? event_count(api_fixture_body(&lives.a->client, NULL)) : 0;
        if (i < turn_count) {
            play_turn(lives.a, &submits, &turns[i]);
        }
    }
    bool ended = false;
    char *whole = strdup(api_fixture_body(&lives.a->client, &ended));
    ck_assert_msg(ended, "the script does not end: %s", whole);
    ck_assert_ptr_nonnull(strstr(whole, "data: [DONE]\n\n"));
    for (uint32_t cut = 0; cut <= turn_count; cut++) {
        for (uint32_t after = 0; after <= events[cut]; after++) {
            second_life(turns, turn_count, cut, steps_bytes[cut], choices, whole, after,
                        (cut + after) % 3);
        }
    }
    free(whole);
}

#define COUNT(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

START_TEST(a_chat_with_held_back_text) {
    // The halves of "é", of an emoji, and of a stop string.
    static const struct turn turns[] = {{{{0, 'h'}}, 1},
                                        {{{0, 0xC3}}, 1},
                                        {{{0, 0xA9}}, 1},
                                        {{{0, 'l'}}, 1},
                                        {{{0, 'o'}, {0, 'l'}}, 2},
                                        {{{0, 'd'}}, 1},
                                        {{{0, 0xF0}, {0, 0x9F}}, 2},
                                        {{{0, 0x98}}, 1},
                                        {{{0, 0x80}}, 1},
                                        {{{0, TOKEN_HELL}}, 1},
                                        {{{0, 'l'}}, 1},
                                        {{{0, 'o'}}, 1},
                                        {{{0, TOKEN_SPACE_W}}, 1},
                                        {{{0, ENDS_BY_STOP}}, 1}};
    compare_all("/v1/chat/completions",
                "{" HI ",\"stream\":true,\"stop\":[\"zz\",\"lo w\"],"
                "\"stream_options\":{\"include_usage\":true}}",
                turns, COUNT(turns), 1);
}
END_TEST

START_TEST(choices_with_logprobs_and_usage) {
    static const struct turn turns[] = {
        {{{0, ADMITTED}, {1, ADMITTED}, {0, 'a'}, {1, 'b'}, {2, 'c'}}, 5},
        {{{1, TOKEN_HELLO}}, 1},
        {{{0, TOKEN_END}, {0, ENDS_BY_STOP}, {2, TOKEN_HE}}, 3},
        {{{2, 0xE2}, {1, TOKEN_LL}}, 2},
        {{{1, 'z'}, {2, 0x82}, {1, ENDS_BY_LENGTH}}, 3},
        {{{2, 'q'}, {2, ENDS_BY_LENGTH}}, 2}};
    compare_all("/v1/completions",
                "{\"prompt\":\"hello\",\"n\":3,\"max_tokens\":5,\"logprobs\":2,\"seed\":11,"
                "\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                "\"continuous_usage_stats\":true}}",
                turns, COUNT(turns), 3);
}
END_TEST

START_TEST(prompts_that_are_echoed_and_scored) {
    static const struct turn turns[] = {{{{0, SCORES}}, 1},
                                        {{{1, SCORES}, {0, 'x'}}, 2},
                                        {{{1, 'y'}, {0, 'w'}, {0, ENDS_BY_LENGTH}}, 3},
                                        {{{1, 'v'}, {1, ENDS_BY_LENGTH}}, 2}};
    compare_all(
        "/v1/completions",
        "{\"prompt\":[\"hello you\",\"hell\"],\"echo\":true,\"logprobs\":1,\"max_tokens\":2,"
        "\"stream\":true}",
        turns, COUNT(turns), 2);
}
END_TEST

START_TEST(an_echo_that_needs_no_worker) {
    static const struct turn turns[] = {{{{0, NOTHING}}, 0}};
    compare_all("/v1/completions",
                "{\"prompt\":\"hello\",\"echo\":true,\"max_tokens\":0,\"stream\":true}", turns,
                COUNT(turns), 0);
}
END_TEST

START_TEST(a_stop_token_of_the_request_and_min_tokens) {
    static const struct turn turns[] = {
        {{{0, 'a'}}, 1}, {{{0, 'b'}}, 1}, {{{0, 'a'}}, 1}, {{{0, 'b'}, {0, ENDS_BY_STOP}}, 2}};
    compare_all("/v1/completions",
                "{\"prompt\":\"hello\",\"stop_token_ids\":[98],\"min_tokens\":2,\"stop\":\"ab\","
                "\"max_tokens\":9,\"stream\":true,\"ignore_eos\":true,"
                "\"logit_bias\":{\"97\":5}}",
                turns, COUNT(turns), 1);
}
END_TEST

Suite *suite_api_replay(void) {
    Suite *suite = suite_create("controller/http/api_replay");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, two_lives_setup, two_lives_teardown);
    tcase_add_test(tc, a_chat_with_held_back_text);
    tcase_add_test(tc, choices_with_logprobs_and_usage);
    tcase_add_test(tc, prompts_that_are_echoed_and_scored);
    tcase_add_test(tc, an_echo_that_needs_no_worker);
    tcase_add_test(tc, a_stop_token_of_the_request_and_min_tokens);
    suite_add_tcase(suite, tc);
    return suite;
}
