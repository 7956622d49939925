// SPDX-License-Identifier: Apache-2.0
#include "common/wire.h"

#include "common/invariant.h"
#include <string.h>

void wire_bytes(struct wire *w, void *bytes, size_t byte_count) {
    if (w->out != NULL) {
        buf_append(w->out, bytes, byte_count);
    } else if (w->broken || wire_left(w) < byte_count) {
        w->broken = true;
        memset(bytes, 0, byte_count);
    } else {
        memcpy(bytes, w->at, byte_count);
        w->at += byte_count;
    }
}

void wire_u8(struct wire *w, uint32_t *value) {
    uint8_t byte = (uint8_t)*value;
    WIRE(w, byte);
    *value = byte;
}

void wire_bool(struct wire *w, bool *value) {
    uint8_t byte = *value ? 1 : 0;
    WIRE(w, byte);
    w->broken = w->broken || byte > 1;
    *value = byte == 1;
}

void wire_run(struct wire *w, const uint8_t **bytes, uint32_t *byte_count) {
    WIRE(w, *byte_count);
    if (w->out != NULL) {
        buf_append(w->out, *bytes, *byte_count);
    } else if (w->broken || wire_left(w) < *byte_count) {
        w->broken = true;
        *bytes = (const uint8_t *)"";
        *byte_count = 0;
    } else {
        *bytes = w->at;
        w->at += *byte_count;
    }
}

void wire_put_le(uint8_t *at, uint64_t value, uint32_t byte_count) {
    INVARIANT(byte_count <= sizeof value);
    for (uint32_t i = 0; i < byte_count; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

uint64_t wire_get_le(const uint8_t *at, uint32_t byte_count) {
    INVARIANT(byte_count <= sizeof(uint64_t));
    uint64_t value = 0;
    for (uint32_t i = 0; i < byte_count; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}
