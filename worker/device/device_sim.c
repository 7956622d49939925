// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device_sim.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "worker/device/device.h"
#include "worker/device/launch_list.h"
#include "worker/device/sim_pages.h"
#include <string.h>

enum { GRAPHS_MAX = 128 };

struct device_graph {
    struct launch_list *list;
};

struct device {
    const struct sim_spec *spec;
    struct sim_costs costs;
    struct sim_meter meter;
    struct op_ctx ctx;
    const struct ops *ops;
    struct memory_ledger *ledger;
    struct sim_pages *pages;
    uint64_t hidden_bytes;    // what drivers and libraries took for themselves
    // The capture that is going on, and what captures made. Lists of launches are the host's.
    struct ops capture_ops;
    struct op_ctx capture_ctx;
    struct device_graph graphs[GRAPHS_MAX];
    bool replayed;
    uint32_t graph_count;
};

// ---- what drivers and libraries take -----------------------------------------------------------

static uint64_t table_cost(void *ctx, const struct sim_charge *charge) {
    const struct sim_spec *spec = ctx;
    switch (charge->event) {
    case SIM_EVENT_CONTEXT:
        return spec->context_bytes;
    case SIM_EVENT_LIBRARY:
        // Handles and code come with the first product; our own kernels are part of the context.
        return charge->index == SIM_KERNEL_MATMUL ? spec->library_bytes : 0;
    case SIM_EVENT_GRAPH:
        return charge->count * spec->graph_node_bytes;
    case SIM_EVENT_REPLAY:
    case SIM_EVENT_FOREIGN:
        return 0;
    }
    UNREACHABLE();
}

static uint64_t ask(const struct device *device, enum sim_event event, uint32_t index,
                    uint32_t count) {
    struct sim_charge charge = {event, index, count};
    return device->costs.fn(device->costs.ctx, &charge);
}

// As on a GPU, nobody is told: whoever counts the device's memory finds it.
static void first_launch(void *ctx, enum sim_kernel kernel) {
    struct device *device = ctx;
    device->hidden_bytes += ask(device, SIM_EVENT_LIBRARY, kernel, 1);
}

static uint64_t sim_own_bytes(const struct device *device) {
    return sim_pages_bytes(device->pages) + device->hidden_bytes;
}

static uint64_t sim_free_bytes(const struct device *device) {
    uint64_t taken = sim_own_bytes(device) + ask(device, SIM_EVENT_FOREIGN, 0, 0);
    return device->spec->memory_bytes > taken ? device->spec->memory_bytes - taken : 0;
}

// ---- life cycle --------------------------------------------------------------------------------

static uint64_t sim_memory_bytes(const char *name) {
    const struct sim_spec *spec = sim_spec_find(name);
    return spec == NULL ? 0 : spec->memory_bytes;
}

static void sim_close(struct device *device) {
    if (device == NULL) {
        return;
    }
    for (uint32_t i = 0; i < device->graph_count; i++) {
        memory_free(device->graphs[i].list);
    }
    sim_pages_destroy(device->pages);
    memory_free(device);
}

static enum status open_context(struct device *device, struct error *err) {
    TRY(sim_pages_create(device->spec->memory_bytes, &device->pages, err));
    uint64_t context = ask(device, SIM_EVENT_CONTEXT, 0, 0);
    TRY(memory_ledger_charge(device->ledger, LEDGER_CONTEXT, context, err));
    device->hidden_bytes = context;
    return STATUS_OK;
}

static enum status sim_open(const struct device_options *options, struct device **out,
                            struct error *err) {
    const struct sim_spec *spec = sim_spec_find(options->name);
    if (spec == NULL) {
        return error_set(err, STATUS_UNSUPPORTED, "no device of the name '%s' is known",
                         options->name);
    }
    struct device *device = memory_zalloc(sizeof *device);
    if (device == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a device");
    }
    union {
        const void *from;
        void *to;
    } table_ctx = {.from = spec};    // read only
    device->spec = spec;
    device->costs = options->sim != NULL
                        ? *options->sim
                        : (struct sim_costs){.fn = table_cost, .ctx = table_ctx.to};
    device->ops = device->costs.ops != NULL ? device->costs.ops : ops_sim();
    device->ledger = options->ledger;
    device->meter = (struct sim_meter){
        .machine = &spec->machine, .first_launch = first_launch, .first_launch_ctx = device};
    ops_sim_context(&device->meter, &device->ctx);
    enum status status = open_context(device, err);
    if (status != STATUS_OK) {
        sim_close(device);
        return status;
    }
    *out = device;
    return STATUS_OK;
}

// ---- memory ------------------------------------------------------------------------------------

static size_t sim_page_bytes(const struct device *device) {
    (void)device;
    return SIM_PAGES_GRANULE;
}

static size_t whole_pages(size_t bytes) {
    return (bytes + SIM_PAGES_GRANULE - 1) / SIM_PAGES_GRANULE * SIM_PAGES_GRANULE;
}

static enum status sim_reserve(struct device *device, enum ledger_id line, size_t bytes, int fd,
                               struct device_range *out, struct error *err) {
    (void)fd;    // nothing here is worth surviving a process
    uint8_t *base = NULL;
    bytes = whole_pages(bytes);
    TRY(sim_pages_reserve(device->pages, bytes, &base, err));
    *out = (struct device_range){line, base, bytes, 0, -1};
    return STATUS_OK;
}

static enum status sim_map(struct device *device, struct device_range *range, size_t bytes,
                           struct error *err) {
    bytes = whole_pages(bytes);
    INVARIANT(bytes <= range->reserved_bytes - range->mapped_bytes);
    TRY(memory_ledger_charge(device->ledger, range->line, bytes, err));
    struct sim_handle handle;
    enum status status = sim_pages_new(device->pages, bytes, sim_free_bytes(device), &handle, err);
    if (status != STATUS_OK) {
        INVARIANT(status == STATUS_EXHAUSTED);
        error_context(err, "ledger line '%s'", memory_ledger_name(range->line));
        memory_ledger_release(device->ledger, range->line, bytes);
        return status;
    }
    uint8_t *at = range->base + range->mapped_bytes;
    INVARIANT(sim_pages_map(device->pages, at, bytes, 0, handle, err) == STATUS_OK);
    INVARIANT(sim_pages_set_access(device->pages, at, bytes, err) == STATUS_OK);
    range->mapped_bytes += bytes;
    return STATUS_OK;
}

static void sim_unmap(struct device *device, struct device_range *range, size_t bytes) {
    INVARIANT(bytes <= range->mapped_bytes);
    uint8_t *at = range->base + range->mapped_bytes - bytes;
    INVARIANT(sim_pages_unmap(device->pages, at, bytes, NULL) == STATUS_OK);
    range->mapped_bytes -= bytes;
    memory_ledger_release(device->ledger, range->line, bytes);
}

// ---- graphs ------------------------------------------------------------------------------------

static uint64_t sim_graph_bytes(const struct device *device, uint32_t launch_count) {
    return launch_count * device->spec->graph_node_bytes;
}

static uint64_t sim_found_bytes(const struct device *device, enum ledger_id line, uint32_t world) {
    struct sim_comm comm = sim_comm_bytes(device->spec, world);
    switch ((int)line) {
    case LEDGER_LIBRARIES:
        return device->spec->library_bytes;
    case LEDGER_COMM_CHANNELS:
        return comm.channels;
    case LEDGER_COMM_RING:
        return comm.ring;
    case LEDGER_COMM_TREE:
        return comm.tree;
    case LEDGER_COMM_NVLS:
        return comm.nvls;
    default:
        return 0;
    }
}

static enum status take_for_graph(struct device *device, enum ledger_id line, uint32_t launch_count,
                                  struct error *err) {
    uint64_t bytes = ask(device, SIM_EVENT_GRAPH, device->graph_count, launch_count);
    uint64_t left = sim_free_bytes(device);
    if (bytes > left) {
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line '%s': a graph of %u launches takes %llu bytes, the device "
                         "has %llu left",
                         memory_ledger_name(line), launch_count, (unsigned long long)bytes,
                         (unsigned long long)left);
    }
    TRY(memory_ledger_charge(device->ledger, line, bytes, err));
    device->hidden_bytes += bytes;
    return STATUS_OK;
}

// The list is the host's; what the driver takes for the executable graph is the device's.
static enum status sim_capture_begin(struct device *device, enum ledger_id line,
                                     uint32_t launch_count, struct device_capture *out,
                                     struct error *err) {
    INVARIANT(device->graph_count < GRAPHS_MAX);
    void *memory = memory_aligned(64, launch_list_bytes(launch_count));
    if (memory == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a graph of %u launches",
                         launch_count);
    }
    enum status status = take_for_graph(device, line, launch_count, err);
    if (status != STATUS_OK) {
        memory_free(memory);
        return status;
    }
    struct device_graph *graph = &device->graphs[device->graph_count];
    *graph = (struct device_graph){launch_list_init(memory, launch_count)};
    launch_list_record(graph->list, device->ops, &device->ctx, &device->capture_ops,
                       &device->capture_ctx);
    *out = (struct device_capture){&device->capture_ops, &device->capture_ctx};
    return STATUS_OK;
}

static struct device_graph *sim_capture_end(struct device *device) {
    return &device->graphs[device->graph_count++];
}

static void sim_replay(struct device *device, const struct device_graph *graph) {
    if (!device->replayed) {
        device->replayed = true;
        device->hidden_bytes += ask(device, SIM_EVENT_REPLAY, 0, 1);
    }
    launch_list_replay(graph->list, device->ops, &device->ctx);
}

// ---- the table ---------------------------------------------------------------------------------

static const struct ops *sim_ops(const struct device *device) {
    return device->ops;
}

static const struct op_ctx *sim_ctx(const struct device *device) {
    return &device->ctx;
}

const struct device_table device_sim = {
    .name = "sim",
    .memory_bytes = sim_memory_bytes,
    .kv_bytes_default = 0,
    .computes = false,
    .takes_on_first_use = true,
    .open = sim_open,
    .close = sim_close,
    .page_bytes = sim_page_bytes,
    .reserve = sim_reserve,
    .map = sim_map,
    .unmap = sim_unmap,
    .own_bytes = sim_own_bytes,
    .free_bytes = sim_free_bytes,
    .graph_bytes = sim_graph_bytes,
    .found_bytes = sim_found_bytes,
    .capture_begin = sim_capture_begin,
    .capture_end = sim_capture_end,
    .replay = sim_replay,
    .ops = sim_ops,
    .ctx = sim_ctx,
};
