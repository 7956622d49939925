// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/matmul.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "kernels/cpu/arith.h"

// Packed bytes of a task when a pass is bound by reading weights: about a microsecond, many times
// the cost of taking a task, and small against the share of a thread that is taken away.
enum { TASK_BYTES = 16 * 1024 };
// Groups of a task when the pass is bound by arithmetic, if that gives every thread this many
// tasks.
enum { STRIP_GROUPS_LONG = MATMUL_PANEL_GROUPS, STRIP_GROUPS_SHORT = 3, TASKS_PER_THREAD = 8 };
// Input elements that one thread prepares faster than two can agree to share.
enum { PREPARE_ALONE_ELEMENTS = 4096 };

static uint32_t div_up(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}

// ---- scratch -----------------------------------------------------------------------------------

static bool any_weight(const struct op_matmul_args *args, bool (*is)(enum dtype dtype)) {
    for (uint32_t w = 0; w < args->weight_count; w++) {
        if (is(args->weight[w]->dtype)) {
            return true;
        }
    }
    return false;
}

static bool is_quantised(enum dtype dtype) {
    return !pack_is_plain(dtype);
}

static bool is_signed(enum dtype dtype) {
    return is_quantised(dtype) && !pack_has_min(dtype);
}

static uint32_t pass_rows(const struct op_matmul_args *args) {
    return args->pass_rows > 0 ? args->pass_rows : OP_MATMUL_PASS_ROWS;
}

// Lays the prepared rows out from `base` and returns their size; with base NULL only the size
// means anything.
static size_t lay_out_input(const struct op_matmul_args *args, uint8_t *base,
                            struct matmul_input *out) {
    uint32_t cols = args->weight[0]->cols;
    size_t rows = u32_min(args->rows.most, pass_rows(args));
    struct matmul_input input = {.cols = cols, .block_count = cols / PACK_BLOCK};
    uintptr_t start = (uintptr_t)base;
    uintptr_t at = start;
    if (any_weight(args, is_quantised)) {
        size_t block_bytes = bytes_to_lines(rows * input.block_count * sizeof(float));
        input.q = (int8_t *)at;
        at += bytes_to_lines(rows * cols);
        input.scale = (float *)at;
        at += block_bytes;
        input.sum = (float *)at;
        at += block_bytes;
    }
    if (any_weight(args, is_signed)) {
        input.q16 = (int16_t *)at;
        at += bytes_to_lines(rows * cols * sizeof(int16_t));
    }
    if (any_weight(args, pack_is_plain)) {
        input.x = (float *)at;
        at += bytes_to_lines(rows * cols * sizeof(float));
    }
    *out = input;
    return at - start;
}

static size_t stack_bytes(const struct op_matmul_args *args) {
    return args->parts > 1 && args->part_stride == 0 ? MATMUL_STACK_BYTES : 0;
}

size_t matmul_scratch(const struct op_ctx *ctx, const struct op_matmul_args *args,
                      const struct matmul_kernels *kernels) {
    struct matmul_input input;
    size_t each = bytes_to_lines(kernels->thread_scratch_bytes) + stack_bytes(args);
    return lay_out_input(args, NULL, &input) + each * ctx->thread_count;
}

// ---- input -------------------------------------------------------------------------------------

void matmul_transform(const struct op_matmul_args *args, uint32_t in_row, float rms_factor,
                      uint32_t begin, uint32_t count, float *out) {
    const float *x = args->x + (size_t)in_row * args->x_stride + begin;
    switch (args->input) {
    case OP_INPUT_PLAIN:
        memcpy(out, x, count * sizeof *out);
        return;
    case OP_INPUT_RMS_NORM:
        for (uint32_t i = 0; i < count; i++) {
            out[i] = args->norm_weight[begin + i] * (x[i] * rms_factor);
        }
        return;
    case OP_INPUT_SILU_MUL: {
        const float *x2 = args->x2 + (size_t)in_row * args->x_stride + begin;
        for (uint32_t i = 0; i < count; i++) {
            out[i] = arith_silu(x[i]) * x2[i];
        }
        return;
    }
    }
    UNREACHABLE();
}

// ---- tasks -------------------------------------------------------------------------------------

struct job {
    const struct op_matmul_args *args;
    const struct matmul_experts *experts;    // NULL: one weight for all rows
    const struct matmul_kernels *kernels;
    struct matmul_input input;
    uint32_t pass_begin;    // first row of this pass
    uint32_t rows_per_prepare_task;
    uint32_t panel_rows;                             // input rows of one task
    uint32_t strip_groups[OP_MATMUL_WEIGHTS_MAX];    // groups of one task
    uint32_t strip_count[OP_MATMUL_WEIGHTS_MAX];
    uint32_t strips_per_panel;    // over all weights
    uint8_t *thread_scratch;
    size_t thread_scratch_bytes;
};

static void prepare_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    struct job *job = arg;
    uint32_t begin = task_index * job->rows_per_prepare_task;
    uint32_t end = u32_min(begin + job->rows_per_prepare_task, job->input.row_count);
    for (uint32_t r = begin; r < end; r++) {
        uint32_t row = job->pass_begin + r;
        uint32_t in_row = job->args->row_index != NULL ? job->args->row_index[row] : row;
        job->kernels->prepare(job->args, in_row, &job->input, r);
    }
}

static void prepare_rows(const struct op_ctx *ctx, struct job *job) {
    uint32_t rows = job->input.row_count;
    if ((uint64_t)rows * job->input.cols <= PREPARE_ALONE_ELEMENTS) {
        job->rows_per_prepare_task = rows;
        prepare_task(job, 0, 0);
        return;
    }
    job->rows_per_prepare_task = div_up(PREPARE_ALONE_ELEMENTS / 2, job->input.cols);
    ctx->parallel(ctx->pool, div_up(rows, job->rows_per_prepare_task), prepare_task, job);
}

// Which rows a task has, and of which expert.
struct rows_of_task {
    uint32_t expert, begin, end, task_index;    // `task_index` among the expert's tasks
};

static struct rows_of_task find_rows(const struct job *job, uint32_t task_index) {
    if (job->experts == NULL) {
        return (struct rows_of_task){0, 0, job->input.row_count, task_index};
    }
    // The last expert whose tasks begin at or before this one.
    const uint32_t *begin = job->experts->task_begin;
    uint32_t low = 0, high = job->experts->count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (begin[middle] <= task_index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const uint32_t *row = job->experts->row_begin;
    uint32_t pass_end = job->pass_begin + job->input.row_count;
    uint32_t first = row[low] > job->pass_begin ? row[low] : job->pass_begin;
    return (struct rows_of_task){low, first - job->pass_begin,
                                 u32_min(row[low + 1], pass_end) - job->pass_begin,
                                 task_index - begin[low]};
}

// Neighbouring tasks share the input panel, which is what a core's cache keeps.
static void tile_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct job *job = arg;
    const struct op_matmul_args *args = job->args;
    struct rows_of_task rows = find_rows(job, task_index);
    uint32_t panel = rows.task_index / job->strips_per_panel;
    uint32_t strip = rows.task_index % job->strips_per_panel;
    uint32_t w = 0;
    while (strip >= job->strip_count[w]) {
        strip -= job->strip_count[w];
        w++;
    }
    struct op_weight weight = *args->weight[w];
    if (job->experts != NULL) {
        weight.data = (const uint8_t *)weight.data + job->experts->stride_bytes[w] * rows.expert;
    }
    uint32_t group_begin = strip * job->strip_groups[w];
    uint32_t row_begin = rows.begin + panel * job->panel_rows;
    uint32_t y_stride = args->y_stride[w];
    uint8_t *scratch = job->thread_scratch + job->thread_scratch_bytes * thread_index;
    struct matmul_tile tile = {
        .weight = &weight,
        .input = &job->input,
        .group_begin = group_begin,
        .group_end = u32_min(group_begin + job->strip_groups[w], pack_group_count(weight.rows)),
        .row_begin = row_begin,
        .row_end = u32_min(row_begin + job->panel_rows, rows.end),
        .part_count = args->parts > 1 ? args->parts : 1,
        .part_stride = args->part_stride,
        .y = args->y[w] + (size_t)job->pass_begin * y_stride,
        .y_stride = y_stride,
        .accumulate = args->accumulate,
        .scratch = scratch,
    };
    if (stack_bytes(args) > 0) {
        tile.stack =
            (float *)(void *)(scratch + bytes_to_lines(job->kernels->thread_scratch_bytes));
    }
    job->kernels->tile(&tile);
}

// Many rows: strips of a whole number of inner tiles (2 or 3 groups), long where there is work for
// everyone. Few rows: by bytes.
static void choose_strips(struct job *job, uint32_t row_count, uint32_t strip_groups) {
    job->strips_per_panel = 0;
    for (uint32_t w = 0; w < job->args->weight_count; w++) {
        const struct op_weight *weight = job->args->weight[w];
        uint32_t groups = strip_groups;
        if (row_count <= MATMUL_FEW_ROWS) {
            size_t group_bytes = pack_group_bytes(weight->dtype, weight->cols);
            groups = PACK_STRIP * div_up(TASK_BYTES, (uint32_t)group_bytes * PACK_STRIP);
        }
        job->strip_groups[w] = groups;
        job->strip_count[w] = div_up(pack_group_count(weight->rows), groups);
        job->strips_per_panel += job->strip_count[w];
    }
}

// Panels of `row_count` rows of equal size, in whole steps of the inner tile; returns their number.
static uint32_t choose_panels(struct job *job, uint32_t row_count) {
    uint32_t step = job->kernels->row_step;
    uint32_t panel_count = div_up(row_count, MATMUL_TILE_ROWS / step * step);
    job->panel_rows = div_up(div_up(row_count, panel_count), step) * step;
    return div_up(row_count, job->panel_rows);
}

static void run_tiles(const struct op_ctx *ctx, struct job *job) {
    uint32_t panel_count = choose_panels(job, job->input.row_count);
    choose_strips(job, job->input.row_count, STRIP_GROUPS_LONG);
    if (job->strips_per_panel * panel_count < TASKS_PER_THREAD * ctx->thread_count) {
        choose_strips(job, job->input.row_count, STRIP_GROUPS_SHORT);
    }
    ctx->parallel(ctx->pool, panel_count * job->strips_per_panel, tile_task, job);
}

// Rows of an expert in this pass.
static uint32_t expert_rows(const struct job *job, uint32_t expert) {
    const uint32_t *row = job->experts->row_begin;
    uint32_t end = u32_min(row[expert + 1], job->pass_begin + job->input.row_count);
    uint32_t begin = row[expert] > job->pass_begin ? row[expert] : job->pass_begin;
    return end > begin ? end - begin : 0;
}

// One size of panel and strip for all experts, that of the one with the most rows.
static void run_expert_tiles(const struct op_ctx *ctx, struct job *job) {
    const struct matmul_experts *experts = job->experts;
    uint32_t most = 0;
    for (uint32_t e = 0; e < experts->count; e++) {
        uint32_t rows = expert_rows(job, e);
        most = rows > most ? rows : most;
    }
    choose_panels(job, most);
    choose_strips(job, most, STRIP_GROUPS_SHORT);
    uint32_t task_count = 0;
    for (uint32_t e = 0; e < experts->count; e++) {
        experts->task_begin[e] = task_count;
        task_count += div_up(expert_rows(job, e), job->panel_rows) * job->strips_per_panel;
    }
    ctx->parallel(ctx->pool, task_count, tile_task, job);
}

void matmul_run_experts(const struct op_ctx *ctx, const struct op_matmul_args *args,
                        const struct matmul_experts *experts,
                        const struct matmul_kernels *kernels) {
    INVARIANT(args->weight_count >= 1);
    INVARIANT(args->weight_count <= OP_MATMUL_WEIGHTS_MAX);
    for (uint32_t w = 0; w < args->weight_count; w++) {
        INVARIANT(args->weight[w]->cols == args->weight[0]->cols);
        INVARIANT(args->parts <= 1 || args->weight[w]->cols % args->parts == 0);
    }
    INVARIANT(args->parts <= OP_PARTS_MAX);
    INVARIANT(ctx->scratch_bytes >= matmul_scratch(ctx, args, kernels));
    struct job job = {.args = args, .experts = experts, .kernels = kernels};
    size_t input_bytes = lay_out_input(args, ctx->scratch, &job.input);
    job.thread_scratch = ctx->scratch + input_bytes;
    job.thread_scratch_bytes = bytes_to_lines(kernels->thread_scratch_bytes) + stack_bytes(args);
    uint32_t row_count = op_rows_now(&args->rows);
    for (uint32_t begin = 0; begin < row_count; begin += pass_rows(args)) {
        job.pass_begin = begin;
        job.input.row_count = u32_min(row_count - begin, pass_rows(args));
        prepare_rows(ctx, &job);
        if (experts == NULL) {
            run_tiles(ctx, &job);
        } else {
            run_expert_tiles(ctx, &job);
        }
    }
}

void matmul_run(const struct op_ctx *ctx, const struct op_matmul_args *args,
                const struct matmul_kernels *kernels) {
    matmul_run_experts(ctx, args, NULL, kernels);
}
