// SPDX-License-Identifier: Apache-2.0
#include "common/buf.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <stdio.h>
#include <string.h>

void buf_init(struct buf *buf, size_t bytes_max) {
    memset(buf, 0, sizeof *buf);
    buf->bytes_max = bytes_max;
}

void buf_deinit(struct buf *buf) {
    if (buf == NULL) {
        return;
    }
    memory_free(buf->data);
    memset(buf, 0, sizeof *buf);
}

void buf_reset(struct buf *buf) {
    buf->bytes_used = 0;
    buf->failed = false;
}

// Makes room for `byte_count` more bytes and one NUL. False marks the buffer failed.
static bool reserve(struct buf *buf, size_t byte_count) {
    if (buf->failed) {
        return false;
    }
    if (byte_count > buf->bytes_max || buf->bytes_used > buf->bytes_max - byte_count) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->bytes_used + byte_count + 1;
    if (need <= buf->bytes_allocated) {
        return true;
    }
    size_t grown = buf->bytes_allocated < 64 ? 64 : buf->bytes_allocated;
    while (grown < need) {
        grown *= 2;
    }
    if (grown > buf->bytes_max + 1) {
        grown = buf->bytes_max + 1;
    }
    uint8_t *data = memory_realloc(buf->data, grown);
    if (data == NULL) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->bytes_allocated = grown;
    return true;
}

void buf_append(struct buf *buf, const void *bytes, size_t byte_count) {
    if (byte_count == 0 || !reserve(buf, byte_count)) {
        return;
    }
    memcpy(buf->data + buf->bytes_used, bytes, byte_count);
    buf->bytes_used += byte_count;
}

void buf_append_byte(struct buf *buf, uint8_t byte) {
    buf_append(buf, &byte, 1);
}

void buf_append_u64(struct buf *buf, uint64_t value) {
    char digits[20];
    size_t start = sizeof digits;
    do {
        digits[--start] = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    buf_append(buf, digits + start, sizeof digits - start);
}

void buf_printf(struct buf *buf, const char *format, ...) {
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length > 0 && reserve(buf, (size_t)length)) {
        vsnprintf((char *)buf->data + buf->bytes_used, (size_t)length + 1, format, again);
        buf->bytes_used += (size_t)length;
    }
    va_end(again);
}

uint8_t *buf_extend(struct buf *buf, size_t byte_count) {
    if (!reserve(buf, byte_count)) {
        return NULL;
    }
    uint8_t *at = buf->data + buf->bytes_used;
    buf->bytes_used += byte_count;
    return at;
}

void buf_consume(struct buf *buf, size_t byte_count) {
    INVARIANT(byte_count <= buf->bytes_used);
    if (byte_count == 0) {
        return;
    }
    memmove(buf->data, buf->data + byte_count, buf->bytes_used - byte_count);
    buf->bytes_used -= byte_count;
}

const char *buf_cstr(struct buf *buf) {
    if (buf->data == NULL) {
        return "";
    }
    buf->data[buf->bytes_used] = '\0';    // reserve() always leaves room for it
    return (const char *)buf->data;
}

enum status buf_status(const struct buf *buf) {
    return buf->failed ? STATUS_EXHAUSTED : STATUS_OK;
}
