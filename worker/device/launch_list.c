// SPDX-License-Identifier: Apache-2.0
#include "worker/device/launch_list.h"

#include "common/invariant.h"

enum launch_kind {
    LAUNCH_KIND_EMBED,
    LAUNCH_KIND_MATMUL,
    LAUNCH_KIND_ROUTE,
    LAUNCH_KIND_EXPERTS,
    LAUNCH_KIND_EXCHANGE,
    LAUNCH_KIND_RMS_NORM,
    LAUNCH_KIND_ROPE_APPEND,
    LAUNCH_KIND_ATTENTION,
    LAUNCH_KIND_SAMPLE,
};

struct launch {
    enum launch_kind kind;
    uint8_t *scratch;
    size_t scratch_bytes;
    union {
        struct op_embed_args embed;
        struct op_matmul_args matmul;
        struct op_route_args route;
        struct op_experts_args experts;
        struct op_exchange_args exchange;
        struct op_rms_norm_args rms_norm;
        struct op_rope_append_args rope_append;
        struct op_attention_args attention;
        struct op_sample_args sample;
    } args;
};

struct launch_list {
    uint32_t count, max;
    struct launch launch[];
};

size_t launch_list_bytes(uint32_t launch_count) {
    return sizeof(struct launch_list) + launch_count * sizeof(struct launch);
}

struct launch_list *launch_list_init(void *memory, uint32_t launch_max) {
    struct launch_list *list = memory;
    list->count = 0;
    list->max = launch_max;
    return list;
}

uint32_t launch_list_count(const struct launch_list *list) {
    return list->count;
}

// ---- recording ---------------------------------------------------------------------------------

static struct launch *append(const struct op_ctx *ctx, enum launch_kind kind) {
    struct launch_list *list = ctx->pool;
    INVARIANT(list->count < list->max);
    struct launch *launch = &list->launch[list->count++];
    launch->kind = kind;
    launch->scratch = ctx->scratch;
    launch->scratch_bytes = ctx->scratch_bytes;
    return launch;
}

static void record_embed(const struct op_ctx *ctx, const struct op_embed_args *args) {
    append(ctx, LAUNCH_KIND_EMBED)->args.embed = *args;
}

static void record_matmul(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    append(ctx, LAUNCH_KIND_MATMUL)->args.matmul = *args;
}

static void record_route(const struct op_ctx *ctx, const struct op_route_args *args) {
    append(ctx, LAUNCH_KIND_ROUTE)->args.route = *args;
}

static void record_experts(const struct op_ctx *ctx, const struct op_experts_args *args) {
    append(ctx, LAUNCH_KIND_EXPERTS)->args.experts = *args;
}

static void record_exchange(const struct op_ctx *ctx, const struct op_exchange_args *args) {
    append(ctx, LAUNCH_KIND_EXCHANGE)->args.exchange = *args;
}

static void record_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args) {
    append(ctx, LAUNCH_KIND_RMS_NORM)->args.rms_norm = *args;
}

static void record_rope_append(const struct op_ctx *ctx, const struct op_rope_append_args *args) {
    append(ctx, LAUNCH_KIND_ROPE_APPEND)->args.rope_append = *args;
}

static void record_attention(const struct op_ctx *ctx, const struct op_attention_args *args) {
    append(ctx, LAUNCH_KIND_ATTENTION)->args.attention = *args;
}

static void record_sample(const struct op_ctx *ctx, const struct op_sample_args *args) {
    append(ctx, LAUNCH_KIND_SAMPLE)->args.sample = *args;
}

// A recorded operation has no work to spread.
static void no_parallel(void *pool, uint32_t task_count, op_task_fn fn, void *arg) {
    (void)pool, (void)task_count, (void)fn, (void)arg;
    UNREACHABLE();
}

void launch_list_record(struct launch_list *list, const struct ops *ops, const struct op_ctx *ctx,
                        struct ops *ops_out, struct op_ctx *ctx_out) {
    *ops_out = *ops;
    ops_out->embed = record_embed;
    ops_out->matmul = record_matmul;
    ops_out->route = record_route;
    ops_out->experts = record_experts;
    ops_out->exchange = record_exchange;
    ops_out->rms_norm = record_rms_norm;
    ops_out->rope_append = record_rope_append;
    ops_out->attention = record_attention;
    ops_out->sample = record_sample;
    *ctx_out =
        (struct op_ctx){.parallel = no_parallel, .pool = list, .thread_count = ctx->thread_count};
}

// ---- replay ------------------------------------------------------------------------------------

void launch_list_replay(const struct launch_list *list, const struct ops *ops,
                        const struct op_ctx *ctx) {
    struct op_ctx own = *ctx;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct launch *launch = &list->launch[i];
        own.scratch = launch->scratch;
        own.scratch_bytes = launch->scratch_bytes;
        switch (launch->kind) {
        case LAUNCH_KIND_EMBED:
            ops->embed(&own, &launch->args.embed);
            break;
        case LAUNCH_KIND_MATMUL:
            ops->matmul(&own, &launch->args.matmul);
            break;
        case LAUNCH_KIND_ROUTE:
            ops->route(&own, &launch->args.route);
            break;
        case LAUNCH_KIND_EXPERTS:
            ops->experts(&own, &launch->args.experts);
            break;
        case LAUNCH_KIND_EXCHANGE:
            ops->exchange(&own, &launch->args.exchange);
            break;
        case LAUNCH_KIND_RMS_NORM:
            ops->rms_norm(&own, &launch->args.rms_norm);
            break;
        case LAUNCH_KIND_ROPE_APPEND:
            ops->rope_append(&own, &launch->args.rope_append);
            break;
        case LAUNCH_KIND_ATTENTION:
            ops->attention(&own, &launch->args.attention);
            break;
        case LAUNCH_KIND_SAMPLE:
            ops->sample(&own, &launch->args.sample);
            break;
        }
    }
}
