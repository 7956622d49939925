// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/experts.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "kernels/cpu/arith.h"

// Of pairs that are not this rank's.
static const uint32_t NO_PAIR = UINT32_MAX;

enum {
    ROUTE_TASK_LOGITS = 2048,    // some microseconds of exponentials
    COMBINE_TASK_ELEMENTS = 4096,
    COMBINE_COLS = 256,    // added at once: what waits for its partner stays in a first-level cache
};

static uint32_t rows_per_task(uint32_t task_elements, uint32_t row_elements) {
    return row_elements >= task_elements ? 1 : task_elements / row_elements;
}

static uint32_t task_count(uint32_t rows, uint32_t per_task) {
    return rows / per_task + (rows % per_task != 0);
}

// ---- routing -----------------------------------------------------------------------------------

// The largest logit that is not taken, ties to the smaller id. Not-a-number comes last, so that
// there are always enough to choose.
static uint32_t next_largest(const float *logits, uint32_t count, const uint32_t *taken,
                             uint32_t taken_count) {
    uint32_t best = UINT32_MAX;
    for (uint32_t e = 0; e < count; e++) {
        bool is_taken = false;
        for (uint32_t i = 0; i < taken_count && !is_taken; i++) {
            is_taken = taken[i] == e;
        }
        bool better = best == UINT32_MAX || logits[e] > logits[best] ||
                      (logits[best] != logits[best] && logits[e] == logits[e]);
        if (!is_taken && better) {
            best = e;
        }
    }
    return best;
}

static void sort_ascending(uint32_t *ids, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        uint32_t id = ids[i];
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = id;
    }
}

static void route_row(const struct op_route_args *args, uint32_t row) {
    const float *logits = args->logits + (size_t)row * args->expert_count;
    uint32_t *chosen = args->chosen + (size_t)row * args->used;
    float *share = args->share + (size_t)row * args->used;
    for (uint32_t i = 0; i < args->used; i++) {
        chosen[i] = next_largest(logits, args->expert_count, chosen, i);
    }
    float largest = logits[chosen[0]];
    float all = 0.0f;
    for (uint32_t e = 0; e < args->expert_count; e++) {
        all += arith_exp(logits[e] - largest);
    }
    sort_ascending(chosen, args->used);
    float sum = 0.0f;
    for (uint32_t i = 0; i < args->used; i++) {
        share[i] = arith_exp(logits[chosen[i]] - largest) / all;
        sum += share[i];
    }
    for (uint32_t i = 0; i < args->used && args->normalise; i++) {
        share[i] /= sum;
    }
}

static void route_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct op_route_args *args = arg;
    uint32_t each = rows_per_task(ROUTE_TASK_LOGITS, args->expert_count);
    uint32_t end = u32_min((task_index + 1) * each, op_rows_now(&args->rows));
    for (uint32_t row = task_index * each; row < end; row++) {
        route_row(args, row);
    }
}

void experts_route(const struct op_ctx *ctx, const struct op_route_args *args) {
    INVARIANT(args->used >= 1 && args->used <= args->expert_count);
    struct op_route_args copy = *args;
    uint32_t each = rows_per_task(ROUTE_TASK_LOGITS, args->expert_count);
    ctx->parallel(ctx->pool, task_count(op_rows_now(&args->rows), each), route_task, &copy);
}

// ---- scratch -----------------------------------------------------------------------------------

struct layout {
    uint32_t *row_begin;     // [count + 1] first pair of each expert
    uint32_t *task_begin;    // [count + 1]
    uint32_t *pair_row;      // [pairs] row of each pair
    uint32_t *pair_of;       // [rows, used] pair of each choice, or NO_PAIR
    float *gate, *up;        // [pairs, inter]
    float *out;              // [pairs, hidden]
    uint8_t *rest;           // of the products
};

static uint8_t *carve(uint8_t **at, size_t bytes) {
    uint8_t *begin = *at;
    *at = (uint8_t *)((uintptr_t)begin + bytes_to_lines(bytes));
    return begin;
}

// Lays out from `base`, NULL when only the size counts, and returns the bytes before `rest`.
static size_t lay_out(const struct op_experts_args *args, uint8_t *base, struct layout *out) {
    size_t count = args->gate->count;
    size_t pairs = (size_t)args->rows.most * u32_min(args->used, args->gate->count);
    size_t inter_bytes = pairs * args->gate->first.rows * sizeof(float);
    uint8_t *at = base;
    out->row_begin = (uint32_t *)(void *)carve(&at, (count + 1) * sizeof(uint32_t));
    out->task_begin = (uint32_t *)(void *)carve(&at, (count + 1) * sizeof(uint32_t));
    out->pair_row = (uint32_t *)(void *)carve(&at, pairs * sizeof(uint32_t));
    out->pair_of =
        (uint32_t *)(void *)carve(&at, (size_t)args->rows.most * args->used * sizeof(uint32_t));
    out->gate = (float *)(void *)carve(&at, inter_bytes);
    out->up = (float *)(void *)carve(&at, inter_bytes);
    out->out = (float *)(void *)carve(&at, pairs * args->down->first.rows * sizeof(float));
    out->rest = at;
    return (uintptr_t)at - (uintptr_t)base;
}

static struct op_matmul_args inner_args(const struct op_experts_args *args, uint32_t pairs,
                                        const struct layout *lay) {
    uint32_t inter = args->gate->first.rows;
    return (struct op_matmul_args){
        .input = OP_INPUT_RMS_NORM,
        .x = args->x,
        .x_stride = args->gate->first.cols,
        .row_index = lay->pair_row,
        .rows = {.most = pairs},
        .pass_rows = args->pass_rows,
        .norm_weight = args->norm_weight,
        .norm_eps = args->norm_eps,
        .weight_count = 2,
        .weight = {&args->gate->first, &args->up->first},
        .y = {lay->gate, lay->up},
        .y_stride = {inter, inter},
    };
}

static struct op_matmul_args outer_args(const struct op_experts_args *args, uint32_t pairs,
                                        const struct layout *lay) {
    return (struct op_matmul_args){
        .input = OP_INPUT_SILU_MUL,
        .x = lay->gate,
        .x2 = lay->up,
        .x_stride = args->down->first.cols,
        .rows = {.most = pairs},
        .pass_rows = args->pass_rows,
        .weight_count = 1,
        .weight = {&args->down->first},
        .y = {lay->out},
        .y_stride = {args->down->first.rows},
    };
}

static size_t products_scratch(const struct op_ctx *ctx, const struct op_experts_args *args,
                               uint32_t pairs, const struct layout *lay,
                               const struct matmul_kernels *kernels) {
    struct op_matmul_args inner = inner_args(args, pairs, lay);
    struct op_matmul_args outer = outer_args(args, pairs, lay);
    size_t inner_bytes = matmul_scratch(ctx, &inner, kernels);
    size_t outer_bytes = matmul_scratch(ctx, &outer, kernels);
    return inner_bytes > outer_bytes ? inner_bytes : outer_bytes;
}

size_t experts_scratch(const struct op_ctx *ctx, const struct op_experts_args *args,
                       const struct matmul_kernels *kernels) {
    struct layout lay;
    size_t bytes = lay_out(args, NULL, &lay);
    uint32_t pairs = args->rows.most * u32_min(args->used, args->gate->count);
    return bytes + products_scratch(ctx, args, pairs, &lay, kernels);
}

// ---- products ----------------------------------------------------------------------------------

// Sorts the choices by expert, rows ascending within each; returns how many are this rank's.
static uint32_t make_pairs(const struct op_experts_args *args, uint32_t row_count,
                           const struct layout *lay) {
    uint32_t count = args->gate->count;
    uint32_t choice_count = row_count * args->used;
    memset(lay->row_begin, 0, (count + 1) * sizeof *lay->row_begin);
    for (uint32_t i = 0; i < choice_count; i++) {
        uint32_t expert = args->chosen[i] - args->expert_begin;    // of lower ranks: wraps
        if (expert < count) {
            lay->row_begin[expert + 1]++;
        }
    }
    for (uint32_t e = 0; e < count; e++) {
        lay->task_begin[e] = lay->row_begin[e];    // where the expert's next pair goes
        lay->row_begin[e + 1] += lay->row_begin[e];
    }
    for (uint32_t i = 0; i < choice_count; i++) {
        uint32_t expert = args->chosen[i] - args->expert_begin;
        lay->pair_of[i] = NO_PAIR;
        if (expert < count) {
            uint32_t pair = lay->task_begin[expert]++;
            lay->pair_of[i] = pair;
            lay->pair_row[pair] = i / args->used;
        }
    }
    return lay->row_begin[count];
}

struct combine {
    const struct op_experts_args *args;
    const struct layout *lay;
    uint32_t row_count;
};

static void add_scaled(float *sum, const float *x, float share, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        sum[i] += share * x[i];
    }
}

// Columns [begin, begin + count) of one row: each part's experts, then the parts by pairs.
static void combine_cols(const struct combine *c, uint32_t row, uint32_t begin, uint32_t count) {
    const struct op_experts_args *args = c->args;
    uint32_t parts = args->parts > 1 ? args->parts : 1;
    uint32_t part_experts = args->gate->count / parts;
    size_t hidden = args->down->first.rows;
    size_t first = (size_t)row * args->used;
    float waiting[MATMUL_STACK_LEVELS][COMBINE_COLS];
    float sum[COMBINE_COLS];
    uint32_t choice = 0;
    for (uint32_t part = 0; part < parts; part++) {
        memset(sum, 0, count * sizeof *sum);
        uint32_t end = args->expert_begin + (part + 1) * part_experts;
        for (; choice < args->used && args->chosen[first + choice] < end; choice++) {
            uint32_t pair = c->lay->pair_of[first + choice];
            if (pair != NO_PAIR) {
                add_scaled(sum, c->lay->out + pair * hidden + begin, args->share[first + choice],
                           count);
            }
        }
        if (args->shared != NULL) {
            const float *shared = args->shared + args->shared_stride * part;
            float gate = 1.0f / (1.0f + arith_exp(-args->shared_gate[row]));
            add_scaled(sum, shared + row * hidden + begin, gate, count);
        }
        uint32_t level = 0;
        for (; (part >> level) % 2 == 1; level++) {
            for (uint32_t i = 0; i < count; i++) {
                sum[i] = waiting[level][i] + sum[i];
            }
        }
        if (part + 1 < parts) {
            memcpy(waiting[level], sum, count * sizeof *sum);
        }
    }
    float *y = args->y + row * hidden + begin;
    for (uint32_t i = 0; i < count; i++) {
        y[i] = args->accumulate ? y[i] + sum[i] : sum[i];
    }
}

static void combine_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct combine *c = arg;
    uint32_t hidden = c->args->down->first.rows;
    uint32_t each = rows_per_task(COMBINE_TASK_ELEMENTS, hidden);
    uint32_t end = u32_min((task_index + 1) * each, c->row_count);
    for (uint32_t row = task_index * each; row < end; row++) {
        for (uint32_t begin = 0; begin < hidden; begin += COMBINE_COLS) {
            combine_cols(c, row, begin, u32_min(hidden - begin, COMBINE_COLS));
        }
    }
}

void experts_run(const struct op_ctx *ctx, const struct op_experts_args *args,
                 const struct matmul_kernels *kernels) {
    INVARIANT(args->parts <= OP_PARTS_MAX);
    INVARIANT(args->parts <= 1 || args->gate->count % args->parts == 0);
    INVARIANT(ctx->scratch_bytes >= experts_scratch(ctx, args, kernels));
    struct layout lay;
    size_t used_bytes = lay_out(args, ctx->scratch, &lay);
    uint32_t row_count = op_rows_now(&args->rows);
    uint32_t pairs = make_pairs(args, row_count, &lay);
    struct op_ctx inner_ctx = *ctx;
    inner_ctx.scratch = lay.rest;
    inner_ctx.scratch_bytes = ctx->scratch_bytes - used_bytes;
    struct matmul_experts experts = {
        .count = args->gate->count,
        .row_begin = lay.row_begin,
        .stride_bytes = {args->gate->stride_bytes, args->up->stride_bytes},
        .task_begin = lay.task_begin,
    };
    struct op_matmul_args inner = inner_args(args, pairs, &lay);
    matmul_run_experts(&inner_ctx, &inner, &experts, kernels);
    experts.stride_bytes[0] = args->down->stride_bytes;
    struct op_matmul_args outer = outer_args(args, pairs, &lay);
    matmul_run_experts(&inner_ctx, &outer, &experts, kernels);
    struct combine combine = {args, &lay, row_count};
    uint32_t each = rows_per_task(COMBINE_TASK_ELEMENTS, args->down->first.rows);
    ctx->parallel(ctx->pool, task_count(row_count, each), combine_task, &combine);
}
