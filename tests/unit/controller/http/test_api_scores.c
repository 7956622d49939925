// SPDX-License-Identifier: Apache-2.0
// Goal: logprobs of drawn tokens and of prompts, their offsets and their texts. Method: the test
// plays the core and reads the JSON that comes out.
#include "tests/unit/controller/http/api_fixture.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct api_fixture *f;

static void setup(void) {
    f = calloc(1, sizeof *f);
    api_fixture_init(f, NULL);
    api_fixture_ready(f);
}

static void teardown(void) {
    api_fixture_deinit(f);
    free(f);
}

static void post(const char *body) {
    api_fixture_post(f, "/v1/completions", body);
}

static void scored(uint32_t index, uint32_t position, int32_t token, bool is_prompt, float logprob,
                   const int32_t *top, const float *values, uint32_t count) {
    const struct result_row row = {.position = position,
                                   .token = token,
                                   .is_prompt = is_prompt,
                                   .has_logprob = true,
                                   .logprob = logprob,
                                   .top_count = count,
                                   .top_tokens = top,
                                   .top_logprobs = values};
    api_fixture_row(f, index, &row);
}

START_TEST(logprobs_are_four_parallel_arrays) {
    post("{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":2}");
    const int32_t top[] = {'x', 'y'};
    const float values[] = {-0.1f, -2.5f};
    scored(0, 1, 'x', false, -0.1f, top, values, 2);
    scored(0, 2, 'z', false, -7.25f, top, values, 2);
    scored(0, 3, 'y', false, -INFINITY, top, values, 2);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *lp = json_walk(json_root(doc), "choices.0.logprobs");
    ck_assert_uint_eq(json_count(json_get(lp, "tokens")), 3);
    ck_assert_str_eq(json_walk_text(lp, "tokens.1"), "z");
    ck_assert(json_number(json_walk(lp, "token_logprobs.1")) == -7.25);
    ck_assert(json_number(json_walk(lp, "token_logprobs.2")) == -9999.0);
    ck_assert_uint_eq(json_count(json_walk(lp, "top_logprobs.0")), 2);
    ck_assert_uint_eq(json_count(json_walk(lp, "top_logprobs.1")), 3);    // and the token itself
    ck_assert(json_number(json_walk(lp, "top_logprobs.1.z")) == -7.25);
    // The same number in both places, to the digit.
    ck_assert(json_number(json_walk(lp, "top_logprobs.0.x")) ==
              json_number(json_walk(lp, "token_logprobs.0")));
    ck_assert(json_number(json_walk(lp, "top_logprobs.2.y")) == -9999.0);
    ck_assert_int_eq(json_int(json_walk(lp, "text_offset.2")), 2);
    json_destroy(doc);
    ck_assert_ptr_nonnull(strstr(api_fixture_body(&f->client, NULL), "-0.100000001"));
}
END_TEST

START_TEST(offsets_count_characters_and_parts_of_one_are_told_apart) {
    post("{\"prompt\":\"a\",\"max_tokens\":4,\"logprobs\":1}");
    const float value[] = {-1};
    const int32_t bytes[] = {0xC3, 0xA9, 'b', 0xFF};
    for (uint32_t i = 0; i < 4; i++) {
        scored(0, 1 + i, bytes[i], false, -1, &bytes[i], value, 1);
    }
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    ck_assert_str_eq(json_walk_text(root, "choices.0.text"), "\xC3\xA9"
                                                             "b\xEF\xBF\xBD");
    const struct json *lp = json_walk(root, "choices.0.logprobs");
    ck_assert_str_eq(json_walk_text(lp, "tokens.0"), "bytes:\\xc3");
    ck_assert_str_eq(json_walk_text(lp, "tokens.1"), "bytes:\\xa9");
    ck_assert_str_eq(json_walk_text(lp, "tokens.2"), "b");
    ck_assert_int_eq(json_int(json_walk(lp, "text_offset.2")), 1);
    json_destroy(doc);
}
END_TEST

START_TEST(echo_scores_every_prompt_position_and_one_more) {
    post("{\"prompt\":[97,98,99],\"max_tokens\":1,\"logprobs\":1,\"temperature\":0,\"echo\":true}");
    ck_assert(f->submits[0].sampling.want_prompt_logprobs);
    const int32_t top[] = {98};
    const float value[] = {-0.5f};
    scored(0, 1, 98, true, -0.5f, top, value, 1);
    scored(0, 2, 99, true, -3, top, value, 1);
    scored(0, 2, 99, true, -3, top, value, 1);    // asked again after a lost worker
    scored(0, 1, 98, true, -0.5f, top, value, 1);
    const int32_t end[] = {TOKEN_END};
    scored(0, 3, TOKEN_END, false, -0.25f, end, (const float[]){-0.25f}, 1);
    api_fixture_finish(f, 0, FINISH_REASON_STOP);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *root = json_root(doc);
    const struct json *lp = json_walk(root, "choices.0.logprobs");
    ck_assert_str_eq(json_walk_text(root, "choices.0.text"), "abc");    // the end has no text
    static const char *const arrays[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_msg(json_count(json_get(lp, arrays[i])) == 4, "%s", arrays[i]);
    }
    ck_assert(json_absent(json_walk(lp, "token_logprobs.0")));
    ck_assert(json_absent(json_walk(lp, "top_logprobs.0")));
    ck_assert(json_number(json_walk(lp, "token_logprobs.1")) == -0.5);
    ck_assert(json_number(json_walk(lp, "token_logprobs.2")) == -3);
    ck_assert(json_number(json_walk(lp, "top_logprobs.2.c")) == -3);
    ck_assert_str_eq(json_walk_text(lp, "tokens.3"), "<|end|>");
    ck_assert(json_number(json_walk(lp, "token_logprobs.3")) == -0.25);
    ck_assert_int_eq(json_int(json_walk(lp, "text_offset.3")), 3);
    json_destroy(doc);
}
END_TEST

START_TEST(scoring_alone_generates_nothing) {
    post("{\"prompt\":[97,98],\"max_tokens\":0,\"logprobs\":0,\"echo\":true}");
    ck_assert_uint_eq(f->submits[0].output_max, 0);
    scored(0, 1, 98, true, -1.5f, NULL, NULL, 0);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *lp = json_walk(json_root(doc), "choices.0.logprobs");
    ck_assert_uint_eq(json_count(json_get(lp, "tokens")), 2);
    ck_assert_uint_eq(json_count(json_walk(lp, "top_logprobs.1")), 1);    // the token itself
    ck_assert_int_eq(json_int(json_walk(json_root(doc), "usage.completion_tokens")), 0);
    json_destroy(doc);
}
END_TEST

START_TEST(echo_without_logprobs_or_tokens_needs_no_engine) {
    post("{\"prompt\":\"hello w\",\"max_tokens\":0,\"echo\":true}");
    ck_assert_uint_eq(f->submit_count, 0);
    struct json_doc *doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "hello w");
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.finish_reason"), "length");
    json_destroy(doc);
    post("{\"prompt\":\"hi\",\"max_tokens\":1,\"echo\":true}");
    api_fixture_play(f, 0, "!");
    doc = api_fixture_json(&f->client);
    ck_assert_str_eq(json_walk_text(json_root(doc), "choices.0.text"), "hi!");
    json_destroy(doc);
}
END_TEST

START_TEST(ids_with_the_same_text_keep_the_larger_value) {
    // "he" as one token and the special spelling of the same text cannot coincide here, so a map
    // with one id twice stands for it.
    post("{\"prompt\":\"a\",\"max_tokens\":1,\"logprobs\":2}");
    const int32_t top[] = {'x', 'x'};
    const float values[] = {-0.5f, -4};
    scored(0, 1, 'x', false, -0.5f, top, values, 2);
    api_fixture_finish(f, 0, FINISH_REASON_LENGTH);
    api_fixture_turn(f);
    struct json_doc *doc = api_fixture_json(&f->client);
    const struct json *map = json_walk(json_root(doc), "choices.0.logprobs.top_logprobs.0");
    ck_assert_uint_eq(json_count(map), 1);
    ck_assert(json_number(json_get(map, "x")) == -0.5);
    json_destroy(doc);
}
END_TEST

Suite *suite_api_scores(void) {
    Suite *suite = suite_create("controller/http/api_scores");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 20);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, logprobs_are_four_parallel_arrays);
    tcase_add_test(tc, offsets_count_characters_and_parts_of_one_are_told_apart);
    tcase_add_test(tc, echo_scores_every_prompt_position_and_one_more);
    tcase_add_test(tc, scoring_alone_generates_nothing);
    tcase_add_test(tc, echo_without_logprobs_or_tokens_needs_no_engine);
    tcase_add_test(tc, ids_with_the_same_text_keep_the_larger_value);
    suite_add_tcase(suite, tc);
    return suite;
}
