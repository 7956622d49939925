// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_WIRE_H
#define COMMON_WIRE_H

#include "common/buf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Fields to bytes and back, never beyond the end.
//
// The idea: one function names the fields of a record in their order, and a cursor says whether
// they are written or read back, so the two directions cannot differ. What is too short or cannot
// be breaks the cursor: fields are zero from then on, and the caller asks once, at the end. Numbers
// lie as they do in memory, for files that only the machine that wrote them reads; what machines
// share has little-endian integers, the second half of this file.
//
//   Owns       nothing.
//   Thread     any, one at a time per cursor.
//   Allocates  what is written, as `out` does, which also keeps its failure.
//   Fails      reading: `broken`.

struct wire {
    struct buf *out;            // writing; NULL: reading
    const uint8_t *at, *end;    // reading: what is left
    bool broken;
};

// A cursor over bytes to read, which must stay alive. Writing: {.out = buf}.
static inline struct wire wire_reader(const uint8_t *bytes, size_t byte_count) {
    return (struct wire){.at = bytes, .end = bytes + byte_count};
}

static inline size_t wire_left(const struct wire *w) {
    return (size_t)(w->end - w->at);
}

// So many bytes as they lie in memory; WIRE: a field.
void wire_bytes(struct wire *w, void *bytes, size_t byte_count);
#define WIRE(w, field) wire_bytes((w), &(field), sizeof(field))

// A small number as one byte.
void wire_u8(struct wire *w, uint32_t *value);
// Read as a byte: a bool that is neither 0 nor 1 would be no value at all, and breaks.
void wire_bool(struct wire *w, bool *value);
// Bytes with their count in front. Reading, `*bytes` points to where they lie; broken, to none.
void wire_run(struct wire *w, const uint8_t **bytes, uint32_t *byte_count);

// Little-endian integers of 1 to 8 bytes, whatever the machine.
void wire_put_le(uint8_t *at, uint64_t value, uint32_t byte_count);
uint64_t wire_get_le(const uint8_t *at, uint32_t byte_count);

#endif
