// SPDX-License-Identifier: Apache-2.0
// Goal: a response that an earlier controller left unfinished is continued as if nothing had been.
// Method: one API is played to the end; its journal as it was after every turn is given to another
// one, which must give what is left, byte for byte, after every event that a client may have seen.
#include "controller/http/api_streams.h"

#include "common/bounds.h"
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

enum { ENTRIES_MAX = 8, LATER_US = 60 * 1000 * 1000 };

// ---- a journal in memory -----------------------------------------------------------------------

struct entry {
    struct buf begin, steps;
    bool open;
};

struct memory_journal {
    struct entry entries[ENTRIES_MAX];
    uint32_t count, ends;
    bool refuse_begin, refuse_step;
};

static struct memory_journal first_journal, second_journal;

static uint64_t on_begin(void *ctx, const void *bytes, size_t byte_count) {
    struct memory_journal *journal = ctx;
    if (journal->refuse_begin) {
        return 0;
    }
    ck_assert_uint_lt(journal->count, ENTRIES_MAX);
    struct entry *entry = &journal->entries[journal->count++];
    buf_init(&entry->begin, 1 << 24);
    buf_init(&entry->steps, 1 << 26);
    buf_append(&entry->begin, bytes, byte_count);
    entry->open = true;
    return journal->count;
}

static bool on_step(void *ctx, uint64_t id, const void *bytes, size_t byte_count) {
    struct memory_journal *journal = ctx;
    struct entry *entry = &journal->entries[id - 1];
    uint32_t length = (uint32_t)byte_count;
    ck_assert(id >= 1 && id <= journal->count && entry->open);
    ck_assert_uint_gt(byte_count, 0);
    if (journal->refuse_step) {
        entry->open = false;
        return false;
    }
    buf_append(&entry->steps, &length, sizeof length);
    buf_append(&entry->steps, bytes, byte_count);
    return true;
}

static void on_end(void *ctx, uint64_t id) {
    struct memory_journal *journal = ctx;
    if (id >= 100) {
        id = 1;    // what the second API was given
        ck_assert(journal == &second_journal);
    } else {
        ck_assert(id >= 1 && id <= journal->count && journal->entries[id - 1].open);
        journal->entries[id - 1].open = false;
    }
    journal->ends++;
}

static bool on_step_given(void *ctx, uint64_t id, const void *bytes, size_t byte_count) {
    return id >= 100 ? bytes != NULL && byte_count > 0 : on_step(ctx, id, bytes, byte_count);
}

static void journal_reset(struct memory_journal *journal) {
    for (uint32_t i = 0; i < journal->count; i++) {
        buf_deinit(&journal->entries[i].begin);
        buf_deinit(&journal->entries[i].steps);
    }
    *journal = (struct memory_journal){0};
}

// ---- two lives ---------------------------------------------------------------------------------

static struct api_fixture *a, *b;
static struct api_key keys[2];
static struct api_account accounts[2];
static uint32_t key_count;

static void configure_first(struct api_config *config) {
    config->journal = (struct api_journal){&first_journal, on_begin, on_step, on_end};
    config->gate.keys = keys;
    config->gate.key_count = key_count;
    config->seed = 1;
}

static void configure_second(struct api_config *config) {
    config->journal = (struct api_journal){&second_journal, on_begin, on_step_given, on_end};
    config->gate.keys = keys;
    config->gate.key_count = key_count;
    config->seed = 2;
    config->id_seed = 99;
}

static void begin_second(void) {
    journal_reset(&second_journal);
    b = calloc(1, sizeof *b);
    api_fixture_init(b, configure_second);
    b->now_us = 5000000;
}

static void end_second(void) {
    api_fixture_deinit(b);
    free(b);
    b = NULL;
}

static void setup(void) {
    key_count = 0;
    memset(accounts, 0, sizeof accounts);
    journal_reset(&first_journal);
    a = calloc(1, sizeof *a);
    api_fixture_init(a, configure_first);
    api_fixture_ready(a);
    begin_second();
}

static void teardown(void) {
    end_second();
    api_fixture_deinit(a);
    free(a);
    journal_reset(&first_journal);
    journal_reset(&second_journal);
}

// Gives the second API the first one's entry with so many bytes of its steps.
static bool give(size_t steps_bytes, uint64_t expires_us) {
    const struct entry *entry = &first_journal.entries[0];
    const struct api_unfinished unfinished = {
        .entry = 100,
        .begin = entry->begin.data,
        .begin_bytes = entry->begin.bytes_used,
        .steps = entry->steps.data,
        .steps_bytes = steps_bytes,
        .expires_us = expires_us,
    };
    return api_stream_add(b->api, &unfinished);
}

static void give_all(void) {
    ck_assert(give(first_journal.entries[0].steps.bytes_used, b->now_us + LATER_US));
}

// The id of the first API's response.
static const char *body_id(void) {
    static char id[256];
    const char *body = api_fixture_body(&a->client, NULL);
    const char *at = strstr(body, "\"id\":\"");
    ck_assert_ptr_nonnull(at);
    snprintf(id, sizeof id, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
    return id;
}

static void ask_as(const char *id, const char *after, const char *key) {
    char request[1024];
    snprintf(request, sizeof request,
             "GET /v1/streams/%s%s HTTP/1.1\r\nHost: localhost\r\n%s%s%s\r\n", id, after,
             key[0] != '\0' ? "Authorization: Bearer " : "", key, key[0] != '\0' ? "\r\n" : "");
    api_fixture_send(b, &b->client, request);
}

static void ask(const char *id, uint32_t after) {
    char query[32];
    snprintf(query, sizeof query, "?after=%u", after);
    ask_as(id, query, "");
}

static void expect_failure(int status, const char *code) {
    ck_assert_int_eq(api_fixture_status(&b->client), status);
    struct json_doc *doc = api_fixture_json(&b->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.code"), code);
    json_destroy(doc);
}

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
    for (uint32_t i = 0; i < choices && next < b->submit_count; i++) {
        const struct core_request *then = &a->submits[i], *now = &b->submits[next];
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
    ck_assert_uint_eq(next, b->submit_count);
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
        const struct core_request *now = &b->submits[submits->of[i]];
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
    ck_assert(give(steps_bytes, b->now_us + LATER_US));
    ck_assert(!api_streams_turn(b->api, b->now_us));    // no worker yet
    ck_assert_uint_eq(b->submit_count, 0);
    api_fixture_ready(b);
    ck_assert(!api_streams_turn(b->api, b->now_us));    // there was one
    struct submits submits = match_submits(choices);
    check_tokens(&submits, turns, cut, choices);
    for (uint32_t i = 0; i < b->submit_count; i++) {
        if (b->submits[i].resumed_count > 0) {
            admit(b, i, 1);    // what is found now is not what was found then
        }
        if (b->submits[i].sampling.want_prompt_logprobs) {
            play_item(b, i, SCORES);    // a core scores prompts again, known or not
        }
    }
    for (uint32_t i = cut; i < turn_count; i++) {
        if (i - cut == come) {
            ask(body_id(), after);
        }
        play_turn(b, &submits, &turns[i]);
    }
    if (turn_count - cut <= come) {
        ask(body_id(), after);
    }
    bool ended = false;
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    ck_assert_str_eq(api_fixture_field(&b->client, "content-type"),
                     "text/event-stream; charset=utf-8");
    ck_assert_str_eq(api_fixture_body(&b->client, &ended), behind_events(whole, after));
    ck_assert(ended);
    ck_assert_uint_eq(api_streams_resumed(b->api), 1);
    ck_assert_uint_eq(api_open_calls(b->api), 0);
    // The entry ends once the client has it all, and not before.
    ck_assert_uint_eq(second_journal.ends, 0);
    ck_assert_uint_eq(b->client.exchange.receipt, 100);
    struct http_handler handler = api_handler(b->api);
    handler.on_receipt(handler.ctx, 100);
    ck_assert_uint_eq(second_journal.ends, 1);
    end_second();
    begin_second();
}

static void compare_all(const char *path, const char *body, const struct turn *turns,
                        uint32_t turn_count, uint32_t choices) {
    enum { TURNS_MAX = 32 };
    size_t steps_bytes[TURNS_MAX];
    uint32_t events[TURNS_MAX];
    struct submits submits;
    ck_assert_uint_lt(turn_count, TURNS_MAX);
    api_fixture_post(a, path, body);
    ck_assert_uint_eq(first_journal.count, 1);
    for (uint32_t i = 0; i < 8; i++) {
        submits.of[i] = i < a->submit_count ? i : UINT32_MAX;
        if (i < a->submit_count) {
            ck_assert_uint_le(a->submits[i].prompt_count, 64);
            memcpy(prompts[i], a->submits[i].tokens,
                   a->submits[i].prompt_count * sizeof prompts[i][0]);
        }
    }
    for (uint32_t i = 0; i <= turn_count; i++) {
        steps_bytes[i] = first_journal.entries[0].steps.bytes_used;
        bool said = a->client.answer.bytes_used > 0;
        events[i] = said ? event_count(api_fixture_body(&a->client, NULL)) : 0;
        if (i < turn_count) {
            play_turn(a, &submits, &turns[i]);
        }
    }
    bool ended = false;
    char *whole = strdup(api_fixture_body(&a->client, &ended));
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

// ---- who may have it ---------------------------------------------------------------------------

// A response of two events, and one more to come.
static void begin_one(const char *extra) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\":\"hello\",\"max_tokens\":3,\"ignore_eos\":true,\"stream\":true%s}",
             extra);
    api_fixture_post(a, "/v1/completions", body);
    for (int i = 0; i < 2; i++) {
        api_fixture_token(a, a->submit_count - 1, 'x' + i);
        api_fixture_turn(a);
    }
}

static void resume_one(void) {
    api_fixture_ready(b);
    give_all();
    ck_assert(!api_streams_turn(b->api, b->now_us));
    ck_assert_uint_eq(b->submit_count, 1);
}

START_TEST(only_its_id_and_sane_numbers) {
    begin_one("");
    resume_one();
    ask("cmpl-other", 0);
    expect_failure(404, "stream_not_found");
    ask_as(body_id(), "?after=x", "");
    expect_failure(400, "invalid_value");
    ask_as(body_id(), "?after=", "");
    expect_failure(400, "invalid_value");
    ask_as(body_id(), "?after=-1", "");
    expect_failure(400, "invalid_value");
    ask_as(body_id(), "?after=99999999999999999999999999", "");
    expect_failure(400, "invalid_value");
    ask(body_id(), 3);
    expect_failure(400, "invalid_value");
    ck_assert_uint_eq(b->cancel_count, 0);
    ask_as(body_id(), "?other=3&after=2&after", "");
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    ck_assert_uint_eq(api_fixture_event_count(&b->client), 0);
}
END_TEST

START_TEST(one_client_at_a_time) {
    begin_one("");
    resume_one();
    ask(body_id(), 1);
    ck_assert_uint_eq(api_fixture_event_count(&b->client), 1);
    struct api_fixture_client other;
    char request[512];
    snprintf(request, sizeof request, "GET /v1/streams/%s HTTP/1.1\r\nHost: localhost\r\n\r\n",
             body_id());
    api_fixture_client_init(b, &other);
    api_fixture_send(b, &other, request);
    ck_assert_int_eq(api_fixture_status(&other), 409);
    api_fixture_client_deinit(&other);
    // A client that leaves has cancelled it.
    struct http_handler handler = api_handler(b->api);
    b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &b->client.exchange, HTTP_GONE_REASON_CLIENT, b->now_us);
    ck_assert_uint_eq(b->cancel_count, 1);
    ck_assert_uint_eq(second_journal.ends, 1);
    ask(body_id(), 1);
    expect_failure(404, "stream_not_found");
}
END_TEST

START_TEST(its_key_alone) {
    teardown();
    api_key_digest("one", 3, keys[0].digest);
    api_key_digest("two", 3, keys[1].digest);
    setup();
    key_count = 2;
    keys[0].account = &accounts[0];
    keys[1].account = &accounts[1];
    accounts[0].class_ = REQUEST_CLASS_BATCH;
    api_set_keys(a->api, keys, 2);
    end_second();
    begin_second();
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":3,\"stream\":true}";
    char request[512];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    api_fixture_send(a, &a->client, request);
    api_fixture_token(a, 0, 'x');
    api_fixture_turn(a);
    uint32_t open = accounts[0].open;
    resume_one();
    ck_assert_uint_eq(accounts[0].open, open + 1);    // counted once more by the new controller
    ck_assert_uint_eq(b->submits[0].class_, REQUEST_CLASS_BATCH);
    ck_assert_uint_eq(b->submits[0].salt, a->submits[0].salt);
    ask_as(body_id(), "?after=1", "two");
    expect_failure(404, "stream_not_found");
    ask_as(body_id(), "?after=1", "");
    expect_failure(401, "invalid_api_key");
    ask_as(body_id(), "?after=1", "one");
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    ck_assert_uint_eq(accounts[0].open, open + 1);
    // Without its key nobody could ask for it.
    end_second();
    key_count = 1;
    keys[0] = keys[1];
    begin_second();
    ck_assert(!give(0, b->now_us + LATER_US));
    key_count = 0;
    api_set_keys(b->api, keys, 0);
    ck_assert(!give(0, b->now_us + LATER_US));
}
END_TEST

// ---- waiting, failing, expiring ----------------------------------------------------------------

START_TEST(who_asks_before_a_worker_is_there_waits) {
    begin_one("");
    give_all();
    api_streams_turn(b->api, b->now_us);
    ask(body_id(), 1);
    ck_assert_uint_eq(b->client.answer.bytes_used, 0);
    struct http_handler handler = api_handler(b->api);
    b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &b->client.exchange, HTTP_GONE_REASON_CLIENT, b->now_us);
    ck_assert_int_eq(b->access.status, 499);
    ask(body_id(), 1);    // it was told nothing: it may ask again
    ck_assert_uint_eq(b->client.answer.bytes_used, 0);
    api_set_model(b->api, &b->model);
    api_fixture_ready(b);
    api_streams_turn(b->api, b->now_us);
    api_fixture_collect(&b->client);
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    ck_assert_uint_eq(api_fixture_event_count(&b->client), 1);
}
END_TEST

START_TEST(nobody_asks_in_time) {
    begin_one("");
    resume_one();
    b->now_us += LATER_US - 1;
    api_streams_turn(b->api, b->now_us);
    ck_assert_uint_eq(second_journal.ends, 0);
    b->now_us += 200 * 1000;
    api_streams_turn(b->api, b->now_us);
    ck_assert_uint_eq(b->cancel_count, 1);
    ck_assert_uint_eq(second_journal.ends, 1);
    ck_assert_uint_eq(api_open_calls(b->api), 0);
    ask(body_id(), 0);
    expect_failure(404, "stream_not_found");
    // A client that waits for a worker that never comes is told.
    end_second();
    begin_second();
    give_all();
    ask(body_id(), 0);
    b->now_us += LATER_US;
    api_streams_turn(b->api, b->now_us);
    api_fixture_collect(&b->client);
    expect_failure(503, "unavailable");
    ck_assert_uint_eq(second_journal.ends, 1);
}
END_TEST

START_TEST(one_that_ended_alone_is_kept_until_it_is_asked_for) {
    begin_one("");
    resume_one();
    api_fixture_token(b, 0, 'z');
    api_fixture_finish(b, 0, FINISH_REASON_LENGTH);
    api_turn_end(b->api, b->now_us);
    b->now_us += LATER_US + 1;
    api_streams_turn(b->api, b->now_us);    // delivered to nobody
    ck_assert_uint_eq(second_journal.ends, 1);
    ask(body_id(), 0);
    expect_failure(404, "stream_not_found");
}
END_TEST

START_TEST(a_fault_without_a_client_is_told_later) {
    begin_one("");
    resume_one();
    api_fixture_finish(b, 0, FINISH_REASON_FAULT);
    api_turn_end(b->api, b->now_us);
    ck_assert_uint_eq(second_journal.ends, 1);
    bool whole = true;
    ask(body_id(), 2);
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    const char *body = api_fixture_body(&b->client, &whole);
    ck_assert(!whole);
    ck_assert_ptr_nonnull(strstr(body, "\"code\":\"instance_lost\""));
    ck_assert_ptr_null(strstr(body, "[DONE]"));
    ck_assert_int_eq(b->client.exchange.phase, HTTP_EXCHANGE_PHASE_BROKEN);
}
END_TEST

START_TEST(another_model_or_context_cannot_continue_it) {
    begin_one(",\"model\":\"tiny\"");
    static const char *const others[] = {"another"};
    b->model.names = others;
    b->model.name_count = 1;
    give_all();
    api_fixture_ready(b);
    ask(body_id(), 0);
    api_streams_turn(b->api, b->now_us);
    api_fixture_collect(&b->client);
    expect_failure(410, "not_resumable");
    ck_assert_uint_eq(second_journal.ends, 1);
    ck_assert_uint_eq(b->submit_count, 0);
    ask(body_id(), 0);    // who asks later is told as well
    expect_failure(410, "not_resumable");
    // A context that has room for the prompt only.
    end_second();
    begin_second();
    struct message_capacity capacity = {.envelope = {.seq_tokens = 2},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TINY_VOCABULARY,
                                        .kv_dtype = "f16"};
    api_set_model(b->api, &b->model);
    give_all();
    api_on_capacity(b->api, &capacity);
    api_streams_turn(b->api, b->now_us);
    ask(body_id(), 0);
    expect_failure(410, "not_resumable");
}
END_TEST

START_TEST(bytes_that_nobody_wrote_are_refused) {
    begin_one("");
    struct entry *entry = &first_journal.entries[0];
    size_t whole = entry->begin.bytes_used;
    for (size_t size = 0; size < whole; size++) {
        entry->begin.bytes_used = size;
        ck_assert(!give(0, b->now_us + LATER_US));
    }
    entry->begin.bytes_used = whole;
    // Steps: cut, and each byte another one. Whatever comes out, nothing breaks.
    size_t steps = entry->steps.bytes_used;
    for (size_t at = 0; at < steps; at++) {
        for (int change = 0; change < 3; change++) {
            static const uint8_t masks[] = {0x01, 0x80, 0xFF};
            entry->steps.data[at] ^= masks[change];
            ck_assert(give(steps, b->now_us + LATER_US));
            api_fixture_ready(b);
            api_streams_turn(b->api, b->now_us);
            ask(body_id(), 0);
            int status = api_fixture_status(&b->client);
            ck_assert(status == 200 || status == 410);
            entry->steps.data[at] ^= masks[change];
            end_second();
            begin_second();
        }
        ck_assert(give(at, b->now_us + LATER_US));
        api_fixture_ready(b);
        api_streams_turn(b->api, b->now_us);
        end_second();
        begin_second();
    }
}
END_TEST

START_TEST(too_much_without_a_client_fails_clearly) {
    enum { TOKENS = 120000 };
    struct message_capacity capacity = {.envelope = {.seq_tokens = TOKENS + 64},
                                        .block_tokens = 16,
                                        .kv_blocks = 65536,
                                        .vocabulary = TINY_VOCABULARY,
                                        .kv_dtype = "f16"};
    api_on_capacity(a->api, &capacity);
    api_fixture_post(a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"max_tokens\":120000,\"ignore_eos\":true,"
                     "\"stream\":true}");
    api_fixture_token(a, 0, 'x');
    api_fixture_turn(a);
    api_set_model(b->api, &b->model);
    api_on_capacity(b->api, &capacity);
    give_all();
    api_streams_turn(b->api, b->now_us);
    for (uint32_t i = 0; i < TOKENS - 1; i++) {
        api_fixture_token(b, 0, 'x');
        api_turn_end(b->api, b->now_us);
    }
    b->now_us += 1000 * 1000;
    api_streams_turn(b->api, b->now_us);
    ck_assert_uint_eq(b->cancel_count, 1);
    ck_assert_uint_eq(second_journal.ends, 1);
    ask(body_id(), 0);
    expect_failure(410, "not_resumable");
}
END_TEST

// ---- what is journalled ------------------------------------------------------------------------

START_TEST(only_streams_and_until_their_end) {
    api_fixture_post(a, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":1}");
    api_fixture_play(a, 0, "x");
    api_fixture_get(a, "/healthz/step");
    api_fixture_play(a, 1, "x");
    ck_assert_uint_eq(first_journal.count, 0);
    begin_one("");
    ck_assert_uint_eq(first_journal.count, 1);
    // Its client leaves.
    struct http_handler handler = api_handler(a->api);
    a->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &a->client.exchange, HTTP_GONE_REASON_CLIENT, a->now_us);
    ck_assert(!first_journal.entries[0].open);
    // It fails.
    api_fixture_post(a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    ck_assert(first_journal.entries[1].open);
    api_fixture_finish(a, a->submit_count - 1, FINISH_REASON_FAULT);
    api_fixture_turn(a);
    ck_assert(!first_journal.entries[1].open);
    // It is refused.
    api_fixture_post(a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    api_fixture_reject(a, a->submit_count - 1, REJECT_REASON_QUEUE_FULL, 5);
    api_fixture_turn(a);
    ck_assert(!first_journal.entries[2].open);
    ck_assert_uint_eq(first_journal.ends, 3);
    // The journal has no room: served all the same.
    first_journal.refuse_step = true;
    api_fixture_post(a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"stream\":true,\"max_tokens\":2}");
    api_fixture_play(a, a->submit_count - 1, "ok");
    ck_assert_uint_eq(api_fixture_event_count(&a->client), 2);
    ck_assert_uint_eq(a->client.exchange.receipt, 0);
    first_journal.refuse_begin = true;
    api_fixture_post(a, "/v1/completions",
                     "{\"prompt\":\"hello\",\"stream\":true,\"max_tokens\":2}");
    api_fixture_play(a, a->submit_count - 1, "ok");
    ck_assert_uint_eq(api_fixture_event_count(&a->client), 2);
    ck_assert_uint_eq(first_journal.count, 4);
}
END_TEST

START_TEST(a_step_is_journalled_before_its_events_are_there) {
    api_fixture_post(a, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true}");
    size_t before = first_journal.entries[0].steps.bytes_used;
    api_fixture_token(a, 0, 'x');
    ck_assert_uint_eq(first_journal.entries[0].steps.bytes_used, before);
    ck_assert_uint_eq(a->client.exchange.out.bytes_used, 0);
    api_fixture_turn(a);
    ck_assert_uint_gt(first_journal.entries[0].steps.bytes_used, before);
    ck_assert_uint_eq(api_fixture_event_count(&a->client), 1);
}
END_TEST

START_TEST(an_id_that_is_kept_is_not_given_again) {
    static const char body[] = "{\"prompt\":\"hello\",\"max_tokens\":3,\"stream\":true}";
    char request[512];
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a/b%%\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    api_fixture_send(a, &a->client, request);
    api_fixture_token(a, 0, 'x');
    api_fixture_turn(a);
    ck_assert_str_eq(body_id(), "cmpl-a/b%");
    resume_one();
    api_fixture_send(b, &b->client, request);
    api_fixture_token(b, 1, 'y');
    api_fixture_turn(b);
    ck_assert_ptr_null(strstr(api_fixture_body(&b->client, NULL), "\"cmpl-a/b%\""));
    struct http_handler handler = api_handler(b->api);
    b->client.exchange.phase = HTTP_EXCHANGE_PHASE_BROKEN;
    handler.on_gone(handler.ctx, &b->client.exchange, HTTP_GONE_REASON_CLIENT, b->now_us);
    ask("cmpl-a%2fb%25", 1);
    ck_assert_int_eq(api_fixture_status(&b->client), 200);
    ck_assert_str_eq(api_fixture_field(&b->client, "x-request-id"), "a/b%");
}
END_TEST

Suite *suite_api_streams(void) {
    Suite *suite = suite_create("controller/http/api_streams");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_chat_with_held_back_text);
    tcase_add_test(tcase, choices_with_logprobs_and_usage);
    tcase_add_test(tcase, prompts_that_are_echoed_and_scored);
    tcase_add_test(tcase, an_echo_that_needs_no_worker);
    tcase_add_test(tcase, a_stop_token_of_the_request_and_min_tokens);
    tcase_add_test(tcase, only_its_id_and_sane_numbers);
    tcase_add_test(tcase, one_client_at_a_time);
    tcase_add_test(tcase, its_key_alone);
    tcase_add_test(tcase, who_asks_before_a_worker_is_there_waits);
    tcase_add_test(tcase, nobody_asks_in_time);
    tcase_add_test(tcase, one_that_ended_alone_is_kept_until_it_is_asked_for);
    tcase_add_test(tcase, a_fault_without_a_client_is_told_later);
    tcase_add_test(tcase, another_model_or_context_cannot_continue_it);
    tcase_add_test(tcase, bytes_that_nobody_wrote_are_refused);
    tcase_add_test(tcase, too_much_without_a_client_fails_clearly);
    tcase_add_test(tcase, only_streams_and_until_their_end);
    tcase_add_test(tcase, a_step_is_journalled_before_its_events_are_there);
    tcase_add_test(tcase, an_id_that_is_kept_is_not_given_again);
    suite_add_tcase(suite, tcase);
    return suite;
}
