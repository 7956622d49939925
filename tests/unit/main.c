// SPDX-License-Identifier: Apache-2.0
// Runs the unit suites: all of them, or those whose names contain one of the arguments and none of
// those that begin with '-'.
#include "common/log.h"
#include "tests/unit/suites.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Read by the leak sanitizer. libzmq loses a message now and then when a peer closes while the
// other still sends: our own transports are seen all the same, each owns memory that is not
// libzmq's.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libzmq.so\n";
}

static bool wanted(const char *name, int argc, char **argv) {
    bool named = argc < 2;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && strstr(name, argv[i] + 1) != NULL) {
            return false;
        }
        named = named || strstr(name, argv[i]) != NULL;
    }
    return named;
}

int main(int argc, char **argv) {
    log_configure(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
    SRunner *runner = srunner_create(NULL);
#define X(name, function)                                                                          \
    if (wanted(name, argc, argv)) {                                                                \
        srunner_add_suite(runner, function());                                                     \
    }
    SUITE_TABLE(X)
#undef X
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    int run = srunner_ntests_run(runner);
    srunner_free(runner);
    printf("%d passed, %d failed\n", run - failed, failed);
    return failed == 0 && run > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
