// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_FAIL_H
#define TESTS_SIMULATION_SIM_FAIL_H

#include "common/status.h"
#include <stdint.h>

// How the simulator ends when something does not hold: with the sentence, and with what replays it.
//
// The idea: the core's own invariants end the process too, so the line with seed, commit, time and
// command is printed by a handler of the signals that every such end raises.
//
//   Owns       what is running now: one per process, read by the handler.
//   Thread     one.
//   Allocates  never.
//   Fails      that is its job; does not return.

struct sim_running {
    const char *program;
    const char *scenario;
    uint64_t seed;
    uint64_t now_us;
    const char *options;    // of the command that replays it
};
extern struct sim_running sim_running;

void sim_fail_install(void);    // the handlers
_Noreturn void sim_fail(const char *format, ...) PRINTF_LIKE(1, 2);

#define SIM_CHECK(expr, ...) ((expr) ? (void)0 : sim_fail(__VA_ARGS__))

#endif
