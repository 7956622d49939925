// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_TURN_WATCH_H
#define CONTROLLER_TURN_WATCH_H

#include <stdbool.h>
#include <stdint.h>

// How long the turns of the loop took lately, and whether that is too long.
//
// The idea: turns are counted in slices of time, those that took longer than
// BOUND_TURN_OVERLOAD_US apart. More than one in a hundred of the last quarter of a second, and not
// just one: the loop is overloaded, until those slices are over. So a pause is as short as a slice
// or two beyond its cause, and one slow turn, which a reload may take, is none.
//
//   Owns nothing; plain data, zero at first.  Thread the loop thread.  Allocates never.  Fails
//   never.

enum { TURN_SLICES = 10, TURN_SLICE_US = 25 * 1000 };

struct turn_watch {
    struct turn_slice {
        uint64_t number;    // since the clock's beginning
        uint32_t turns, overlong;
    } slices[TURN_SLICES];
    uint64_t slow;    // turns that took longer than BOUND_TURN_SLOW_US, ever
};

void turn_watch_add(struct turn_watch *watch, uint64_t now_us, uint64_t turn_us);
bool turn_watch_overloaded(const struct turn_watch *watch, uint64_t now_us);

#endif
