// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Log lines on standard error: one event, one line, key=value pairs.
//
// The idea: the caller writes one printf-like text whose first words are the message and whose tail
// is made of key=value pairs ("request method=GET status=200"); the sink adds time, level and
// module, and writes it as text, logfmt or JSON. A value with spaces is written key="in double
// quotes" by the caller; what others wrote goes through log_value, so that it ends where the caller
// ends it. No prompt, no output, no API key is ever logged.
//
//   Owns       the process-wide sink: level, format, file descriptor.
//   Thread     any; a line is one write. A batch belongs to one thread.
//   Allocates  never, but for a batch; lines are cut at 4 KiB.
//   Fails      never: a full pipe loses the line.

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_TRACE
};
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_TEXT, LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON };

// Auto: text on a terminal, logfmt otherwise.
void log_configure(enum log_level level, enum log_format format);
bool log_level_parse(const char *text, enum log_level *out);
bool log_format_parse(const char *text, enum log_format *out);
bool log_enabled(enum log_level level);

void log_line(enum log_level level, const char *source, const char *format, ...) PRINTF_LIKE(3, 4);
#define log_error(source, ...) log_line(LOG_LEVEL_ERROR, (source), __VA_ARGS__)
#define log_warn(source, ...) log_line(LOG_LEVEL_WARN, (source), __VA_ARGS__)
#define log_info(source, ...) log_line(LOG_LEVEL_INFO, (source), __VA_ARGS__)
#define log_debug(source, ...) log_line(LOG_LEVEL_DEBUG, (source), __VA_ARGS__)

// What a client, an operator or another process wrote, to stand between the double quotes of a
// value: quotes and backslashes get a backslash. Cut to the room. Returns `room`.
enum { LOG_VALUE_BYTES = 2048 };
const char *log_value(const char *text, char room[LOG_VALUE_BYTES]);
// The same appended to a message of log_batch_add, with quotes around it only where it needs some.
void log_value_append(struct buf *message, const char *text, size_t byte_count);

// Lines that wait to be written together, for a source of many: `message` as above, without printf.
// Whoever keeps `lines` writes them soon, once per turn of its loop, so that no more are lost with
// a process that dies. They go out whole, in pieces that a pipe takes at once; what a full pipe
// refuses stays for the next time, until `lines` is full.
void log_batch_add(struct buf *lines, enum log_level level, const char *source,
                   const char *message);
void log_batch_write(struct buf *lines);

// Logs a failure once, at the place that handles it: sentence, hint, and at debug level the trace.
void log_failure(const char *source, const struct error *err);

// Tests: formats one line as the sink would, into `out`; returns its length without the newline.
struct log_stamp {
    enum log_level level;
    enum log_format format;    // not AUTO
    uint64_t unix_ms;
    const char *source;
};
size_t log_format_line(const struct log_stamp *stamp, const char *message, char *out,
                       size_t out_bytes);

#endif
