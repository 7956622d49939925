// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_CRC32C_H
#define COMMON_CRC32C_H

#include <stddef.h>
#include <stdint.h>

// CRC-32C (Castagnoli polynomial, reflected 0x82F63B78; RFC 3720 appendix B.4), the checksum of
// message bodies.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

uint32_t crc32c(const void *bytes, size_t byte_count);    // by the processor's instruction if any
uint32_t crc32c_plain(const void *bytes, size_t byte_count);

#endif
