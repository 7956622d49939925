// SPDX-License-Identifier: Apache-2.0
// The hand-written scanners: one function per family of patterns, one step per character.
#include "common/invariant.h"
#include "controller/text/pretokenize.h"
#include "controller/text/unicode.h"

// One character of the text with all that the rules ask about it.
struct character {
    uint32_t code;
    uint32_t length;    // bytes; 0 past the end
    enum unicode_class kind;
};

static struct character char_at(const uint8_t *bytes, size_t byte_count, size_t at) {
    struct character c = {.code = UNICODE_BROKEN};
    if (at < byte_count) {
        c.length = unicode_decode(bytes + at, byte_count - at, &c.code);
        c.kind = unicode_class(c.code);
    }
    return c;
}

static bool is_newline(struct character c) {
    return c.length == 1 && (c.code == '\r' || c.code == '\n');
}

static uint8_t lower(uint8_t byte, bool ignore_case) {
    return ignore_case && byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte + 32) : byte;
}

// Length of s, t, re, ve, m, ll or d at `bytes`, 0 if none of them. With ignore_case also U+017F,
// which folds to s.
static size_t contraction(const uint8_t *bytes, size_t byte_count, bool ignore_case) {
    if (byte_count == 0) {
        return 0;
    }
    uint8_t first = lower(bytes[0], ignore_case);
    uint8_t second = byte_count > 1 ? lower(bytes[1], ignore_case) : 0;
    switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
        return 1;
    case 'r':
    case 'v':
        return second == 'e' ? 2 : 0;
    case 'l':
        return second == 'l' ? 2 : 0;
    case 0xC5:
        return ignore_case && second == 0xBF ? 2 : 0;
    default:
        return 0;
    }
}

// The whitespace rules shared by all patterns, for a run that starts at `at`:
// \s*[\r\n]+ (only with `newlines`) | \s+(?!\S) | \s+
static size_t scan_space(const uint8_t *bytes, size_t byte_count, size_t at, bool newlines) {
    size_t end = at;
    size_t last = at;             // where the last character of the run starts
    size_t after_newline = at;    // past the last CR or LF of the run
    struct character c = char_at(bytes, byte_count, at);
    while (c.length > 0 && c.kind == UNICODE_SPACE) {
        last = end;
        end += c.length;
        if (newlines && is_newline(c)) {
            after_newline = end;
        }
        c = char_at(bytes, byte_count, end);
    }
    if (after_newline > at) {
        return after_newline;
    }
    // The last space before a word belongs to the word, unless it is all there is.
    return end == byte_count || last == at ? end : last;
}

static size_t run_of(const uint8_t *bytes, size_t byte_count, size_t at, enum unicode_class kind) {
    struct character c = char_at(bytes, byte_count, at);
    while (c.length > 0 && c.kind == kind) {
        at += c.length;
        c = char_at(bytes, byte_count, at);
    }
    return at;
}

// ---- GPT-2 -------------------------------------------------------------------------------------

static size_t scan_gpt2(const uint8_t *bytes, size_t byte_count, size_t at) {
    struct character c = char_at(bytes, byte_count, at);
    if (c.code == '\'') {
        size_t length = contraction(bytes + at + 1, byte_count - at - 1, false);
        if (length > 0) {
            return at + 1 + length;
        }
    }
    size_t start = at;
    if (c.code == ' ') {
        start = at + 1;
        c = char_at(bytes, byte_count, start);
    }
    if (c.length == 0 || c.kind == UNICODE_SPACE) {
        return scan_space(bytes, byte_count, at, false);
    }
    // Marks are neither letters nor numbers here: they run together with punctuation.
    if (c.kind == UNICODE_LETTER || c.kind == UNICODE_NUMBER) {
        return run_of(bytes, byte_count, start, c.kind);
    }
    while (c.length > 0 && (c.kind == UNICODE_OTHER || c.kind == UNICODE_MARK)) {
        start += c.length;
        c = char_at(bytes, byte_count, start);
    }
    return start;
}

// ---- Llama 3, GLM, Qwen ------------------------------------------------------------------------

struct modern {
    uint32_t number_run_max;
    bool marks_are_letters;
};

static bool is_letter(struct modern rule, struct character c) {
    return c.length > 0 &&
           (c.kind == UNICODE_LETTER || (rule.marks_are_letters && c.kind == UNICODE_MARK));
}

static bool is_other(struct modern rule, struct character c) {
    return c.length > 0 &&
           (c.kind == UNICODE_OTHER || (!rule.marks_are_letters && c.kind == UNICODE_MARK));
}

static size_t letters_from(struct modern rule, const uint8_t *bytes, size_t byte_count, size_t at) {
    struct character c = char_at(bytes, byte_count, at);
    while (is_letter(rule, c)) {
        at += c.length;
        c = char_at(bytes, byte_count, at);
    }
    return at;
}

static size_t numbers_from(struct modern rule, const uint8_t *bytes, size_t byte_count, size_t at) {
    for (uint32_t i = 0; i < rule.number_run_max; i++) {
        struct character c = char_at(bytes, byte_count, at);
        if (c.length == 0 || c.kind != UNICODE_NUMBER) {
            break;
        }
        at += c.length;
    }
    return at;
}

static size_t others_from(struct modern rule, const uint8_t *bytes, size_t byte_count, size_t at) {
    struct character c = char_at(bytes, byte_count, at);
    while (is_other(rule, c)) {
        at += c.length;
        c = char_at(bytes, byte_count, at);
    }
    while (is_newline(c)) {
        at += c.length;
        c = char_at(bytes, byte_count, at);
    }
    return at;
}

static size_t scan_modern(struct modern rule, const uint8_t *bytes, size_t byte_count, size_t at) {
    struct character c = char_at(bytes, byte_count, at);
    if (c.code == '\'') {
        size_t length = contraction(bytes + at + 1, byte_count - at - 1, true);
        if (length > 0) {
            return at + 1 + length;
        }
    }
    if (is_letter(rule, c)) {
        return letters_from(rule, bytes, byte_count, at);
    }
    if (c.kind == UNICODE_NUMBER) {
        return numbers_from(rule, bytes, byte_count, at);
    }
    // Any one character but CR and LF may stand before letters and joins them.
    struct character next = char_at(bytes, byte_count, at + c.length);
    if (!is_newline(c) && is_letter(rule, next)) {
        return letters_from(rule, bytes, byte_count, at + c.length);
    }
    if (is_other(rule, c)) {
        return others_from(rule, bytes, byte_count, at);
    }
    if (c.code == ' ' && is_other(rule, next)) {
        return others_from(rule, bytes, byte_count, at + 1);
    }
    return scan_space(bytes, byte_count, at, true);
}

// ---- digits ------------------------------------------------------------------------------------

static size_t scan_digits(const uint8_t *bytes, size_t byte_count, size_t at, bool one_by_one) {
    struct character c = char_at(bytes, byte_count, at);
    bool number = c.kind == UNICODE_NUMBER;
    do {
        at += c.length;
        c = char_at(bytes, byte_count, at);
    } while (c.length > 0 && (c.kind == UNICODE_NUMBER) == number && !(number && one_by_one));
    return at;
}

size_t pretokenize_scan(enum pretokenize_rule rule, const uint8_t *bytes, size_t byte_count,
                        size_t at) {
    INVARIANT(at < byte_count);
    switch (rule) {
    case PRETOKENIZE_GPT2:
        return scan_gpt2(bytes, byte_count, at);
    case PRETOKENIZE_LLAMA3:
        return scan_modern((struct modern){.number_run_max = 3}, bytes, byte_count, at);
    case PRETOKENIZE_QWEN2:
        return scan_modern((struct modern){.number_run_max = 1}, bytes, byte_count, at);
    case PRETOKENIZE_QWEN35:
        return scan_modern((struct modern){.number_run_max = 1, .marks_are_letters = true}, bytes,
                           byte_count, at);
    case PRETOKENIZE_DIGIT:
    case PRETOKENIZE_DIGITS:
        return scan_digits(bytes, byte_count, at, rule == PRETOKENIZE_DIGIT);
    case PRETOKENIZE_RULE_COUNT:
        break;
    }
    UNREACHABLE();
}
