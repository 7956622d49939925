// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/controller/http/two_lives.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct two_lives lives;

// ---- a journal in memory -----------------------------------------------------------------------

static uint64_t on_begin(void *ctx, const void *bytes, size_t byte_count) {
    struct memory_journal *journal = ctx;
    if (journal->refuse_begin) {
        return 0;
    }
    ck_assert_uint_lt(journal->count, TWO_LIVES_ENTRIES_MAX);
    struct journal_entry *entry = &journal->entries[journal->count++];
    buf_init(&entry->begin, 1 << 24);
    buf_init(&entry->steps, 1 << 26);
    buf_append(&entry->begin, bytes, byte_count);
    entry->open = true;
    return journal->count;
}

static bool on_step(void *ctx, uint64_t id, const void *bytes, size_t byte_count) {
    struct memory_journal *journal = ctx;
    struct journal_entry *entry = &journal->entries[id - 1];
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
        ck_assert(journal == &lives.second_journal);
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

static void configure_first(struct api_config *config) {
    config->journal = (struct api_journal){&lives.first_journal, on_begin, on_step, on_end};
    config->gate.keys = lives.keys;
    config->gate.key_count = lives.key_count;
    config->seed = 1;
}

static void configure_second(struct api_config *config) {
    config->journal = (struct api_journal){&lives.second_journal, on_begin, on_step_given, on_end};
    config->gate.keys = lives.keys;
    config->gate.key_count = lives.key_count;
    config->seed = 2;
    config->id_seed = 99;
}

void two_lives_begin_second(void) {
    journal_reset(&lives.second_journal);
    lives.b = calloc(1, sizeof *lives.b);
    api_fixture_init(lives.b, configure_second);
    lives.b->now_us = 5000000;
}

void two_lives_end_second(void) {
    api_fixture_deinit(lives.b);
    free(lives.b);
    lives.b = NULL;
}

void two_lives_setup(void) {
    lives.key_count = 0;
    memset(lives.accounts, 0, sizeof lives.accounts);
    journal_reset(&lives.first_journal);
    lives.a = calloc(1, sizeof *lives.a);
    api_fixture_init(lives.a, configure_first);
    api_fixture_ready(lives.a);
    two_lives_begin_second();
}

void two_lives_teardown(void) {
    two_lives_end_second();
    api_fixture_deinit(lives.a);
    free(lives.a);
    journal_reset(&lives.first_journal);
    journal_reset(&lives.second_journal);
}

bool two_lives_give(size_t steps_bytes, uint64_t expires_us) {
    const struct journal_entry *entry = &lives.first_journal.entries[0];
    const struct api_unfinished unfinished = {
        .entry = 100,
        .begin = entry->begin.data,
        .begin_bytes = entry->begin.bytes_used,
        .steps = entry->steps.data,
        .steps_bytes = steps_bytes,
        .expires_us = expires_us,
    };
    return api_stream_add(lives.b->api, &unfinished);
}

void two_lives_give_all(void) {
    ck_assert(two_lives_give(lives.first_journal.entries[0].steps.bytes_used,
                             lives.b->now_us + TWO_LIVES_LATER_US));
}

const char *two_lives_body_id(void) {
    static char id[256];
    const char *body = api_fixture_body(&lives.a->client, NULL);
    const char *at = strstr(body, "\"id\":\"");
    ck_assert_ptr_nonnull(at);
    snprintf(id, sizeof id, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
    return id;
}

void two_lives_ask_as(const char *id, const char *after, const char *key) {
    char request[1024];
    snprintf(request, sizeof request,
             "GET /v1/streams/%s%s HTTP/1.1\r\nHost: localhost\r\n%s%s%s\r\n", id, after,
             key[0] != '\0' ? "Authorization: Bearer " : "", key, key[0] != '\0' ? "\r\n" : "");
    api_fixture_send(lives.b, &lives.b->client, request);
}

void two_lives_ask(const char *id, uint32_t after) {
    char query[32];
    snprintf(query, sizeof query, "?after=%u", after);
    two_lives_ask_as(id, query, "");
}

void two_lives_expect_failure(int status, const char *code) {
    ck_assert_int_eq(api_fixture_status(&lives.b->client), status);
    struct json_doc *doc = api_fixture_json(&lives.b->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "error.code"), code);
    json_destroy(doc);
}

void two_lives_begin_one(const char *extra) {
    char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\":\"hello\",\"max_tokens\":3,\"ignore_eos\":true,\"stream\":true%s}",
             extra);
    api_fixture_post(lives.a, "/v1/completions", body);
    for (int i = 0; i < 2; i++) {
        api_fixture_token(lives.a, lives.a->submit_count - 1, 'x' + i);
        api_fixture_turn(lives.a);
    }
}

void two_lives_resume_one(void) {
    api_fixture_ready(lives.b);
    two_lives_give_all();
    ck_assert(!api_streams_turn(lives.b->api, lives.b->now_us));
    ck_assert_uint_eq(lives.b->submit_count, 1);
}
