// SPDX-License-Identifier: Apache-2.0
// The table of devices. Every number says where it is from; those that no measurement or data sheet
// stands behind carry a bit in `estimated`, and `tare plan` prints them so. Sources:
//
//   [DS]  vendor data sheet: memory bandwidth, dense bf16 products with fp32 sums (half of the
//         figure "with sparsity"), multiprocessors, NVLink or PCIe in one direction.
//   [DM]  device-memory.md: the memory of an H200 (2.2), graph bytes per kernel (2.5, the newer
//         figure), library handles (2.4: "a little"; code of the kernels used is our estimate).
//   [OOM] "total capacity" in public out-of-memory reports: H100 79.11 GiB (vllm issue 27508),
//         RTX 4090 23.65 GiB (llama-int8 issue 7), RTX 5090 Laptop 23.46 GiB (vllm issue 57475).
//         Two digits after the point, so the byte count is not exact.
//   [CTX] a bare context grows with the multiprocessors: 426 MiB on 142 (RTX 6000 Ada, unsloth-zoo
//         pull request 1053), 555 MiB on 188 (RTX PRO 6000) and 107 MiB on 34 (RTX 4060 Ti, both
//         llama.cpp pull request 23604): 3 MiB each. With 2,048 threads per multiprocessor instead
//         of 1,536 the same stack takes a third more: 4 MiB.
#include "common/invariant.h"
#include "worker/device/device_sim.h"

#include <string.h>

enum { MIB = 1024 * 1024, GRAPH_NODE_BYTES = 10 * 1024, LIBRARY_MIB = 96 };

#define GIB_HUNDREDTHS(hundredths) ((uint64_t)(hundredths)*1024 * MIB / 100)
#define FACT(name) (1u << SIM_FACT_##name)
#define ALWAYS_ESTIMATED (FACT(CONTEXT) | FACT(LIBRARIES) | FACT(GRAPH_NODE))

// name, title, memory, multiprocessors, GB/s, TFLOP/s, link GB/s, context MiB per multiprocessor,
// multicast, estimated besides context, libraries and graphs
#define SPEC(name, title, memory, sms, gbs, tflops, link, context, multicast, unsure)              \
    {                                                                                              \
        name, title, memory, {sms, (gbs)*1e9, (tflops)*1e12, 2.0},                                 \
            (uint64_t)(context) * (sms)*MIB, (uint64_t)LIBRARY_MIB *MIB, GRAPH_NODE_BYTES,         \
            (link)*1e9, multicast, ALWAYS_ESTIMATED | (unsure)                                     \
    }

static const struct sim_spec specs[] = {
    // [OOM]; [DS] H100 SXM5: 3.35 TB/s, 989.4 TFLOP/s, 132 multiprocessors
    SPEC("h100", "NVIDIA H100 80GB SXM", GIB_HUNDREDTHS(7911), 132, 3350, 989.4, 450, 4, true, 0),
    // [DM] 150,110,011,392 B; [DS] 4.8 TB/s, 989.4 TFLOP/s
    SPEC("h200", "NVIDIA H200 SXM", 150110011392u, 132, 4800, 989.4, 450, 4, true, 0),
    // memory: nominal 180 GB less what a driver keeps, unmeasured; [DS] 8 TB/s, 2.25 PFLOP/s
    SPEC("b200", "NVIDIA B200 SXM", GIB_HUNDREDTHS(17835), 148, 8000, 2250, 900, 4, true,
         FACT(MEMORY)),
    // memory unmeasured; [DS] 1,792 GB/s, 209.5 TFLOP/s, 170 multiprocessors
    SPEC("rtx5090", "NVIDIA GeForce RTX 5090", GIB_HUNDREDTHS(3136), 170, 1792, 209.5, 64, 3, false,
         FACT(MEMORY)),
    // [OOM]; [DS] 896 GB/s, 82 multiprocessors; products follow the power limit: unmeasured
    SPEC("rtx5090-laptop", "NVIDIA GeForce RTX 5090 Laptop", GIB_HUNDREDTHS(2346), 82, 896, 114, 32,
         3, false, FACT(ARITHMETIC) | FACT(LINK)),
    // [OOM]; [DS] 1,008 GB/s, 165.2 TFLOP/s, 128 multiprocessors
    SPEC("rtx4090", "NVIDIA GeForce RTX 4090", GIB_HUNDREDTHS(2365), 128, 1008, 165.2, 32, 3, false,
         0),
    // memory unmeasured; [DS] 864 GB/s, 362 TFLOP/s, 142 multiprocessors
    SPEC("l40s", "NVIDIA L40S", GIB_HUNDREDTHS(4439), 142, 864, 362, 32, 3, false, FACT(MEMORY)),
    // memory unmeasured; [DS] A100 SXM: 2,039 GB/s, 312 TFLOP/s, 108 multiprocessors
    SPEC("a100-80g", "NVIDIA A100 80GB SXM", GIB_HUNDREDTHS(7915), 108, 2039, 312, 300, 4, false,
         FACT(MEMORY)),
};
enum { SPEC_COUNT = sizeof specs / sizeof *specs };

const struct sim_spec *sim_spec_at(uint32_t index) {
    return index < SPEC_COUNT ? &specs[index] : NULL;
}

const struct sim_spec *sim_spec_find(const char *name) {
    static const char PREFIX[] = "sim:";
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) == 0) {
        name += sizeof PREFIX - 1;
    }
    for (uint32_t i = 0; i < SPEC_COUNT; i++) {
        if (strcmp(specs[i].name, name) == 0) {
            return &specs[i];
        }
    }
    return NULL;
}

const char *sim_fact_name(enum sim_fact fact) {
    static const char *const names[SIM_FACT_COUNT] = {
        "memory bytes",          "multiprocessors", "bytes per second", "operations per second",
        "link bytes per second", "context bytes",   "library bytes",    "graph bytes per kernel"};
    INVARIANT(fact < SIM_FACT_COUNT);
    return names[fact];
}

double sim_fact_value(const struct sim_spec *spec, enum sim_fact fact) {
    switch (fact) {
    case SIM_FACT_MEMORY:
        return (double)spec->memory_bytes;
    case SIM_FACT_MULTIPROCESSORS:
        return spec->machine.multiprocessors;
    case SIM_FACT_BANDWIDTH:
        return spec->machine.bytes_per_s;
    case SIM_FACT_ARITHMETIC:
        return spec->machine.flops_per_s;
    case SIM_FACT_LINK:
        return spec->link_bytes_per_s;
    case SIM_FACT_CONTEXT:
        return (double)spec->context_bytes;
    case SIM_FACT_LIBRARIES:
        return (double)spec->library_bytes;
    case SIM_FACT_GRAPH_NODE:
        return (double)spec->graph_node_bytes;
    case SIM_FACT_COUNT:
        break;
    }
    UNREACHABLE();
}

// device-memory.md 2.6, "recommended configuration": 8 channels, NCCL_BUFFSIZE 1 MiB,
// NCCL_LL128_BUFFSIZE 256 KiB, so that a connection is 2 + 2 MiB. Dense families send to nobody in
// particular, so there are no connections for that.
struct sim_comm sim_comm_bytes(const struct sim_spec *spec, uint32_t world) {
    enum { CHANNELS = 8, CONNECTION_MIB = 4, BOOKKEEPING_MIB = 6, PEER_MIB = 2 };
    if (world == 1) {
        return (struct sim_comm){0};
    }
    uint64_t channel = BOOKKEEPING_MIB + (spec->has_multicast ? PEER_MIB : 0);
    uint64_t connections = (uint64_t)CHANNELS * CONNECTION_MIB * MIB;
    return (struct sim_comm){
        .channels = CHANNELS * channel * MIB,
        .ring = connections,
        .tree = connections,    // those that it does not share with the ring: at most as many
        // channels * 2 * 8 * 128 KiB * heads, one head a rank
        .nvls = spec->has_multicast ? (uint64_t)CHANNELS * 2 * world * MIB : 0,
    };
}

double sim_message_us(const struct sim_spec *spec, uint32_t world, uint64_t bytes, uint32_t count) {
    static const double WAIT_US = 8.0;
    if (world == 1) {
        return 0.0;
    }
    double share = 2.0 * (world - 1) / world;
    return share * (double)bytes / spec->link_bytes_per_s * 1e6 + WAIT_US * count;
}
