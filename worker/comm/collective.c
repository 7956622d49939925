// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/collective.h"

#include "common/invariant.h"
#include <string.h>

enum { BUFFERS = 2, BUFFER_ALIGNMENT = 256 };

void collective_init_loopback(struct collective *collective, uint32_t rank, uint32_t world) {
    INVARIANT(rank < world);
    *collective = (struct collective){.rank = rank, .world = world};
}

void collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols) {
    if (collective->table != NULL) {
        collective->table->all_reduce_add(collective, part, y, rows, cols);
        return;
    }
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        y[i] += part[i];
    }
}

void collective_all_gather(struct collective *collective, const struct collective_gather *args) {
    if (collective->table != NULL) {
        collective->table->all_gather(collective, args);
        return;
    }
    uint64_t begin = (uint64_t)collective->rank * args->x_cols;
    uint64_t left = begin < args->y_cols ? args->y_cols - begin : 0;
    size_t own = left < args->x_cols ? left : args->x_cols;
    for (uint32_t row = 0; row < args->row_count; row++) {
        float *y = args->y + (size_t)row * args->y_cols;
        memset(y, 0, args->y_cols * sizeof *y);
        if (own > 0) {
            memcpy(y + begin, args->x + (size_t)row * args->x_cols, own * sizeof *y);
        }
    }
}

bool collective_broken(const struct collective *collective) {
    return collective->table != NULL && collective->table->broken(collective);
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
