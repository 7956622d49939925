// SPDX-License-Identifier: Apache-2.0
// Goal: whatever is wrong with the words of a command is named, and every size that the usage shows
// is taken. Method: the commands themselves, against a run directory where nobody is.
#include "controller/cli/admin_client.h"
#include "controller/cli/keygen.h"
#include "controller/cli/resize.h"
#include "controller/cli/status.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char said[8192];

// What the command says on stderr is in `said`.
static int run(int (*command)(int argc, char **argv), const char *line) {
    static char text[256];
    char *argv[16] = {0};
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *rest = text, *word; (word = strsep(&rest, " ")) != NULL;) {
        argv[argc++] = word;
    }
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    int before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    int code = command(argc, argv);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    return code;
}

static int resize(const char *size) {
    char line[128];
    snprintf(line, sizeof line, "resize kv 0 %s --run-dir /tmp/tare-nobody", size);
    return run(resize_run, line);
}

START_TEST(sizes_are_taken) {
    static const char *const sizes[] = {"100", "+100",  "-100", "512M",  "-512m", "1.5GiB",
                                        "8KB", "4096B", "0.5G", "+1.5k", "1T"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ck_assert_int_ne(resize(sizes[i]), ADMIN_EXIT_USAGE);
        ck_assert_msg(strstr(said, "no server of yours") != NULL, "%s: %s", sizes[i], said);
    }
}
END_TEST

START_TEST(a_wrong_size_is_named) {
    static const char *const sizes[] = {"1e300", "1e3",    "0x",    "0x10",      ".5G", "5.M",
                                        "5.",    "16MiBB", "512iB", "1.5",       "B",   "nan",
                                        "--5",   "1.2.3",  "+",     "99999999T", "5 M"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "SIZE '%s'", sizes[i]);
        ck_assert_int_eq(resize(sizes[i]), ADMIN_EXIT_USAGE);
        bool other = strchr(sizes[i], ' ') != NULL || strncmp(sizes[i], "--", 2) == 0;
        ck_assert_msg(strstr(said, other ? "is not known here" : wanted) != NULL, "%s: %s",
                      sizes[i], said);
    }
    ck_assert_int_eq(run(resize_run, "resize kv 0"), ADMIN_EXIT_USAGE);
    ck_assert_ptr_nonnull(strstr(said, "GROUP and SIZE are needed"));
    ck_assert_int_eq(run(resize_run, "resize kv 0 1 --timeout x"), ADMIN_EXIT_USAGE);
    ck_assert_ptr_nonnull(strstr(said, "--timeout 'x'"));
}
END_TEST

START_TEST(a_flag_without_its_value_needs_one) {
    static const struct {
        int (*command)(int argc, char **argv);
        const char *line, *wanted;
    } cases[] = {
        {status_run, "status --run-dir", "tare status: --run-dir needs a value"},
        {status_run, "status -o", "tare status: -o needs a value"},
        {status_get_run, "get groups --run-dir", "tare get: --run-dir needs a value"},
        {resize_run, "resize kv 0 1 --reason", "tare resize: --reason needs a value"},
        {keygen_run, "keygen a --ids", "tare keygen: --ids needs a value"},
        {status_run, "status -o yaml", "-o yaml"},
        {resize_run, "resize kv 0 1 -o yaml", "-o yaml"},
        {status_run, "status --run-dirs x", "'--run-dirs' is not known here"},
        {keygen_run, "keygen a --idst=x", "'--idst=x' is not known here"},
        {resize_run, "resize kv --grup 1", "'--grup' is not known here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_int_ne(run(cases[i].command, cases[i].line), ADMIN_EXIT_DONE);
        ck_assert_msg(strstr(said, cases[i].wanted) != NULL, "%s: %s", cases[i].line, said);
    }
}
END_TEST

Suite *suite_cli_words(void) {
    Suite *suite = suite_create("controller/cli/words");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, sizes_are_taken);
    tcase_add_test(tc, a_wrong_size_is_named);
    tcase_add_test(tc, a_flag_without_its_value_needs_one);
    suite_add_tcase(suite, tc);
    return suite;
}
