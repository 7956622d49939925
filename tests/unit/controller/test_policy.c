// SPDX-License-Identifier: Apache-2.0
// Goal: what an operator types for the scheduler is what the core gets, and a mistake is named.
// Method: command lines through the option table.
#include "controller/policy.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

static enum status load(char *word, struct core_policy *out, struct error *err) {
    char program[] = "x", model[] = "m";
    char *argv[] = {program, model, word, NULL};
    struct config_input input = {OPTION_PROGRAM_CONTROLLER, "x", word == NULL ? 2 : 3, argv, NULL};
    struct config *config = NULL;
    struct buf text;
    buf_init(&text, 4096);
    enum status status = config_parse(&input, &config, &text, err);
    if (status == STATUS_OK) {
        status = policy_load(config, out, err);
    }
    config_destroy(config);
    buf_deinit(&text);
    return status;
}

START_TEST(without_options_the_core_has_its_defaults) {
    struct core_policy got, want;
    memset(&got, 0xFF, sizeof got);
    core_policy_defaults(&want);
    ck_assert_int_eq(load(NULL, &got, NULL), STATUS_OK);
    ck_assert_double_eq(got.itl_target_us, want.itl_target_us);
    ck_assert_uint_eq(got.hold_us, want.hold_us);
    ck_assert_uint_eq(got.queued_tokens_max, CORE_QUEUED_TOKENS_AUTO);
    for (int c = 0; c < REQUEST_CLASS_COUNT; c++) {
        ck_assert_double_eq(got.ttft_target_us[c], 0);
        ck_assert_double_eq(got.guard[c], want.guard[c]);
        ck_assert_double_eq(got.share_min[c], want.share_min[c]);
    }
}
END_TEST

START_TEST(classes_that_are_not_named_keep_their_value) {
    struct core_policy got, want;
    core_policy_defaults(&want);
    char targets[] = "--ttft-target=realtime=800ms,batch=1.5m";
    ck_assert_int_eq(load(targets, &got, NULL), STATUS_OK);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_REALTIME], 800e3);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_STANDARD], 0);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_BATCH], 90e6);
    char all[] = "--ttft-target=5s,batch=off";
    ck_assert_int_eq(load(all, &got, NULL), STATUS_OK);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_REALTIME], 5e6);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_STANDARD], 5e6);
    ck_assert_double_eq(got.ttft_target_us[REQUEST_CLASS_BATCH], 0);
    char guard[] = "--guard=standard=0";
    ck_assert_int_eq(load(guard, &got, NULL), STATUS_OK);
    ck_assert_double_eq(got.guard[REQUEST_CLASS_STANDARD], 0);
    ck_assert_double_eq(got.guard[REQUEST_CLASS_REALTIME], want.guard[REQUEST_CLASS_REALTIME]);
    char tokens[] = "--max-num-queued-tokens=100k";
    ck_assert_int_eq(load(tokens, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.queued_tokens_max, 100000);
    char hold[] = "--hold-time=250us";
    ck_assert_int_eq(load(hold, &got, NULL), STATUS_OK);
    ck_assert_uint_eq(got.hold_us, 250);
}
END_TEST

START_TEST(mistakes_are_named) {
    static const struct {
        const char *word, *says;
    } rows[] = {
        {"--ttft-target=express=2s", "'express'"},
        {"--ttft-target=realtime=2", "realtime=800ms"},
        {"--ttft-target=realtime=", "realtime=800ms"},
        {"--ttft-target=-1s", "realtime=800ms"},
        {"--itl-target=fast", "50ms"},
        {"--itl-target=0", "50ms"},
        {"--hold-time=2 s", "50ms"},
        {"--guard=batch=1.5", "from 0 to 1"},
        {"--guard=batch=nan", "from 0 to 1"},
        {"--class-share=0.4", "at most 1"},
        {"--max-num-queued-tokens=-2", "-1.."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char word[64];
        snprintf(word, sizeof word, "%s", rows[i].word);
        struct core_policy policy;
        struct error err = {0};
        ck_assert_msg(load(word, &policy, &err) == STATUS_INVALID, "%s", word);
        ck_assert_msg(strstr(err.message, rows[i].says) != NULL, "%s: %s", word, err.message);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
        ck_assert_msg(strstr(err.message, name) != NULL, "%s: %s", word, err.message);
    }
}
END_TEST

Suite *suite_policy(void) {
    Suite *suite = suite_create("controller/policy");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, without_options_the_core_has_its_defaults);
    tcase_add_test(tc, classes_that_are_not_named_keep_their_value);
    tcase_add_test(tc, mistakes_are_named);
    suite_add_tcase(suite, tc);
    return suite;
}
