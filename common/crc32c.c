// SPDX-License-Identifier: Apache-2.0
#include "common/crc32c.h"

#include "common/crc32c_sse42.h"

// One step of the bitwise definition. Machines without the instruction take a nibble at a time,
// which keeps the source free of a generated 1 KiB array.
static const uint32_t nibble_table[16] = {
    0x00000000u, 0x105EC76Fu, 0x20BD8EDEu, 0x30E349B1u, 0x417B1DBCu, 0x5125DAD3u,
    0x61C69362u, 0x7198540Du, 0x82F63B78u, 0x92A8FC17u, 0xA24BB5A6u, 0xB21572C9u,
    0xC38D26C4u, 0xD3D3E1ABu, 0xE330A81Au, 0xF36E6F75u,
};

uint32_t crc32c(const void *bytes, size_t byte_count) {
    return crc32c_sse42_here() ? crc32c_sse42(bytes, byte_count) : crc32c_plain(bytes, byte_count);
}

uint32_t crc32c_plain(const void *bytes, size_t byte_count) {
    const uint8_t *at = bytes;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < byte_count; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ nibble_table[crc & 15];
        crc = (crc >> 4) ^ nibble_table[crc & 15];
    }
    return ~crc;
}
