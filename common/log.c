// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include "common/clock.h"
#include "common/invariant.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, STAMP_BYTES = 32 };

static enum log_level sink_level = LOG_LEVEL_INFO;
static enum log_format sink_format = LOG_FORMAT_LOGFMT;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static const char *const format_names[] = {"auto", "text", "logfmt", "json"};

void log_configure(enum log_level level, enum log_format format) {
    sink_level = level;
    if (format == LOG_FORMAT_AUTO) {
        format = isatty(STDERR_FILENO) ? LOG_FORMAT_TEXT : LOG_FORMAT_LOGFMT;
    }
    sink_format = format;
}

static bool find_name(const char *const *names, size_t count, const char *text, unsigned *out) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = (unsigned)i;
            return true;
        }
    }
    return false;
}

bool log_level_parse(const char *text, enum log_level *out) {
    unsigned index = 0;
    if (!find_name(level_names, sizeof level_names / sizeof level_names[0], text, &index)) {
        return false;
    }
    *out = (enum log_level)index;
    return true;
}

bool log_format_parse(const char *text, enum log_format *out) {
    unsigned index = 0;
    if (!find_name(format_names, sizeof format_names / sizeof format_names[0], text, &index)) {
        return false;
    }
    *out = (enum log_format)index;
    return true;
}

bool log_enabled(enum log_level level) {
    return level <= sink_level;
}

// A bounded writer: text past the end is dropped.
struct line {
    char *at;
    size_t used;
    size_t room;
};

static void put(struct line *line, const char *text, size_t count) {
    size_t left = line->room - line->used;
    if (count > left) {
        count = left;
    }
    memcpy(line->at + line->used, text, count);
    line->used += count;
}

static void put_str(struct line *line, const char *text) {
    put(line, text, strlen(text));
}

// Escapes what would break a quoted value or the line.
static void put_escaped(struct line *line, const char *text, size_t count) {
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            char pair[2] = {'\\', (char)c};
            put(line, pair, 2);
        } else if (c < 0x20 || c == 0x7F) {
            char code[8];
            int n = snprintf(code, sizeof code, "\\u%04x", c);
            put(line, code, (size_t)n);
        } else {
            put(line, text + i, 1);
        }
    }
}

// Where the key=value tail starts: the first space followed by word characters and '='.
static size_t tail_start(const char *message) {
    size_t length = strlen(message);
    for (size_t i = 0; i < length; i++) {
        if (message[i] != ' ') {
            continue;
        }
        size_t k = i + 1;
        while (message[k] == '_' || (message[k] >= 'a' && message[k] <= 'z') ||
               (message[k] >= '0' && message[k] <= '9')) {
            k++;
        }
        if (k > i + 1 && message[k] == '=') {
            return i;
        }
    }
    return length;
}

static bool is_escape(const char *at) {
    return at[0] == '\\' && (at[1] == '"' || at[1] == '\\');
}

// One "key=value" or key="quoted value" at `at`; returns its end.
static const char *next_pair(const char *at, const char **key, size_t *key_bytes,
                             const char **value, size_t *value_bytes) {
    while (*at == ' ') {
        at++;
    }
    const char *equals = strchr(at, '=');
    if (equals == NULL) {
        return NULL;
    }
    *key = at;
    *key_bytes = (size_t)(equals - at);
    const char *start = equals + 1;
    bool quoted = *start == '"';
    start += quoted ? 1 : 0;
    const char *end = start;
    while (*end != '\0' && *end != (quoted ? '"' : ' ')) {
        end += quoted && is_escape(end) ? 2 : 1;
    }
    *value = start;
    *value_bytes = (size_t)(end - start);
    return quoted && *end == '"' ? end + 1 : end;
}

static void stamp_time(uint64_t unix_ms, char *out) {
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm parts;
    gmtime_r(&seconds, &parts);
    size_t n = strftime(out, STAMP_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + n, STAMP_BYTES - n, ".%03uZ", (unsigned)(unix_ms % 1000));
}

// Backslashes that log_value put are ours: JSON gets its own.
static void put_json_value(struct line *line, const char *value, size_t byte_count) {
    bool quoted = value[-1] == '"';    // else behind the equals sign
    for (size_t i = 0; i < byte_count; i++) {
        i += quoted && i + 1 < byte_count && is_escape(value + i) ? 1 : 0;
        put_escaped(line, value + i, 1);
    }
}

static void format_json(struct line *line, const char *message, size_t tail) {
    put_str(line, ",\"msg\":\"");
    put_escaped(line, message, tail);
    put_str(line, "\"");
    const char *at = message + tail;
    const char *key, *value;
    size_t key_bytes, value_bytes;
    while (*at != '\0' && (at = next_pair(at, &key, &key_bytes, &value, &value_bytes)) != NULL) {
        put_str(line, ",\"");
        put_escaped(line, key, key_bytes);
        put_str(line, "\":\"");
        put_json_value(line, value, value_bytes);
        put_str(line, "\"");
    }
    put_str(line, "}");
}

// The key=value pairs begin at `tail`.
static size_t format_line(const struct log_stamp *stamp, const char *message, size_t tail,
                          char *out, size_t out_bytes) {
    struct line line = {out, 0, out_bytes - 1};
    char time_text[STAMP_BYTES];
    stamp_time(stamp->unix_ms, time_text);
    const char *level = level_names[stamp->level];
    if (stamp->format == LOG_FORMAT_JSON) {
        put_str(&line, "{\"ts\":\"");
        put_str(&line, time_text);
        put_str(&line, "\",\"level\":\"");
        put_str(&line, level);
        put_str(&line, "\",\"src\":\"");
        put_str(&line, stamp->source);
        put_str(&line, "\"");
        format_json(&line, message, tail);
    } else if (stamp->format == LOG_FORMAT_LOGFMT) {
        put_str(&line, "ts=");
        put_str(&line, time_text);
        put_str(&line, " level=");
        put_str(&line, level);
        put_str(&line, " src=");
        put_str(&line, stamp->source);
        put_str(&line, " msg=\"");
        put_escaped(&line, message, tail);
        put_str(&line, "\"");
        put_str(&line, message + tail);
    } else {
        put(&line, time_text + 11, 12);
        put_str(&line, " ");
        put_str(&line, level);
        put_str(&line, strlen(level) == 4 ? "  " : " ");
        put_str(&line, stamp->source);
        put_str(&line, ": ");
        put_str(&line, message);
    }
    // A message never breaks the one-line rule, and no byte of it drives a terminal.
    for (size_t i = 0; i < line.used; i++) {
        unsigned char c = (unsigned char)out[i];
        if (c < 0x20 || c == 0x7F) {
            out[i] = ' ';
        }
    }
    out[line.used] = '\0';
    return line.used;
}

size_t log_format_line(const struct log_stamp *stamp, const char *message, char *out,
                       size_t out_bytes) {
    return format_line(stamp, message, tail_start(message), out, out_bytes);
}

static void write_line(enum log_level level, const char *source, const char *message, size_t tail) {
    char line[LINE_BYTES + 256];
    struct log_stamp stamp = {level, sink_format, clock_unix_ms(), source};
    size_t length = format_line(&stamp, message, tail, line, sizeof line - 1);
    line[length] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written;    // nowhere left to complain
}

void log_line(enum log_level level, const char *source, const char *format, ...) {
    if (!log_enabled(level)) {
        return;
    }
    char message[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    write_line(level, source, message, tail_start(message));
}

// ---- values ------------------------------------------------------------------------------------

static bool needs_escape(char c) {
    return c == '"' || c == '\\';
}

const char *log_value(const char *text, char room[LOG_VALUE_BYTES]) {
    size_t used = 0;
    for (; *text != '\0' && used + 2 < LOG_VALUE_BYTES; text++) {
        if (needs_escape(*text)) {
            room[used++] = '\\';
        }
        room[used++] = *text;
    }
    room[used] = '\0';
    return room;
}

void log_value_append(struct buf *message, const char *text, size_t byte_count) {
    bool plain = true;
    for (size_t i = 0; i < byte_count && plain; i++) {
        plain = (unsigned char)text[i] > ' ' && text[i] != 0x7F && !needs_escape(text[i]);
    }
    if (plain) {
        buf_append(message, text, byte_count);
        return;
    }
    buf_append_byte(message, '"');
    for (size_t i = 0; i < byte_count; i++) {
        if (needs_escape(text[i])) {
            buf_append_byte(message, '\\');
        }
        buf_append_byte(message, (uint8_t)text[i]);
    }
    buf_append_byte(message, '"');
}

// ---- many lines --------------------------------------------------------------------------------

void log_batch_add(struct buf *lines, enum log_level level, const char *source,
                   const char *message) {
    if (!log_enabled(level)) {
        return;
    }
    char line[LINE_BYTES + 256];
    struct log_stamp stamp = {level, sink_format, clock_unix_ms(), source};
    size_t length = log_format_line(&stamp, message, line, sizeof line - 1);
    line[length] = '\n';
    uint8_t *at = buf_extend(lines, length + 1);
    if (at != NULL) {
        memcpy(at, line, length + 1);
    }
}

// Whole lines from `bytes` on that a pipe takes without mixing them with those of other processes.
static size_t piece_bytes(const uint8_t *bytes, size_t byte_count) {
    if (byte_count <= PIPE_BUF) {
        return byte_count;
    }
    const uint8_t *last = memrchr(bytes, '\n', PIPE_BUF);
    last = last != NULL ? last : memchr(bytes, '\n', byte_count);
    return last != NULL ? (size_t)(last - bytes) + 1 : byte_count;
}

void log_batch_write(struct buf *lines) {
    size_t done = 0;
    while (done < lines->bytes_used) {
        size_t piece = piece_bytes(lines->data + done, lines->bytes_used - done);
        ssize_t written = write(STDERR_FILENO, lines->data + done, piece);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0 && errno == EAGAIN) {
            break;
        }
        done += written < 0 ? piece : (size_t)written;    // nowhere left to complain
    }
    buf_consume(lines, done);
    lines->failed = false;    // a line that did not fit is lost, later ones are not
}

void log_failure(const char *source, const struct error *err) {
    // Whatever the sentence quotes is no pair of ours.
    char message[LINE_BYTES];
    int tail = snprintf(message, sizeof message, "%s%s%s", err->message,
                        err->hint[0] != '\0' ? "; " : "", err->hint);
    INVARIANT(tail >= 0 && (size_t)tail < sizeof message);
    snprintf(message + tail, sizeof message - (size_t)tail, " code=%s", status_name(err->status));
    if (log_enabled(LOG_LEVEL_ERROR)) {
        write_line(LOG_LEVEL_ERROR, source, message, (size_t)tail);
    }
    for (uint32_t i = 0; i < err->hop_count; i++) {
        log_debug(source, "raised at=%s:%d", err->hops[i].file, err->hops[i].line);
    }
}
