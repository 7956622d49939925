// SPDX-License-Identifier: Apache-2.0
// Goal: rotary embedding, the KV pool and attention are right, and the bits of a row depend on its
// own sequence and position alone. Method: a float64 reference; then the same sequences computed
// as whole prompts, token by token, in random cuts, mixed batches, other block sizes, thread counts
// and tables. Memory nobody wrote is NaN, so reading it shows.
#include "kernels/cpu/arith.h"
#include "tests/unit/kernels/fixture.h"
#include "tests/unit/suites.h"

static const char *const TABLES[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = 3, SEQS_MAX = 4, ROWS_MAX = 2048 };

struct shape {
    uint32_t head_dim, q_heads, kv_heads, block_tokens;
    enum dtype dtype;
    enum op_rope_pairing pairing;
    bool head_norm;
    uint32_t seq_count;
    uint32_t length[SEQS_MAX];
};

struct world {
    struct fixture fixture;
    struct shape shape;
    const struct ops *ops;
    struct op_kv_layout kv;
    uint8_t *pool;
    uint32_t *block_table;
    uint32_t stride;
    uint32_t first_row[SEQS_MAX + 1];    // where a sequence starts in the arrays below
    float *cos_sin, *q_norm, *k_norm;
    float *q, *k, *v;            // inputs, [all positions, heads * head_dim]
    float *q_rot, *k_rot, *y;    // results, by position
    bool any_parts;              // each step holds a random number of parts
};

enum { LAYERS = 2, LAYER = 1 };

static void world_init(struct world *w, const struct shape *shape, uint64_t seed) {
    memset(w, 0, sizeof *w);
    fixture_init(&w->fixture, seed);
    w->shape = *shape;
    w->ops = ops_cpu("scalar");
    uint32_t longest = 0;
    for (uint32_t s = 0; s < shape->seq_count; s++) {
        w->first_row[s + 1] = w->first_row[s] + shape->length[s];
        longest = shape->length[s] > longest ? shape->length[s] : longest;
    }
    size_t rows = w->first_row[shape->seq_count];
    w->cos_sin = fixture_floats(&w->fixture, (size_t)longest * shape->head_dim, 1.0f);
    w->q_norm = fixture_floats(&w->fixture, shape->head_dim, 2.0f);
    w->k_norm = fixture_floats(&w->fixture, shape->head_dim, 2.0f);
    w->q = fixture_floats(&w->fixture, rows * shape->q_heads * shape->head_dim, 2.0f);
    w->k = fixture_floats(&w->fixture, rows * shape->kv_heads * shape->head_dim, 2.0f);
    w->v = fixture_floats(&w->fixture, rows * shape->kv_heads * shape->head_dim, 1.0f);
    w->q_rot = fixture_alloc(&w->fixture, rows * shape->q_heads * shape->head_dim * 4);
    w->k_rot = fixture_alloc(&w->fixture, rows * shape->kv_heads * shape->head_dim * 4);
    w->y = fixture_alloc(&w->fixture, rows * shape->q_heads * shape->head_dim * 4);
}

// A pool of exactly the blocks needed, handed out in shuffled order.
static void world_pool(struct world *w, const char *table, uint32_t block_tokens) {
    const struct shape *shape = &w->shape;
    w->ops = ops_cpu(table);
    w->kv = (struct op_kv_layout){
        .dtype = shape->dtype,
        .block_tokens = block_tokens,
        .layer_count = LAYERS,
        .kv_head_count = shape->kv_heads,
        .head_dim = shape->head_dim,
    };
    w->kv.layer_stride_bytes = (w->ops->kv_page_bytes(&w->kv) + 63) & ~(size_t)63;
    w->kv.block_stride_bytes = LAYERS * w->kv.layer_stride_bytes;
    uint32_t count = 0;
    w->stride = 0;
    for (uint32_t s = 0; s < shape->seq_count; s++) {
        uint32_t blocks = (shape->length[s] + block_tokens - 1) / block_tokens;
        w->stride = blocks > w->stride ? blocks : w->stride;
        count += blocks;
    }
    w->pool = fixture_alloc(&w->fixture, count * w->kv.block_stride_bytes);
    w->block_table = fixture_alloc(&w->fixture, shape->seq_count * w->stride * 4);
    uint32_t *ids = fixture_alloc(&w->fixture, (count + 1) * 4);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = (uint32_t)rng_below(&w->fixture.rng, i + 1);
        ids[i] = ids[j];
        ids[j] = i;
    }
    for (uint32_t s = 0; s < shape->seq_count; s++) {
        uint32_t blocks = (shape->length[s] + block_tokens - 1) / block_tokens;
        for (uint32_t b = 0; b < blocks; b++) {
            w->block_table[s * w->stride + b] = ids[--count];
        }
    }
}

// One step: from `done[s]` on, `take[s]` tokens of each sequence that has any. Results go to
// w->q_rot, w->k_rot and w->y by position.
static void world_step(struct world *w, uint32_t thread_count, uint32_t *done,
                       const uint32_t *take) {
    const struct shape *shape = &w->shape;
    uint32_t position[ROWS_MAX], row_seq[ROWS_MAX], source[ROWS_MAX], seq_row[SEQS_MAX + 1];
    uint32_t table[SEQS_MAX * 256];
    uint32_t rows = 0, seqs = 0;
    for (uint32_t s = 0; s < shape->seq_count; s++) {
        if (take[s] == 0) {
            continue;
        }
        seq_row[seqs] = rows;
        memcpy(table + seqs * w->stride, w->block_table + s * w->stride, w->stride * 4);
        for (uint32_t i = 0; i < take[s]; i++, rows++) {
            position[rows] = done[s] + i;
            row_seq[rows] = seqs;
            source[rows] = w->first_row[s] + done[s] + i;
        }
        done[s] += take[s];
        seqs++;
    }
    seq_row[seqs] = rows;
    size_t q_width = (size_t)shape->q_heads * shape->head_dim;
    size_t kv_width = (size_t)shape->kv_heads * shape->head_dim;
    uint32_t first = w->fixture.buffer_count;
    float *q = fixture_alloc(&w->fixture, rows * q_width * 4);
    float *k = fixture_alloc(&w->fixture, rows * kv_width * 4);
    float *v = fixture_alloc(&w->fixture, rows * kv_width * 4);
    float *y = fixture_alloc(&w->fixture, rows * q_width * 4);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(q + r * q_width, w->q + source[r] * q_width, q_width * 4);
        memcpy(k + r * kv_width, w->k + source[r] * kv_width, kv_width * 4);
        memcpy(v + r * kv_width, w->v + source[r] * kv_width, kv_width * 4);
    }
    struct op_step step = {
        .kv_base = w->pool,
        .row_count = rows,
        .seq_count = seqs,
        .position = position,
        .row_seq = row_seq,
        .seq_row = seq_row,
        .block_table = table,
        .block_table_stride = w->stride,
    };
    struct op_rope_append_args rope = {
        .step = &step,
        .kv = &w->kv,
        .layer = LAYER,
        .q = q,
        .k = k,
        .v = v,
        .q_head_count = shape->q_heads,
        .pairing = shape->pairing,
        .rope_cos_sin = w->cos_sin,
        .q_norm = shape->head_norm ? w->q_norm : NULL,
        .k_norm = shape->head_norm ? w->k_norm : NULL,
        .norm_eps = 1e-6f,
    };
    struct op_ctx ctx = fixture_ctx(&w->fixture, thread_count, 0);
    w->ops->rope_append(&ctx, &rope);
    struct op_attention_args attention = {
        .step = &step,
        .kv = &w->kv,
        .layer = LAYER,
        .q = q,
        .y = y,
        .q_head_count = shape->q_heads,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .parts = w->any_parts ? (uint32_t)rng_below(&w->fixture.rng, 40) : 0,
    };
    fixture_attention(&w->fixture, w->ops, thread_count, &attention);
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(w->q_rot + source[r] * q_width, q + r * q_width, q_width * 4);
        memcpy(w->k_rot + source[r] * kv_width, k + r * kv_width, kv_width * 4);
        memcpy(w->y + source[r] * q_width, y + r * q_width, q_width * 4);
    }
    fixture_release(&w->fixture, first);
}

// Whole prompts, one sequence per step (mode 0), all at once (1), token by token (2), random (3).
static void world_run(struct world *w, uint32_t thread_count, int mode) {
    uint32_t done[SEQS_MAX] = {0};
    for (;;) {
        uint32_t take[SEQS_MAX] = {0};
        bool any = false;
        for (uint32_t s = 0; s < w->shape.seq_count; s++) {
            uint32_t left = w->shape.length[s] - done[s];
            uint32_t want = left;
            if (mode == 0) {
                want = any ? 0 : left;
            } else if (mode == 2) {
                want = left > 0;
            } else if (mode == 3) {
                want = (uint32_t)rng_below(&w->fixture.rng, 70);
                want = rng_below(&w->fixture.rng, 2) == 0 ? want % 3 : want;
            }
            take[s] = want < left ? want : left;
            any = any || left > 0;
        }
        if (!any) {
            return;
        }
        if (take[0] + take[1] + take[2] + take[3] > 0) {
            world_step(w, thread_count, done, take);
        }
    }
}

// ---- float64 references
// --------------------------------------------------------------------------

static double rounded_to(enum dtype dtype, float value) {
    return (double)(dtype == DTYPE_F16 ? dtype_f16_to_f32(dtype_f32_to_f16(value)) : value);
}

static void check_rotation(const struct world *w, const float *in, const float *out,
                           const float *norm, uint32_t heads) {
    const struct shape *shape = &w->shape;
    uint32_t dim = shape->head_dim, half = dim / 2;
    for (uint32_t s = 0; s < shape->seq_count; s++) {
        for (uint32_t i = 0; i < shape->length[s] * heads; i++) {
            size_t at = ((size_t)w->first_row[s] * heads + i) * dim;
            const float *angle = w->cos_sin + (size_t)(i / heads) * dim;
            double squares = 0.0, factor = 1.0;
            for (uint32_t d = 0; d < dim; d++) {
                squares += (double)in[at + d] * (double)in[at + d];
            }
            if (shape->head_norm) {
                factor = 1.0 / sqrt(squares / dim + 1e-6);
            }
            for (uint32_t j = 0; j < half; j++) {
                uint32_t ia = shape->pairing == OP_ROPE_HALF ? j : 2 * j;
                uint32_t ib = shape->pairing == OP_ROPE_HALF ? j + half : 2 * j + 1;
                double a = (double)in[at + ia] * factor * (shape->head_norm ? (double)norm[ia] : 1);
                double b = (double)in[at + ib] * factor * (shape->head_norm ? (double)norm[ib] : 1);
                double c = (double)angle[j], sine = (double)angle[half + j];
                ck_assert(fabs((double)out[at + ia] - (a * c - b * sine)) <= 1e-5);
                ck_assert(fabs((double)out[at + ib] - (b * c + a * sine)) <= 1e-5);
            }
        }
    }
}

static void check_attention_at(const struct world *w, uint32_t s, uint32_t position,
                               uint32_t head) {
    const struct shape *shape = &w->shape;
    uint32_t dim = shape->head_dim;
    uint32_t kv_head = head / (shape->q_heads / shape->kv_heads);
    size_t row = w->first_row[s] + position;
    const float *q = w->q_rot + (row * shape->q_heads + head) * dim;
    double score[ROWS_MAX], max = (double)-INFINITY, total = 0.0;
    for (uint32_t p = 0; p <= position; p++) {
        const float *k =
            w->k_rot + ((size_t)(w->first_row[s] + p) * shape->kv_heads + kv_head) * dim;
        double dot = 0.0;
        for (uint32_t d = 0; d < dim; d++) {
            dot += (double)q[d] * rounded_to(shape->dtype, k[d]);
        }
        score[p] = dot / sqrt((double)dim);
        max = score[p] > max ? score[p] : max;
    }
    for (uint32_t p = 0; p <= position; p++) {
        score[p] = exp(score[p] - max);
        total += score[p];
    }
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0.0;
        for (uint32_t p = 0; p <= position; p++) {
            size_t at = ((size_t)(w->first_row[s] + p) * shape->kv_heads + kv_head) * dim + d;
            sum += score[p] * rounded_to(shape->dtype, w->v[at]);
        }
        double got = (double)w->y[(row * shape->q_heads + head) * dim + d];
        ck_assert_msg(fabs(got - sum / total) <= 3e-6,
                      "sequence %u position %u head %u dim %u: %.9g, expected %.9g", s, position,
                      head, d, got, sum / total);
    }
}

static void check_reference(struct world *w) {
    check_rotation(w, w->q, w->q_rot, w->q_norm, w->shape.q_heads);
    check_rotation(w, w->k, w->k_rot, w->k_norm, w->shape.kv_heads);
    for (uint32_t s = 0; s < w->shape.seq_count; s++) {
        for (uint32_t p = 0; p < w->shape.length[s]; p++) {
            // All of the first positions, then samples; the last one always.
            if (p < 40 || p + 1 == w->shape.length[s] || rng_below(&w->fixture.rng, 16) == 0) {
                check_attention_at(w, s, p, (uint32_t)rng_below(&w->fixture.rng, w->shape.q_heads));
            }
        }
    }
}

// ---- tests -------------------------------------------------------------------------------------

static void run_case(const struct shape *shape, uint64_t seed) {
    struct world w;
    world_init(&w, shape, seed);
    world_pool(&w, "scalar", shape->block_tokens);
    world_run(&w, 2, 0);
    check_reference(&w);
    size_t bytes = (size_t)w.first_row[shape->seq_count] * shape->q_heads * shape->head_dim * 4;
    float *expected = fixture_alloc(&w.fixture, bytes);
    memcpy(expected, w.y, bytes);
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        for (int mode = 0; mode < 4; mode++) {
            if (t == 0 && mode > 0 && mode < 3) {
                continue;    // the plain table is slow, and random cuts cover these
            }
            uint32_t first = w.fixture.buffer_count;
            uint32_t blocks = (uint32_t)16 << rng_below(&w.fixture.rng, 3);
            world_pool(&w, TABLES[t], blocks);
            memset(w.y, 0xFF, bytes);
            w.any_parts = true;
            world_run(&w, 1 + (uint32_t)mode % 3, mode);
            ck_assert_msg(memcmp(w.y, expected, bytes) == 0,
                          "%s, mode %d, blocks of %u: bits differ (head_dim %u, %u/%u heads)",
                          TABLES[t], mode, blocks, shape->head_dim, shape->q_heads,
                          shape->kv_heads);
            fixture_release(&w.fixture, first);
        }
    }
    fixture_deinit(&w.fixture);
}

static const struct shape SHAPES[] = {
    {64, 6, 2, 16, DTYPE_F16, OP_ROPE_INTERLEAVED, false, 3, {262, 33, 1}},
    {64, 3, 1, 32, DTYPE_F32, OP_ROPE_HALF, false, 2, {259, 40}},
    {128, 8, 1, 64, DTYPE_F16, OP_ROPE_HALF, true, 2, {30, 57}},
    {16, 4, 4, 16, DTYPE_F32, OP_ROPE_HALF, true, 4, {5, 33, 100, 18}},
    {80, 3, 1, 32, DTYPE_F16, OP_ROPE_INTERLEAVED, false, 2, {91, 17}},
    {8, 5, 5, 16, DTYPE_F16, OP_ROPE_HALF, false, 1, {35}},
    {24, 50, 1, 16, DTYPE_F32, OP_ROPE_HALF, false, 1, {30}},
    {16, 2, 1, 16, DTYPE_F16, OP_ROPE_HALF, false, 1, {1040}},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

START_TEST(bits_depend_on_the_position_alone) {
    run_case(&SHAPES[_i], 77 + (uint64_t)_i);
}
END_TEST

START_TEST(an_overflowing_value_spoils_no_earlier_position) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        struct world w;
        world_init(&w, &SHAPES[1], 5);
        world_pool(&w, TABLES[t], 16);
        for (uint32_t d = 0; d < 64; d++) {
            w.k[(size_t)20 * 64 + d] = NAN;
            w.v[(size_t)20 * 64 + d] = INFINITY;
        }
        world_run(&w, 2, 1);
        for (size_t i = 0; i < (size_t)21 * 3 * 64; i++) {
            ck_assert_int_eq(isfinite(w.y[i]), i < (size_t)20 * 3 * 64);
        }
        fixture_deinit(&w.fixture);
    }
}
END_TEST

Suite *suite_kernels_attention(void) {
    Suite *suite = suite_create("kernels/attention");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, bits_depend_on_the_position_alone, 0, SHAPE_COUNT);
    tcase_add_test(tc, an_overflowing_value_spoils_no_earlier_position);
    suite_add_tcase(suite, tc);
    return suite;
}
