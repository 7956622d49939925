// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TEXT_NORMALIZE_H
#define CONTROLLER_TEXT_NORMALIZE_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Unicode normalisation form C (canonical composition, UAX #15), in linear time.
//
// The idea: nearly all text is NFC already, so it is cut into segments that cannot influence each
// other - one starter with the marks after it - and only segments that may change are decomposed,
// ordered and composed. Ordering long runs of marks uses a counting sort: the textbook insertion
// sort would let a megabyte of marks cost hours.
//
//   Owns       nothing.
//   Thread     any.
//   Allocates  into `out`, and a work array for segments longer than 64 code points.
//   Fails      EXHAUSTED. Broken bytes pass through unchanged.

// True when the text is certainly in NFC: cheap, may say false for text that is.
bool normalize_nfc_quick(const uint8_t *bytes, size_t byte_count);

// Appends the NFC form of the text to `out`.
enum status normalize_nfc(const uint8_t *bytes, size_t byte_count, struct buf *out,
                          struct error *err) MUST_USE;

#endif
