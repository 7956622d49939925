// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/collective.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "worker/comm/ordered_sum.h"
#include <string.h>

enum { BUFFERS = 2, BUFFER_ALIGNMENT = 256 };

struct collective_rows collective_share(uint32_t rows, uint32_t rank, uint32_t world) {
    INVARIANT(rank < world);
    uint32_t each = (uint32_t)(((uint64_t)rows + world - 1) / world);
    uint64_t first = (uint64_t)each * rank;
    if (first >= rows) {
        return (struct collective_rows){rows, 0};
    }
    uint32_t left = rows - (uint32_t)first;
    return (struct collective_rows){(uint32_t)first, left < each ? left : each};
}

// ---- loopback ----------------------------------------------------------------------------------

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

static bool loopback_broken(const struct collective *collective) {
    (void)collective;
    return false;
}

static void loopback_all_reduce_add(struct collective *collective, const float *part, float *y,
                                    uint32_t rows, uint32_t cols) {
    (void)collective;
    ordered_add(part, y, (size_t)rows * cols);
}

static void loopback_reduce_scatter_add(struct collective *collective, const float *part, float *y,
                                        uint32_t rows, uint32_t cols) {
    struct collective_rows own = collective_share(rows, collective->rank, collective->world);
    ordered_add(part + (size_t)own.first * cols, y, (size_t)own.count * cols);
}

static void loopback_all_gather(struct collective *collective,
                                const struct collective_gather *args) {
    size_t begin = (size_t)collective->rank * args->x_cols;
    size_t own = begin < args->y_cols ? args->y_cols - begin : 0;
    own = own < args->x_cols ? own : args->x_cols;
    memset(args->y, 0, (size_t)args->row_count * args->y_cols * sizeof *args->y);
    for (size_t row = 0; row < args->row_count && own > 0; row++) {
        memcpy(args->y + row * args->y_cols + begin, args->x + row * args->x_cols,
               own * sizeof *args->x);
    }
}

static void loopback_broadcast(struct collective *collective, uint32_t root, void *bytes,
                               size_t byte_count) {
    (void)collective;
    (void)root;
    (void)bytes;
    (void)byte_count;
}

static void loopback_send(struct collective *collective, uint32_t peer, const void *bytes,
                          size_t byte_count) {
    (void)collective;
    (void)peer;
    (void)bytes;
    (void)byte_count;
}

static void loopback_receive(struct collective *collective, uint32_t peer, void *bytes,
                             size_t byte_count) {
    loopback_send(collective, peer, bytes, byte_count);
}

// Never attached: it has no life cycle.
static const struct collective_table loopback = {
    .name = "loopback",
    .broken = loopback_broken,
    .all_reduce_add = loopback_all_reduce_add,
    .reduce_scatter_add = loopback_reduce_scatter_add,
    .all_gather = loopback_all_gather,
    .broadcast = loopback_broadcast,
    .send = loopback_send,
    .receive = loopback_receive,
};

void collective_init_loopback(struct collective *collective, uint32_t rank, uint32_t world) {
    INVARIANT(rank < world);
    *collective = (struct collective){.table = &loopback, .rank = rank, .world = world};
}

// ---- life cycle --------------------------------------------------------------------------------

static const struct collective_table *const TABLES[] = {
    &collective_shm,
};

const struct collective_table *collective_find(const char *name) {
    for (size_t i = 0; i < sizeof TABLES / sizeof TABLES[0]; i++) {
        if (strcmp(TABLES[i]->name, name) == 0) {
            return TABLES[i];
        }
    }
    return NULL;
}

enum status collective_create(const struct collective_options *options, struct collective **out,
                              struct error *err) {
    if (options->world == 0 || options->world > BOUND_RANKS) {
        return error_set(err, STATUS_INVALID, "a group of %u ranks; 1 to %u are possible",
                         options->world, BOUND_RANKS);
    }
    if (options->rank >= options->world) {
        return error_set(err, STATUS_INVALID, "rank %u in a group of %u: 0 to %u are possible",
                         options->rank, options->world, options->world - 1);
    }
    const struct collective_table *table =
        options->table != NULL ? options->table : collective_find(options->name);
    if (table == NULL) {
        return error_set(err, STATUS_NOT_FOUND, "no collectives named '%.40s' in this build",
                         options->name);
    }
    TRY(table->create(options, out, err));
    (*out)->table = table;
    (*out)->rank = options->rank;
    (*out)->world = options->world;
    return STATUS_OK;
}

void collective_destroy(struct collective *collective) {
    if (collective != NULL) {
        collective->table->destroy(collective);
    }
}

static bool is_comm_id(const char *text) {
    return strlen(text) == COLLECTIVE_ID_BYTES - 1 &&
           strspn(text, "0123456789abcdef") == COLLECTIVE_ID_BYTES - 1;
}

enum status collective_attach(struct collective *collective, const struct collective_epoch *epoch,
                              struct error *err) {
    // It becomes part of a file's name.
    if (!is_comm_id(epoch->comm_id)) {
        return error_set(err, STATUS_INVALID, "communicator id '%.40s' is not 32 hex digits",
                         epoch->comm_id);
    }
    collective_detach(collective);
    return collective->table->attach(collective, epoch, err);
}

void collective_detach(struct collective *collective) {
    collective->table->detach(collective);
}

void collective_abort(struct collective *collective, uint64_t epoch) {
    collective->table->abort(collective, epoch);
}

bool collective_broken(const struct collective *collective) {
    return collective->table->broken(collective);
}

// ---- messages ----------------------------------------------------------------------------------

void collective_all_reduce_add(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols) {
    collective->table->all_reduce_add(collective, part, y, rows, cols);
}

void collective_reduce_scatter_add(struct collective *collective, const float *part, float *y,
                                   uint32_t rows, uint32_t cols) {
    collective->table->reduce_scatter_add(collective, part, y, rows, cols);
}

void collective_all_gather(struct collective *collective, const struct collective_gather *args) {
    collective->table->all_gather(collective, args);
}

void collective_broadcast(struct collective *collective, uint32_t root, void *bytes,
                          size_t byte_count) {
    INVARIANT(root < collective->world);
    collective->table->broadcast(collective, root, bytes, byte_count);
}

void collective_send(struct collective *collective, uint32_t peer, const void *bytes,
                     size_t byte_count) {
    INVARIANT(peer < collective->world);
    INVARIANT(peer != collective->rank);
    collective->table->send(collective, peer, bytes, byte_count);
}

void collective_receive(struct collective *collective, uint32_t peer, void *bytes,
                        size_t byte_count) {
    INVARIANT(peer < collective->world);
    INVARIANT(peer != collective->rank);
    collective->table->receive(collective, peer, bytes, byte_count);
}
