// SPDX-License-Identifier: Apache-2.0
// Speed of the cpu operations on the shapes of SmolLM2-135M (hidden 576, inner 1536, 30 layers, 9
// query and 3 KV heads of 64, vocabulary 49152) next to this machine's limits, measured in the same
// run. Prints one JSON object per line.
//
//   bench_kernels [--threads N] [--isa NAME] [--type Q4_1] [--repeat N] [limits|matmul|model ...]
//
// The weights are random: speed does not depend on values. A "share" is the part of a limit that is
// reached: bytes read per second, or integer (float) operations per second.
#include "common/clock.h"
#include "common/memory.h"
#include "common/rng.h"
#include "kernels/ops.h"
#include "worker/device/thread_pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    HIDDEN = 576,
    INNER = 1536,
    LAYERS = 30,
    Q_HEADS = 9,
    KV_HEADS = 3,
    HEAD_DIM = 64,
    VOCABULARY = 49152,
    BLOCK_TOKENS = 16,
    ROWS_MAX = 512,
    POSITIONS_MAX = 4096,
    SEQS_MAX = 64,
    REPEATS_MAX = 101,
    SCRATCH_BYTES = 64 * 1024 * 1024,
};

struct options {
    uint32_t threads;
    uint32_t repeats;
    const char *isa;
    enum dtype type;
};

struct bench {
    struct options options;
    const struct ops *ops;
    struct thread_pool *pool;
    struct op_ctx ctx;
    struct rng rng;
    double gops_byte;    // limits with this number of threads
    double gops_float;
    double gb_s;
};

static void die(const char *what) {
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

static void *big_alloc(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        die("out of memory");
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static float *floats(struct bench *bench, size_t count) {
    float *values = big_alloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)rng_unit(&bench->rng) - 0.5f;
    }
    return values;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

// Median seconds of one call.
static double median_s(struct bench *bench, void (*fn)(struct bench *bench, void *arg), void *arg) {
    double seconds[REPEATS_MAX];
    fn(bench, arg);
    for (uint32_t i = 0; i < bench->options.repeats; i++) {
        uint64_t before = clock_monotonic_ns();
        fn(bench, arg);
        seconds[i] = 1e-9 * (double)(clock_monotonic_ns() - before);
    }
    qsort(seconds, bench->options.repeats, sizeof *seconds, compare);
    return seconds[bench->options.repeats / 2];
}

// ---- the machine's limits ----------------------------------------------------------------------

enum { LOOP_COUNT = 500000, BYTE_UNITS = 4, FLOAT_CHAINS = 10 };

#if defined(__x86_64__)
#define MADDUBS(to) "vpmaddubsw %%ymm9, %%ymm8, %%ymm" to "\n"
#define ADDW(to) "vpaddw %%ymm8, %%ymm" to ", %%ymm" to "\n"
#define FMA(to) "vfmadd231ps %%ymm8, %%ymm9, %%ymm" to "\n"
#define MADDUBS4 MADDUBS("0") MADDUBS("1") MADDUBS("2") MADDUBS("3")
#define ADDW7 ADDW("12") ADDW("13") ADDW("14") ADDW("15") ADDW("12") ADDW("13") ADDW("14")
#define UNIT(acc)                                                                                  \
    MADDUBS4 MADDUBS4 ADDW7 "vpmaddwd %%ymm10, %%ymm8, %%ymm7\n vcvtdq2ps %%ymm8, %%ymm6\n" FMA(acc)
#define LOOP(body)                                                                                 \
    do {                                                                                           \
        long left_ = LOOP_COUNT;                                                                   \
        __asm__ volatile("vpxor %%ymm8, %%ymm8, %%ymm8\n vpxor %%ymm9, %%ymm9, %%ymm9\n"           \
                         "vpxor %%ymm10, %%ymm10, %%ymm10\n .p2align 5\n1:\n" body                 \
                         "dec %0\n jnz 1b\n"                                                       \
                         : "+r"(left_)                                                             \
                         :                                                                         \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc");    \
    } while (0)

// Blocks of 32 columns x 8 rows of 4-bit weights: 8 byte products summed in int16, one widening,
// one conversion, one fused step. No loads: the arithmetic ceiling of the method.
static void byte_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)arg;
    (void)task_index;
    (void)thread_index;
    LOOP(UNIT("11") UNIT("4") UNIT("5") UNIT("11"));
}

static void float_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)arg;
    (void)task_index;
    (void)thread_index;
    LOOP(FMA("0") FMA("1") FMA("2") FMA("3") FMA("4") FMA("5") FMA("6") FMA("7") FMA("11")
             FMA("12"));
}
#else
#error "limits are written for x86-64"
#endif

static void run_byte(struct bench *bench, void *arg) {
    thread_pool_run(bench->pool, bench->options.threads, byte_task, arg);
}

static void run_float(struct bench *bench, void *arg) {
    thread_pool_run(bench->pool, bench->options.threads, float_task, arg);
}

// Reads 256 MiB in tasks of 1 MiB, as eight streams with prefetch.
enum { READ_BYTES = 256 * 1024 * 1024, READ_TASK_BYTES = 1024 * 1024, READ_STREAMS = 8 };

typedef uint64_t wide __attribute__((vector_size(16)));

static void read_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const char *base = (const char *)arg + (size_t)READ_TASK_BYTES * task_index;
    const size_t stream_bytes = READ_TASK_BYTES / READ_STREAMS;
    wide sum[READ_STREAMS] = {{0}};
    for (size_t i = 0; i < stream_bytes; i += 64) {
        for (size_t s = 0; s < READ_STREAMS; s++) {
            const wide *at = (const wide *)(const void *)(base + stream_bytes * s + i);
            __builtin_prefetch((const char *)at + 512);
            sum[s] += (at[0] + at[1]) + (at[2] + at[3]);
        }
    }
    wide total = {0};
    for (size_t s = 0; s < READ_STREAMS; s++) {
        total += sum[s];
    }
    __asm__ volatile("" : : "m"(total));
}

static void run_read(struct bench *bench, void *arg) {
    thread_pool_run(bench->pool, READ_BYTES / READ_TASK_BYTES, read_task, arg);
}

static void measure_limits(struct bench *bench) {
    double threads = bench->options.threads;
    double byte_ops = threads * LOOP_COUNT * BYTE_UNITS * 512.0;
    double float_ops = threads * LOOP_COUNT * FLOAT_CHAINS * 16.0;
    bench->gops_byte = 1e-9 * byte_ops / median_s(bench, run_byte, NULL);
    bench->gops_float = 1e-9 * float_ops / median_s(bench, run_float, NULL);
    void *memory = big_alloc(READ_BYTES);
    memset(memory, 1, READ_BYTES);
    bench->gb_s = 1e-9 * READ_BYTES / median_s(bench, run_read, memory);
    munmap(memory, READ_BYTES);
    printf("{\"bench\":\"limits\",\"threads\":%u,\"byte_gops\":%.0f,\"float_gops\":%.0f,"
           "\"read_gb_s\":%.1f}\n",
           bench->options.threads, bench->gops_byte, bench->gops_float, bench->gb_s);
    fflush(stdout);
}

// ---- weights -----------------------------------------------------------------------------------

// Random file rows with sane scales.
static void fill_source(struct bench *bench, enum dtype type, uint8_t *source, uint64_t bytes) {
    uint32_t block_bytes = dtype_block_bytes(type);
    uint16_t scale = dtype_f32_to_f16(0.002f);
    bool second =
        type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
    for (uint64_t at = 0; at < bytes; at += block_bytes) {
        if (block_bytes <= 4) {
            memcpy(source + at, &scale, 2);
            continue;
        }
        for (uint32_t i = 0; i + 8 <= block_bytes; i += 8) {
            uint64_t bits = rng_u64(&bench->rng);
            memcpy(source + at + i, &bits, 8);
        }
        memcpy(source + at + (type == DTYPE_Q6_K ? 208 : 0), &scale, 2);
        if (second) {
            memcpy(source + at + 2, &scale, 2);
        }
    }
}

static struct op_weight make_weight(struct bench *bench, enum dtype type, uint32_t rows,
                                    uint32_t cols) {
    struct op_weight weight = {.dtype = type, .rows = rows, .cols = cols};
    uint64_t row_bytes = 0;
    if (!bench->ops->weight_supported(type, rows, cols) ||
        !dtype_row_bytes(type, cols, &row_bytes)) {
        die("this type cannot hold the model's shapes");
    }
    uint8_t *source = memory_zalloc(row_bytes * rows);
    void *packed = big_alloc(bench->ops->weight_bytes(type, rows, cols));
    fill_source(bench, type, source, row_bytes * rows);
    const struct op_source from = {source, row_bytes, rows};
    bench->ops->weight_pack(&weight, &from, packed, 0, rows);
    memory_free(source);
    weight.data = packed;
    return weight;
}

// ---- a synthetic model -------------------------------------------------------------------------

struct model {
    struct op_weight embed;    // also the output matrix; Q8_0 for quantised types, as in the file
    struct op_weight q[LAYERS], k[LAYERS], v[LAYERS], o[LAYERS];
    struct op_weight gate[LAYERS], up[LAYERS], down[LAYERS];
    size_t layer_bytes;    // of all layers
    float *norm;
    float *cos_sin;
    struct op_kv_layout kv;
    uint8_t *pool;
    float *x, *qx, *kx, *vx, *ax, *gx, *ux, *logits;
    int32_t *token;
    uint32_t *position, *row_seq, *seq_row, *block_table, *logit_row;
    struct op_sample_row *sample;
};

static struct op_weight layer_weight(struct bench *bench, struct model *m, uint32_t rows,
                                     uint32_t cols) {
    m->layer_bytes += bench->ops->weight_bytes(bench->options.type, rows, cols);
    return make_weight(bench, bench->options.type, rows, cols);
}

static void make_weights(struct bench *bench, struct model *m) {
    bool plain = dtype_block_elements(bench->options.type) == 1;
    m->embed = make_weight(bench, plain ? bench->options.type : DTYPE_Q8_0, VOCABULARY, HIDDEN);
    for (uint32_t l = 0; l < LAYERS; l++) {
        m->q[l] = layer_weight(bench, m, Q_HEADS * HEAD_DIM, HIDDEN);
        m->k[l] = layer_weight(bench, m, KV_HEADS * HEAD_DIM, HIDDEN);
        m->v[l] = layer_weight(bench, m, KV_HEADS * HEAD_DIM, HIDDEN);
        m->o[l] = layer_weight(bench, m, HIDDEN, Q_HEADS * HEAD_DIM);
        m->gate[l] = layer_weight(bench, m, INNER, HIDDEN);
        m->up[l] = layer_weight(bench, m, INNER, HIDDEN);
        m->down[l] = layer_weight(bench, m, HIDDEN, INNER);
    }
}

static void make_kv(struct bench *bench, struct model *m) {
    m->kv = (struct op_kv_layout){
        .dtype = DTYPE_F16,
        .block_tokens = BLOCK_TOKENS,
        .layer_count = LAYERS,
        .kv_head_count = KV_HEADS,
        .head_dim = HEAD_DIM,
    };
    m->kv.layer_stride_bytes = (bench->ops->kv_page_bytes(&m->kv) + 63) & ~(size_t)63;
    m->kv.block_stride_bytes = LAYERS * m->kv.layer_stride_bytes;
    size_t blocks = SEQS_MAX * 512 / BLOCK_TOKENS;
    m->pool = big_alloc(blocks * m->kv.block_stride_bytes);
    // Finite halves everywhere, since depth is simulated.
    uint16_t *halves = (uint16_t *)(void *)m->pool;
    for (size_t i = 0; i < blocks * m->kv.block_stride_bytes / 2; i++) {
        halves[i] = (uint16_t)(0x2000 + i * 40503 % 0x1000);
    }
}

static void make_model(struct bench *bench, struct model *m) {
    make_weights(bench, m);
    make_kv(bench, m);
    m->norm = floats(bench, HIDDEN);
    m->cos_sin = floats(bench, (size_t)POSITIONS_MAX * HEAD_DIM);
    m->x = floats(bench, (size_t)ROWS_MAX * HIDDEN);
    m->qx = floats(bench, (size_t)ROWS_MAX * Q_HEADS * HEAD_DIM);
    m->kx = floats(bench, (size_t)ROWS_MAX * KV_HEADS * HEAD_DIM);
    m->vx = floats(bench, (size_t)ROWS_MAX * KV_HEADS * HEAD_DIM);
    m->ax = floats(bench, (size_t)ROWS_MAX * Q_HEADS * HEAD_DIM);
    m->gx = floats(bench, (size_t)ROWS_MAX * INNER);
    m->ux = floats(bench, (size_t)ROWS_MAX * INNER);
    m->logits = floats(bench, (size_t)SEQS_MAX * VOCABULARY);
    m->token = memory_array(ROWS_MAX, sizeof *m->token);
    m->position = memory_array(ROWS_MAX, sizeof *m->position);
    m->row_seq = memory_array(ROWS_MAX, sizeof *m->row_seq);
    m->seq_row = memory_array(SEQS_MAX + 1, sizeof *m->seq_row);
    m->block_table = memory_array((size_t)SEQS_MAX * POSITIONS_MAX / BLOCK_TOKENS, 4);
    m->logit_row = memory_array(SEQS_MAX, sizeof *m->logit_row);
    m->sample = memory_array(SEQS_MAX, sizeof *m->sample);
}

// ---- a step of it ------------------------------------------------------------------------------

enum lap {
    LAP_EMBED,
    LAP_QKV,
    LAP_ROPE,
    LAP_ATTENTION,
    LAP_O,
    LAP_GATE_UP,
    LAP_DOWN,
    LAP_OUTPUT,
    LAP_SAMPLE,
    LAP_COUNT
};
static const char *const LAP_NAMES[LAP_COUNT] = {"embed",   "qkv",  "rope",   "attention", "o",
                                                 "gate_up", "down", "output", "sample"};

// `seqs` sequences, each with `rows` new tokens after `depth` earlier ones.
struct step {
    struct model *model;
    uint32_t seqs, rows, depth;
    float temperature;
    struct op_step op;
    uint64_t since_ns;
    uint64_t spent_ns[LAP_COUNT];
    uint64_t steps;
};

static void lap(struct step *s, enum lap name) {
    uint64_t now = clock_monotonic_ns();
    s->spent_ns[name] += now - s->since_ns;
    s->since_ns = now;
}

static struct op_matmul_args product_of(const struct step *s, enum op_input input, const float *x,
                                        uint32_t cols) {
    return (struct op_matmul_args){
        .input = input,
        .x = x,
        .x_stride = cols,
        .rows.most = s->op.row_count,
        .norm_weight = s->model->norm,
        .norm_eps = 1e-5f,
    };
}

static void attention_half(struct bench *bench, struct step *s, uint32_t l) {
    struct model *m = s->model;
    struct op_matmul_args qkv = product_of(s, OP_INPUT_RMS_NORM, m->x, HIDDEN);
    const struct op_weight *weights[] = {&m->q[l], &m->k[l], &m->v[l]};
    float *outs[] = {m->qx, m->kx, m->vx};
    qkv.weight_count = 3;
    for (int i = 0; i < 3; i++) {
        qkv.weight[i] = weights[i];
        qkv.y[i] = outs[i];
        qkv.y_stride[i] = weights[i]->rows;
    }
    bench->ops->matmul(&bench->ctx, &qkv);
    lap(s, LAP_QKV);
    bench->ops->rope_append(&bench->ctx, &(struct op_rope_append_args){
                                             .step = &s->op,
                                             .kv = &m->kv,
                                             .layer = l,
                                             .q = m->qx,
                                             .k = m->kx,
                                             .v = m->vx,
                                             .q_head_count = Q_HEADS,
                                             .pairing = OP_ROPE_INTERLEAVED,
                                             .rope_cos_sin = m->cos_sin,
                                         });
    lap(s, LAP_ROPE);
    bench->ops->attention(&bench->ctx, &(struct op_attention_args){
                                           .step = &s->op,
                                           .kv = &m->kv,
                                           .layer = l,
                                           .q = m->qx,
                                           .y = m->ax,
                                           .q_head_count = Q_HEADS,
                                           .scale = 0.125f,
                                       });
    lap(s, LAP_ATTENTION);
    struct op_matmul_args o = product_of(s, OP_INPUT_PLAIN, m->ax, HIDDEN);
    o.weight_count = 1;
    o.weight[0] = &m->o[l];
    o.y[0] = m->x;
    o.y_stride[0] = HIDDEN;
    o.accumulate = true;
    bench->ops->matmul(&bench->ctx, &o);
    lap(s, LAP_O);
}

static void mlp_half(struct bench *bench, struct step *s, uint32_t l) {
    struct model *m = s->model;
    struct op_matmul_args up = product_of(s, OP_INPUT_RMS_NORM, m->x, HIDDEN);
    up.weight_count = 2;
    up.weight[0] = &m->gate[l];
    up.weight[1] = &m->up[l];
    up.y[0] = m->gx;
    up.y[1] = m->ux;
    up.y_stride[0] = INNER;
    up.y_stride[1] = INNER;
    bench->ops->matmul(&bench->ctx, &up);
    lap(s, LAP_GATE_UP);
    struct op_matmul_args down = product_of(s, OP_INPUT_SILU_MUL, m->gx, INNER);
    down.x2 = m->ux;
    down.weight_count = 1;
    down.weight[0] = &m->down[l];
    down.y[0] = m->x;
    down.y_stride[0] = HIDDEN;
    down.accumulate = true;
    bench->ops->matmul(&bench->ctx, &down);
    lap(s, LAP_DOWN);
}

static void output(struct bench *bench, struct step *s) {
    struct model *m = s->model;
    for (uint32_t i = 0; i < s->seqs; i++) {
        m->logit_row[i] = (i + 1) * s->rows - 1;
        m->sample[i] = (struct op_sample_row){
            .logits = m->logits + (size_t)i * VOCABULARY,
            .temperature = s->temperature,
            .top_p = s->temperature > 0.0f ? 0.95f : 1.0f,
            .repetition_penalty = 1.0f,
            .target = -1,
        };
    }
    struct op_matmul_args args = product_of(s, OP_INPUT_RMS_NORM, m->x, HIDDEN);
    args.row_index = m->logit_row;
    args.rows.most = s->seqs;
    args.weight_count = 1;
    args.weight[0] = &m->embed;
    args.y[0] = m->logits;
    args.y_stride[0] = VOCABULARY;
    bench->ops->matmul(&bench->ctx, &args);
    lap(s, LAP_OUTPUT);
    bench->ops->sample(
        &bench->ctx,
        &(struct op_sample_args){.row = m->sample, .rows.most = s->seqs, .vocabulary = VOCABULARY});
    lap(s, LAP_SAMPLE);
}

static void fill_step(struct step *s) {
    struct model *m = s->model;
    uint32_t stride = (s->depth + s->rows + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    s->op = (struct op_step){
        .kv_base = m->pool,
        .row_count = s->seqs * s->rows,
        .seq_count = s->seqs,
        .token = m->token,
        .position = m->position,
        .row_seq = m->row_seq,
        .seq_row = m->seq_row,
        .block_table = m->block_table,
        .block_table_stride = stride,
    };
    for (uint32_t r = 0; r < s->op.row_count; r++) {
        m->token[r] = (int32_t)(r * 97 % VOCABULARY);
        m->position[r] = s->depth + r % s->rows;
        m->row_seq[r] = r / s->rows;
    }
    for (uint32_t q = 0; q <= s->seqs; q++) {
        m->seq_row[q] = q * s->rows;
    }
    for (uint32_t b = 0; b < s->seqs * stride; b++) {
        m->block_table[b] = b * 7919 % (s->seqs * stride);
    }
}

static void run_step(struct bench *bench, void *arg) {
    struct step *s = arg;
    s->since_ns = clock_monotonic_ns();
    bench->ops->embed(
        &bench->ctx,
        &(struct op_embed_args){.step = &s->op, .weight = &s->model->embed, .y = s->model->x});
    lap(s, LAP_EMBED);
    for (uint32_t l = 0; l < LAYERS; l++) {
        attention_half(bench, s, l);
        mlp_half(bench, s, l);
    }
    output(bench, s);
    s->steps++;
}

static void bench_step(struct bench *bench, struct model *m, const char *name, uint32_t seqs,
                       uint32_t rows, uint32_t depth, float temperature) {
    struct step s = {
        .model = m, .seqs = seqs, .rows = rows, .depth = depth, .temperature = temperature};
    fill_step(&s);
    double seconds = median_s(bench, run_step, &s);
    double bytes =
        (double)(m->layer_bytes + bench->ops->weight_bytes(m->embed.dtype, VOCABULARY, HIDDEN));
    double layer_products = 960.0 * HIDDEN + (double)HIDDEN * HIDDEN + 3.0 * INNER * HIDDEN;
    double ops =
        2.0 * seqs * rows * LAYERS * layer_products + 2.0 * seqs * (double)VOCABULARY * HIDDEN;
    printf("{\"bench\":\"model\",\"case\":\"%s\",\"type\":\"%s\",\"isa\":\"%s\",\"threads\":%u,"
           "\"sequences\":%u,\"rows\":%u,\"depth\":%u,\"ms\":%.3f,\"tokens_per_s\":%.1f,"
           "\"weights_gb_s\":%.1f,\"share_read\":%.2f,\"gops\":%.0f,\"share_byte\":%.2f,\"us\":{",
           name, dtype_name(bench->options.type), bench->ops->name, bench->options.threads, seqs,
           rows, depth, 1e3 * seconds, seqs * rows / seconds, 1e-9 * bytes / seconds,
           1e-9 * bytes / seconds / bench->gb_s, 1e-9 * ops / seconds,
           1e-9 * ops / seconds / bench->gops_byte);
    for (int i = 0; i < LAP_COUNT; i++) {
        printf("%s\"%s\":%.0f", i > 0 ? "," : "", LAP_NAMES[i],
               1e-3 * (double)s.spent_ns[i] / (double)s.steps);
    }
    printf("}}\n");
    fflush(stdout);
}

static void bench_model(struct bench *bench) {
    static struct model m;
    make_model(bench, &m);
    bench_step(bench, &m, "decode", 1, 1, 128, 0.0f);
    bench_step(bench, &m, "decode, top-p", 1, 1, 128, 0.8f);
    bench_step(bench, &m, "decode, deep", 1, 1, 2048, 0.0f);
    bench_step(bench, &m, "decode, 4 streams", 4, 1, 192, 0.0f);
    bench_step(bench, &m, "decode, 16 streams", 16, 1, 192, 0.0f);
    bench_step(bench, &m, "decode, 16 streams, top-p", 16, 1, 192, 0.8f);
    bench_step(bench, &m, "decode, 64 streams", 64, 1, 192, 0.0f);
    bench_step(bench, &m, "prefill", 1, 512, 0, 0.0f);
    bench_step(bench, &m, "prefill, second 512", 1, 512, 1536, 0.0f);
}

// ---- single products ---------------------------------------------------------------------------

// Copies of a weight, enough that none is in a cache when its turn comes again.
enum { COPIES_BYTES = 128 * 1024 * 1024, COPIES_MAX = 512 };

struct product {
    struct op_weight weight[COPIES_MAX];
    uint32_t copies;
    struct op_matmul_args args;
};

static void run_product(struct bench *bench, void *arg) {
    struct product *p = arg;
    for (uint32_t i = 0; i < p->copies; i++) {
        p->args.weight[0] = &p->weight[i];
        bench->ops->matmul(&bench->ctx, &p->args);
    }
}

static void print_product(struct bench *bench, struct product *p, uint32_t input_rows) {
    const struct op_weight *w = &p->weight[0];
    bool plain = dtype_block_elements(w->dtype) == 1;
    p->args.rows.most = input_rows;
    double seconds = median_s(bench, run_product, p) / p->copies;
    double gops = 2e-9 * w->rows * w->cols * input_rows / seconds;
    double gb_s = 1e-9 * (double)bench->ops->weight_bytes(w->dtype, w->rows, w->cols) / seconds;
    printf("{\"bench\":\"matmul\",\"type\":\"%s\",\"isa\":\"%s\",\"threads\":%u,\"rows\":%u,"
           "\"cols\":%u,\"input_rows\":%u,\"us\":%.1f,\"gops\":%.0f,\"gb_s\":%.1f,"
           "\"share_read\":%.2f,\"share_ops\":%.2f}\n",
           dtype_name(w->dtype), bench->ops->name, bench->options.threads, w->rows, w->cols,
           input_rows, 1e6 * seconds, gops, gb_s, gb_s / bench->gb_s,
           gops / (plain ? bench->gops_float : bench->gops_byte));
    fflush(stdout);
}

static void bench_product(struct bench *bench, enum dtype type, uint32_t rows, uint32_t cols) {
    static const uint32_t counts[] = {1, 2, 3, 4, 8, 16, 64, 512};
    static struct product p;
    if (!bench->ops->weight_supported(type, rows, cols)) {
        return;
    }
    size_t bytes = bench->ops->weight_bytes(type, rows, cols);
    uint32_t all = (uint32_t)(COPIES_BYTES / bytes + 1);
    all = all < COPIES_MAX ? all : COPIES_MAX;
    struct op_weight weight = make_weight(bench, type, rows, cols);
    for (uint32_t i = 0; i < all; i++) {
        void *copy = big_alloc(bytes);
        memcpy(copy, weight.data, bytes);
        p.weight[i] = weight;
        p.weight[i].data = copy;
    }
    float *x = floats(bench, (size_t)ROWS_MAX * cols);
    float *y = big_alloc((size_t)ROWS_MAX * rows * sizeof *y);
    p.args = (struct op_matmul_args){
        .x = x, .x_stride = cols, .weight_count = 1, .y = {y}, .y_stride = {rows}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        p.copies = counts[i] > 16 && all > 4 ? 4 : all;
        print_product(bench, &p, counts[i]);
    }
    for (uint32_t i = 0; i < all; i++) {
        munmap((void *)(uintptr_t)p.weight[i].data, bytes);
    }
    munmap(x, (size_t)ROWS_MAX * cols * sizeof *x);
    munmap(y, (size_t)ROWS_MAX * rows * sizeof *y);
}

static void bench_matmul(struct bench *bench) {
    bench_product(bench, bench->options.type, 960, HIDDEN);
    bench_product(bench, bench->options.type, 2 * INNER, HIDDEN);
    bench_product(bench, bench->options.type, HIDDEN, INNER);
    bench_product(bench, bench->options.type, VOCABULARY, HIDDEN);
}

// ---- main --------------------------------------------------------------------------------------

static enum dtype type_named(const char *name) {
    for (int d = 0; d < DTYPE_COUNT; d++) {
        if (strcmp(dtype_name((enum dtype)d), name) == 0) {
            return (enum dtype)d;
        }
    }
    die("unknown type");
    return DTYPE_F32;
}

static int parse_options(int argc, char **argv, struct options *options) {
    int at = 1;
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        if (strcmp(argv[at], "--threads") == 0) {
            options->threads = (uint32_t)strtoul(argv[at + 1], NULL, 10);
        } else if (strcmp(argv[at], "--isa") == 0) {
            options->isa = argv[at + 1];
        } else if (strcmp(argv[at], "--type") == 0) {
            options->type = type_named(argv[at + 1]);
        } else if (strcmp(argv[at], "--repeat") == 0) {
            options->repeats = (uint32_t)strtoul(argv[at + 1], NULL, 10);
        } else {
            die("unknown option");
        }
    }
    if (options->repeats == 0 || options->repeats > REPEATS_MAX) {
        die("--repeat takes 1 to 101");
    }
    return at;
}

int main(int argc, char **argv) {
    struct bench bench = {.options = {.threads = 2, .repeats = 11, .type = DTYPE_Q4_1}};
    int at = parse_options(argc, argv, &bench.options);
    bench.ops = ops_cpu(bench.options.isa);
    if (bench.ops == NULL) {
        die("this machine cannot run that instruction set");
    }
    struct error err = {0};
    if (thread_pool_create(bench.options.threads, &bench.pool, &err) != STATUS_OK) {
        die(err.message);
    }
    rng_init(&bench.rng, 1);
    bench.ctx = (struct op_ctx){
        .parallel = thread_pool_run,
        .pool = bench.pool,
        .thread_count = bench.options.threads,
        .scratch = big_alloc(SCRATCH_BYTES),
        .scratch_bytes = SCRATCH_BYTES,
    };
    measure_limits(&bench);
    for (; at < argc; at++) {
        if (strcmp(argv[at], "matmul") == 0) {
            bench_matmul(&bench);
        } else if (strcmp(argv[at], "model") == 0) {
            bench_model(&bench);
        } else if (strcmp(argv[at], "limits") != 0) {
            die("parts are limits, matmul, model");
        }
    }
    thread_pool_destroy(bench.pool);
    return 0;
}
