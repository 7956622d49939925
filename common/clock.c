// SPDX-License-Identifier: Apache-2.0
#include "common/clock.h"

#include "common/invariant.h"
#include <time.h>

static uint64_t read_ns(clockid_t id) {
    struct timespec now;
    int failed = clock_gettime(id, &now);
    INVARIANT(failed == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_monotonic_ns(void) {
    return read_ns(CLOCK_MONOTONIC);
}

uint64_t clock_monotonic_us(void) {
    return read_ns(CLOCK_MONOTONIC) / 1000;
}

uint64_t clock_thread_us(void) {
    return read_ns(CLOCK_THREAD_CPUTIME_ID) / 1000;
}

uint64_t clock_unix_s(void) {
    return read_ns(CLOCK_REALTIME) / 1000000000u;
}

uint64_t clock_unix_ms(void) {
    return read_ns(CLOCK_REALTIME) / 1000000u;
}
