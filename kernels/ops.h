// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "common/dtype.h"
#include "common/status.h"
#include <stddef.h>
#include <stdint.h>

// Every operation a model can ask of a device: one args struct and one table entry each.
//
// The idea: an operation takes its args and an op_ctx (who runs it, and its scratch), allocates
// nothing, and never chooses a device. The CPU version defines the meaning. Scratch is asked for
// with the same args (`*_scratch`), before the run, and nowhere else is a scratch size computed.
// The counts of such a question (rows, sequences, context) are upper bounds: the answer holds for
// every step with at most so many. Tile fields of args bound what scratch holds at once.
//
// Bits: for each output element the order of every floating-point operation depends only on the
// element's own row (its token) and on the weights. It does not depend on how many rows run
// together, on threads, tiles, or how a prompt was cut. Attention sums positions in spans anchored
// at position 0. So a position has the same bits in prefill, decode, replay, alone or in a full
// batch.
//
//   Owns       nothing.
//   Thread     the step thread calls; an operation spreads itself through ctx->parallel.
//   Allocates  never.
//   Fails      never while running: unsupported shapes are refused by `*_supported` at load.

// ---- how an operation runs ---------------------------------------------------------------------

typedef void (*op_task_fn)(void *arg, uint32_t task_index, uint32_t thread_index);

struct op_ctx {
    // Runs fn(arg, i, thread) for i in 0..task_count-1 and returns when all are done.
    void (*parallel)(void *pool, uint32_t task_count, op_task_fn fn, void *arg);
    void *pool;
    uint32_t thread_count;
    uint8_t *scratch;    // 64-byte aligned, at least what the operation's scratch question said
    size_t scratch_bytes;
};

// ---- data --------------------------------------------------------------------------------------

// A weight matrix in the device's own packed form, [rows, cols], y = W x.
struct op_weight {
    enum dtype dtype;
    uint32_t rows;
    uint32_t cols;
    const void *data;    // as written by weight_pack
};

// Where the rows of a weight lie in a file: row i, [cols] elements of the weight's type, begins at
// data + i * row_bytes. Rows of the weight at and past `rows` are not in the file and are zero
// (padding of a rank's vocabulary).
struct op_source {
    const void *data;
    size_t row_bytes;
    uint32_t rows;
};

// Matrices of one shape and type, one for each expert of a rank, packed one after the other.
struct op_experts {
    struct op_weight first;
    uint32_t count;
    size_t stride_bytes;    // from one expert's packed bytes to the next one's
};

// How K and V of one group of layers lie in the pool: [block][layer], constant strides. The inside
// of one (block, layer) page is the device's own business.
struct op_kv_layout {
    enum dtype dtype;         // F16 or F32
    uint32_t block_tokens;    // multiple of 16
    uint32_t layer_count;
    uint32_t kv_head_count;
    uint32_t head_dim;
    size_t layer_stride_bytes;    // kv_page_bytes() rounded up to 64
    size_t block_stride_bytes;    // layer_count * layer_stride_bytes
};

// What a step reads, written afresh for each step at fixed addresses. Rows are the tokens of the
// step; each belongs to one entry of the sequence table.
struct op_step {
    uint8_t *kv_base;               // pool base; kernels read it here, so that the pool may move
    uint32_t row_count;             // tokens in this step
    uint32_t seq_count;             // sequences in this step
    uint32_t logit_count;           // rows of this step that are projected to the vocabulary
    uint32_t context_max;           // most positions that a row of this step attends to
    const int32_t *token;           // [row_count]
    const uint32_t *position;       // [row_count] absolute position of the row
    const uint32_t *row_seq;        // [row_count] index of the row's sequence; rows of one sequence
                                    // are neighbours in ascending position
    const uint32_t *seq_row;        // [seq_count + 1] first row of each sequence
    const uint32_t *block_table;    // [seq_count, block_table_stride] block ids
    uint32_t block_table_stride;
};

// How many rows an operation has. What is known when it is measured or captured is only the most
// there may be; what there is stands in the step descriptor when it runs, so that a captured launch
// serves every smaller step. Rows behind the live ones are neither read nor written.
struct op_rows {
    uint32_t most;
    const uint32_t *live;    // NULL: exactly `most`
    uint32_t skip;           // of the live ones, handled by earlier launches
};

static inline uint32_t op_rows_now(const struct op_rows *rows) {
    if (rows->live == NULL) {
        return rows->most;
    }
    uint32_t left = *rows->live > rows->skip ? *rows->live - rows->skip : 0;
    return left < rows->most ? left : rows->most;
}

// ---- operations --------------------------------------------------------------------------------

// y[r, :] = W[token[r] - token_begin, :] decoded to float32, zeros for tokens outside W: those are
// other ranks'. W is packed like any other weight.
struct op_embed_args {
    const struct op_step *step;
    const struct op_weight *weight;    // [vocabulary of the rank, hidden]
    uint32_t token_begin;              // token of W's first row
    float *y;                          // [row_count, hidden]
    float *zero;    // NULL, or [row_count, hidden], set to zero: where the ranks' y will be summed
};

enum op_input {
    OP_INPUT_PLAIN,       // x
    OP_INPUT_RMS_NORM,    // norm_weight * x / sqrt(mean(x^2) + eps), float32
    OP_INPUT_SILU_MUL,    // silu(x) * x2
};

enum {
    OP_MATMUL_WEIGHTS_MAX = 3,
    OP_MATMUL_PASS_ROWS = 512,    // input rows of a pass beyond which speed no longer rises
    OP_PARTS_MAX = 8,
};

// Sums that cross ranks are cut in so many parts of equal size, fixed by the model, and the parts
// are added by pairs: ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)). A rank of a group holds
// neighbouring parts and adds them by the same pairs, so groups of 1, 2, 4 and 8 ranks have the
// same bits. `parts` of args are those of the rank: 1, 2, 4 or 8; 0 is 1.

// y[w][r, :] (+)= W[w] in(x)[row(r), :] for up to three weights that share the input (q, k, v).
// Quantised weights see the input rounded to 8 bits per 32 values, once, with float32 scales.
struct op_matmul_args {
    enum op_input input;
    const float *x;     // [.., cols], row stride x_stride elements
    const float *x2;    // SILU_MUL only, same stride
    uint32_t x_stride;
    const uint32_t *row_index;    // NULL, or [rows]: which row of x feeds output row r
    struct op_rows rows;
    uint32_t pass_rows;          // tile: input rows prepared at once; 0: OP_MATMUL_PASS_ROWS
    const float *norm_weight;    // RMS_NORM only, [cols]
    float norm_eps;
    uint32_t weight_count;
    const struct op_weight *weight[OP_MATMUL_WEIGHTS_MAX];    // equal cols
    float *y[OP_MATMUL_WEIGHTS_MAX];                          // [rows, y_stride[w]]
    uint32_t y_stride[OP_MATMUL_WEIGHTS_MAX];
    uint32_t parts;        // of the columns, each a chain of its own
    size_t part_stride;    // 0: parts are added; else each stays apart, at y + part * part_stride
    bool accumulate;       // residual: y += instead of y =
};

// Which experts a row goes to: softmax over all its logits in float32, then the `used` largest,
// ties to the smaller id, listed by ascending id. Every rank computes the same.
struct op_route_args {
    const float *logits;    // [rows, expert_count]
    struct op_rows rows;
    uint32_t expert_count, used;
    bool normalise;      // shares of a row are divided by their sum
    uint32_t *chosen;    // [rows, used] ids
    float *share;        // [rows, used]
};

enum { OP_EXPERTS_USED_MAX = 64 };

// y[r, :] (+)= sum over the row's chosen experts e of this rank, in ascending order,
// of share_e * down_e (silu(gate_e h) * (up_e h)), h = RMS norm of x[r, :]. `parts` cuts the rank's
// experts, not the columns. Experts of other ranks are left out.
struct op_experts_args {
    const float *x;    // [rows, hidden]
    struct op_rows rows;
    uint32_t pass_rows;    // tile: pairs of row and expert prepared at once
    const float *norm_weight;
    float norm_eps;
    const struct op_experts *gate, *up;    // [inter, hidden]
    const struct op_experts *down;         // [hidden, inter]
    uint32_t expert_begin;                 // id of the rank's first
    uint32_t expert_count;                 // over all ranks
    uint32_t used;
    const uint32_t *chosen;    // [rows, used]
    const float *share;        // [rows, used]
    uint32_t parts;
    // NULL, or an expert that every row goes to, cut by its columns: each part's product is added
    // after the part's experts, times the logistic function of `shared_gate`.
    const float *shared;    // [parts][rows, hidden], shared_stride elements from part to part
    size_t shared_stride;
    const float *shared_gate;    // [rows]
    float *y;                    // [rows, hidden]
    bool accumulate;
};

// A message between the ranks of a group: `carry` is called with the live rows. It is an operation
// so that a captured step says it again in its place.
struct op_exchange_args {
    void (*carry)(const struct op_exchange_args *args, uint32_t rows);
    const void *carrier;    // of `carry`
    const float *x;         // [rows, x_cols]
    float *y;               // [rows, y_cols]
    struct op_rows rows;
    uint32_t x_cols, y_cols;
};

// y[r, :] = RMS norm of x[r, :] (only where a norm feeds no matrix product).
struct op_rms_norm_args {
    const float *x;
    const float *weight;
    float *y;
    uint32_t row_count, cols;
    float eps;
};

enum op_rope_pairing {
    OP_ROPE_HALF,           // (x_j, x_{j + dim/2})
    OP_ROPE_INTERLEAVED,    // (x_2j, x_2j+1)
};

// Optional per-head RMS norm of q and k, rotary embedding of both, then k and v into the pool.
// q is rewritten in place. Angles: position * inv_freq[j].
struct op_rope_append_args {
    const struct op_step *step;
    const struct op_kv_layout *kv;
    uint32_t layer;
    float *q;          // [row_count, q_heads * head_dim]
    float *k;          // [row_count, kv_heads * head_dim]
    const float *v;    // [row_count, kv_heads * head_dim]
    uint32_t q_head_count;
    enum op_rope_pairing pairing;
    const float *rope_cos_sin;       // [positions, head_dim] cos then sin of head_dim/2 angles
    const float *q_norm, *k_norm;    // NULL or [head_dim]
    float norm_eps;
};

// Results of spans of positions that attention holds for each thread, beyond which speed no longer
// rises.
enum { OP_ATTENTION_PARTS_PER_THREAD = 12 };

// Causal attention of every row over positions 0..position[row] of its sequence, grouped query
// heads.
struct op_attention_args {
    const struct op_step *step;
    const struct op_kv_layout *kv;
    uint32_t layer;
    const float *q;    // [row_count, q_heads * head_dim]
    float *y;          // [row_count, q_heads * head_dim]
    uint32_t q_head_count;
    float scale;       // head_dim^-0.5
    uint32_t parts;    // tile: results of spans held at once; 0: OP_ATTENTION_PARTS_PER_THREAD each
};

// Whole blocks of the pool, all layers: from[i] to to[i]. No block is in both lists, or twice in
// one.
struct op_kv_copy_args {
    const struct op_step *step;
    const struct op_kv_layout *kv;
    const uint32_t *from, *to;    // [count]
    uint32_t count;
};

// ---- sampling ----------------------------------------------------------------------------------

enum { OP_SAMPLE_TOP_MAX = 20 };

struct op_token_bias {
    int32_t token;
    float bias;
};

// One row of logits and what to do with it. Order: repetition penalty over prompt and output,
// frequency and presence over output, bias, bans, then temperature (0: the largest, ties to the
// smaller id), top-k, top-p, min-p, one draw. Logprobs are of the raw logits, before all of that.
struct op_sample_row {
    // in
    const float
        *logits;    // [vocabulary]; never written. Set from op_sample_args where given there
    float temperature, top_p, min_p;
    uint32_t top_k;                               // 0 = off
    float repetition_penalty;                     // 1 = off
    float presence_penalty, frequency_penalty;    // 0 = off
    uint64_t seed;
    uint32_t stream;           // choice index
    uint64_t position;         // of the token being drawn
    const int32_t *history;    // prompt then output; NULL when no penalty is on
    uint32_t prompt_count, output_count;
    const struct op_token_bias *bias;
    uint32_t bias_count;
    const int32_t *banned;    // e.g. stop tokens before min_tokens
    uint32_t banned_count;
    int32_t target;        // >= 0: do not draw, score this token (prompt logprobs)
    bool want_logprob;     // fill logprob, rank, top_*
    uint32_t top_count;    // 0..OP_SAMPLE_TOP_MAX alternatives
    // out
    int32_t token;
    float logprob;
    uint32_t rank;    // 1 = the most likely
    int32_t top_token[OP_SAMPLE_TOP_MAX];
    float top_logprob[OP_SAMPLE_TOP_MAX];    // descending
};

struct op_sample_args {
    struct op_sample_row *row;    // [rows]
    struct op_rows rows;
    const float *logits;    // [rows, vocabulary]; NULL: each row names its own
    uint32_t vocabulary;
};

// ---- the table ---------------------------------------------------------------------------------

struct ops {
    const char *name;    // "cpu-avx2", ...

    // Packed weights. `source` has the file's layout (GGUF blocks or plain rows). weight_pack
    // writes rows [row_begin, row_end) so that file pages can be given back as it goes; row_begin
    // is a multiple of weight_pack_rows(). weight_pack is NULL where there is no arithmetic:
    // nothing is loaded then.
    bool (*weight_supported)(enum dtype dtype, uint32_t rows, uint32_t cols);
    size_t (*weight_bytes)(enum dtype dtype, uint32_t rows, uint32_t cols);
    uint32_t (*weight_pack_rows)(void);
    void (*weight_pack)(const struct op_weight *shape, const struct op_source *source, void *packed,
                        uint32_t row_begin, uint32_t row_end);

    size_t (*kv_page_bytes)(const struct op_kv_layout *layout);    // one (block, layer)

    // Between steps, never part of a captured one.
    void (*kv_copy)(const struct op_ctx *ctx, const struct op_kv_copy_args *args);

    void (*embed)(const struct op_ctx *ctx, const struct op_embed_args *args);
    size_t (*matmul_scratch)(const struct op_ctx *ctx, const struct op_matmul_args *args);
    void (*matmul)(const struct op_ctx *ctx, const struct op_matmul_args *args);
    void (*route)(const struct op_ctx *ctx, const struct op_route_args *args);
    size_t (*experts_scratch)(const struct op_ctx *ctx, const struct op_experts_args *args);
    void (*experts)(const struct op_ctx *ctx, const struct op_experts_args *args);
    void (*exchange)(const struct op_ctx *ctx, const struct op_exchange_args *args);
    void (*rms_norm)(const struct op_ctx *ctx, const struct op_rms_norm_args *args);
    void (*rope_append)(const struct op_ctx *ctx, const struct op_rope_append_args *args);
    size_t (*attention_scratch)(const struct op_ctx *ctx, const struct op_attention_args *args);
    void (*attention)(const struct op_ctx *ctx, const struct op_attention_args *args);
    size_t (*sample_scratch)(const struct op_ctx *ctx, const struct op_sample_args *args);
    void (*sample)(const struct op_ctx *ctx, const struct op_sample_args *args);
};

// The CPU tables, best first: AVX-512, AVX2+FMA+F16C, scalar. Returns the first this machine can
// run, or the one named ("scalar", "avx2", "avx512"; NULL = best). NULL when the named one cannot
// run here.
const struct ops *ops_cpu(const char *name);

#endif
