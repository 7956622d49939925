// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_DETOKENIZER_H
#define CONTROLLER_TEXT_DETOKENIZER_H

#include "common/bounds.h"
#include "common/buf.h"
#include "common/status.h"
#include "controller/text/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Turns the tokens of one sequence into text while they arrive, up to the first stop string.
//
// The idea: a token is bytes, not characters, and a stop string may begin in one token and end in
// another. So bytes pass two gates. The first holds back at most 3 bytes of an unfinished
// character; what can no longer become one turns into U+FFFD, one per maximal subpart. The second
// holds back the longest tail of the text that is the beginning of some stop string, and no more.
// Each byte is looked at a bounded number of times per stop string (Knuth, Morris, Pratt 1977).
// All pieces together are exactly the decoding of the whole, cut at the stop.
//
//   Owns       what is held back, and copies of the stop strings; keeps `tokenizer`, which must
//              outlive it.
//   Thread     one at a time.
//   Allocates  in init and add_stop; pushing only grows the caller's buffer and its own tail.
//   Fails      INVALID for bad stop strings, EXHAUSTED.

struct detokenizer_options {
    bool skip_special;    // control tokens (TOKEN_SPECIAL) give no text
    bool include_stop;    // the stop string itself is part of the text
};

struct detokenizer_stop {
    char *text;
    uint32_t byte_count;
    uint32_t matched;    // bytes of it that the text so far ends in
    uint16_t *border;    // [byte_count] longest proper border of each prefix
};

struct detokenizer {
    const struct tokenizer *tokenizer;
    struct detokenizer_options options;
    struct detokenizer_stop stops[BOUND_STOP_STRINGS];
    uint32_t stop_count;
    uint8_t partial[4];    // an unfinished character
    uint32_t partial_bytes;
    struct buf held;       // finished characters that may be the beginning of a stop string
    bool watching;         // stop strings are looked for
    int32_t stop_index;    // which stop string ended the text; -1 while none did
};

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer,
                      struct detokenizer_options options);
void detokenizer_deinit(struct detokenizer *detokenizer);

// Before the first token. 1 to BOUND_STOP_STRING_BYTES bytes, at most BOUND_STOP_STRINGS of them.
enum status detokenizer_add_stop(struct detokenizer *detokenizer, const char *text,
                                 size_t byte_count, struct error *err) MUST_USE;

// Stop strings are looked for from the start; off, they are overlooked (min_tokens, reasoning). A
// stop string must begin after they were turned on again.
void detokenizer_watch_stops(struct detokenizer *detokenizer, bool on);

// Appends to `out` the text that token `id` makes certain: whole characters only, possibly none.
// An id without bytes gives no text. After a stop further tokens are ignored. `*stopped` says
// whether a stop string is complete; then nothing more will come.
enum status detokenizer_push(struct detokenizer *detokenizer, uint32_t id, struct buf *out,
                             bool *stopped, struct error *err) MUST_USE;

// The end of the sequence: appends everything held back, an unfinished character as U+FFFD.
enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *out,
                               struct error *err) MUST_USE;

// Index of the stop string that was found, in the order they were added; -1 for none. When two end
// at the same byte the longer one counts.
int32_t detokenizer_stop_index(const struct detokenizer *detokenizer);
// Bytes that are held back right now, by either gate: their log probabilities wait with them.
size_t detokenizer_held_bytes(const struct detokenizer *detokenizer);

// Decodes a whole sequence at once: invalid bytes become U+FFFD, stop strings are not looked for.
enum status detokenize(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                       bool skip_special, struct buf *out, struct error *err) MUST_USE;

#endif
