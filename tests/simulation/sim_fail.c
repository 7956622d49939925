// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_fail.h"

#include "common/version.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sim_running sim_running = {"", "", 0, 0, ""};

// The process ends either way, so the handler may print like anybody else.
static void tell_and_end(int signal_number) {
    signal(SIGABRT, SIG_DFL);
    char text[512];
    int bytes = snprintf(text, sizeof text,
                         "simulation failed: seed %" PRIu64 ", commit %s, time %" PRIu64
                         ".%06" PRIu64 " s; replay: %s --seed %" PRIu64 " --scenario %s%s\n",
                         sim_running.seed, VERSION_COMMIT, sim_running.now_us / 1000000,
                         sim_running.now_us % 1000000, sim_running.program, sim_running.seed,
                         sim_running.scenario, sim_running.options);
    if (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, text, strnlen(text, sizeof text));
        (void)written;
    }
    _exit(signal_number == SIGABRT ? 1 : 2);
}

void sim_fail_install(void) {
    signal(SIGABRT, tell_and_end);
    signal(SIGSEGV, tell_and_end);
    signal(SIGFPE, tell_and_end);
}

_Noreturn void sim_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "does not hold: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    abort();
}
