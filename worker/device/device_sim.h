// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_DEVICE_DEVICE_SIM_H
#define WORKER_DEVICE_DEVICE_SIM_H

#include "common/buf.h"
#include "kernels/sim/ops_sim.h"
#include <stdbool.h>
#include <stdint.h>

// Devices that do not exist: `sim:NAME` behaves like the named one in memory and time.
//
// The idea: the worker's own code starts, plans and serves on it. Memory obeys the page rules of
// CUDA (sim_pages.h); drivers and libraries take theirs when they are used, by a function that
// nobody above this file can ask: what a start finds out by measuring, it finds out here by
// measuring too. What the table below says of a device is only where a plan begins.
//
//   Owns       its pages and graphs.
//   Thread     the step thread.
//   Allocates  as device.h says.
//   Fails      as device.h says; a broken page rule is our bug (INVARIANT).

// ---- the table of devices ----------------------------------------------------------------------

enum sim_fact {
    SIM_FACT_MEMORY,
    SIM_FACT_MULTIPROCESSORS,
    SIM_FACT_BANDWIDTH,
    SIM_FACT_ARITHMETIC,
    SIM_FACT_LINK,
    SIM_FACT_CONTEXT,
    SIM_FACT_LIBRARIES,
    SIM_FACT_GRAPH_NODE,
    SIM_FACT_COUNT
};

struct sim_spec {
    const char *name;    // as in sim:NAME
    const char *title;
    uint64_t memory_bytes;    // total, as CUDA reports it
    struct sim_machine machine;
    uint64_t context_bytes;
    uint64_t library_bytes;       // handles and code of libraries, once used
    uint64_t graph_node_bytes;    // of an executable graph, per kernel
    double link_bytes_per_s;      // to the other devices of the node, in one direction
    bool has_multicast;           // NVLink switches that reduce (NVLS)
    uint32_t estimated;           // bit per sim_fact that no measurement stands behind
};

enum { SIM_NAME_BYTES = 64 };    // of "sim:NAME"

const struct sim_spec *sim_spec_at(uint32_t index);        // NULL past the end
const struct sim_spec *sim_spec_find(const char *name);    // "h200" or "sim:h200"; NULL
const char *sim_fact_name(enum sim_fact fact);             // "graph bytes per kernel"
double sim_fact_value(const struct sim_spec *spec, enum sim_fact fact);

// Bytes that NCCL takes in a group of `world` ranks, with the settings of device-memory.md 2.6.
struct sim_comm {
    uint64_t channels, ring, tree, nvls;
};
struct sim_comm sim_comm_bytes(const struct sim_spec *spec, uint32_t world);

// Microseconds that messages between `world` ranks take: each byte of a sum travels twice over the
// links, less the own share, and each message waits for all (estimate: 8 us).
double sim_message_us(const struct sim_spec *spec, uint32_t world, uint64_t bytes, uint32_t count);

// ---- what the device takes for itself ----------------------------------------------------------

enum sim_event {
    SIM_EVENT_CONTEXT,    // the device is opened
    SIM_EVENT_LIBRARY,    // first launch of kernel `index`
    SIM_EVENT_GRAPH,      // graph number `index`, of `count` launches, is instantiated
    SIM_EVENT_REPLAY,     // first replay of any graph
    SIM_EVENT_FOREIGN,    // asked whenever memory is counted: what other processes hold now
};

struct sim_charge {
    enum sim_event event;
    uint32_t index, count;
};

// The default answers from the table of devices.
struct sim_costs {
    uint64_t (*fn)(void *ctx, const struct sim_charge *charge);
    void *ctx;
    const struct ops *ops;    // NULL: ops_sim(); tests bring operations of their own
};

#endif
