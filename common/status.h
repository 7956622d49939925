// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_STATUS_H
#define COMMON_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

// One code type and one story type for every failure in the system.
//
// The idea: a function that can fail returns `enum status`; the sentence a person reads travels in
// one `struct error` on the caller's stack. The place that sees the failure fills it once
// (error_set), every level above may prepend what it was doing (error_context), and TRY adds the
// file and line of each hop. The first error wins: later ones never overwrite it.
//
//   Owns       nothing; `struct error` is plain memory of the caller.
//   Thread     any; a `struct error` belongs to one thread at a time.
//   Allocates  never.
//   Fails      never. Long texts are cut, never dropped.

// name, text
#define STATUS_TABLE(X)                                                                            \
    X(OK, "ok")                                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(NOT_FOUND, "not found")                                                                      \
    X(UNSUPPORTED, "not supported")                                                                \
    X(CORRUPT, "corrupt data")                                                                     \
    X(EXHAUSTED, "out of capacity")                                                                \
    X(BUSY, "busy")                                                                                \
    X(TIMEOUT, "timed out")                                                                        \
    X(CANCELLED, "cancelled")                                                                      \
    X(VERSION, "version mismatch")                                                                 \
    X(IO, "input/output error")                                                                    \
    X(DEVICE, "device failure")                                                                    \
    X(PEER_LOST, "peer lost")                                                                      \
    X(SHUTDOWN, "shutting down")                                                                   \
    X(PERMISSION, "permission denied")

enum status {
#define X(name, text) STATUS_##name,
    STATUS_TABLE(X)
#undef X
        STATUS_COUNT
};

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_index, first_arg)                                                       \
    __attribute__((format(printf, format_index, first_arg)))

const char *status_name(enum status status);    // "EXHAUSTED"
const char *status_text(enum status status);    // "out of capacity"

enum { ERROR_MESSAGE_BYTES = 1024, ERROR_HOPS_MAX = 8 };

struct error_hop {
    const char *file;    // static string
    int line;
};

struct error {
    enum status status;
    int os_code;    // errno, or 0
    uint32_t hop_count;
    struct error_hop hops[ERROR_HOPS_MAX];
    char message[ERROR_MESSAGE_BYTES];
    char hint[256];    // what the person can do about it, or ""
};

// Fills `err` unless it already holds an error or is NULL. Returns `status` so that callers can
// write `return error_set(err, STATUS_EXHAUSTED, "wanted %u blocks, %u free", want, have);`.
#define error_set(err, status, ...)                                                                \
    error_set_at(__FILE__, __LINE__, (err), (status), 0, __VA_ARGS__)
// The same with the current errno appended in words.
#define error_set_os(err, status, ...)                                                             \
    error_set_at(__FILE__, __LINE__, (err), (status), error_errno(), __VA_ARGS__)

enum status error_set_at(const char *file, int line, struct error *err, enum status status,
                         int os_code, const char *format, ...) PRINTF_LIKE(6, 7);
int error_errno(void);

// Prepends "text: " to the message, e.g. the file that was being read.
void error_context(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
// Sets the hint; the first one wins.
void error_hint(struct error *err, const char *format, ...) PRINTF_LIKE(2, 3);
void error_hop(struct error *err, const char *file, int line);
void error_reset(struct error *err);
// One line for the person who started `program`: "program: sentence; hint".
void error_print(const char *program, const struct error *err);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (expr);                                                          \
        if (try_status_ != STATUS_OK) {                                                            \
            error_hop(err, __FILE__, __LINE__);                                                    \
            return try_status_;                                                                    \
        }                                                                                          \
    } while (0)

// Needs `enum status status` in scope; jumps to the function's one exit label.
#define TRY_GOTO(expr, label)                                                                      \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != STATUS_OK) {                                                                 \
            error_hop(err, __FILE__, __LINE__);                                                    \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#endif
