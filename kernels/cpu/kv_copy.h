// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_KV_COPY_H
#define KERNELS_CPU_KV_COPY_H

#include "kernels/ops.h"

// Blocks of the KV pool moved, one task per block.
//
//   Owns nothing.  Thread as ops.h.  Allocates never.  Fails never.

void kv_copy_run(const struct op_ctx *ctx, const struct op_kv_copy_args *args);

#endif
