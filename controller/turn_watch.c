// SPDX-License-Identifier: Apache-2.0
#include "controller/turn_watch.h"

#include "common/bounds.h"

void turn_watch_add(struct turn_watch *watch, uint64_t now_us, uint64_t turn_us) {
    uint64_t number = now_us / TURN_SLICE_US;
    struct turn_slice *slice = &watch->slices[number % TURN_SLICES];
    if (slice->number != number) {
        *slice = (struct turn_slice){.number = number};
    }
    slice->turns++;
    slice->overlong += turn_us > BOUND_TURN_OVERLOAD_US ? 1 : 0;
    watch->slow += turn_us > BOUND_TURN_SLOW_US ? 1 : 0;
}

bool turn_watch_overloaded(const struct turn_watch *watch, uint64_t now_us) {
    uint64_t now = now_us / TURN_SLICE_US;
    uint64_t turns = 0, overlong = 0;
    for (uint32_t i = 0; i < TURN_SLICES; i++) {
        const struct turn_slice *slice = &watch->slices[i];
        if (slice->number + TURN_SLICES > now) {
            turns += slice->turns;
            overlong += slice->overlong;
        }
    }
    return overlong > 1 && overlong * 100 > turns;
}
