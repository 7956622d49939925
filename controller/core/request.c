// SPDX-License-Identifier: Apache-2.0
#include "controller/core/request.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

struct request_table {
    struct request *requests;    // [request_max]
    uint32_t request_max;
    uint32_t count;
    uint32_t free_first;    // list through `next`
    uint64_t arrivals;
    uint32_t *index;    // open addressing, linear probing; REQUEST_NONE = empty
    uint32_t index_mask;
};

// All zero; each begins a line of the processor's cache.
static struct request *make_entries(uint32_t count) {
    size_t bytes = (size_t)count * sizeof(struct request);
    struct request *entries = memory_aligned(_Alignof(struct request), bytes);
    if (entries != NULL) {
        memset(entries, 0, bytes);
    }
    return entries;
}

enum status request_table_create(uint32_t request_max, struct request_table **out,
                                 struct error *err) {
    uint32_t cells = 4;
    while (cells < 2 * request_max) {
        cells *= 2;
    }
    struct request_table *table = memory_zalloc(sizeof *table);
    if (table == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a request table");
    }
    table->request_max = request_max;
    table->index_mask = cells - 1;
    table->requests = make_entries(request_max);
    table->index = memory_array(cells, sizeof *table->index);
    if (table->requests == NULL || table->index == NULL) {
        request_table_destroy(table);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a table of %u requests",
                         request_max);
    }
    for (uint32_t i = 0; i < request_max; i++) {
        table->requests[i].next = i + 1 < request_max ? i + 1 : REQUEST_NONE;
    }
    for (uint32_t i = 0; i < cells; i++) {
        table->index[i] = REQUEST_NONE;
    }
    table->free_first = request_max > 0 ? 0 : REQUEST_NONE;
    *out = table;
    return STATUS_OK;
}

void request_table_destroy(struct request_table *table) {
    if (table == NULL) {
        return;
    }
    memory_free(table->requests);
    memory_free(table->index);
    memory_free(table);
}

struct request *request_at(struct request_table *table, uint32_t index) {
    INVARIANT(index < table->request_max);
    INVARIANT(table->requests[index].state != REQUEST_FREE);
    return &table->requests[index];
}

struct request *request_table_entries(struct request_table *table) {
    return table->requests;
}

bool request_is_live(const struct request_table *table, uint32_t index) {
    INVARIANT(index < table->request_max);
    return table->requests[index].state != REQUEST_FREE;
}

// ---- id index ----------------------------------------------------------------------------------

// Ids are a counter of ours: a multiplicative hash spreads them well (Knuth, TAOCP 6.4).
static uint32_t home(const struct request_table *table, struct request_id id) {
    return (uint32_t)((id.value * 0x9E3779B97F4A7C15u) >> 32) & table->index_mask;
}

uint32_t request_find(const struct request_table *table, struct request_id id) {
    uint32_t cell = home(table, id);
    while (table->index[cell] != REQUEST_NONE) {
        if (table->requests[table->index[cell]].spec.id.value == id.value) {
            return table->index[cell];
        }
        cell = (cell + 1) & table->index_mask;
    }
    return REQUEST_NONE;
}

static void index_add(struct request_table *table, uint32_t request) {
    uint32_t cell = home(table, table->requests[request].spec.id);
    while (table->index[cell] != REQUEST_NONE) {
        cell = (cell + 1) & table->index_mask;
    }
    table->index[cell] = request;
}

// Removal with backward shift, so that no tombstones pile up.
static void index_remove(struct request_table *table, uint32_t request) {
    uint32_t hole = home(table, table->requests[request].spec.id);
    while (table->index[hole] != request) {
        INVARIANT(table->index[hole] != REQUEST_NONE);
        hole = (hole + 1) & table->index_mask;
    }
    table->index[hole] = REQUEST_NONE;
    uint32_t cell = (hole + 1) & table->index_mask;
    while (table->index[cell] != REQUEST_NONE) {
        uint32_t wanted = home(table, table->requests[table->index[cell]].spec.id);
        uint32_t distance_hole = (hole - wanted) & table->index_mask;
        uint32_t distance_cell = (cell - wanted) & table->index_mask;
        if (distance_hole < distance_cell) {
            table->index[hole] = table->index[cell];
            table->index[cell] = REQUEST_NONE;
            hole = cell;
        }
        cell = (cell + 1) & table->index_mask;
    }
}

// ---- table -------------------------------------------------------------------------------------

uint32_t request_table_add(struct request_table *table, const struct core_request *spec) {
    uint32_t index = table->free_first;
    if (index == REQUEST_NONE) {
        return REQUEST_NONE;
    }
    struct request *request = &table->requests[index];
    table->free_first = request->next;
    memset(request, 0, sizeof *request);
    request->spec = *spec;
    request->state = REQUEST_WAITING;
    request->known = spec->prompt_count + spec->resumed_count;
    request->prompt_count = spec->prompt_count;
    request->tokens = spec->tokens;
    request->id = spec->id;
    request->class_ = (uint8_t)spec->class_;
    request->want_logprobs = spec->sampling.want_logprobs;
    request->stop_count = (uint8_t)spec->sampling.stop_token_count;
    request->stop_first = spec->sampling.stop_tokens[0];
    request->slot = REQUEST_NONE;
    request->order = ++table->arrivals;
    table->count++;
    index_add(table, index);
    return index;
}

void request_go_behind(struct request_table *table, uint32_t index) {
    request_at(table, index)->order = ++table->arrivals;
}

void request_table_remove(struct request_table *table, uint32_t index) {
    struct request *request = request_at(table, index);
    index_remove(table, index);
    request->state = REQUEST_FREE;
    request->next = table->free_first;
    table->free_first = index;
    table->count--;
}

uint32_t request_table_max(const struct request_table *table) {
    return table->request_max;
}

uint32_t request_table_count(const struct request_table *table) {
    return table->count;
}

void request_table_audit(const struct request_table *table) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < table->request_max; i++) {
        const struct request *request = &table->requests[i];
        if (request->state == REQUEST_FREE) {
            continue;
        }
        live++;
        INVARIANT(request_find(table, request->spec.id) == i);
        INVARIANT(request->known <= request->spec.token_capacity);
        INVARIANT(request->computed <= request->known);
    }
    INVARIANT(live == table->count);
}
