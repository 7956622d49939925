// SPDX-License-Identifier: Apache-2.0
#include "controller/text/normalize.h"

#include "common/memory.h"
#include "controller/text/unicode.h"
#include <string.h>
#include <utf8proc.h>

// The longest full canonical decomposition of one code point has 4 (Unicode 15); the library's
// own limit for one call is far above.
enum { SEGMENT_SMALL = 64, DECOMPOSITION_MAX = 18 };

static const utf8proc_property_t *property(uint32_t code) {
    return utf8proc_get_property((utf8proc_int32_t)code);
}

// May a code point change or move because of what stands before it? Marks reorder and compose;
// so do the vowels and final consonants of Hangul.
static bool follows(uint32_t code) {
    if (code < 0x300 || code == UNICODE_BROKEN) {
        return false;
    }
    bool jamo = (code >= 0x1160 && code <= 0x11FF) || (code >= 0xD7B0 && code <= 0xD7FF);
    return jamo || unicode_class(code) == UNICODE_MARK;
}

static bool has_canonical_decomposition(uint32_t code) {
    if (code < 0x300 || code == UNICODE_BROKEN) {    // below, what decomposes composes again
        return false;
    }
    const utf8proc_property_t *p = property(code);
    return p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0;
}

bool normalize_nfc_quick(const uint8_t *bytes, size_t byte_count) {
    for (size_t at = 0; at < byte_count;) {
        if (bytes[at] < 0xCC) {    // below U+0300 everything composed stays as it is
            at++;
            continue;
        }
        uint32_t code = 0;
        at += unicode_decode(bytes + at, byte_count - at, &code);
        if (follows(code) || has_canonical_decomposition(code)) {
            return false;
        }
    }
    return true;
}

// ---- one segment -------------------------------------------------------------------------------

// Code points of one segment: a starter and what follows it.
struct segment {
    utf8proc_int32_t small[SEGMENT_SMALL];
    utf8proc_int32_t *codes;    // `small`, or from the heap
    size_t count;
    size_t allocated;
};

static bool segment_grow(struct segment *segment, size_t extra) {
    if (segment->count + extra <= segment->allocated) {
        return true;
    }
    size_t allocated = segment->allocated * 2 + extra;
    bool is_small = segment->codes == segment->small;
    utf8proc_int32_t *grown =
        memory_realloc(is_small ? NULL : segment->codes, allocated * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    if (is_small) {
        memcpy(grown, segment->small, sizeof segment->small);
    }
    segment->codes = grown;
    segment->allocated = allocated;
    return true;
}

static bool segment_decompose(struct segment *segment, uint32_t code) {
    if (!segment_grow(segment, DECOMPOSITION_MAX)) {
        return false;
    }
    int last_class = 0;
    utf8proc_ssize_t wrote = utf8proc_decompose_char(
        (utf8proc_int32_t)code, segment->codes + segment->count, DECOMPOSITION_MAX,
        UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &last_class);
    if (wrote <= 0 || wrote > DECOMPOSITION_MAX) {
        return false;
    }
    segment->count += (size_t)wrote;
    return true;
}

static uint8_t combining_class(utf8proc_int32_t code) {
    return (uint8_t)utf8proc_get_property(code)->combining_class;
}

static void sort_short(utf8proc_int32_t *codes, size_t count) {
    for (size_t i = 1; i < count; i++) {
        utf8proc_int32_t code = codes[i];
        uint8_t class = combining_class(code);
        size_t j = i;
        for (; j > 0 && combining_class(codes[j - 1]) > class; j--) {
            codes[j] = codes[j - 1];
        }
        codes[j] = code;
    }
}

static bool sort_long(utf8proc_int32_t *codes, size_t count) {
    utf8proc_int32_t *sorted = memory_array(count, sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++) {
        start[combining_class(codes[i]) + 1]++;
    }
    for (size_t i = 1; i < 257; i++) {
        start[i] += start[i - 1];
    }
    for (size_t i = 0; i < count; i++) {
        sorted[start[combining_class(codes[i])]++] = codes[i];
    }
    memcpy(codes, sorted, count * sizeof *codes);
    memory_free(sorted);
    return true;
}

// Canonical ordering (UAX #15, definition D109): within each run of non-zero classes a stable sort.
static bool segment_order(struct segment *segment) {
    for (size_t at = 0; at < segment->count;) {
        if (combining_class(segment->codes[at]) == 0) {
            at++;
            continue;
        }
        size_t end = at;
        while (end < segment->count && combining_class(segment->codes[end]) != 0) {
            end++;
        }
        if (end - at <= 32) {
            sort_short(segment->codes + at, end - at);
        } else if (!sort_long(segment->codes + at, end - at)) {
            return false;
        }
        at = end;
    }
    return true;
}

static enum status normalize_segment(const uint8_t *bytes, size_t byte_count, struct buf *out,
                                     struct error *err) {
    struct segment segment = {.allocated = SEGMENT_SMALL};
    segment.codes = segment.small;
    bool ok = true;
    for (size_t at = 0; ok && at < byte_count;) {
        uint32_t code = 0;
        at += unicode_decode(bytes + at, byte_count - at, &code);
        ok = segment_decompose(&segment, code);
    }
    ok = ok && segment_order(&segment);
    if (ok) {
        utf8proc_ssize_t count = utf8proc_normalize_utf32(
            segment.codes, (utf8proc_ssize_t)segment.count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        for (utf8proc_ssize_t i = 0; i < count; i++) {
            uint8_t utf8[4];
            buf_append(out, utf8, unicode_encode((uint32_t)segment.codes[i], utf8));
        }
    }
    if (segment.codes != segment.small) {
        memory_free(segment.codes);
    }
    if (!ok) {
        return error_set(err, STATUS_EXHAUSTED, "no memory to normalise %zu bytes of text",
                         byte_count);
    }
    return STATUS_OK;
}

// ---- the whole text ----------------------------------------------------------------------------

enum status normalize_nfc(const uint8_t *bytes, size_t byte_count, struct buf *out,
                          struct error *err) {
    size_t copied = 0;    // everything before is in `out`
    for (size_t at = 0; at < byte_count;) {
        size_t start = at;
        uint32_t code = 0;
        at += unicode_decode(bytes + at, byte_count - at, &code);
        bool changes = has_canonical_decomposition(code) || follows(code);
        bool broken = code == UNICODE_BROKEN;
        while (!broken && at < byte_count && bytes[at] >= 0xCC) {
            size_t length = unicode_decode(bytes + at, byte_count - at, &code);
            if (!follows(code)) {
                break;
            }
            changes = true;
            at += length;
        }
        if (changes) {
            buf_append(out, bytes + copied, start - copied);
            TRY(normalize_segment(bytes + start, at - start, out, err));
            copied = at;
        }
    }
    buf_append(out, bytes + copied, byte_count - copied);
    if (buf_status(out) != STATUS_OK) {
        return error_set(err, STATUS_EXHAUSTED, "no room for %zu bytes of normalised text",
                         byte_count);
    }
    return STATUS_OK;
}
