// SPDX-License-Identifier: Apache-2.0
// Goal: key files and allow-lists mean what they say; whatever else they hold is refused with file
// and line. Method: good ones read, one thing at a time made wrong.
#include "proto/link_keys.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];
static struct link_key_pair a, b;

static void setup(void) {
    snprintf(path, sizeof path, "/tmp/tare-key-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(link_key_pair_create(&a, NULL), STATUS_OK);
    ck_assert_int_eq(link_key_pair_create(&b, NULL), STATUS_OK);
    ck_assert_str_ne(a.public_key, b.public_key);
}

static void teardown(void) {
    unlink(path);
}

static void write_text(const char *format, const char *first, const char *second) {
    FILE *file = fopen(path, "w");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    fprintf(file, format, first, second);
#pragma GCC diagnostic pop
    fclose(file);
    chmod(path, 0600);
}

static void refused(bool secret, enum status status, const char *because) {
    struct link_key_pair pair;
    struct error err = {0};
    ck_assert_int_eq(link_key_file_read(path, secret, &pair, &err), status);
    ck_assert_msg(strstr(err.message, because) != NULL, "%s", err.message);
    ck_assert_ptr_nonnull(strstr(err.message, path));
}

START_TEST(key_files_are_read) {
    struct link_key_pair pair;
    write_text("# of a node\npublic %s\nsecret %s\n", a.public_key, a.secret_key);
    ck_assert_int_eq(link_key_file_read(path, true, &pair, NULL), STATUS_OK);
    ck_assert_str_eq(pair.secret_key, a.secret_key);
    ck_assert_int_eq(link_key_file_read(path, false, &pair, NULL), STATUS_OK);
    write_text("  public %s \r\n%s", a.public_key, "");
    ck_assert_int_eq(link_key_file_read(path, false, &pair, NULL), STATUS_OK);
    ck_assert_str_eq(pair.public_key, a.public_key);
    ck_assert_str_eq(pair.secret_key, "");
}
END_TEST

START_TEST(broken_key_files_are_refused) {
    write_text("public %s\nsecret %s\n", a.public_key, b.secret_key);
    refused(true, STATUS_CORRUPT, "do not belong together");
    write_text("public %s\n%s", a.public_key, "");
    refused(true, STATUS_CORRUPT, "no secret key");
    write_text("secret %s\n%s", a.secret_key, "");
    refused(false, STATUS_CORRUPT, "no public key");
    write_text("public %s%s\n", a.public_key, "0");
    refused(false, STATUS_CORRUPT, "line 1");
    write_text("# c\n\npublic %.20s%s\n", a.public_key, "");
    refused(false, STATUS_CORRUPT, "line 3");
    write_text("public %s %s\n", a.public_key, a.public_key);
    refused(false, STATUS_CORRUPT, "line 1");
    write_text("%s%s\n", a.public_key, "");
    refused(false, STATUS_CORRUPT, "line 1");
    write_text("public ~~~~~~~~~~%.30s%s\n", a.public_key, "");    // no character of Z85
    refused(false, STATUS_CORRUPT, "line 1");
    write_text("%s%s", "", "");
    refused(false, STATUS_CORRUPT, "no public key");
    unlink(path);
    refused(false, STATUS_NOT_FOUND, "key file");
}
END_TEST

START_TEST(pipes_and_directories_are_no_key_files) {
    unlink(path);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    refused(true, STATUS_CORRUPT, "is no file");
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    refused(true, STATUS_CORRUPT, "is no file");
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_secret_that_others_can_read_is_none) {
    write_text("public %s\nsecret %s\n", a.public_key, a.secret_key);
    ck_assert_int_eq(chmod(path, 0640), 0);
    refused(true, STATUS_PERMISSION, "closed to others");
    struct link_key_pair pair;
    ck_assert_int_eq(link_key_file_read(path, false, &pair, NULL), STATUS_OK);
}
END_TEST

// ---- the allow-list ----------------------------------------------------------------------------

START_TEST(an_allow_list_says_who_may_be_what) {
    char text[1024];
    snprintf(text, sizeof text,
             "# nodes\n node-1 %s role=worker ids=g0r0,g1r*,g*r7 \n\nops %s role=admin\n",
             a.public_key, b.public_key);
    struct link_allow *allow = NULL;
    struct error err = {0};
    ck_assert_msg(link_allow_parse("list", text, &allow, &err) == STATUS_OK, "%s", err.message);
    ck_assert_uint_eq(allow->count, 2);
    const struct link_entry *node = link_allow_find(allow, a.public_key);
    ck_assert_str_eq(node->name, "node-1");
    ck_assert_ptr_eq(node, link_allow_named(allow, "node-1"));
    ck_assert(link_entry_permits(node, 0, 0) && !link_entry_permits(node, 0, 1));
    ck_assert(link_entry_permits(node, 1, 3) && !link_entry_permits(node, 2, 3));
    ck_assert(link_entry_permits(node, 900, 7));
    const struct link_entry *ops = link_allow_find(allow, b.public_key);
    ck_assert_int_eq(ops->role, LINK_ROLE_ADMIN);
    ck_assert(!link_entry_permits(ops, 0, 0));    // an operator is no worker
    ck_assert_ptr_null(link_allow_find(allow, a.secret_key));
    ck_assert_ptr_null(link_allow_named(allow, "node-2"));
    link_allow_destroy(allow);
}
END_TEST

START_TEST(broken_allow_lists_are_refused) {
    static const struct {
        const char *line;    // %s: a key
        const char *because;
    } cases[] = {
        {"node-1", "no key of 40"},
        {"node-1 short role=worker ids=*", "no key of 40"},
        {"../node %s role=worker ids=*", "is no name"},
        {"node-1 %s role=worker", "has no ids="},
        {"node-1 %s role=king ids=*", "neither role="},
        {"node-1 %s ids=g0", "expected up to 16"},
        {"node-1 %s ids=g0r0,", "expected up to 16"},
        {"node-1 %s ids=g0r8", "expected up to 16"},
        {"node-1 %s ids=g1024r0", "expected up to 16"},
        {"node-1 %s ids=g99999999999999999999r0", "expected up to 16"},
        {"node-1 %s ids=g-1r0", "expected up to 16"},
        {"node-1 %s ids=", "expected up to 16"},
        {"node-1 %s ids=g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,g0r0,"
         "g0r0,g0r0",
         "expected up to 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024] = "# first\n";
        const char *at = strstr(cases[i].line, "%s");
        int before = at == NULL ? (int)strlen(cases[i].line) : (int)(at - cases[i].line);
        snprintf(text + 8, sizeof text - 8, "%.*s%s%s\n", before, cases[i].line,
                 at == NULL ? "" : a.public_key, at == NULL ? "" : at + 2);
        struct link_allow *allow = NULL;
        struct error err = {0};
        ck_assert_int_eq(link_allow_parse("list", text, &allow, &err), STATUS_CORRUPT);
        ck_assert_msg(strstr(err.message, cases[i].because) != NULL, "%s", err.message);
        ck_assert_ptr_nonnull(strstr(err.message, "'list' line 2"));
    }
    char twice[512];
    struct link_allow *allow = NULL;
    struct error err = {0};
    snprintf(twice, sizeof twice, "a %s ids=*\nb %s ids=*\n", a.public_key, a.public_key);
    ck_assert_int_eq(link_allow_parse("list", twice, &allow, &err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err.message, "second time"));
    char nobody[] = "# nobody\n";
    ck_assert_int_eq(link_allow_parse("list", nobody, &allow, NULL), STATUS_CORRUPT);
}
END_TEST

Suite *suite_link_keys(void) {
    Suite *suite = suite_create("proto/link_keys");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, key_files_are_read);
    tcase_add_test(tc, broken_key_files_are_refused);
    tcase_add_test(tc, pipes_and_directories_are_no_key_files);
    tcase_add_test(tc, a_secret_that_others_can_read_is_none);
    tcase_add_test(tc, an_allow_list_says_who_may_be_what);
    tcase_add_test(tc, broken_allow_lists_are_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
