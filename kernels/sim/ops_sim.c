// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/ops_sim.h"

#include "common/rng.h"
#include <math.h>
#include <string.h>

// Scratch follows device-memory.md, the table of section 3; each function names its row. Times are
// the larger of memory and arithmetic at a share of the published peaks that good kernels reach
// (estimates: 0.80 of bandwidth, 0.70 of dense products), and a launch.
static const double BANDWIDTH_SHARE = 0.80;
static const double ARITHMETIC_SHARE = 0.70;

enum {
    MIB = 1024 * 1024,
    LIBRARY_WORKSPACE_BYTES = 32 * MIB,    // section 2.4: enough for every product
    TILE_ROWS = 64,                        // query rows of an attention tile
    SELECT_BINS = 2048,                    // of a radix select over logits
    ALIGNMENT = 256,                       // section 3, liveness
};

static size_t align(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

// A tile field of args, 0 being the operation's own choice.
static size_t tile_of(uint32_t given, size_t otherwise) {
    return given > 0 ? given : otherwise;
}

static void run_inline(void *pool, uint32_t task_count, op_task_fn fn, void *arg) {
    (void)pool;
    for (uint32_t i = 0; i < task_count; i++) {
        fn(arg, i, 0);
    }
}

void ops_sim_context(struct sim_meter *meter, struct op_ctx *out) {
    *out = (struct op_ctx){
        .parallel = run_inline, .pool = meter, .thread_count = meter->machine->multiprocessors};
}

struct cost {
    double bytes, flops;
};

static void add_cost(struct sim_meter *meter, struct cost cost) {
    const struct sim_machine *m = meter->machine;
    double memory_us = cost.bytes / (m->bytes_per_s * BANDWIDTH_SHARE) * 1e6;
    double arithmetic_us = cost.flops / (m->flops_per_s * ARITHMETIC_SHARE) * 1e6;
    meter->bytes += cost.bytes;
    meter->flops += cost.flops;
    meter->us += fmax(memory_us, arithmetic_us) + m->launch_us;
    meter->launch_count++;
}

static void add_launch(const struct op_ctx *ctx, enum sim_kernel kernel, struct cost cost) {
    struct sim_meter *meter = ctx->pool;
    if (!meter->launched[kernel]) {
        meter->launched[kernel] = true;
        if (meter->first_launch != NULL) {
            meter->first_launch(meter->first_launch_ctx, kernel);
        }
    }
    add_cost(meter, cost);
}

// ---- weights and pages -------------------------------------------------------------------------

// The file's own type and layout: nothing is repacked.
static size_t weight_bytes(enum dtype dtype, uint32_t rows, uint32_t cols) {
    uint64_t row = 0;
    return dtype_row_bytes(dtype, cols, &row) ? (size_t)row * rows : 0;
}

static bool weight_supported(enum dtype dtype, uint32_t rows, uint32_t cols) {
    return weight_bytes(dtype, rows, cols) > 0;
}

static uint32_t pack_rows(void) {
    return 1;
}

static size_t position_bytes(const struct op_kv_layout *kv) {
    return (size_t)2 * kv->kv_head_count * kv->head_dim * dtype_block_bytes(kv->dtype);
}

static size_t page_bytes(const struct op_kv_layout *kv) {
    return position_bytes(kv) * kv->block_tokens;
}

// ---- products ----------------------------------------------------------------------------------

// Rows "cuBLASLt never allocates a workspace" (2.4) and "GEMM input quantisation": the input after
// norm or gate, in the type that the product multiplies, a pass of rows at a time.
static size_t matmul_scratch(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    (void)ctx;
    const struct op_weight *weight = args->weight[0];
    size_t element = weight->dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    size_t rows = min_size(args->rows.most, tile_of(args->pass_rows, OP_MATMUL_PASS_ROWS));
    return LIBRARY_WORKSPACE_BYTES + align(rows * weight->cols * element);
}

static void matmul(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    double rows = op_rows_now(&args->rows);
    if (rows <= 0) {
        return;
    }
    double cols = args->weight[0]->cols;
    double inputs = args->input == OP_INPUT_SILU_MUL ? 2 : 1;
    struct cost cost = {.bytes = inputs * rows * cols * sizeof(float)};
    for (uint32_t w = 0; w < args->weight_count; w++) {
        const struct op_weight *weight = args->weight[w];
        double outputs = args->accumulate ? 2 : 1;
        cost.bytes += (double)weight_bytes(weight->dtype, weight->rows, weight->cols) +
                      outputs * rows * weight->rows * sizeof(float);
        cost.flops += 2 * rows * cols * weight->rows;
    }
    add_launch(ctx, SIM_KERNEL_MATMUL, cost);
}

// ---- experts -----------------------------------------------------------------------------------

static void route(const struct op_ctx *ctx, const struct op_route_args *args) {
    double rows = op_rows_now(&args->rows);
    if (rows <= 0) {
        return;
    }
    struct cost cost = {rows * (args->expert_count + 2.0 * args->used) * sizeof(float),
                        8 * rows * args->expert_count};
    add_launch(ctx, SIM_KERNEL_ROUTE, cost);
}

// Pairs of a row and an expert of this rank: at most `used` a row.
static size_t experts_scratch(const struct op_ctx *ctx, const struct op_experts_args *args) {
    const struct op_weight *gate = &args->gate->first;
    size_t pairs = min_size(args->used, args->gate->count) * args->rows.most;
    size_t element = gate->dtype == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    size_t ids = ((size_t)args->gate->count + 1 + pairs) * sizeof(uint32_t);
    (void)ctx;
    return LIBRARY_WORKSPACE_BYTES + align(ids) + align(pairs * gate->cols * element) +
           align(2 * pairs * gate->rows * element) +
           align(pairs * args->down->first.rows * sizeof(float));
}

// Rows choose experts as by chance: of the rank's experts, so many are read at least once.
static void experts(const struct op_ctx *ctx, const struct op_experts_args *args) {
    double rows = op_rows_now(&args->rows);
    if (rows <= 0) {
        return;
    }
    const struct op_weight *gate = &args->gate->first;
    double share = (double)args->used / args->expert_count;
    double pairs = rows * args->gate->count * share;
    double read = args->gate->count * (1 - pow(1 - share, rows));
    double weights = 2.0 * (double)weight_bytes(gate->dtype, gate->rows, gate->cols) +
                     (double)weight_bytes(args->down->first.dtype, args->down->first.rows,
                                          args->down->first.cols);
    double shared =
        args->shared == NULL ? 0 : (args->parts > 1 ? args->parts : 1) * rows * gate->cols;
    double moved = shared + pairs * (2.0 * gate->cols + 4.0 * gate->rows) + rows * gate->cols;
    struct cost cost = {read * weights + moved * sizeof(float),
                        6 * pairs * gate->rows * gate->cols};
    add_launch(ctx, SIM_KERNEL_EXPERTS, cost);
}

// Messages are the group's, which counts them; here they are a launch.
static void exchange(const struct op_ctx *ctx, const struct op_exchange_args *args) {
    double rows = op_rows_now(&args->rows);
    add_cost(ctx->pool,
             (struct cost){.bytes = rows * (args->x_cols + args->y_cols) * sizeof(float)});
}

// ---- rows --------------------------------------------------------------------------------------

static void embed(const struct op_ctx *ctx, const struct op_embed_args *args) {
    const struct op_weight *weight = args->weight;
    double row =
        (double)weight_bytes(weight->dtype, 1, weight->cols) + (double)weight->cols * sizeof(float);
    add_launch(ctx, SIM_KERNEL_EMBED, (struct cost){.bytes = args->step->row_count * row});
}

static void rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args) {
    double elements = (double)args->row_count * args->cols;
    add_launch(ctx, SIM_KERNEL_RMS_NORM, (struct cost){2 * elements * sizeof(float), 4 * elements});
}

static void rope_append(const struct op_ctx *ctx, const struct op_rope_append_args *args) {
    const struct op_kv_layout *kv = args->kv;
    double rows = args->step->row_count;
    double q = rows * args->q_head_count * kv->head_dim;
    double k = rows * kv->kv_head_count * kv->head_dim;
    struct cost cost = {(2 * q + 2 * k) * sizeof(float) + rows * (double)position_bytes(kv),
                        6 * (q + k)};
    add_launch(ctx, SIM_KERNEL_ROPE_APPEND, cost);
}

// ---- attention ---------------------------------------------------------------------------------

// Row "split-KV partials, FlashAttention style": capped, so that partial rows are at most
// (SM + B * h_kv) tiles whatever the context is.
static size_t attention_scratch(const struct op_ctx *ctx, const struct op_attention_args *args) {
    const struct op_kv_layout *kv = args->kv;
    size_t tiles = ctx->thread_count + (size_t)args->step->seq_count * kv->kv_head_count;
    tiles = min_size(tiles, tile_of(args->parts, tiles));
    return align(tiles * TILE_ROWS * (kv->head_dim + 1) * sizeof(float));
}

// A sequence's keys and values are read once for each tile of its rows.
static void attention(const struct op_ctx *ctx, const struct op_attention_args *args) {
    const struct op_step *step = args->step;
    const struct op_kv_layout *kv = args->kv;
    double q_width = (double)args->q_head_count * kv->head_dim;
    struct cost cost = {.bytes = 2.0 * step->row_count * q_width * sizeof(float)};
    for (uint32_t s = 0; s < step->seq_count; s++) {
        uint32_t first = step->seq_row[s];
        uint32_t end = step->seq_row[s + 1];
        if (end <= first) {
            continue;
        }
        // Rows are neighbours, so positions are first, first + 1, ... of the sequence.
        double count = end - first;
        double last = (double)step->position[end - 1] + 1;
        double mean = last - (count - 1) / 2;
        double group = (double)args->q_head_count / kv->kv_head_count;
        double reads = ceil(count * group / TILE_ROWS);
        cost.flops += 4 * q_width * count * mean;
        cost.bytes += reads * mean * (double)position_bytes(kv);
    }
    add_launch(ctx, SIM_KERNEL_ATTENTION, cost);
}

// ---- sampling ----------------------------------------------------------------------------------

// Row "sampling by sort": not sorted, a radix select per row.
static size_t sample_scratch(const struct op_ctx *ctx, const struct op_sample_args *args) {
    (void)ctx;
    return MIB + align((size_t)args->rows.most * SELECT_BINS * sizeof(uint32_t));
}

static bool is_banned(const struct op_sample_row *row, int32_t token) {
    for (uint32_t i = 0; i < row->banned_count; i++) {
        if (row->banned[i] == token) {
            return true;
        }
    }
    return false;
}

// Every token is as likely as any other.
static void draw(struct op_sample_row *row, uint32_t vocabulary) {
    uint64_t number = rng_draw_u64((struct rng_key){row->seed, row->stream}, row->position);
    int32_t token = (int32_t)(number % vocabulary);
    for (uint32_t i = 0; i < row->banned_count && is_banned(row, token); i++) {
        token = (token + 1) % (int32_t)vocabulary;
    }
    row->token = row->target >= 0 ? row->target : token;
    if (row->want_logprob) {
        row->logprob = -logf((float)vocabulary);
        row->rank = 1;
        for (uint32_t i = 0; i < row->top_count; i++) {
            row->top_token[i] = (int32_t)(i % vocabulary);
            row->top_logprob[i] = row->logprob;
        }
    }
}

static void sample(const struct op_ctx *ctx, const struct op_sample_args *args) {
    uint32_t rows = op_rows_now(&args->rows);
    if (rows == 0) {
        return;
    }
    for (uint32_t i = 0; i < rows; i++) {
        if (args->logits != NULL) {
            args->row[i].logits = args->logits + (size_t)i * args->vocabulary;
        }
        draw(&args->row[i], args->vocabulary);
    }
    double bytes = 2.0 * rows * args->vocabulary * sizeof(float);    // two passes over the logits
    add_launch(ctx, SIM_KERNEL_SAMPLE, (struct cost){.bytes = bytes});
}

// Copies inside the device need no kernel of ours: nothing is loaded for the first one.
static void kv_copy(const struct op_ctx *ctx, const struct op_kv_copy_args *args) {
    add_cost(ctx->pool,
             (struct cost){.bytes = 2.0 * args->count * (double)args->kv->block_stride_bytes});
}

// ---- the table ---------------------------------------------------------------------------------

static const struct ops table = {
    .name = "sim",
    .weight_supported = weight_supported,
    .weight_bytes = weight_bytes,
    .weight_pack_rows = pack_rows,
    .weight_pack = NULL,    // nothing to load
    .kv_page_bytes = page_bytes,
    .kv_copy = kv_copy,
    .embed = embed,
    .matmul_scratch = matmul_scratch,
    .matmul = matmul,
    .route = route,
    .experts_scratch = experts_scratch,
    .experts = experts,
    .exchange = exchange,
    .rms_norm = rms_norm,
    .rope_append = rope_append,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .sample_scratch = sample_scratch,
    .sample = sample,
};

const struct ops *ops_sim(void) {
    return &table;
}
