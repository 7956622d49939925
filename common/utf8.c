// SPDX-License-Identifier: Apache-2.0
#include "common/utf8.h"

struct lead {
    uint32_t length;    // 0: cannot start a sequence
    uint8_t second_min;
    uint8_t second_max;
};

static struct lead lead_of(uint8_t byte) {
    if (byte >= 0xC2 && byte <= 0xDF) {
        return (struct lead){2, 0x80, 0xBF};
    }
    if (byte >= 0xE0 && byte <= 0xEF) {
        return (struct lead){3, byte == 0xE0 ? 0xA0 : 0x80, byte == 0xED ? 0x9F : 0xBF};
    }
    if (byte >= 0xF0 && byte <= 0xF4) {
        return (struct lead){4, byte == 0xF0 ? 0x90 : 0x80, byte == 0xF4 ? 0x8F : 0xBF};
    }
    return (struct lead){byte < 0x80 ? 1 : 0, 0x80, 0xBF};
}

uint32_t utf8_prefix(const uint8_t *bytes, size_t byte_count, uint32_t *length) {
    struct lead lead = lead_of(bytes[0]);
    *length = lead.length;
    if (lead.length <= 1) {
        return lead.length;
    }
    uint32_t have = 1;
    while (have < lead.length && have < byte_count) {
        uint8_t low = have == 1 ? lead.second_min : 0x80;
        uint8_t high = have == 1 ? lead.second_max : 0xBF;
        if (bytes[have] < low || bytes[have] > high) {
            break;
        }
        have++;
    }
    return have;
}

uint32_t utf8_decode(const uint8_t *bytes, size_t byte_count, uint32_t *code) {
    if (bytes[0] < 0x80) {
        *code = bytes[0];
        return 1;
    }
    uint32_t length = 0;
    uint32_t have = utf8_prefix(bytes, byte_count, &length);
    if (have == 0 || have < length) {
        return 0;
    }
    uint32_t value = bytes[0] & (0x7Fu >> length);
    for (uint32_t i = 1; i < length; i++) {
        value = (value << 6) | (bytes[i] & 0x3Fu);
    }
    *code = value;
    return length;
}

bool utf8_valid(const void *bytes, size_t byte_count) {
    const uint8_t *at = bytes;
    uint32_t code = 0;
    while (byte_count > 0) {
        uint32_t length = utf8_decode(at, byte_count, &code);
        if (length == 0) {
            return false;
        }
        at += length;
        byte_count -= length;
    }
    return true;
}
