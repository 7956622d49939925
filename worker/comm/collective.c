// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/collective.h"

#include "common/invariant.h"

enum { BUFFERS = 2, BUFFER_ALIGNMENT = 256 };

void collective_init_loopback(struct collective *collective, uint32_t rank, uint32_t world) {
    INVARIANT(rank < world);
    *collective = (struct collective){.rank = rank, .world = world};
}

void collective_note(struct collective *collective, uint64_t bytes) {
    collective->message_count++;
    collective->message_bytes += bytes;
    if (bytes > collective->message_bytes_max) {
        collective->message_bytes_max = bytes;
    }
}

uint64_t collective_buffer_bytes(const struct collective *collective) {
    uint64_t one = (collective->message_bytes_max + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT;
    return one * BUFFER_ALIGNMENT * BUFFERS;
}
