// SPDX-License-Identifier: Apache-2.0
#include "controller/text/unicode.h"

#include "common/invariant.h"
#include "common/utf8.h"
#include <utf8proc.h>

uint32_t unicode_decode(const uint8_t *bytes, size_t byte_count, uint32_t *code) {
    uint32_t length = utf8_decode(bytes, byte_count, code);
    if (length == 0) {
        *code = UNICODE_BROKEN;
        return 1;
    }
    return length;
}

uint32_t unicode_encode(uint32_t code, uint8_t out[4]) {
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
        code = UNICODE_REPLACEMENT;
    }
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    uint32_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (uint32_t i = length - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    static const uint8_t marker[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (uint8_t)(marker[length] | code);
    return length;
}

uint32_t unicode_incomplete_tail(const uint8_t *bytes, size_t byte_count) {
    for (uint32_t back = 1; back <= 3 && back <= byte_count; back++) {
        const uint8_t *at = bytes + byte_count - back;
        if ((*at & 0xC0) == 0x80) {
            continue;    // a continuation byte: its first byte lies further back
        }
        uint32_t length = 0;
        uint32_t have = utf8_prefix(at, back, &length);
        return have == back && length > back ? back : 0;
    }
    return 0;
}

uint32_t unicode_broken_span(const uint8_t *bytes, size_t byte_count) {
    uint32_t length = 0;
    uint32_t have = utf8_prefix(bytes, byte_count, &length);
    return have == 0 ? 1 : have;
}

enum { O = UNICODE_OTHER, L = UNICODE_LETTER, N = UNICODE_NUMBER, S = UNICODE_SPACE };
static const uint8_t ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};

enum unicode_class unicode_class(uint32_t code) {
    if (code < 0x80) {
        return (enum unicode_class)ascii_class[code];
    }
    if (code > 0x10FFFF) {
        return UNICODE_OTHER;
    }
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return UNICODE_LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return UNICODE_MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return UNICODE_NUMBER;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return UNICODE_SPACE;
    default:
        return code == 0x85 ? UNICODE_SPACE : UNICODE_OTHER;
    }
}

bool unicode_is_word(uint32_t code) {
    enum unicode_class kind = unicode_class(code);
    if (kind == UNICODE_LETTER || kind == UNICODE_MARK || kind == UNICODE_NUMBER) {
        return true;
    }
    return code <= 0x10FFFF && utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_PC;
}

bool unicode_is_printable(uint32_t code) {
    if (code == ' ') {
        return true;
    }
    if (code > 0x10FFFF || unicode_class(code) == UNICODE_SPACE) {
        return false;
    }
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
        return false;
    default:
        return true;
    }
}

bool unicode_is_upper(uint32_t code) {
    utf8proc_category_t category =
        code > 0x10FFFF ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}

bool unicode_is_lower(uint32_t code) {
    return code <= 0x10FFFF && utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_LL;
}

uint32_t unicode_to_upper(uint32_t code) {
    return code > 0x10FFFF ? code : (uint32_t)utf8proc_toupper((utf8proc_int32_t)code);
}

uint32_t unicode_to_lower(uint32_t code) {
    return code > 0x10FFFF ? code : (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

size_t unicode_before(const uint8_t *bytes, size_t at, uint32_t *code) {
    INVARIANT(at >= 1);
    for (size_t back = 1; back <= 4 && back <= at; back++) {
        if (unicode_decode(bytes + at - back, back, code) == back && *code != UNICODE_BROKEN) {
            return at - back;
        }
    }
    *code = UNICODE_BROKEN;
    return at - 1;
}
