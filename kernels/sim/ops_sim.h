// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_SIM_OPS_SIM_H
#define KERNELS_SIM_OPS_SIM_H

#include "kernels/ops.h"
#include <stdbool.h>

// Operations of a device that does not exist: sizes and scratch of the CUDA kernels, no arithmetic.
//
// The idea: planning, capturing and serving ask the same questions of this table as of any other;
// running an operation only adds up what a machine would do (bytes moved, operations, time), so the
// reader that runs is here the reader that simulates. Activations and logits are never read or
// written; a drawn token comes from the request's counter-based generator, so that a simulated
// worker can serve and a replay draws the same.
//
//   Owns       nothing; the meter belongs to whoever made the context.
//   Thread     the step thread; everything runs on it.
//   Allocates  never.
//   Fails      never.

struct sim_machine {
    uint32_t multiprocessors;
    double bytes_per_s;    // device memory, as published
    double flops_per_s;    // dense bf16 products with float32 sums, as published
    double launch_us;      // from one launch to the next when nobody waits for the host
};

enum sim_kernel {
    SIM_KERNEL_EMBED,
    SIM_KERNEL_MATMUL,
    SIM_KERNEL_ROUTE,
    SIM_KERNEL_EXPERTS,
    SIM_KERNEL_RMS_NORM,
    SIM_KERNEL_ROPE_APPEND,
    SIM_KERNEL_ATTENTION,
    SIM_KERNEL_SAMPLE,
    SIM_KERNEL_COUNT
};

struct sim_meter {
    const struct sim_machine *machine;
    double bytes, flops, us;
    uint64_t launch_count;
    // Told once of each kernel, before its first launch: where libraries load code.
    void (*first_launch)(void *ctx, enum sim_kernel kernel);
    void *first_launch_ctx;
    bool launched[SIM_KERNEL_COUNT];
};

// A context whose thread_count is the number of multiprocessors, which scratch depends on.
// Keeps `meter`.
void ops_sim_context(struct sim_meter *meter, struct op_ctx *out);
const struct ops *ops_sim(void);

#endif
