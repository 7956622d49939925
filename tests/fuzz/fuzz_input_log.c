// SPDX-License-Identifier: Apache-2.0
// Any bytes as an input log: replayed or refused. Checksums are made right, of the records and of
// the messages in them, so that the fuzzer reaches what lies behind; the core is kept small, so
// that it does not measure the allocator.
#include "common/buf.h"
#include "common/crc32c.h"
#include "common/memory.h"
#include "controller/input_log.h"
#include "proto/messages.h"
#include <stddef.h>
#include <string.h>

enum { HEAD_BYTES = 9, MAGIC_BYTES = 16, FILE_MAX = 256 * 1024 };

// Limits of the configuration, which lie behind the magic in this order.
static void keep_small(uint8_t *body, uint32_t body_bytes) {
    static const uint32_t most[] = {64, 64, 4096, 4096};    // seqs, waiting, tokens, blocks
    for (uint32_t i = 0; i < 4 && MAGIC_BYTES + 4 * (i + 1) <= body_bytes; i++) {
        uint32_t value = 0;
        memcpy(&value, body + MAGIC_BYTES + 4 * i, sizeof value);
        value = value > most[i] ? value % most[i] : value;
        memcpy(body + MAGIC_BYTES + 4 * i, &value, sizeof value);
    }
    // The first group's id and the depth stay; few groups.
    size_t groups_at = MAGIC_BYTES + 4 * 4 + 8 + 4;
    if (groups_at + 4 <= body_bytes) {
        uint32_t groups = 0;
        memcpy(&groups, body + groups_at, sizeof groups);
        groups = groups > 4 ? groups % 4 : groups;
        memcpy(body + groups_at, &groups, sizeof groups);
    }
}

// Messages inside a record begin with their version and kind, behind their length.
static void mend_frames(uint8_t *body, uint32_t body_bytes) {
    for (uint32_t at = 4; at + MESSAGE_HEADER_BYTES <= body_bytes; at++) {
        uint32_t words[2], frame_bytes = 0;
        memcpy(words, body + at, sizeof words);
        memcpy(&frame_bytes, body + at - 4, sizeof frame_bytes);
        if (words[0] != MESSAGE_VERSION || words[1] >= MESSAGE_KIND_COUNT ||
            frame_bytes < MESSAGE_HEADER_BYTES || frame_bytes > body_bytes - at) {
            continue;
        }
        uint32_t fields[2] = {
            frame_bytes - MESSAGE_HEADER_BYTES,
            crc32c(body + at + MESSAGE_HEADER_BYTES, frame_bytes - MESSAGE_HEADER_BYTES)};
        memcpy(body + at + MESSAGE_HEADER_BYTES - sizeof fields, fields, sizeof fields);
    }
}

static void mend(uint8_t *bytes, size_t byte_count) {
    bool first = true;
    for (size_t at = 0; byte_count - at >= HEAD_BYTES; first = false) {
        uint32_t body_bytes = 0;
        memcpy(&body_bytes, bytes + at, sizeof body_bytes);
        uint8_t *body = bytes + at + HEAD_BYTES;
        if (body_bytes > byte_count - at - HEAD_BYTES) {
            return;
        }
        if (first) {
            keep_small(body, body_bytes);
        } else {
            mend_frames(body, body_bytes);
        }
        uint32_t crc = crc32c(body, body_bytes) ^ bytes[at + 8];
        memcpy(bytes + at + 4, &crc, sizeof crc);
        at += HEAD_BYTES + body_bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > FILE_MAX) {
        return 0;
    }
    uint8_t *bytes = memory_alloc(size);
    memcpy(bytes, data, size);
    mend(bytes, size);
    struct buf out;
    struct error err = {0};
    buf_init(&out, 1 << 20);
    (void)!input_log_replay_bytes(bytes, size, &out, &err);
    buf_deinit(&out);
    memory_free(bytes);
    return 0;
}
