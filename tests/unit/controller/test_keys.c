// SPDX-License-Identifier: Apache-2.0
// Goal: whoever asks for keys gets keys or an error, never a server that is open to everybody.
// Method: key files of every kind through the option table.
#include "controller/keys.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Loads the keys of a file with this text; the directory itself when `text` is NULL.
static enum status load(const char *text, struct keys *keys, struct error *err) {
    char path[] = "/tmp/tare-keys-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    if (text != NULL) {
        ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    }
    close(fd);
    char flag[64];
    snprintf(flag, sizeof flag, "--api-key-file=%s", text == NULL ? "/tmp" : path);
    char program[] = "x", model[] = "m";
    char *argv[] = {program, model, flag, NULL};
    struct config_input input = {OPTION_PROGRAM_SERVE, "x", 3, argv, NULL};
    struct config *config = NULL;
    struct buf out;
    buf_init(&out, 4096);
    ck_assert_int_eq(config_parse(&input, &config, &out, err), STATUS_OK);
    enum status status = keys_load(config, keys, err);
    config_destroy(config);
    buf_deinit(&out);
    unlink(path);
    return status;
}

static struct keys keys;    // too large for a stack

static void forget_keys(void) {
    memset(&keys, 0, sizeof keys);
}

static struct api_account *account_of(const char *key) {
    uint8_t digest[HASH_SHA256_BYTES];
    api_key_digest(key, strlen(key), digest);
    for (uint32_t i = 0; i < keys.count; i++) {
        if (memcmp(keys.keys[i].digest, digest, sizeof digest) == 0) {
            return keys.keys[i].account;
        }
    }
    return NULL;
}

START_TEST(a_file_gives_keys_with_and_without_names) {
    ck_assert_int_eq(load("# two\n\n  alice:one \nt'w[o\n", &keys, NULL), STATUS_OK);
    ck_assert_uint_eq(keys.count, 2);
    ck_assert_str_eq(account_of("one")->name, "alice");
    ck_assert_str_eq(account_of("t'w[o")->name, "");
    ck_assert_int_eq(account_of("one")->class_, REQUEST_CLASS_STANDARD);
    ck_assert_uint_ne(account_of("one")->tenant, 0);
    ck_assert_uint_ne(account_of("one")->tenant, account_of("t'w[o")->tenant);
}
END_TEST

START_TEST(a_file_without_keys_is_refused) {
    static const char *const texts[] = {"", "# nothing\n\n", "alice:\n", NULL};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct error err = {0};
        ck_assert_int_eq(load(texts[i], &keys, &err), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(err.message, "API key"));
    }
}
END_TEST

// A text of these bytes behind what was read before.
static enum status parse(const char *bytes, size_t byte_count, struct error *err) {
    char text[8192];
    ck_assert_uint_lt(byte_count, sizeof text);
    memcpy(text, bytes, byte_count);
    text[byte_count] = '\0';
    return keys_parse("file", text, byte_count, &keys, err);
}

START_TEST(bytes_that_are_no_text_hide_no_key) {
    struct error err = {0};
    ck_assert_int_eq(parse("one\0junk\ntwo\n", 13, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "no text"));
    ck_assert_int_eq(parse("a\x1b[2Jb:one\n", 11, NULL), STATUS_INVALID);
    char line[4096];
    memset(line, 'k', sizeof line);
    err = (struct error){0};
    ck_assert_int_eq(parse(line, sizeof line, &err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, "line 1"));
    line[70] = ':';
    ck_assert_int_eq(parse(line, 100, NULL), STATUS_INVALID);
    ck_assert_uint_eq(keys.entry_count, 0);
    // Without an end of line, and with one of another system.
    ck_assert_int_eq(parse("one\r\nb:two class=batch", 22, NULL), STATUS_OK);
    ck_assert_uint_eq(keys.entry_count, 2);
}
END_TEST

START_TEST(attributes_make_the_account) {
    ck_assert_int_eq(load("a:k1 class=realtime weight=2.5\n"
                          "k2\tconcurrency=8  requests-per-minute=60 tokens-per-minute=100k\n",
                          &keys, NULL),
                     STATUS_OK);
    const struct api_account *first = account_of("k1"), *second = account_of("k2");
    ck_assert_int_eq(first->class_, REQUEST_CLASS_REALTIME);
    ck_assert_double_eq((double)first->weight, 2.5);
    ck_assert_uint_eq(first->limits.concurrency, 0);
    ck_assert_double_eq((double)second->weight, 1);
    ck_assert_uint_eq(second->limits.concurrency, 8);
    ck_assert_double_eq(second->limits.requests_per_minute, 60);
    ck_assert_double_eq(second->limits.tokens_per_minute, 100000);
}
END_TEST

START_TEST(a_wrong_attribute_is_named_with_its_line_and_changes_nothing) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"x class=express\n", "express"}, {"x speed=9\n", "speed"},
        {"x concurrency=0\n", "'0'"},     {"x tokens-per-minute=many\n", "many"},
        {"x weight=-1\n", "-1"},          {"x weight=nan\n", "nan"},
        {"x batch\n", "class=batch"},     {"x requests-per-minute=\n", "''"},
    };
    ck_assert_int_eq(load("old class=batch\n", &keys, NULL), STATUS_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct error err = {0};
        char text[128];
        snprintf(text, sizeof text, "fine\n%s", rows[i].text);
        ck_assert_int_eq(load(text, &keys, &err), STATUS_INVALID);
        ck_assert_msg(strstr(err.message, rows[i].says) != NULL, "%s", err.message);
        ck_assert_msg(strstr(err.message, "line 2") != NULL, "%s", err.message);
        ck_assert_uint_eq(keys.count, 1);
        ck_assert_int_eq(account_of("old")->class_, REQUEST_CLASS_BATCH);
    }
}
END_TEST

// Whatever is read again, who has open calls keeps its account, and a key that stays keeps what it
// used.
START_TEST(accounts_outlive_the_files) {
    ck_assert_int_eq(load("one\ntwo requests-per-minute=2\n", &keys, NULL), STATUS_OK);
    struct api_account *one = account_of("one"), *two = account_of("two");
    uint32_t tenant = two->tenant;
    struct api_failure failure = {0};
    for (int i = 0; i < 2; i++) {
        ck_assert(api_account_judge(two, 1000, &failure));
        api_account_take(two, 1000, 5);
    }
    ck_assert(!api_account_judge(two, 1000, &failure));
    api_account_take(one, 1000, 5);
    for (int round = 0; round < 5; round++) {
        ck_assert_int_eq(load("three\ntwo requests-per-minute=2 class=batch\n", &keys, NULL),
                         STATUS_OK);
        ck_assert_ptr_eq(account_of("two"), two);
        ck_assert_uint_eq(two->tenant, tenant);
        ck_assert_int_eq(two->class_, REQUEST_CLASS_BATCH);
        ck_assert(!api_account_judge(two, 1000, &failure));
        ck_assert_ptr_null(account_of("one"));
        ck_assert_ptr_ne(account_of("three"), one);
    }
    api_account_return(one, 7);    // its call ends long after its key
    ck_assert_uint_eq(one->open, 0);
    // Another limit begins anew.
    ck_assert_int_eq(load("two requests-per-minute=3\n", &keys, NULL), STATUS_OK);
    ck_assert(api_account_judge(two, 1000, &failure));
}
END_TEST

// As many keys as there may be, all others each time: accounts are used again, the open one never.
START_TEST(a_thousand_new_keys_each_time_find_room) {
    struct buf text;
    buf_init(&text, 1u << 20);
    ck_assert_int_eq(load("first\n", &keys, NULL), STATUS_OK);
    struct api_account *first = account_of("first");
    api_account_take(first, 1, 1);
    for (int round = 0; round < 3; round++) {
        buf_reset(&text);
        for (uint32_t i = 0; i < BOUND_API_KEYS; i++) {
            buf_printf(&text, "key-%d-%u\n", round, i);
        }
        ck_assert_int_eq(load(buf_cstr(&text), &keys, NULL), STATUS_OK);
        ck_assert_uint_eq(keys.count, BOUND_API_KEYS);
        bool taken[KEYS_ACCOUNTS + 1] = {false};
        for (uint32_t i = 0; i < keys.count; i++) {
            ck_assert_ptr_ne(keys.keys[i].account, first);
            uint32_t tenant = keys.keys[i].account->tenant;
            ck_assert(tenant > 0 && tenant <= KEYS_ACCOUNTS && !taken[tenant]);
            taken[tenant] = true;
        }
    }
    struct error err = {0};
    buf_append_str(&text, "one-more\n");
    ck_assert_int_eq(load(buf_cstr(&text), &keys, &err), STATUS_INVALID);
    buf_deinit(&text);
}
END_TEST

Suite *suite_keys(void) {
    Suite *suite = suite_create("controller/keys");
    TCase *tcase = tcase_create("files");
    tcase_add_test(tcase, a_file_gives_keys_with_and_without_names);
    tcase_add_checked_fixture(tcase, forget_keys, NULL);
    tcase_add_test(tcase, a_file_without_keys_is_refused);
    tcase_add_test(tcase, bytes_that_are_no_text_hide_no_key);
    tcase_add_test(tcase, attributes_make_the_account);
    tcase_add_test(tcase, a_wrong_attribute_is_named_with_its_line_and_changes_nothing);
    tcase_add_test(tcase, accounts_outlive_the_files);
    tcase_add_test(tcase, a_thousand_new_keys_each_time_find_room);
    suite_add_tcase(suite, tcase);
    return suite;
}
