// SPDX-License-Identifier: Apache-2.0
// Goal: keys come out as files that the links can read, closed to others, and nothing is
// overwritten. Method: the command itself, in a directory of its own.
#include "common/exit_code.h"
#include "controller/cli/keygen.h"
#include "proto/link_keys.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[64], secret[96], public[96], printed[96];

static void setup(void) {
    snprintf(directory, sizeof directory, "/tmp/tare-keygen-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(secret, sizeof secret, "%s/g1r2.secret", directory);
    snprintf(public, sizeof public, "%s/g1r2.pub", directory);
    snprintf(printed, sizeof printed, "%s/printed", directory);
    // What the command says, for the tests to read.
    ck_assert_ptr_nonnull(freopen(printed, "w", stdout));
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
}

static void teardown(void) {
    unlink(secret);
    unlink(public);
    unlink(printed);
    rmdir(directory);
}

static int run(const char *const *words) {
    char *argv[8] = {0};
    int argc = 0;
    for (; words[argc] != NULL; argc++) {
        argv[argc] = strdup(words[argc]);
    }
    int code = keygen_run(argc, argv);
    fflush(stdout);
    for (int i = 0; i < argc; i++) {
        free(argv[i]);
    }
    return code;
}

START_TEST(keys_are_files_and_a_line) {
    const char *const words[] = {"keygen", "--out", directory, "g1r2", NULL};
    ck_assert_int_eq(run(words), EXIT_CODE_OK);
    struct link_key_pair mine, theirs;
    ck_assert_int_eq(link_key_file_read(secret, true, &mine, NULL), STATUS_OK);
    ck_assert_int_eq(link_key_file_read(public, false, &theirs, NULL), STATUS_OK);
    ck_assert_str_eq(mine.public_key, theirs.public_key);
    ck_assert_str_eq(theirs.secret_key, "");
    struct stat info;
    ck_assert_int_eq(stat(secret, &info), 0);
    ck_assert_int_eq(info.st_mode & 0777, 0600);
    struct link_allow *allow = NULL;
    ck_assert_int_eq(link_allow_load(printed, &allow, NULL), STATUS_OK);
    const struct link_entry *entry = link_allow_find(allow, mine.public_key);
    ck_assert_ptr_nonnull(entry);
    ck_assert(link_entry_permits(entry, 1, 2) && !link_entry_permits(entry, 1, 1));
    link_allow_destroy(allow);
}
END_TEST

START_TEST(nothing_is_overwritten) {
    const char *const words[] = {"keygen", "--out", directory, "g1r2", NULL};
    ck_assert_int_eq(run(words), EXIT_CODE_OK);
    struct link_key_pair before, after;
    ck_assert_int_eq(link_key_file_read(secret, true, &before, NULL), STATUS_OK);
    ck_assert_int_eq(run(words), EXIT_CODE_USAGE);
    unlink(secret);
    ck_assert_int_eq(run(words), EXIT_CODE_USAGE);    // the public one is still there
    ck_assert_int_ne(access(secret, F_OK), 0);
    ck_assert_int_eq(link_key_file_read(public, false, &after, NULL), STATUS_OK);
    ck_assert_str_eq(before.public_key, after.public_key);
}
END_TEST

START_TEST(what_cannot_be_is_refused_before_anything_is_written) {
    const char *const cases[][6] = {
        {"keygen", NULL},
        {"keygen", "--out", directory, "g1r2", "../up", NULL},
        {"keygen", "--out", directory, "g1r2", "--role=king", NULL},
        {"keygen", "--out", directory, "g1r2", "--ids=g0", NULL},
        {"keygen", "--out", directory, "g1r2", "--frob", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int code = run(cases[i]);
        ck_assert_int_eq(code, EXIT_CODE_USAGE);
        ck_assert_int_ne(access(secret, F_OK), 0);
    }
}
END_TEST

Suite *suite_keygen(void) {
    Suite *suite = suite_create("controller/cli/keygen");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, keys_are_files_and_a_line);
    tcase_add_test(tc, nothing_is_overwritten);
    tcase_add_test(tc, what_cannot_be_is_refused_before_anything_is_written);
    suite_add_tcase(suite, tc);
    return suite;
}
