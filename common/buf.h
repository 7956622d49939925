// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_BUF_H
#define COMMON_BUF_H

#include "common/status.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// A growable byte buffer with a hard cap.
//
// The idea: writers append without checking each call. When the cap is hit or memory is missing the
// buffer turns sticky-failed, keeps what it had, and ignores further appends; the caller asks once,
// at the end, with buf_status().
//
//   Owns       its bytes, from the heap.
//   Thread     one at a time.
//   Allocates  on growth, by doubling, never past `bytes_max`.
//   Fails      EXHAUSTED, remembered until buf_reset.

struct buf {
    uint8_t *data;    // bytes_used valid bytes; NULL while empty
    size_t bytes_used;
    size_t bytes_allocated;
    size_t bytes_max;
    bool failed;
};

void buf_init(struct buf *buf, size_t bytes_max);
void buf_deinit(struct buf *buf);
void buf_reset(struct buf *buf);    // empties, keeps memory, clears the failure

void buf_append(struct buf *buf, const void *bytes, size_t byte_count);
// Inline, so that the length of a literal is known.
static inline void buf_append_str(struct buf *buf, const char *text) {
    buf_append(buf, text, strlen(text));
}
void buf_append_byte(struct buf *buf, uint8_t byte);
void buf_append_u64(struct buf *buf, uint64_t value);    // decimal digits
void buf_printf(struct buf *buf, const char *format, ...) PRINTF_LIKE(2, 3);

// Room for `byte_count` bytes at the end, counted as used; NULL when it does not fit.
uint8_t *buf_extend(struct buf *buf, size_t byte_count);
// Drops the first `byte_count` bytes (moves the rest down).
void buf_consume(struct buf *buf, size_t byte_count);

// The content as a C string: a NUL follows the used bytes and is not counted. "" while empty.
const char *buf_cstr(struct buf *buf);
enum status buf_status(const struct buf *buf) MUST_USE;

#endif
