// SPDX-License-Identifier: Apache-2.0
#include "worker/kv/kv_stamp.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void kv_stamp_spoil(struct kv_stamp *stamp) {
    stamp->value = 0;
}

uint64_t kv_stamp_settle(struct kv_stamp *stamp, uint64_t bytes, const char *layout) {
    if (stamp->value != 0 && stamp->bytes == bytes &&
        strncmp(stamp->layout, layout, sizeof stamp->layout) == 0) {
        return stamp->value;
    }
    uint64_t value = 0;
    if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
        value = 0;
    }
    stamp->bytes = bytes;
    snprintf(stamp->layout, sizeof stamp->layout, "%s", layout);
    stamp->value = value;
    return value;
}

void kv_stamp_resize(struct kv_stamp *stamp, uint64_t bytes) {
    stamp->bytes = bytes;
}
