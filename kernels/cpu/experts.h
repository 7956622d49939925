// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_EXPERTS_H
#define KERNELS_CPU_EXPERTS_H

#include "kernels/cpu/matmul.h"

// Mixture of experts: which experts a row goes to, and their products.
//
// The idea: rows are grouped by expert, so that an expert's weights are read once for all its rows.
// Every (row, expert) pair gets a line of its own in scratch; a row then adds the lines of its
// experts in ascending order of their ids, whatever came between them. So its bits do not depend on
// the other rows, and no two threads add to one place.
//
//   Owns nothing.  Thread as the operation table says.  Allocates never.  Fails never.

void experts_route(const struct op_ctx *ctx, const struct op_route_args *args);

size_t experts_scratch(const struct op_ctx *ctx, const struct op_experts_args *args,
                       const struct matmul_kernels *kernels);
void experts_run(const struct op_ctx *ctx, const struct op_experts_args *args,
                 const struct matmul_kernels *kernels);

#endif
