// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_events.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"

void sim_events_deinit(struct sim_events *events) {
    memory_free(events->heap);
    *events = (struct sim_events){0};
}

static bool before(const struct sim_event *a, const struct sim_event *b) {
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void sim_events_add(struct sim_events *events, uint64_t at_us, enum sim_event_kind kind,
                    uint32_t index, void *data) {
    if (events->count == events->capacity) {
        events->capacity = events->capacity == 0 ? 256 : 2 * events->capacity;
        events->heap = memory_realloc(events->heap, events->capacity * sizeof *events->heap);
        SIM_CHECK(events->heap != NULL, "no memory for events");
    }
    struct sim_event event = {at_us, events->order++, kind, index, data};
    uint32_t at = events->count++;
    while (at > 0 && before(&event, &events->heap[(at - 1) / 2])) {
        events->heap[at] = events->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    events->heap[at] = event;
}

bool sim_events_next(const struct sim_events *events, uint64_t *at_us) {
    if (events->count == 0) {
        return false;
    }
    *at_us = events->heap[0].at_us;
    return true;
}

struct sim_event sim_events_take(struct sim_events *events) {
    struct sim_event *heap = events->heap;
    struct sim_event first = heap[0];
    struct sim_event last = heap[--events->count];
    uint32_t at = 0;
    while (2 * at + 1 < events->count) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < events->count && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}
