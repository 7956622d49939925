// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv_copy.h"

#include <string.h>

static void copy_block(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct op_kv_copy_args *args = arg;
    size_t bytes = args->kv->block_stride_bytes;
    memcpy(args->step->kv_base + args->to[task_index] * bytes,
           args->step->kv_base + args->from[task_index] * bytes, bytes);
}

void kv_copy_run(const struct op_ctx *ctx, const struct op_kv_copy_args *args) {
    struct op_kv_copy_args copy = *args;    // tasks take a mutable argument
    ctx->parallel(ctx->pool, args->count, copy_block, &copy);
}
