// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

// Time as a value, in microseconds.
//
// The idea: the shell reads the clock once per turn and hands the number down; nothing below it
// asks for the time. The simulator hands down invented numbers.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

uint64_t clock_monotonic_us(void);    // since an arbitrary start; never goes back
uint64_t clock_monotonic_ns(void);
uint64_t clock_thread_us(void);    // that the calling thread has computed
uint64_t clock_unix_s(void);       // seconds since 1970, for `created` fields
uint64_t clock_unix_ms(void);      // for log lines

#endif
