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

START_TEST(a_file_gives_keys_with_and_without_names) {
    static struct keys keys;
    ck_assert_int_eq(load("# two\n\n  alice:one \nt'w[o\n", &keys, NULL), STATUS_OK);
    ck_assert_uint_eq(keys.count, 2);
    ck_assert_str_eq(keys.keys[0].name, "alice");
    ck_assert_str_eq(keys.keys[1].name, "");
}
END_TEST

START_TEST(a_file_without_keys_is_refused) {
    static const char *const texts[] = {"", "# nothing\n\n", "alice:\n", NULL};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        static struct keys keys;
        struct error err = {0};
        ck_assert_int_eq(load(texts[i], &keys, &err), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(err.message, "API key"));
    }
}
END_TEST

Suite *suite_keys(void) {
    Suite *suite = suite_create("controller/keys");
    TCase *tcase = tcase_create("files");
    tcase_add_test(tcase, a_file_gives_keys_with_and_without_names);
    tcase_add_test(tcase, a_file_without_keys_is_refused);
    suite_add_tcase(suite, tcase);
    return suite;
}
