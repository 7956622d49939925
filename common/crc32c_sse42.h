// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_CRC32C_SSE42_H
#define COMMON_CRC32C_SSE42_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The same checksum by the processor's instruction (SSE 4.2). For crc32c.c only.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

bool crc32c_sse42_here(void);
uint32_t crc32c_sse42(const void *bytes, size_t byte_count);

#endif
