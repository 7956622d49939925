// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_INVARIANT_H
#define COMMON_INVARIANT_H

// Invariants: what must hold whatever the outside world does.
//
// The idea: a broken invariant is our bug, so the process stops at once with the sentence, in every
// build. Bytes, files, flags and peers are never asserted on: they get a status. INVARIANT_SLOW is
// for scans and audits and exists in debug, sanitizer and simulation builds only.
//
//   Owns       nothing.
//   Thread     any.
//   Allocates  never.
//   Fails      does not return.

_Noreturn void invariant_failed(const char *expression, const char *file, int line,
                                const char *function);

#define INVARIANT(expr) ((expr) ? (void)0 : invariant_failed(#expr, __FILE__, __LINE__, __func__))

#ifdef TARE_SLOW_CHECKS
#define INVARIANT_SLOW(expr) INVARIANT(expr)
#else
#define INVARIANT_SLOW(expr) ((void)sizeof(expr))
#endif

#define UNREACHABLE() invariant_failed("unreachable", __FILE__, __LINE__, __func__)

#endif
