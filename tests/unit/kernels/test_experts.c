// SPDX-License-Identifier: Apache-2.0
// Goal: rows go to the experts with the largest logits, on every rank alike; a row's sum over its
// experts is right, and its bits depend neither on the other rows nor on threads, passes, tables or
// the number of ranks. Method: float64 references for routing and products; then the same rows in
// other surroundings, and shared out over ranks, compared bit by bit.
#include "common/memory.h"
#include "kernels/cpu/pack.h"
#include "tests/unit/kernels/fixture.h"
#include "tests/unit/suites.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const char *const TABLES[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = 3, EXPERTS = 16, USED = 5, ROWS = 37, PARTS = 8, HIDDEN_MAX = 512 };

// ---- routing -----------------------------------------------------------------------------------

struct routed {
    uint32_t chosen[ROWS * USED];
    float share[ROWS * USED];
};

static void route(struct fixture *fixture, uint32_t threads, const float *logits, uint32_t rows,
                  bool normalise, struct routed *out) {
    uint32_t first = fixture->buffer_count;
    struct op_ctx ctx = fixture_ctx(fixture, threads, 0);
    memset(out, 0xFF, sizeof *out);
    ops_cpu("scalar")->route(&ctx, &(struct op_route_args){.logits = logits,
                                                           .rows = {.most = rows},
                                                           .expert_count = EXPERTS,
                                                           .used = USED,
                                                           .normalise = normalise,
                                                           .chosen = out->chosen,
                                                           .share = out->share});
    fixture_release(fixture, first);
}

// By counting: an expert is chosen when fewer than USED come before it.
static bool comes_before(const float *logits, uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void check_route(const float *logits, bool normalise, const uint32_t *chosen,
                        const float *share) {
    double all = 0.0, of_chosen = 0.0;
    uint32_t at = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        all += exp((double)logits[e]);
    }
    for (uint32_t i = 0; i < USED; i++) {
        of_chosen += exp((double)logits[chosen[i]]);
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        uint32_t before = 0;
        for (uint32_t o = 0; o < EXPERTS; o++) {
            before += o != e && comes_before(logits, o, e);
        }
        if (before < USED) {
            ck_assert_uint_eq(chosen[at], e);
            double want = exp((double)logits[e]) / (normalise ? of_chosen : all);
            ck_assert(fabs((double)share[at] - want) <= 2e-6 * want);
            at++;
        }
    }
    ck_assert_uint_eq(at, USED);
}

START_TEST(rows_go_to_their_largest_logits) {
    struct fixture fixture;
    struct routed got;
    fixture_init(&fixture, 3);
    float *logits = fixture_floats(&fixture, (size_t)ROWS * EXPERTS, 4.0f);
    for (uint32_t i = 0; i < ROWS * EXPERTS; i++) {
        // Ties: few different values in every third row, one in the first.
        logits[i] = i / EXPERTS % 3 == 0 ? roundf(logits[i]) : logits[i];
        logits[i] = i < EXPERTS ? 1.5f : logits[i];
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (int normalise = 0; normalise < 2; normalise++) {
            route(&fixture, threads, logits, ROWS, normalise == 1, &got);
            for (uint32_t r = 0; r < ROWS; r++) {
                check_route(logits + (size_t)r * EXPERTS, normalise == 1, got.chosen + r * USED,
                            got.share + r * USED);
            }
        }
    }
    fixture_deinit(&fixture);
}
END_TEST

// Whatever the logits are, experts exist and differ, or a product would read beyond its weights.
START_TEST(rows_that_are_not_finite_still_choose_experts_that_exist) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, 3.0f};
    struct fixture fixture;
    struct routed got;
    fixture_init(&fixture, 4);
    float *logits = fixture_floats(&fixture, (size_t)ROWS * EXPERTS, 1.0f);
    for (uint32_t i = 0; i < (ROWS - 1) * EXPERTS; i++) {
        logits[i] = i / EXPERTS == 0 ? NAN : odd[rng_below(&fixture.rng, 5)];
    }
    route(&fixture, 2, logits, ROWS, true, &got);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < USED; i++) {
            ck_assert_uint_lt(got.chosen[r * USED + i], EXPERTS);
            ck_assert(i == 0 || got.chosen[r * USED + i] > got.chosen[r * USED + i - 1]);
        }
    }
    uint32_t last = ROWS - 1;
    check_route(logits + (size_t)last * EXPERTS, true, got.chosen + last * USED,
                got.share + last * USED);
    fixture_deinit(&fixture);
}
END_TEST

// ---- products ----------------------------------------------------------------------------------

struct mixture {
    enum dtype dtype;
    uint32_t hidden, inter;
    float *x, *norm;
    void *source[3];    // gate, up, down: [EXPERTS, rows, cols]
    uint8_t *packed[3];
    struct op_experts experts[3];
    struct routed routed;
};

static void make_mixture(struct fixture *fixture, enum dtype dtype, struct mixture *m) {
    const struct ops *ops = ops_cpu("scalar");
    bool super = dtype_block_elements(dtype) == 256;
    *m = (struct mixture){.dtype = dtype, .hidden = super ? 256 : 96, .inter = super ? 256 : 64};
    m->x = fixture_floats(fixture, (size_t)ROWS * m->hidden, 2.0f);
    m->norm = fixture_floats(fixture, m->hidden, 1.5f);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t rows = k == 2 ? m->hidden : m->inter, cols = k == 2 ? m->inter : m->hidden;
        uint64_t row_bytes = 0;
        ck_assert(dtype_row_bytes(dtype, cols, &row_bytes));
        m->source[k] = fixture_source(fixture, dtype, rows * EXPERTS, cols);
        size_t stride = (ops->weight_bytes(dtype, rows, cols) + 63) & ~(size_t)63;
        m->packed[k] = fixture_alloc(fixture, stride * EXPERTS);
        m->experts[k] = (struct op_experts){
            .first = {dtype, rows, cols, m->packed[k]}, .count = EXPERTS, .stride_bytes = stride};
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const struct op_source from = {(uint8_t *)m->source[k] + row_bytes * rows * e,
                                           row_bytes, rows};
            ops->weight_pack(&m->experts[k].first, &from, m->packed[k] + stride * e, 0, rows);
        }
    }
    float *logits = fixture_floats(fixture, (size_t)ROWS * EXPERTS, 3.0f);
    for (uint32_t r = 0; r < ROWS; r++) {
        logits[(size_t)r * EXPERTS + 6] += 4.0f;     // one expert that nearly all rows choose,
        logits[(size_t)r * EXPERTS + 9] -= 20.0f;    // and one that no row does
    }
    route(fixture, 1, logits, ROWS, true, &m->routed);
}

// Rows [begin, begin + count) on rank `rank` of `world`, with as many parts as it has of PARTS.
static void run(struct fixture *fixture, const struct ops *ops, uint32_t threads,
                uint32_t pass_rows, const struct mixture *m, uint32_t begin, uint32_t count,
                uint32_t rank, uint32_t world, bool accumulate, float *y) {
    uint32_t first = fixture->buffer_count;
    struct op_experts part[3];
    uint32_t each = EXPERTS / world;
    for (uint32_t k = 0; k < 3; k++) {
        part[k] = m->experts[k];
        part[k].count = each;
        part[k].first.data = m->packed[k] + part[k].stride_bytes * each * rank;
    }
    struct op_experts_args args = {
        .x = m->x + (size_t)begin * m->hidden,
        .rows = {.most = count},
        .pass_rows = pass_rows,
        .norm_weight = m->norm,
        .norm_eps = 1e-5f,
        .gate = &part[0],
        .up = &part[1],
        .down = &part[2],
        .expert_begin = each * rank,
        .expert_count = EXPERTS,
        .used = USED,
        .chosen = m->routed.chosen + begin * USED,
        .share = m->routed.share + begin * USED,
        .parts = PARTS / world,
        .y = y,
        .accumulate = accumulate,
    };
    struct op_ctx ask = {.thread_count = threads};
    struct op_ctx ctx = fixture_ctx(fixture, threads, ops->experts_scratch(&ask, &args));
    ops->experts(&ctx, &args);
    fixture_release(fixture, first);
}

// One expert's answer in float64, from weights as decoded. Quantised types see inputs rounded to 8
// bits, so their tolerance is wide; a wrong expert, order or share is far outside.
static void add_reference(const struct mixture *m, uint32_t row, uint32_t expert, double share,
                          double *y) {
    static double h[HIDDEN_MAX], inner[HIDDEN_MAX];
    static float w[HIDDEN_MAX], v[HIDDEN_MAX];
    struct op_weight weight[3];
    for (uint32_t k = 0; k < 3; k++) {
        weight[k] = m->experts[k].first;
        weight[k].data = m->packed[k] + m->experts[k].stride_bytes * expert;
    }
    const float *x = m->x + (size_t)row * m->hidden;
    double squares = 0.0;
    for (uint32_t i = 0; i < m->hidden; i++) {
        squares += (double)x[i] * (double)x[i];
    }
    for (uint32_t i = 0; i < m->hidden; i++) {
        h[i] = (double)m->norm[i] * (double)x[i] / sqrt(squares / m->hidden + 1e-5);
    }
    for (uint32_t o = 0; o < m->inter; o++) {
        double gate = 0.0, up = 0.0;
        pack_decode_row(&weight[0], o, w);
        pack_decode_row(&weight[1], o, v);
        for (uint32_t i = 0; i < m->hidden; i++) {
            gate += (double)w[i] * h[i];
            up += (double)v[i] * h[i];
        }
        inner[o] = gate / (1.0 + exp(-gate)) * up;
    }
    for (uint32_t o = 0; o < m->hidden; o++) {
        pack_decode_row(&weight[2], o, w);
        for (uint32_t i = 0; i < m->inter; i++) {
            y[o] += share * (double)w[i] * inner[i];
        }
    }
}

static void check_products(const struct mixture *m, const float *y) {
    static double want[HIDDEN_MAX];
    for (uint32_t r = 0; r < ROWS; r++) {
        memset(want, 0, sizeof want);
        double size = 1e-6;
        for (uint32_t i = 0; i < USED; i++) {
            add_reference(m, r, m->routed.chosen[r * USED + i],
                          (double)m->routed.share[r * USED + i], want);
        }
        for (uint32_t c = 0; c < m->hidden; c++) {
            size = fmax(size, fabs(want[c]));
        }
        for (uint32_t c = 0; c < m->hidden; c++) {
            double off = fabs((double)y[(size_t)r * m->hidden + c] - want[c]);
            ck_assert_msg(off <= size * (pack_is_plain(m->dtype) ? 1e-4 : 0.1),
                          "%s: y[%u][%u] is off by %g of %g", dtype_name(m->dtype), r, c, off,
                          size);
        }
    }
}

// The ranks' parts by the pairs of ops.h.
static float sum_pairs(float *const *part, uint32_t first, uint32_t count, size_t at) {
    return count == 1 ? part[first][at]
                      : sum_pairs(part, first, count / 2, at) +
                            sum_pairs(part, first + count / 2, count / 2, at);
}

static void check_ranks(struct fixture *fixture, const struct ops *ops, const struct mixture *m,
                        const float *want) {
    size_t elements = (size_t)ROWS * m->hidden;
    for (uint32_t world = 2; world <= PARTS; world *= 2) {
        uint32_t first = fixture->buffer_count;
        float *part[PARTS];
        for (uint32_t rank = 0; rank < world; rank++) {
            part[rank] = fixture_alloc(fixture, elements * sizeof(float));
            run(fixture, ops, 2, 0, m, 0, ROWS, rank, world, false, part[rank]);
        }
        for (size_t i = 0; i < elements; i++) {
            float sum = sum_pairs(part, 0, world, i);
            ck_assert_msg(memcmp(&sum, &want[i], sizeof sum) == 0, "%s %s: %u ranks", ops->name,
                          dtype_name(m->dtype), world);
        }
        fixture_release(fixture, first);
    }
}

START_TEST(products_are_right_and_a_row_keeps_its_bits) {
    struct fixture fixture;
    struct mixture m;
    fixture_init(&fixture, 5);
    make_mixture(&fixture, (enum dtype)_i, &m);
    size_t elements = (size_t)ROWS * m.hidden;
    float *want = fixture_alloc(&fixture, elements * sizeof *want);
    float *got = fixture_alloc(&fixture, elements * sizeof *got);
    run(&fixture, ops_cpu("scalar"), 1, 0, &m, 0, ROWS, 0, 1, false, want);
    check_products(&m, want);
    for (uint32_t t = 0; t < TABLE_COUNT; t++) {
        const struct ops *ops = ops_cpu(TABLES[t]);
        if (ops == NULL) {
            continue;
        }
        for (uint32_t threads = 1; threads <= 3; threads++) {
            // Passes that end inside an expert's rows.
            run(&fixture, ops, threads, threads == 1 ? 0 : 7 * threads, &m, 0, ROWS, 0, 1, false,
                got);
            ck_assert_mem_eq(got, want, elements * sizeof *got);
        }
        // Rows in pieces of 1, 2, 3 ...
        for (uint32_t begin = 0, count = 1; begin < ROWS; begin += count, count++) {
            count = count < ROWS - begin ? count : ROWS - begin;
            run(&fixture, ops, 2, 0, &m, begin, count, 0, 1, false, got);
            ck_assert_mem_eq(got, want + (size_t)begin * m.hidden,
                             (size_t)count * m.hidden * sizeof *got);
        }
        // Added to what is there.
        memcpy(got, m.x, elements * sizeof *got);
        run(&fixture, ops, 2, 0, &m, 0, ROWS, 0, 1, true, got);
        for (size_t i = 0; i < elements; i++) {
            float sum = m.x[i] + want[i];
            ck_assert_int_eq(memcmp(&sum, &got[i], sizeof sum), 0);
        }
        check_ranks(&fixture, ops, &m, want);
    }
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(a_rank_that_no_row_needs_gives_zeros) {
    struct fixture fixture;
    struct mixture m;
    fixture_init(&fixture, 6);
    make_mixture(&fixture, DTYPE_F32, &m);
    for (uint32_t i = 0; i < ROWS * USED; i++) {
        m.routed.chosen[i] = 2 + i % USED;    // experts 2 .. 6: none of rank 3 of 4
    }
    float *y = fixture_alloc(&fixture, (size_t)ROWS * m.hidden * sizeof *y);
    run(&fixture, ops_cpu(NULL), 2, 0, &m, 0, ROWS, 3, 4, false, y);
    for (size_t i = 0; i < (size_t)ROWS * m.hidden; i++) {
        ck_assert(y[i] == 0.0f);
    }
    run(&fixture, ops_cpu(NULL), 2, 0, &m, 0, 0, 0, 4, false, y);    // no rows at all
    fixture_deinit(&fixture);
}
END_TEST

Suite *suite_kernels_experts(void) {
    Suite *suite = suite_create("kernels/experts");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, rows_go_to_their_largest_logits);
    tcase_add_test(tc, rows_that_are_not_finite_still_choose_experts_that_exist);
    tcase_add_loop_test(tc, products_are_right_and_a_row_keeps_its_bits, 0, DTYPE_COUNT);
    tcase_add_test(tc, a_rank_that_no_row_needs_gives_zeros);
    suite_add_tcase(suite, tc);
    return suite;
}
