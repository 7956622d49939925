// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_EVENTS_H
#define TESTS_SIMULATION_SIM_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

// What will happen, in order of virtual time; at one time, in the order in which it was said.
//
//   Owns       its heap; what `data` points to belongs to whoever put it there.
//   Thread     one.
//   Allocates  as it grows.
//   Fails      by sim_fail.

enum sim_event_kind {
    SIM_EVENT_ARRIVAL,    // client `index` sends its request
    SIM_EVENT_SOURCE,     // the source's next client is due
    SIM_EVENT_CANCEL,     // client `index` leaves
    SIM_EVENT_STOP,       // a stop string of client `index` matched
    SIM_EVENT_RESULT,     // `data` arrives
    SIM_EVENT_JOIN,       // the worker of group `index` sends its capacity
    SIM_EVENT_LOST,       // connection `index` is seen to have ended
    SIM_EVENT_FAULT,      // fault `index` is due
    SIM_EVENT_TIMER,
};

struct sim_event {
    uint64_t at_us;
    uint64_t order;
    enum sim_event_kind kind;
    uint32_t index;
    void *data;
};

struct sim_events {
    struct sim_event *heap;
    uint32_t count, capacity;
    uint64_t order;
};

void sim_events_deinit(struct sim_events *events);
void sim_events_add(struct sim_events *events, uint64_t at_us, enum sim_event_kind kind,
                    uint32_t index, void *data);
bool sim_events_next(const struct sim_events *events, uint64_t *at_us);    // false: none
struct sim_event sim_events_take(struct sim_events *events);

#endif
