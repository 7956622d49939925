// SPDX-License-Identifier: Apache-2.0
// Goal: the matrix product is right for every weight type and input form, and an output element's
// bits depend on its own row and on the weights alone. Method: a float64 reference; then the same
// rows in other batches, cuts, thread counts and tables, compared bit by bit.
#include "kernels/cpu/arith.h"
#include "kernels/cpu/pack.h"
#include "tests/unit/kernels/fixture.h"
#include "tests/unit/suites.h"

static const char *const TABLES[] = {"scalar", "avx2", "avx512"};
enum { TABLE_COUNT = 3 };

// ---- float64 reference -------------------------------------------------------------------------

// The input row as the weights see it: transformed, and rounded to 8 bits for quantised ones.
static void reference_input(const struct op_matmul_args *args, uint32_t row, bool plain,
                            uint32_t cols, float *out) {
    uint32_t in_row = args->row_index != NULL ? args->row_index[row] : row;
    const float *x = args->x + (size_t)in_row * args->x_stride;
    double squares = 0.0;
    for (uint32_t c = 0; c < cols; c++) {
        squares += (double)x[c] * (double)x[c];
    }
    double factor = 1.0 / sqrt(squares / cols + (double)args->norm_eps);
    for (uint32_t c = 0; c < cols; c++) {
        double value = (double)x[c];
        if (args->input == OP_INPUT_RMS_NORM) {
            value = (double)args->norm_weight[c] * value * factor;
        } else if (args->input == OP_INPUT_SILU_MUL) {
            value = value / (1.0 + exp(-value)) * (double)args->x2[in_row * args->x_stride + c];
        }
        out[c] = (float)value;
    }
    for (uint32_t c = 0; c < cols && !plain; c += PACK_BLOCK) {
        int8_t q[PACK_BLOCK];
        float scale, sum;
        arith_quantise32(out + c, q, &scale, &sum);
        for (int i = 0; i < PACK_BLOCK; i++) {
            out[c + (uint32_t)i] = scale * (float)q[i];
        }
    }
}

// Rounding may tip a quantised input value to its neighbour, so a row may differ by a few steps of
// 1/127 of a block's largest value; a wrong kernel differs by far more.
static void check_against_reference(struct fixture *fixture, const struct op_matmul_args *args,
                                    float *const *before) {
    uint32_t cols = args->weight[0]->cols;
    float *input = fixture_alloc(fixture, cols * sizeof *input);
    float *weight_row = fixture_alloc(fixture, cols * sizeof *weight_row);
    for (uint32_t w = 0; w < args->weight_count; w++) {
        const struct op_weight *weight = args->weight[w];
        bool plain = pack_is_plain(weight->dtype);
        for (uint32_t r = 0; r < args->rows.most; r++) {
            reference_input(args, r, plain, cols, input);
            for (uint32_t o = 0; o < weight->rows; o++) {
                pack_decode_row(weight, o, weight_row);
                double sum = 0.0, size = 0.0;
                for (uint32_t c = 0; c < cols; c++) {
                    sum += (double)weight_row[c] * (double)input[c];
                    size += fabs((double)weight_row[c] * (double)input[c]);
                }
                size_t at = (size_t)r * args->y_stride[w] + o;
                double expected = sum + (args->accumulate ? (double)before[w][at] : 0.0);
                double got = (double)args->y[w][at];
                double allowed = size * (plain ? 2e-6 : 2e-3) + 1e-6;
                ck_assert_msg(fabs(got - expected) <= allowed,
                              "%s rows %u cols %u: y[%u][%u] = %.9g, expected %.9g +- %.3g",
                              dtype_name(weight->dtype), weight->rows, cols, r, o, got, expected,
                              allowed);
            }
        }
    }
}

// ---- one product of random shape
// -----------------------------------------------------------------

struct product {
    struct op_matmul_args args;
    struct op_weight weight[OP_MATMUL_WEIGHTS_MAX];
    float *y[OP_MATMUL_WEIGHTS_MAX];
    size_t y_count[OP_MATMUL_WEIGHTS_MAX];
};

static void make_product(struct fixture *fixture, struct product *p, enum op_input input,
                         const enum dtype *dtype, const uint32_t *rows, uint32_t weight_count,
                         uint32_t cols, uint32_t row_count) {
    const struct ops *ops = ops_cpu("scalar");
    memset(p, 0, sizeof *p);
    uint32_t stride = cols + 16;
    p->args = (struct op_matmul_args){
        .input = input,
        .x = fixture_floats(fixture, (size_t)stride * row_count, 2.0f),
        .x2 = fixture_floats(fixture, (size_t)stride * row_count, 2.0f),
        .x_stride = stride,
        .rows.most = row_count,
        .norm_weight = fixture_floats(fixture, cols, 1.5f),
        .norm_eps = 1e-5f,
        .weight_count = weight_count,
    };
    for (uint32_t w = 0; w < weight_count; w++) {
        const void *source = fixture_source(fixture, dtype[w], rows[w], cols);
        p->weight[w] = fixture_pack(fixture, ops, dtype[w], rows[w], cols, source);
        p->args.weight[w] = &p->weight[w];
        p->args.y_stride[w] = rows[w] + 3;
        p->y_count[w] = (size_t)p->args.y_stride[w] * row_count;
        p->y[w] = fixture_alloc(fixture, p->y_count[w] * sizeof(float));
        p->args.y[w] = p->y[w];
    }
}

// Runs `rows` of the product as their own call and checks that each output row has the bits of the
// full result.
static void check_subset(struct fixture *fixture, const struct product *p, const char *table,
                         uint32_t thread_count, const uint32_t *rows, uint32_t row_count) {
    struct op_matmul_args args = p->args;
    args.row_index = rows;
    args.rows.most = row_count;
    args.pass_rows = (uint32_t)rng_below(&fixture->rng, row_count + 2);
    uint32_t first_buffer = fixture->buffer_count;
    for (uint32_t w = 0; w < args.weight_count; w++) {
        args.y[w] = fixture_alloc(fixture, sizeof(float) * args.y_stride[w] * (row_count + 1));
    }
    fixture_matmul(fixture, ops_cpu(table), thread_count, &args);
    for (uint32_t w = 0; w < args.weight_count; w++) {
        for (uint32_t r = 0; r < row_count; r++) {
            const float *got = args.y[w] + (size_t)r * args.y_stride[w];
            const float *expected = p->y[w] + (size_t)rows[r] * args.y_stride[w];
            ck_assert_msg(memcmp(got, expected, p->weight[w].rows * sizeof *got) == 0,
                          "%s %s [%u, %u]: row %u alone in %u rows, %u a pass, %u threads, differs",
                          table, dtype_name(p->weight[w].dtype), p->weight[w].rows,
                          args.weight[w]->cols, rows[r], row_count, args.pass_rows, thread_count);
        }
    }
    fixture_release(fixture, first_buffer);
}

static void check_bits(struct fixture *fixture, const struct product *p) {
    uint32_t total = p->args.rows.most;
    uint32_t *rows = fixture_alloc(fixture, (total + 1) * sizeof *rows);
    for (int t = 0; t < TABLE_COUNT; t++) {
        if (ops_cpu(TABLES[t]) == NULL) {
            continue;
        }
        for (uint32_t i = 0; i < total; i++) {
            rows[i] = total - 1 - i;
        }
        check_subset(fixture, p, TABLES[t], 3, rows, total);
        for (int trial = 0; trial < 4; trial++) {
            uint32_t count = 1 + (uint32_t)rng_below(&fixture->rng, trial < 2 ? 5 : total);
            count = count < total ? count : total;
            for (uint32_t i = 0; i < count; i++) {
                rows[i] = (uint32_t)rng_below(&fixture->rng, total);
            }
            check_subset(fixture, p, TABLES[t], 1 + (uint32_t)trial % 3, rows, count);
        }
    }
}

static void run_case(uint64_t seed, enum op_input input, enum dtype dtype, uint32_t out_rows,
                     uint32_t cols, uint32_t row_count) {
    struct fixture fixture;
    fixture_init(&fixture, seed);
    struct product p;
    make_product(&fixture, &p, input, &dtype, &out_rows, 1, cols, row_count);
    fixture_matmul(&fixture, ops_cpu("scalar"), 2, &p.args);
    check_against_reference(&fixture, &p.args, NULL);
    check_bits(&fixture, &p);
    fixture_deinit(&fixture);
}

// ---- tests -------------------------------------------------------------------------------------

// Column counts of the types: whole blocks, small, odd in 64, and those of the demo model.
static uint32_t random_cols(struct rng *rng, enum dtype dtype) {
    static const uint32_t plain[] = {1, 7, 32, 64, 65, 100, 576};
    static const uint32_t small[] = {32, 64, 96, 160, 576, 1536};
    static const uint32_t super[] = {256, 512, 768, 1536};
    if (pack_is_plain(dtype)) {
        return plain[rng_below(rng, 7)];
    }
    return dtype_block_elements(dtype) == PACK_BLOCK ? small[rng_below(rng, 6)]
                                                     : super[rng_below(rng, 4)];
}

START_TEST(every_type_and_shape_is_right_and_keeps_its_bits) {
    enum dtype dtype = (enum dtype)_i;
    struct rng rng;
    rng_init(&rng, 1000 + (uint64_t)_i);
    for (int trial = 0; trial < 10; trial++) {
        uint32_t rows = 1 + (uint32_t)rng_below(&rng, 67);
        uint32_t row_count =
            trial < 5 ? 1 + (uint32_t)rng_below(&rng, 9) : 1 + (uint32_t)rng_below(&rng, 70);
        enum op_input input = (enum op_input)rng_below(&rng, 3);
        run_case(rng_u64(&rng), input, dtype, rows, random_cols(&rng, dtype), row_count);
    }
}
END_TEST

START_TEST(rows_keep_their_bits_across_passes_and_panels) {
    run_case(1, OP_INPUT_PLAIN, DTYPE_Q4_1, 40, 64, 1100);
    run_case(2, OP_INPUT_RMS_NORM, DTYPE_F32, 33, 64, 600);
}
END_TEST

START_TEST(weights_of_different_types_share_one_input) {
    struct fixture fixture;
    fixture_init(&fixture, 5);
    struct product p;
    const enum dtype dtype[] = {DTYPE_Q4_K, DTYPE_F16, DTYPE_Q6_K};
    const uint32_t rows[] = {33, 9, 70};
    make_product(&fixture, &p, OP_INPUT_RMS_NORM, dtype, rows, 3, 512, 11);
    fixture_matmul(&fixture, ops_cpu("scalar"), 3, &p.args);
    check_against_reference(&fixture, &p.args, NULL);
    check_bits(&fixture, &p);
    fixture_deinit(&fixture);
}
END_TEST

START_TEST(accumulate_adds_the_finished_sum) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        const struct ops *ops = ops_cpu(TABLES[t]);
        if (ops == NULL) {
            continue;
        }
        for (int d = 0; d < DTYPE_COUNT; d++) {
            for (uint32_t row_count = 1; row_count <= 9; row_count += 8) {
                struct fixture fixture;
                fixture_init(&fixture, 7);
                struct product p;
                enum dtype dtype = (enum dtype)d;
                uint32_t rows = 21;
                make_product(&fixture, &p, OP_INPUT_PLAIN, &dtype, &rows, 1, 256, row_count);
                fixture_matmul(&fixture, ops, 2, &p.args);
                float *base = fixture_floats(&fixture, p.y_count[0], 3.0f);
                float *y = fixture_alloc(&fixture, p.y_count[0] * sizeof *y);
                memcpy(y, base, p.y_count[0] * sizeof *y);
                struct op_matmul_args args = p.args;
                args.y[0] = y;
                args.accumulate = true;
                fixture_matmul(&fixture, ops, 2, &args);
                for (uint32_t r = 0; r < row_count; r++) {
                    for (uint32_t o = 0; o < rows; o++) {
                        size_t at = (size_t)r * args.y_stride[0] + o;
                        ck_assert(y[at] == base[at] + p.y[0][at]);
                    }
                    // Between rows nothing is written.
                    size_t gap = (size_t)r * args.y_stride[0] + rows;
                    ck_assert_mem_eq(&y[gap], &base[gap], 3 * sizeof *y);
                }
                fixture_deinit(&fixture);
            }
        }
    }
}
END_TEST

// Columns [begin, begin + count) of a file's rows, packed as a rank's weight.
static struct op_weight pack_cols(struct fixture *fixture, const struct op_weight *whole,
                                  const uint8_t *source, uint32_t begin, uint32_t count) {
    const struct ops *ops = ops_cpu("scalar");
    struct op_weight weight = {whole->dtype, whole->rows, count, NULL};
    uint64_t row_bytes = 0, begin_bytes = 0;
    ck_assert(dtype_row_bytes(whole->dtype, whole->cols, &row_bytes));
    ck_assert(dtype_row_bytes(whole->dtype, begin, &begin_bytes));
    const struct op_source from = {source + begin_bytes, row_bytes, whole->rows};
    void *packed =
        fixture_alloc(fixture, ops->weight_bytes(weight.dtype, weight.rows, weight.cols));
    ops->weight_pack(&weight, &from, packed, 0, weight.rows);
    weight.data = packed;
    return weight;
}

static float sum_pairs(float *const *part, uint32_t first, uint32_t count, size_t at) {
    return count == 1 ? part[first][at]
                      : sum_pairs(part, first, count / 2, at) +
                            sum_pairs(part, first + count / 2, count / 2, at);
}

// A product in eight parts equals products of the parts added by pairs, however many ranks compute
// them: each has the rows' columns and the weight's columns of its parts alone.
START_TEST(parts_are_added_by_pairs_wherever_they_are_computed) {
    static const uint32_t row_counts[] = {1, 2, 3, 5, 131};
    enum dtype dtype = (enum dtype)_i;
    uint32_t unit = dtype_block_elements(dtype), rows = 21, parts = OP_PARTS_MAX;
    // Parts of an odd number of blocks; of plain types they end inside a span of 64.
    uint32_t cols = parts * (unit == 1 ? 72 : unit == 32 ? 96 : 256);
    for (uint32_t k = 0; k < sizeof row_counts / sizeof *row_counts; k++) {
        struct fixture fixture;
        fixture_init(&fixture, 70 + k);
        const uint8_t *source = fixture_source(&fixture, dtype, rows, cols);
        struct op_weight whole =
            fixture_pack(&fixture, ops_cpu("scalar"), dtype, rows, cols, source);
        struct op_matmul_args args = {
            .x = fixture_floats(&fixture, (size_t)cols * row_counts[k], 2.0f),
            .x_stride = cols,
            .rows.most = row_counts[k],
            .weight_count = 1,
            .weight = {&whole},
            .y_stride = {rows},
        };
        size_t elements = (size_t)row_counts[k] * rows;
        // Against eight ranks of the plain table, which have one chain each.
        float *eight[OP_PARTS_MAX];
        for (uint32_t r = 0; r < parts; r++) {
            struct op_weight own =
                pack_cols(&fixture, &whole, source, cols / parts * r, cols / parts);
            struct op_matmul_args mine = args;
            eight[r] = fixture_alloc(&fixture, elements * sizeof(float));
            mine.x = args.x + cols / parts * r;
            mine.weight[0] = &own;
            mine.y[0] = eight[r];
            fixture_matmul(&fixture, ops_cpu("scalar"), 1, &mine);
        }
        for (uint32_t world = 1; world <= parts; world *= 2) {
            for (int t = 0; t < TABLE_COUNT; t++) {
                const struct ops *ops = ops_cpu(TABLES[t]);
                if (ops == NULL) {
                    continue;
                }
                uint32_t first = fixture.buffer_count;
                float *part[OP_PARTS_MAX];
                for (uint32_t r = 0; r < world; r++) {
                    struct op_weight own =
                        pack_cols(&fixture, &whole, source, cols / world * r, cols / world);
                    struct op_matmul_args mine = args;
                    part[r] = fixture_alloc(&fixture, elements * sizeof(float));
                    mine.x = args.x + cols / world * r;
                    mine.weight[0] = &own;
                    mine.y[0] = part[r];
                    mine.parts = parts / world;
                    fixture_matmul(&fixture, ops, 1 + r % 3, &mine);
                }
                for (size_t i = 0; i < elements; i++) {
                    float got = sum_pairs(part, 0, world, i);
                    float want = sum_pairs(eight, 0, parts, i);
                    ck_assert_msg(memcmp(&got, &want, sizeof got) == 0, "%s %s: %u ranks, %u rows",
                                  ops->name, dtype_name(dtype), world, row_counts[k]);
                }
                fixture_release(&fixture, first);
            }
        }
        fixture_deinit(&fixture);
    }
}
END_TEST

// A weight whose narrow columns make a task of many groups, all waiting for their partners.
START_TEST(parts_of_narrow_weights_fit_the_stack) {
    enum { ROWS_OUT = 4000, COLS = 8 };
    for (int t = 0; t < TABLE_COUNT; t++) {
        const struct ops *ops = ops_cpu(TABLES[t]);
        for (uint32_t row_count = 1; ops != NULL && row_count <= 5; row_count++) {
            struct fixture fixture;
            fixture_init(&fixture, 80);
            const void *source = fixture_source(&fixture, DTYPE_BF16, ROWS_OUT, COLS);
            struct op_weight weight =
                fixture_pack(&fixture, ops, DTYPE_BF16, ROWS_OUT, COLS, source);
            float *y = fixture_alloc(&fixture, (size_t)ROWS_OUT * row_count * sizeof *y);
            struct op_matmul_args args = {
                .x = fixture_floats(&fixture, (size_t)COLS * row_count, 2.0f),
                .x_stride = COLS,
                .rows.most = row_count,
                .weight_count = 1,
                .weight = {&weight},
                .y = {y},
                .y_stride = {ROWS_OUT},
                .parts = 8,
            };
            fixture_matmul(&fixture, ops, 2, &args);
            check_against_reference(&fixture, &args, NULL);
            fixture_deinit(&fixture);
        }
    }
}
END_TEST

START_TEST(no_rows_is_no_work) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        const struct ops *ops = ops_cpu(TABLES[t]);
        if (ops == NULL) {
            continue;
        }
        struct fixture fixture;
        fixture_init(&fixture, 9);
        struct product p;
        enum dtype dtype = DTYPE_Q4_1;
        uint32_t rows = 8;
        make_product(&fixture, &p, OP_INPUT_PLAIN, &dtype, &rows, 1, 32, 0);
        fixture_matmul(&fixture, ops, 2, &p.args);
        fixture_deinit(&fixture);
    }
}
END_TEST

START_TEST(a_row_that_is_not_finite_spoils_only_itself) {
    for (int t = 0; t < TABLE_COUNT; t++) {
        const struct ops *ops = ops_cpu(TABLES[t]);
        if (ops == NULL) {
            continue;
        }
        for (int d = 0; d < DTYPE_COUNT; d++) {
            struct fixture fixture;
            fixture_init(&fixture, 11);
            struct product p;
            enum dtype dtype = (enum dtype)d;
            uint32_t rows = 16;
            make_product(&fixture, &p, OP_INPUT_PLAIN, &dtype, &rows, 1, 256, 9);
            fixture_matmul(&fixture, ops, 2, &p.args);
            float *x = (float *)(uintptr_t)p.args.x;
            x[4 * p.args.x_stride + 40] = d % 2 == 0 ? NAN : INFINITY;
            struct op_matmul_args args = p.args;
            args.y[0] = fixture_alloc(&fixture, p.y_count[0] * sizeof(float));
            fixture_matmul(&fixture, ops, 2, &args);
            for (uint32_t r = 0; r < 9; r++) {
                const float *got = args.y[0] + (size_t)r * args.y_stride[0];
                const float *expected = p.y[0] + (size_t)r * args.y_stride[0];
                if (r == 4) {
                    ck_assert(!isfinite(got[0]));
                } else {
                    ck_assert_mem_eq(got, expected, rows * sizeof *got);
                }
            }
            fixture_deinit(&fixture);
        }
    }
}
END_TEST

START_TEST(eight_bit_rounding_is_close_and_safe_at_the_edges) {
    struct rng rng;
    rng_init(&rng, 3);
    for (int trial = 0; trial < 1000; trial++) {
        float x[32], largest = 0.0f, scale, sum;
        int8_t q[32];
        float magnitude = ldexpf(1.0f, (int)rng_below(&rng, 200) - 120);
        int total = 0;
        for (int i = 0; i < 32; i++) {
            x[i] = (float)(rng_unit(&rng) * 2.0 - 1.0) * magnitude;
            largest = fmaxf(largest, fabsf(x[i]));
        }
        arith_quantise32(x, q, &scale, &sum);
        for (int i = 0; i < 32; i++) {
            ck_assert_int_ge(q[i], -127);
            total += q[i];
            ck_assert(fabsf(scale * (float)q[i] - x[i]) <= largest * (0.5001f / 127.0f) ||
                      largest < 0x1p-100f);
        }
        ck_assert(sum == scale * (float)total);
    }
    float zero[32] = {0}, scale, sum;
    int8_t q[32];
    arith_quantise32(zero, q, &scale, &sum);
    ck_assert(scale == 0.0f && sum == 0.0f && q[31] == 0);
}
END_TEST

START_TEST(exponential_is_accurate_over_its_range) {
    for (float x = -87.0f; x <= 88.0f; x += 0.00137f) {
        double expected = exp((double)x);
        ck_assert(fabs((double)arith_exp(x) - expected) <= expected * 1.8e-7);
    }
    ck_assert(arith_exp(-INFINITY) == 0.0f);
    ck_assert(arith_exp(-87.1f) == 0.0f);
    ck_assert(arith_exp(0.0f) == 1.0f);
    ck_assert(isfinite(arith_exp(INFINITY)));
    ck_assert(isnan(arith_exp(NAN)));
}
END_TEST

Suite *suite_kernels_matmul(void) {
    Suite *suite = suite_create("kernels/matmul");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, every_type_and_shape_is_right_and_keeps_its_bits, 0, DTYPE_COUNT);
    tcase_add_test(tc, rows_keep_their_bits_across_passes_and_panels);
    tcase_add_test(tc, weights_of_different_types_share_one_input);
    tcase_add_test(tc, accumulate_adds_the_finished_sum);
    tcase_add_loop_test(tc, parts_are_added_by_pairs_wherever_they_are_computed, 0, DTYPE_COUNT);
    tcase_add_test(tc, parts_of_narrow_weights_fit_the_stack);
    tcase_add_test(tc, no_rows_is_no_work);
    tcase_add_test(tc, a_row_that_is_not_finite_spoils_only_itself);
    tcase_add_test(tc, eight_bit_rounding_is_close_and_safe_at_the_edges);
    tcase_add_test(tc, exponential_is_accurate_over_its_range);
    suite_add_tcase(suite, tc);
    return suite;
}
