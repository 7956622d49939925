// SPDX-License-Identifier: Apache-2.0
// Methods of Python's str that templates call.
#include "common/bounds.h"
#include "controller/text/template_run.h"
#include "controller/text/unicode.h"
#include <stdlib.h>
#include <string.h>

// Python's str.isspace: white space, and the four separators U+001C..001F.
static bool is_space(uint32_t code) {
    return unicode_class(code) == UNICODE_SPACE || (code >= 0x1C && code <= 0x1F);
}

// ---- arguments ---------------------------------------------------------------------------------

// A text argument; absent or none gives *present = false.
static enum status text_arg(const struct template_args *args, size_t index, const char *name,
                            bool *present, struct template_text *out, struct error *err) {
    const struct template_value *value = template_arg(args, index, name);
    *present = value != NULL && value->kind != TEMPLATE_NONE;
    if (!*present) {
        return STATUS_OK;
    }
    if (value->kind != TEMPLATE_STRING) {
        return error_set(err, STATUS_INVALID, "argument '%s' must be str, not %s", name,
                         template_type_name(value));
    }
    *out = value->as.string;
    return STATUS_OK;
}

static enum status need_text(const struct template_args *args, size_t index, const char *name,
                             struct template_text *out, struct error *err) {
    bool present = false;
    TRY(text_arg(args, index, name, &present, out, err));
    if (!present) {
        return error_set(err, STATUS_INVALID, "argument '%s' is missing", name);
    }
    return STATUS_OK;
}

static enum status int_arg(const struct template_args *args, size_t index, const char *name,
                           int64_t *out, struct error *err) {
    const struct template_value *value = template_arg(args, index, name);
    if (value == NULL) {
        return STATUS_OK;
    }
    if (value->kind != TEMPLATE_INT && value->kind != TEMPLATE_BOOL) {
        return error_set(err, STATUS_INVALID, "argument '%s' must be int, not %s", name,
                         template_type_name(value));
    }
    *out = template_integer(value);
    return STATUS_OK;
}

// ---- strip and case ----------------------------------------------------------------------------

static bool in_set(uint32_t code, const struct template_text *chars) {
    if (chars == NULL) {
        return is_space(code);
    }
    for (size_t at = 0; at < chars->byte_count;) {
        uint32_t member = 0;
        at += unicode_decode((const uint8_t *)chars->bytes + at, chars->byte_count - at, &member);
        if (member == code) {
            return true;
        }
    }
    return false;
}

struct template_text template_strip(struct template_text text, const struct template_text *chars,
                                    bool left, bool right) {
    const uint8_t *bytes = (const uint8_t *)text.bytes;
    size_t start = 0;
    size_t end = text.byte_count;
    uint32_t code = 0;
    while (left && start < end) {
        size_t length = unicode_decode(bytes + start, end - start, &code);
        if (!in_set(code, chars)) {
            break;
        }
        start += length;
    }
    while (right && end > start) {
        size_t before = unicode_before(bytes, end, &code);
        if (!in_set(code, chars)) {
            break;
        }
        end = before < start ? start : before;
    }
    return (struct template_text){text.bytes + start, end - start};
}

// Each end character is looked for among these; real templates strip newlines and blanks.
enum { STRIP_CHARS_MAX = 256 };

static enum status strip(struct template_run *run, const struct template_value *self,
                         const struct template_args *args, bool left, bool right,
                         struct template_value *out, struct error *err) {
    bool present = false;
    struct template_text chars = {0};
    TRY(text_arg(args, 0, "chars", &present, &chars, err));
    if (chars.byte_count > STRIP_CHARS_MAX) {
        return error_set(err, STATUS_INVALID, "strip() takes at most %d bytes of characters",
                         STRIP_CHARS_MAX);
    }
    struct template_text rest =
        template_strip(self->as.string, present ? &chars : NULL, left, right);
    *out = template_string(rest.bytes, rest.byte_count);
    size_t gone = self->as.string.byte_count - rest.byte_count;
    return template_charge(run, gone * (1 + chars.byte_count) / 32, err);
}

static enum status str_strip(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    return strip(run, self, args, true, true, out, err);
}

static enum status str_lstrip(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    return strip(run, self, args, true, false, out, err);
}

static enum status str_rstrip(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    return strip(run, self, args, false, true, out, err);
}

static void append_upper(struct buf *out, uint32_t code) {
    uint8_t utf8[4];
    if (code == 0xDF) {    // the one common letter whose capital is two
        buf_append_str(out, "SS");
        return;
    }
    buf_append(out, utf8, unicode_encode(unicode_to_upper(code), utf8));
}

enum status template_change_case(struct template_run *run, struct template_text text,
                                 enum template_case how, struct template_value *out,
                                 struct error *err) {
    struct buf changed;
    buf_init(&changed, BOUND_TEMPLATE_OUTPUT_BYTES);
    bool word_start = true;
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        const uint8_t *bytes = (const uint8_t *)text.bytes + at;
        size_t length = unicode_decode(bytes, text.byte_count - at, &code);
        bool raise = how == TEMPLATE_UPPER || (how != TEMPLATE_LOWER && word_start);
        if (raise) {
            append_upper(&changed, code);
        } else {
            uint8_t utf8[4];
            buf_append(&changed, utf8, unicode_encode(unicode_to_lower(code), utf8));
        }
        bool letter = unicode_is_upper(code) || unicode_is_lower(code);
        word_start = how == TEMPLATE_TITLE && !letter;
        at += length;
    }
    return template_take(run, &changed, out, err);
}

static enum status str_upper(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    (void)args;
    return template_change_case(run, self->as.string, TEMPLATE_UPPER, out, err);
}

static enum status str_lower(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    (void)args;
    return template_change_case(run, self->as.string, TEMPLATE_LOWER, out, err);
}

static enum status str_capitalize(struct template_run *run, const struct template_value *self,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    (void)args;
    return template_change_case(run, self->as.string, TEMPLATE_CAPITALIZE, out, err);
}

static enum status str_title(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    (void)args;
    return template_change_case(run, self->as.string, TEMPLATE_TITLE, out, err);
}

// ---- searching ---------------------------------------------------------------------------------

static const char *search(struct template_text text, size_t from, struct template_text what) {
    return memmem(text.bytes + from, text.byte_count - from, what.bytes, what.byte_count);
}

static bool matches_at(struct template_text text, struct template_text affix, bool end) {
    if (affix.byte_count > text.byte_count) {
        return false;
    }
    const char *at = end ? text.bytes + text.byte_count - affix.byte_count : text.bytes;
    return memcmp(at, affix.bytes, affix.byte_count) == 0;
}

// startswith and endswith take one text or a tuple of them.
static enum status affix(const struct template_value *self, const struct template_args *args,
                         bool end, struct template_value *out, struct error *err) {
    const struct template_value *value = template_arg(args, 0, "prefix");
    *out = template_bool(false);
    if (value != NULL && value->kind == TEMPLATE_STRING) {
        *out = template_bool(matches_at(self->as.string, value->as.string, end));
        return STATUS_OK;
    }
    if (value == NULL || value->kind != TEMPLATE_LIST || !value->as.list->tuple) {
        return error_set(err, STATUS_INVALID, "%s first arg must be str or a tuple of str",
                         end ? "endswith" : "startswith");
    }
    for (size_t i = 0; i < value->as.list->count; i++) {
        const struct template_value *item = &value->as.list->items[i];
        if (item->kind == TEMPLATE_STRING && matches_at(self->as.string, item->as.string, end)) {
            *out = template_bool(true);
        }
    }
    return STATUS_OK;
}

static enum status str_startswith(struct template_run *run, const struct template_value *self,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    (void)run;
    return affix(self, args, false, out, err);
}

static enum status str_endswith(struct template_run *run, const struct template_value *self,
                                const struct template_args *args, struct template_value *out,
                                struct error *err) {
    (void)run;
    return affix(self, args, true, out, err);
}

static enum status str_removeprefix(struct template_run *run, const struct template_value *self,
                                    const struct template_args *args, struct template_value *out,
                                    struct error *err) {
    (void)run;
    struct template_text prefix;
    struct template_text text = self->as.string;
    TRY(need_text(args, 0, "prefix", &prefix, err));
    size_t cut = matches_at(text, prefix, false) ? prefix.byte_count : 0;
    *out = template_string(text.bytes + cut, text.byte_count - cut);
    return STATUS_OK;
}

static enum status str_removesuffix(struct template_run *run, const struct template_value *self,
                                    const struct template_args *args, struct template_value *out,
                                    struct error *err) {
    (void)run;
    struct template_text suffix;
    struct template_text text = self->as.string;
    TRY(need_text(args, 0, "suffix", &suffix, err));
    size_t cut = matches_at(text, suffix, true) ? suffix.byte_count : 0;
    *out = template_string(text.bytes, text.byte_count - cut);
    return STATUS_OK;
}

// Position in characters, -1 when absent.
static enum status find(struct template_run *run, const struct template_value *self,
                        const struct template_args *args, bool last, int64_t *out,
                        struct error *err) {
    struct template_text what;
    struct template_text text = self->as.string;
    TRY(need_text(args, 0, "sub", &what, err));
    TRY(template_charge(run, text.byte_count / 32, err));
    const char *found = search(text, 0, what);
    const char *next = found;
    while (last && next != NULL && next < text.bytes + text.byte_count) {
        found = next;
        next = search(text, (size_t)(next - text.bytes) + 1, what);
        TRY(template_charge(run, 1, err));
    }
    if (last && what.byte_count == 0) {
        found = text.bytes + text.byte_count;
    }
    *out = -1;
    if (found != NULL) {
        struct template_text before = {text.bytes, (size_t)(found - text.bytes)};
        *out = (int64_t)template_text_chars(before);
    }
    return STATUS_OK;
}

static enum status str_find(struct template_run *run, const struct template_value *self,
                            const struct template_args *args, struct template_value *out,
                            struct error *err) {
    int64_t at = 0;
    TRY(find(run, self, args, false, &at, err));
    *out = template_int(at);
    return STATUS_OK;
}

static enum status str_rfind(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    int64_t at = 0;
    TRY(find(run, self, args, true, &at, err));
    *out = template_int(at);
    return STATUS_OK;
}

static enum status str_index(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    int64_t at = 0;
    TRY(find(run, self, args, false, &at, err));
    if (at < 0) {
        return error_set(err, STATUS_INVALID, "substring not found");
    }
    *out = template_int(at);
    return STATUS_OK;
}

static enum status str_count(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    struct template_text what;
    struct template_text text = self->as.string;
    TRY(need_text(args, 0, "sub", &what, err));
    TRY(template_charge(run, text.byte_count / 16, err));
    int64_t count = 0;
    if (what.byte_count == 0) {
        count = (int64_t)template_text_chars(text) + 1;
    }
    const char *at = what.byte_count == 0 ? NULL : search(text, 0, what);
    while (at != NULL) {
        count++;
        at = search(text, (size_t)(at - text.bytes) + what.byte_count, what);
    }
    *out = template_int(count);
    return STATUS_OK;
}

enum status template_replace(struct template_run *run, struct template_text text,
                             struct template_text old, struct template_text new, int64_t count,
                             struct template_value *out, struct error *err) {
    struct buf replaced;
    buf_init(&replaced, BOUND_TEMPLATE_OUTPUT_BYTES);
    size_t done = 0;
    TRY(template_charge(run, text.byte_count / 16, err));
    if (old.byte_count == 0) {    // before every character and at the end
        for (size_t at = 0; at <= text.byte_count && count != 0; count -= count > 0 ? 1 : 0) {
            buf_append(&replaced, new.bytes, new.byte_count);
            struct template_text rest = {text.bytes + at, text.byte_count - at};
            size_t length = template_text_offset(rest, 1);
            buf_append(&replaced, rest.bytes, length);
            at += length;
            done = at;
            if (length == 0) {
                break;
            }
        }
    }
    const char *at = old.byte_count == 0 || count == 0 ? NULL : search(text, 0, old);
    while (at != NULL && count != 0) {
        size_t start = (size_t)(at - text.bytes);
        buf_append(&replaced, text.bytes + done, start - done);
        buf_append(&replaced, new.bytes, new.byte_count);
        done = start + old.byte_count;
        count -= count > 0 ? 1 : 0;
        at = search(text, done, old);
    }
    buf_append(&replaced, text.bytes + done, text.byte_count - done);
    return template_take(run, &replaced, out, err);
}

static enum status str_replace(struct template_run *run, const struct template_value *self,
                               const struct template_args *args, struct template_value *out,
                               struct error *err) {
    struct template_text old;
    struct template_text new;
    int64_t count = -1;
    TRY(need_text(args, 0, "old", &old, err));
    TRY(need_text(args, 1, "new", &new, err));
    TRY(int_arg(args, 2, "count", &count, err));
    return template_replace(run, self->as.string, old, new, count, out, err);
}

// ---- splitting and joining ---------------------------------------------------------------------

// Pieces of a split while they are found; lists have a fixed size.
struct pieces {
    struct template_value *items;
    size_t count;
    size_t allocated;
};

static enum status add_piece(struct template_run *run, struct pieces *pieces, const char *bytes,
                             size_t byte_count, struct error *err) {
    TRY(template_charge(run, 1, err));
    if (pieces->count == pieces->allocated) {
        size_t allocated = pieces->allocated * 2 + 8;
        struct template_value *items = arena_array(run->arena, allocated, sizeof *items);
        if (items == NULL) {
            return template_full(err);
        }
        if (pieces->count > 0) {
            memcpy(items, pieces->items, pieces->count * sizeof *items);
        }
        pieces->items = items;
        pieces->allocated = allocated;
    }
    pieces->items[pieces->count++] = template_string(bytes, byte_count);
    return STATUS_OK;
}

static enum status finish_pieces(struct template_run *run, const struct pieces *pieces,
                                 struct template_value *out, struct error *err) {
    struct template_list *list = arena_alloc(run->arena, sizeof *list);
    if (list == NULL) {
        return template_full(err);
    }
    list->count = pieces->count;
    list->items = pieces->items;
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

// split() without a separator: runs of whitespace, none at the ends.
static enum status split_spaces(struct template_run *run, struct template_text text,
                                int64_t count_max, struct pieces *pieces, struct error *err) {
    text = template_strip(text, NULL, true, false);
    while (text.byte_count > 0) {
        size_t end = 0;
        uint32_t code = 0;
        while (end < text.byte_count) {
            size_t length =
                unicode_decode((const uint8_t *)text.bytes + end, text.byte_count - end, &code);
            if (is_space(code)) {
                break;
            }
            end += length;
        }
        if (count_max >= 0 && (int64_t)pieces->count == count_max) {
            end = text.byte_count;
        }
        TRY(add_piece(run, pieces, text.bytes, end, err));
        text = (struct template_text){text.bytes + end, text.byte_count - end};
        text = template_strip(text, NULL, true, false);
    }
    return STATUS_OK;
}

static enum status split_text(struct template_run *run, struct template_text text,
                              struct template_text separator, int64_t count_max,
                              struct pieces *pieces, struct error *err) {
    size_t done = 0;
    const char *at = search(text, 0, separator);
    while (at != NULL && (count_max < 0 || (int64_t)pieces->count < count_max)) {
        size_t start = (size_t)(at - text.bytes);
        TRY(add_piece(run, pieces, text.bytes + done, start - done, err));
        done = start + separator.byte_count;
        at = search(text, done, separator);
    }
    return add_piece(run, pieces, text.bytes + done, text.byte_count - done, err);
}

// The last `count_max` separators split: the others are put together again.
static enum status join_front(const struct template_text text, struct pieces *pieces,
                              int64_t count_max) {
    if (count_max < 0 || (int64_t)pieces->count <= count_max + 1) {
        return STATUS_OK;
    }
    size_t extra = pieces->count - (size_t)count_max - 1;
    struct template_text last = pieces->items[extra].as.string;
    size_t end = (size_t)(last.bytes + last.byte_count - text.bytes);
    pieces->items[extra] = template_string(text.bytes, end);
    pieces->items += extra;
    pieces->count -= extra;
    return STATUS_OK;
}

static enum status split(struct template_run *run, const struct template_value *self,
                         const struct template_args *args, bool from_right,
                         struct template_value *out, struct error *err) {
    bool present = false;
    struct template_text separator = {0};
    int64_t count_max = -1;
    struct pieces pieces = {0};
    TRY(text_arg(args, 0, "sep", &present, &separator, err));
    TRY(int_arg(args, 1, "maxsplit", &count_max, err));
    TRY(template_charge(run, self->as.string.byte_count / 32, err));
    if (present && separator.byte_count == 0) {
        return error_set(err, STATUS_INVALID, "empty separator");
    }
    int64_t while_splitting = from_right ? -1 : count_max;
    if (present) {
        TRY(split_text(run, self->as.string, separator, while_splitting, &pieces, err));
    } else {
        TRY(split_spaces(run, self->as.string, while_splitting, &pieces, err));
    }
    if (from_right) {
        TRY(join_front(self->as.string, &pieces, count_max));
    }
    return finish_pieces(run, &pieces, out, err);
}

static enum status str_split(struct template_run *run, const struct template_value *self,
                             const struct template_args *args, struct template_value *out,
                             struct error *err) {
    return split(run, self, args, false, out, err);
}

static enum status str_rsplit(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    return split(run, self, args, true, out, err);
}

static bool ends_line(uint32_t code) {
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

static enum status str_splitlines(struct template_run *run, const struct template_value *self,
                                  const struct template_args *args, struct template_value *out,
                                  struct error *err) {
    struct template_text text = self->as.string;
    struct pieces pieces = {0};
    const struct template_value *keep = template_arg(args, 0, "keepends");
    bool keeps = keep != NULL && template_truth(keep);
    size_t start = 0;
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        size_t length =
            unicode_decode((const uint8_t *)text.bytes + at, text.byte_count - at, &code);
        size_t end = at + length;
        if (ends_line(code)) {
            end += code == '\r' && end < text.byte_count && text.bytes[end] == '\n' ? 1 : 0;
            TRY(add_piece(run, &pieces, text.bytes + start, (keeps ? end : at) - start, err));
            start = end;
        }
        at = end;
    }
    if (start < text.byte_count) {
        TRY(add_piece(run, &pieces, text.bytes + start, text.byte_count - start, err));
    }
    return finish_pieces(run, &pieces, out, err);
}

static enum status str_join(struct template_run *run, const struct template_value *self,
                            const struct template_args *args, struct template_value *out,
                            struct error *err) {
    const struct template_value *value = template_arg(args, 0, "iterable");
    const struct template_list *items = NULL;
    if (value == NULL) {
        return error_set(err, STATUS_INVALID, "join() takes exactly one argument (0 given)");
    }
    TRY(template_iterate(run->arena, value, &items, err));
    struct buf joined;
    buf_init(&joined, BOUND_TEMPLATE_OUTPUT_BYTES);
    for (size_t i = 0; i < items->count; i++) {
        if (items->items[i].kind != TEMPLATE_STRING) {
            buf_deinit(&joined);
            return error_set(err, STATUS_INVALID,
                             "sequence item %zu: expected str instance, %s found", i,
                             template_type_name(&items->items[i]));
        }
        if (i > 0) {
            buf_append(&joined, self->as.string.bytes, self->as.string.byte_count);
        }
        template_print(&items->items[i], &joined);
    }
    TRY(template_take(run, &joined, out, err));
    return template_charge(run, items->count, err);
}

// ---- character questions -----------------------------------------------------------------------

typedef bool (*code_fn)(uint32_t code);

static bool is_alpha(uint32_t code) {
    return unicode_class(code) == UNICODE_LETTER;
}

static bool is_digit(uint32_t code) {
    return unicode_class(code) == UNICODE_NUMBER;
}

static bool is_alnum(uint32_t code) {
    return is_alpha(code) || is_digit(code);
}

static bool all_chars(struct template_text text, code_fn fn) {
    for (size_t at = 0; at < text.byte_count;) {
        uint32_t code = 0;
        at += unicode_decode((const uint8_t *)text.bytes + at, text.byte_count - at, &code);
        if (!fn(code)) {
            return false;
        }
    }
    return text.byte_count > 0;
}

#define CHARS_METHOD(method, fn)                                                                   \
    static enum status method(struct template_run *run, const struct template_value *self,         \
                              const struct template_args *args, struct template_value *out,        \
                              struct error *err) {                                                 \
        (void)args;                                                                                \
        *out = template_bool(all_chars(self->as.string, fn));                                      \
        return template_charge(run, self->as.string.byte_count / 32, err);                         \
    }
CHARS_METHOD(str_isalpha, is_alpha)
CHARS_METHOD(str_isdigit, is_digit)
CHARS_METHOD(str_isalnum, is_alnum)
CHARS_METHOD(str_isspace, is_space)

// ---- formatting --------------------------------------------------------------------------------

enum status template_format_percent(struct template_run *run, struct template_text format,
                                    const struct template_value *arg, struct template_value *out,
                                    struct error *err) {
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    bool tuple = arg->kind == TEMPLATE_LIST && arg->as.list->tuple;
    size_t count = tuple ? arg->as.list->count : 1;
    size_t used = 0;
    bool good = true;
    for (size_t i = 0; i < format.byte_count && good; i++) {
        char c = format.bytes[i];
        char next = i + 1 < format.byte_count ? format.bytes[i + 1] : '\0';
        if (c != '%') {
            buf_append_byte(&text, (uint8_t)c);
            continue;
        }
        i++;
        if (next == '%') {
            buf_append_byte(&text, '%');
            continue;
        }
        good = (next == 's' || next == 'd' || next == 'i') && used < count;
        if (good) {
            const struct template_value *value = tuple ? &arg->as.list->items[used] : arg;
            good = next == 's' || value->kind == TEMPLATE_INT || value->kind == TEMPLATE_BOOL;
            template_print(value, &text);
            used++;
        }
    }
    if (!good || (tuple && used < count)) {
        buf_deinit(&text);
        return error_set(err, STATUS_INVALID,
                         "'%%' formatting knows %%s, %%d, %%i and %%%%, with as many arguments");
    }
    return template_take(run, &text, out, err);
}

// The argument that {…} at `field` names: {} counts on, {0} is positional, {name} a keyword.
static const struct template_value *field_value(const struct template_args *args,
                                                struct template_text field, size_t *automatic) {
    if (field.byte_count == 0) {
        size_t index = (*automatic)++;
        return index < args->count ? &args->items[index] : NULL;
    }
    if (field.bytes[0] >= '0' && field.bytes[0] <= '9' && field.byte_count < 4) {
        size_t index = 0;
        for (size_t i = 0; i < field.byte_count; i++) {
            index = index * 10 + (size_t)(field.bytes[i] - '0');
        }
        return index < args->count ? &args->items[index] : NULL;
    }
    for (size_t i = 0; i < args->named_count; i++) {
        if (template_text_same(args->named[i].name, field)) {
            return &args->named[i].value;
        }
    }
    return NULL;
}

// str.format with plain fields: no conversions, no format specifications, no attributes.
static enum status str_format(struct template_run *run, const struct template_value *self,
                              const struct template_args *args, struct template_value *out,
                              struct error *err) {
    struct template_text format = self->as.string;
    struct buf text;
    buf_init(&text, BOUND_TEMPLATE_OUTPUT_BYTES);
    size_t automatic = 0;
    bool good = true;
    for (size_t i = 0; i < format.byte_count && good; i++) {
        char c = format.bytes[i];
        bool doubled = i + 1 < format.byte_count && format.bytes[i + 1] == c;
        if ((c == '{' || c == '}') && doubled) {
            buf_append_byte(&text, (uint8_t)c);
            i++;
        } else if (c == '{') {
            const char *close = memchr(format.bytes + i, '}', format.byte_count - i);
            const struct template_value *value = NULL;
            if (close != NULL) {
                size_t length = (size_t)(close - format.bytes) - i - 1;
                struct template_text field = {format.bytes + i + 1, length};
                value = field_value(args, field, &automatic);
                i += length + 1;
            }
            good = value != NULL;
            if (good) {
                template_print(value, &text);
            }
        } else {
            good = c != '}';
            buf_append_byte(&text, (uint8_t)c);
        }
    }
    if (!good) {
        buf_deinit(&text);
        return error_set(err, STATUS_INVALID,
                         "format() knows plain fields only, each with its argument");
    }
    return template_take(run, &text, out, err);
}

// ---- the table ---------------------------------------------------------------------------------

const struct template_method_row template_str_methods[] = {
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"upper", str_upper},
    {"lower", str_lower},
    {"capitalize", str_capitalize},
    {"title", str_title},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"count", str_count},
    {"replace", str_replace},
    {"split", str_split},
    {"rsplit", str_rsplit},
    {"splitlines", str_splitlines},
    {"join", str_join},
    {"isalpha", str_isalpha},
    {"isdigit", str_isdigit},
    {"isnumeric", str_isdigit},
    {"isalnum", str_isalnum},
    {"isspace", str_isspace},
    {"format", str_format},
    {NULL, NULL},
};
