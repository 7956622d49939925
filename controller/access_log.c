// SPDX-License-Identifier: Apache-2.0
#include "controller/access_log.h"

#include "common/log.h"
#include <string.h>

enum { LINES_BYTES_MAX = 1024 * 1024, LINES_BYTES_FULL = 64 * 1024, MESSAGE_BYTES_MAX = 8192 };

void access_log_init(struct access_log *log) {
    buf_init(&log->lines, LINES_BYTES_MAX);
    buf_init(&log->message, MESSAGE_BYTES_MAX);
}

void access_log_deinit(struct access_log *log) {
    log_batch_write(&log->lines);
    buf_deinit(&log->lines);
    buf_deinit(&log->message);
}

void access_log_write(struct access_log *log) {
    log_batch_write(&log->lines);
}

// Milliseconds with one digit behind the point.
static void put_ms(struct buf *out, const char *key, uint64_t us) {
    uint64_t tenths = (us + 50) / 100;
    buf_append_str(out, key);
    buf_append_u64(out, tenths / 10);
    buf_append_byte(out, '.');
    buf_append_u64(out, tenths % 10);
}

static void put_text(struct buf *out, const char *key, const char *text) {
    buf_append_str(out, key);
    text = text[0] == '\0' ? "-" : text;
    log_value_append(out, text, strlen(text));
}

static void put_count(struct buf *out, const char *key, uint64_t count) {
    buf_append_str(out, key);
    buf_append_u64(out, count);
}

void access_log_add(struct access_log *log, const struct api_access *access) {
    struct buf *message = &log->message;
    buf_reset(message);
    buf_append_str(message, "request method=");
    log_value_append(message, access->method.text, access->method.byte_count);
    buf_append_str(message, " path=");
    size_t path_bytes = access->path.byte_count;
    log_value_append(message, access->path.text, path_bytes < 2048 ? path_bytes : 2048);
    put_count(message, " status=", (uint64_t)access->status);
    put_text(message, " request_id=", access->request_id);
    put_text(message, " key_name=", access->key_name);
    put_count(message, " prompt_tokens=", access->prompt_tokens);
    put_count(message, " cached_tokens=", access->cached_tokens);
    put_count(message, " output_tokens=", access->output_tokens);
    put_text(message, " finish=", access->finish);
    put_ms(message, " ttft_ms=", access->ttft_us);
    put_ms(message, " total_ms=", access->total_us);
    log_batch_add(&log->lines, LOG_LEVEL_INFO, "http", buf_cstr(message));
    if (log->lines.bytes_used > LINES_BYTES_FULL) {
        access_log_write(log);
    }
}
