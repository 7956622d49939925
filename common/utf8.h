// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The one UTF-8 decoder: strict, over bytes that may be anything.
//
// The idea: the first byte of a sequence gives its length and the range of the second byte, and
// that range alone excludes overlong forms, surrogates and values above U+10FFFF (Unicode 15, table
// 3-7). What to do with broken bytes (escape, replace, hold back) is the caller's affair.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

// Length of the sequence at bytes[0] (byte_count >= 1), with its code point in `*code`; 0, and
// `*code` untouched, when it is not well formed or is cut short.
uint32_t utf8_decode(const uint8_t *bytes, size_t byte_count, uint32_t *code);

// How many bytes from bytes[0] (byte_count >= 1) agree with some well-formed sequence: 0 when none
// can start there. `*length` is what that sequence needs in all.
uint32_t utf8_prefix(const uint8_t *bytes, size_t byte_count, uint32_t *length);

bool utf8_valid(const void *bytes, size_t byte_count);    // well formed from end to end

#endif
