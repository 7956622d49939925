// SPDX-License-Identifier: Apache-2.0
#include "controller/text/template_lex.h"

#include "common/buf.h"
#include "common/memory.h"
#include "controller/text/unicode.h"
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct arena *arena;
    const char *bytes;    // line ends normalised, last newline dropped
    size_t byte_count;
    size_t at;
    uint32_t line;    // of bytes[line_at]
    size_t line_at;
    bool line_starting;              // the last thing consumed ended a line
    struct template_token *items;    // on the heap while growing
    size_t count;
    size_t allocated;
};

static uint32_t line_of(struct lexer *lexer, size_t at) {
    for (; lexer->line_at < at; lexer->line_at++) {
        lexer->line += lexer->bytes[lexer->line_at] == '\n' ? 1 : 0;
    }
    return lexer->line;
}

#define fail(lexer, err, ...)                                                                      \
    (error_set(err, STATUS_INVALID, __VA_ARGS__),                                                  \
     error_context(err, "chat template, line %u", line_of(lexer, (lexer)->at)), STATUS_INVALID)

static enum status push(struct lexer *lexer, struct template_token token, struct error *err) {
    if (lexer->count == lexer->allocated) {
        size_t allocated = lexer->allocated * 2 + 256;
        struct template_token *items = memory_realloc(lexer->items, allocated * sizeof *items);
        if (items == NULL) {
            return error_set(err, STATUS_EXHAUSTED, "no memory for a template's tokens");
        }
        lexer->items = items;
        lexer->allocated = allocated;
    }
    lexer->items[lexer->count++] = token;
    return STATUS_OK;
}

static enum status push_simple(struct lexer *lexer, enum template_token_kind kind, size_t start,
                               size_t end, struct error *err) {
    struct template_token token = {.kind = kind, .line = line_of(lexer, start)};
    token.text = (struct template_text){lexer->bytes + start, end - start};
    return push(lexer, token, err);
}

// ---- small questions ---------------------------------------------------------------------------

static bool starts(const struct lexer *lexer, size_t at, const char *word) {
    size_t n = strlen(word);
    return n <= lexer->byte_count - at && memcmp(lexer->bytes + at, word, n) == 0;
}

static char char_at(const struct lexer *lexer, size_t at) {
    return at < lexer->byte_count ? lexer->bytes[at] : '\0';
}

// Length of the whitespace character at `at`, 0 when it is none.
static size_t space_at(const struct lexer *lexer, size_t at) {
    if (at >= lexer->byte_count) {
        return 0;
    }
    uint32_t code = 0;
    size_t length =
        unicode_decode((const uint8_t *)lexer->bytes + at, lexer->byte_count - at, &code);
    return unicode_class(code) == UNICODE_SPACE || (code >= 0x1C && code <= 0x1F) ? length : 0;
}

static size_t skip_space(const struct lexer *lexer, size_t at) {
    for (size_t length = space_at(lexer, at); length > 0; length = space_at(lexer, at)) {
        at += length;
    }
    return at;
}

static size_t strip_right(const struct lexer *lexer, size_t start, size_t end) {
    while (end > start) {
        uint32_t code = 0;
        size_t before = unicode_before((const uint8_t *)lexer->bytes, end, &code);
        if (unicode_class(code) != UNICODE_SPACE && !(code >= 0x1C && code <= 0x1F)) {
            break;
        }
        end = before < start ? start : before;
    }
    return end;
}

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// ---- text --------------------------------------------------------------------------------------

// The text before a bracket, with what the bracket's sign and lstrip_blocks take from its end.
static enum status push_text(struct lexer *lexer, size_t start, size_t end, char sign,
                             bool is_variable, struct error *err) {
    if (sign == '-') {
        end = strip_right(lexer, start, end);
    } else if (sign != '+' && !is_variable) {
        size_t line_start = end;
        while (line_start > start && lexer->bytes[line_start - 1] != '\n') {
            line_start--;
        }
        bool at_line_start = line_start > start || lexer->line_starting;
        if (at_line_start && strip_right(lexer, line_start, end) == line_start) {
            end = line_start;
        }
    }
    return end > start ? push_simple(lexer, TEMPLATE_TOKEN_TEXT, start, end, err) : STATUS_OK;
}

// After the closing bracket: '-' takes all whitespace, trim_blocks one newline.
static void close_bracket(struct lexer *lexer, size_t at, char sign, bool trims) {
    if (sign == '-') {
        lexer->at = skip_space(lexer, at);
    } else {
        lexer->at = at + (trims && sign != '+' && char_at(lexer, at) == '\n' ? 1 : 0);
    }
    lexer->line_starting = lexer->bytes[lexer->at - 1] == '\n';
}

static enum status skip_comment(struct lexer *lexer, struct error *err) {
    for (size_t at = lexer->at; at + 1 < lexer->byte_count; at++) {
        if (lexer->bytes[at] == '#' && lexer->bytes[at + 1] == '}') {
            char sign = at > lexer->at ? lexer->bytes[at - 1] : '\0';
            close_bracket(lexer, at + 2, sign, true);
            return STATUS_OK;
        }
    }
    return fail(lexer, err, "a comment '{#' is not closed");
}

// If {% raw %} or {% endraw %} stands at `at` (behind the sign), where its %} ends; else 0.
static size_t raw_tag(const struct lexer *lexer, size_t at, const char *word, char *close_sign) {
    at = skip_space(lexer, at);
    if (!starts(lexer, at, word)) {
        return 0;
    }
    at = skip_space(lexer, at + strlen(word));
    char c = char_at(lexer, at);
    *close_sign = c == '-' || c == '+' ? c : '\0';
    at += *close_sign != '\0' ? 1 : 0;
    return starts(lexer, at, "%}") ? at + 2 : 0;
}

// lexer->at stands behind {% raw %}: everything up to {% endraw %} is text.
static enum status lex_raw(struct lexer *lexer, struct error *err) {
    size_t start = lexer->at;
    for (size_t at = start; at + 1 < lexer->byte_count; at++) {
        if (!starts(lexer, at, "{%")) {
            continue;
        }
        char c = char_at(lexer, at + 2);
        char sign = c == '-' || c == '+' ? c : '\0';
        char close_sign = '\0';
        size_t end = raw_tag(lexer, at + 2 + (sign != '\0' ? 1 : 0), "endraw", &close_sign);
        if (end == 0) {
            continue;
        }
        TRY(push_text(lexer, start, at, sign, false, err));
        close_bracket(lexer, end, close_sign, true);
        return STATUS_OK;
    }
    return fail(lexer, err, "{%% raw %%} is not closed");
}

// ---- inside brackets ---------------------------------------------------------------------------

static int hex_digit(char c) {
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// \xhh, \uhhhh, \Uhhhhhhhh: `digits` of them at `at`.
static bool hex_escape(const struct lexer *lexer, size_t at, size_t digits, uint32_t *code) {
    *code = 0;
    for (size_t i = 0; i < digits; i++) {
        int digit = hex_digit(char_at(lexer, at + i));
        if (digit < 0) {
            return false;
        }
        *code = *code << 4 | (uint32_t)digit;
    }
    return *code <= 0x10FFFF;
}

// Resolves the escape whose backslash is at `at`; returns its length, 0 when it is malformed.
static size_t lex_escape(const struct lexer *lexer, size_t at, struct buf *out) {
    static const char plain[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v";
    char c = char_at(lexer, at + 1);
    for (size_t i = 0; i + 1 < sizeof plain; i += 2) {
        if (plain[i] == c) {
            buf_append_byte(out, (uint8_t)plain[i + 1]);
            return 2;
        }
    }
    size_t length = 2;
    uint32_t code = 0;
    if (c == '\n') {
        return 2;    // a line that goes on
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!hex_escape(lexer, at + 2, digits, &code)) {
            return 0;
        }
        length = 2 + digits;
    } else if (c >= '0' && c <= '7') {
        for (length = 1; length < 4; length++) {
            char digit = char_at(lexer, at + length);
            if (digit < '0' || digit > '7') {
                break;
            }
            code = code * 8 + (uint32_t)(digit - '0');
        }
    } else {    // unknown escapes keep their backslash
        buf_append_byte(out, '\\');
        return 1;
    }
    uint8_t utf8[4];
    buf_append(out, utf8, unicode_encode(code, utf8));
    return length;
}

static enum status lex_string(struct lexer *lexer, struct error *err) {
    char quote = lexer->bytes[lexer->at];
    struct template_token token = {.kind = TEMPLATE_TOKEN_STRING,
                                   .line = line_of(lexer, lexer->at)};
    struct buf text;
    buf_init(&text, lexer->byte_count);
    size_t at = lexer->at + 1;
    bool closed = false;
    bool good = true;
    while (at < lexer->byte_count && !closed && good) {
        if (lexer->bytes[at] == quote) {
            closed = true;
            at++;
        } else if (lexer->bytes[at] == '\\') {
            size_t length = lex_escape(lexer, at, &text);
            good = length > 0;
            at += length;
        } else {
            buf_append_byte(&text, (uint8_t)lexer->bytes[at++]);
        }
    }
    enum status status = STATUS_OK;
    if (!closed || !good) {
        status = fail(lexer, err, good ? "a string is not closed" : "a malformed escape");
    } else {
        char *copy = arena_strndup(lexer->arena, text.data == NULL ? "" : (char *)text.data,
                                   text.bytes_used);
        token.text = (struct template_text){copy, text.bytes_used};
        status = copy == NULL || buf_status(&text) != STATUS_OK
                     ? error_set(err, STATUS_EXHAUSTED, "no memory for a string")
                     : push(lexer, token, err);
        lexer->at = at;
    }
    buf_deinit(&text);
    return status;
}

// 12, 1_000, 1.5, 2e3, 1.5e-3; hexadecimal and the like do not occur in templates.
static enum status lex_number(struct lexer *lexer, struct error *err) {
    char text[64];
    size_t used = 0;
    size_t at = lexer->at;
    bool after_dot = at > 0 && lexer->bytes[at - 1] == '.';    // a.0.1 has two indices, no float
    bool real = false;
    for (; at < lexer->byte_count && used + 1 < sizeof text; at++) {
        char c = lexer->bytes[at];
        bool fraction = c == '.' && !real && !after_dot && is_digit(char_at(lexer, at + 1));
        char next = char_at(lexer, at + 1);
        bool exponent =
            (c == 'e' || c == 'E') &&
            (is_digit(next) || ((next == '-' || next == '+') && is_digit(char_at(lexer, at + 2))));
        if (exponent && (next == '-' || next == '+')) {
            text[used++] = c;
            c = next;
            at++;
        }
        if (c == '_' && is_digit(next)) {
            continue;
        }
        if (!is_digit(c) && !fraction && !exponent) {
            break;
        }
        real = real || fraction || exponent;
        if (used + 1 < sizeof text) {
            text[used++] = c;
        }
    }
    text[used] = '\0';
    if (used + 1 >= sizeof text) {
        return fail(lexer, err, "a number is too long");
    }
    struct template_token token = {.line = line_of(lexer, lexer->at)};
    if (real) {
        token.kind = TEMPLATE_TOKEN_FLOAT;
        token.real = strtod(text, NULL);
    } else {
        token.kind = TEMPLATE_TOKEN_INT;
        for (size_t i = 0; i < used; i++) {
            if (__builtin_mul_overflow(token.integer, (int64_t)10, &token.integer) ||
                __builtin_add_overflow(token.integer, (int64_t)(text[i] - '0'), &token.integer)) {
                return fail(lexer, err, "the number %s does not fit 64 bits", text);
            }
        }
    }
    lexer->at = at;
    return push(lexer, token, err);
}

static enum status lex_name(struct lexer *lexer, struct error *err) {
    size_t start = lexer->at;
    while (is_name_start(char_at(lexer, lexer->at)) || is_digit(char_at(lexer, lexer->at))) {
        lexer->at++;
    }
    return push_simple(lexer, TEMPLATE_TOKEN_NAME, start, lexer->at, err);
}

static enum status lex_sign(struct lexer *lexer, int *depth, struct error *err) {
    static const char *const signs[] = {"==", "!=", ">=", "<=", "//", "**", "+", "-", "/",
                                        "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (!starts(lexer, lexer->at, signs[i])) {
            continue;
        }
        char c = signs[i][0];
        *depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
        *depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
        size_t start = lexer->at;
        lexer->at += strlen(signs[i]);
        return push_simple(lexer, TEMPLATE_TOKEN_SIGN, start, lexer->at, err);
    }
    unsigned char c = (unsigned char)lexer->bytes[lexer->at];
    return fail(lexer, err, "unexpected character '%c'", c >= 0x20 && c < 0x7F ? c : '?');
}

// Everything from behind the opening bracket to behind the closing one.
static enum status lex_bracket(struct lexer *lexer, bool is_variable, struct error *err) {
    const char *close = is_variable ? "}}" : "%}";
    int depth = 0;    // a bracket inside ( [ { is an expression's own
    for (;;) {
        lexer->at = skip_space(lexer, lexer->at);
        if (lexer->at >= lexer->byte_count) {
            return fail(lexer, err, "'%s' is missing at the end", close);
        }
        char c = lexer->bytes[lexer->at];
        bool signed_close =
            (c == '-' || (c == '+' && !is_variable)) && starts(lexer, lexer->at + 1, close);
        if (depth <= 0 && (signed_close || starts(lexer, lexer->at, close))) {
            size_t end = lexer->at + (signed_close ? 3 : 2);
            TRY(push_simple(lexer,
                            is_variable ? TEMPLATE_TOKEN_VARIABLE_END : TEMPLATE_TOKEN_BLOCK_END,
                            lexer->at, end, err));
            close_bracket(lexer, end, signed_close ? c : '\0', !is_variable);
            return STATUS_OK;
        }
        if (is_name_start(c)) {
            TRY(lex_name(lexer, err));
        } else if (is_digit(c)) {
            TRY(lex_number(lexer, err));
        } else if (c == '\'' || c == '"') {
            TRY(lex_string(lexer, err));
        } else {
            TRY(lex_sign(lexer, &depth, err));
        }
    }
}

// ---- the whole source --------------------------------------------------------------------------

// Where the next {{, {% or {# stands; byte_count when there is none.
static size_t next_bracket(const struct lexer *lexer, size_t at) {
    for (; at + 1 < lexer->byte_count; at++) {
        char c = lexer->bytes[at + 1];
        if (lexer->bytes[at] == '{' && (c == '{' || c == '%' || c == '#')) {
            return at;
        }
    }
    return lexer->byte_count;
}

static enum status lex_all(struct lexer *lexer, struct error *err) {
    while (lexer->at < lexer->byte_count) {
        size_t start = lexer->at;
        size_t tag = next_bracket(lexer, start);
        if (tag == lexer->byte_count) {
            TRY(push_simple(lexer, TEMPLATE_TOKEN_TEXT, start, tag, err));
            lexer->at = tag;
            break;
        }
        char kind = lexer->bytes[tag + 1];
        char c = char_at(lexer, tag + 2);
        char sign = c == '-' || c == '+' ? c : '\0';
        TRY(push_text(lexer, start, tag, sign, kind == '{', err));
        lexer->at = tag + 2 + (sign != '\0' ? 1 : 0);
        char close_sign = '\0';
        size_t raw_end = kind == '%' ? raw_tag(lexer, lexer->at, "raw", &close_sign) : 0;
        if (kind == '#') {
            TRY(skip_comment(lexer, err));
        } else if (raw_end > 0) {
            close_bracket(lexer, raw_end, close_sign, false);
            TRY(lex_raw(lexer, err));
        } else {
            TRY(push_simple(
                lexer, kind == '{' ? TEMPLATE_TOKEN_VARIABLE_BEGIN : TEMPLATE_TOKEN_BLOCK_BEGIN,
                tag, lexer->at, err));
            TRY(lex_bracket(lexer, kind == '{', err));
        }
    }
    return push_simple(lexer, TEMPLATE_TOKEN_END, lexer->byte_count, lexer->byte_count, err);
}

// \r\n and \r become \n; one newline at the end goes.
static char *normalise_lines(struct arena *arena, const char *source, size_t byte_count,
                             size_t *out_count) {
    char *copy = arena_alloc(arena, byte_count + 1);
    size_t used = 0;
    for (size_t i = 0; copy != NULL && i < byte_count; i++) {
        bool pair = source[i] == '\r' && i + 1 < byte_count && source[i + 1] == '\n';
        if (!pair) {
            copy[used++] = source[i] == '\r' ? '\n' : source[i];
        }
    }
    if (used > 0 && copy != NULL && copy[used - 1] == '\n') {
        used--;
    }
    *out_count = used;
    return copy;
}

enum status template_lex(struct arena *arena, const char *source, size_t byte_count,
                         struct template_tokens *out, struct error *err) {
    struct lexer lexer = {.arena = arena, .line = 1, .line_starting = true};
    lexer.bytes = normalise_lines(arena, source, byte_count, &lexer.byte_count);
    if (lexer.bytes == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a template of %zu bytes",
                         byte_count);
    }
    enum status status = lex_all(&lexer, err);
    if (status == STATUS_OK) {
        out->count = lexer.count;
        out->items = arena_array(arena, lexer.count, sizeof *out->items);
        if (out->items == NULL) {
            status = error_set(err, STATUS_EXHAUSTED, "no memory for %zu tokens", lexer.count);
        } else {
            memcpy(out->items, lexer.items, lexer.count * sizeof *out->items);
        }
    }
    memory_free(lexer.items);
    return status;
}
