// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_UNICODE_H
#define CONTROLLER_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Code points out of bytes that may be broken, and the few character classes tokenizers ask for.
//
// The idea: text from outside is a run of bytes; whatever is not UTF-8 is met one byte at a time as
// the pseudo code point UNICODE_BROKEN, so no byte is ever lost or skipped. Classes come from
// utf8proc (the Unicode version of the library), with a table for ASCII.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#define UNICODE_BROKEN 0xFFFFFFFFu
#define UNICODE_REPLACEMENT 0xFFFDu

enum unicode_class {
    UNICODE_OTHER,     // punctuation, symbols, controls, unassigned, broken bytes
    UNICODE_LETTER,    // L*
    UNICODE_MARK,      // M*
    UNICODE_NUMBER,    // N*
    UNICODE_SPACE,     // White_Space: U+0009..000D, 0020, 0085 and Z*
};

// Length of the UTF-8 sequence at bytes[0] (byte_count >= 1), with its code point. A broken byte
// has length 1 and the code point UNICODE_BROKEN. Overlong forms and surrogates are broken.
uint32_t unicode_decode(const uint8_t *bytes, size_t byte_count, uint32_t *code);

// Writes 1..4 bytes and returns how many; surrogates and values above U+10FFFF become U+FFFD.
uint32_t unicode_encode(uint32_t code, uint8_t out[4]);

// Bytes of the incomplete but still valid sequence that ends the text (0..3): what a stream must
// hold back until the next bytes arrive.
uint32_t unicode_incomplete_tail(const uint8_t *bytes, size_t byte_count);

// At a broken byte: the length of the maximal subpart that one U+FFFD replaces (Unicode 15,
// section 3.9, "substitution of maximal subparts", as the WHATWG decoder and Python do).
uint32_t unicode_broken_span(const uint8_t *bytes, size_t byte_count);

enum unicode_class unicode_class(uint32_t code);
bool unicode_is_word(uint32_t code);    // \w: letters, marks, numbers, connector punctuation
// Python's str.isprintable: no controls, formats, private or unassigned ones, no separators but the
// ASCII space.
bool unicode_is_printable(uint32_t code);
bool unicode_is_upper(uint32_t code);        // Lu, Lt
bool unicode_is_lower(uint32_t code);        // Ll
uint32_t unicode_to_upper(uint32_t code);    // simple mapping, one code point to one
uint32_t unicode_to_lower(uint32_t code);

// The code point that ends just before bytes[at] (at >= 1), and where it starts.
size_t unicode_before(const uint8_t *bytes, size_t at, uint32_t *code);

#endif
