// SPDX-License-Identifier: Apache-2.0
// The operation tables of the cpu device and the choice between them.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/kv_page.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/sample.h"
#include "kernels/ops.h"

#include <cpuid.h>
#include <string.h>

static uint32_t pack_rows(void) {
    return PACK_STRIP_ROWS;
}

static size_t page_bytes(const struct op_kv_layout *layout) {
    return kv_page_bytes(layout);
}

static size_t sample_scratch_bytes(const struct op_ctx *ctx, const struct op_sample_args *args) {
    return sample_scratch(ctx, args);
}

// ---- scalar ------------------------------------------------------------------------------------

static size_t scalar_matmul_scratch(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    return matmul_scratch(ctx, args, &matmul_kernels_scalar);
}

static void scalar_matmul(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    matmul_run(ctx, args, &matmul_kernels_scalar);
}

static void scalar_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args) {
    elementwise_rms_norm(ctx, args, rms_norm_row_scalar);
}

static void scalar_rope_append(const struct op_ctx *ctx, const struct op_rope_append_args *args) {
    rope_append_run(ctx, args, rope_row_scalar);
}

static size_t scalar_attention_scratch(const struct op_ctx *ctx,
                                       const struct op_attention_args *args) {
    return attention_scratch(ctx, args, &attention_kernels_scalar);
}

static void scalar_attention(const struct op_ctx *ctx, const struct op_attention_args *args) {
    attention_run(ctx, args, &attention_kernels_scalar);
}

static void scalar_sample(const struct op_ctx *ctx, const struct op_sample_args *args) {
    sample_run(ctx, args, &sample_kernels_scalar);
}

static const struct ops ops_scalar = {
    .name = "cpu-scalar",
    .weight_supported = pack_supported,
    .weight_bytes = pack_weight_bytes,
    .weight_pack_rows = pack_rows,
    .weight_pack = pack_weight,
    .kv_page_bytes = page_bytes,
    .embed = elementwise_embed,
    .matmul_scratch = scalar_matmul_scratch,
    .matmul = scalar_matmul,
    .rms_norm = scalar_rms_norm,
    .rope_append = scalar_rope_append,
    .attention_scratch = scalar_attention_scratch,
    .attention = scalar_attention,
    .sample_scratch = sample_scratch_bytes,
    .sample = scalar_sample,
};

// ---- AVX2 --------------------------------------------------------------------------------------

static size_t avx2_matmul_scratch(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    return matmul_scratch(ctx, args, &matmul_kernels_avx2);
}

static void avx2_matmul(const struct op_ctx *ctx, const struct op_matmul_args *args) {
    matmul_run(ctx, args, &matmul_kernels_avx2);
}

static void avx2_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args) {
    elementwise_rms_norm(ctx, args, rms_norm_row_avx2);
}

static void avx2_rope_append(const struct op_ctx *ctx, const struct op_rope_append_args *args) {
    rope_append_run(ctx, args, rope_row_avx2);
}

static size_t avx2_attention_scratch(const struct op_ctx *ctx,
                                     const struct op_attention_args *args) {
    return attention_scratch(ctx, args, &attention_kernels_avx2);
}

static void avx2_attention(const struct op_ctx *ctx, const struct op_attention_args *args) {
    attention_run(ctx, args, &attention_kernels_avx2);
}

static void avx2_sample(const struct op_ctx *ctx, const struct op_sample_args *args) {
    sample_run(ctx, args, &sample_kernels_avx2);
}

static const struct ops ops_avx2 = {
    .name = "cpu-avx2",
    .weight_supported = pack_supported,
    .weight_bytes = pack_weight_bytes,
    .weight_pack_rows = pack_rows,
    .weight_pack = pack_weight,
    .kv_page_bytes = page_bytes,
    .embed = elementwise_embed,
    .matmul_scratch = avx2_matmul_scratch,
    .matmul = avx2_matmul,
    .rms_norm = avx2_rms_norm,
    .rope_append = avx2_rope_append,
    .attention_scratch = avx2_attention_scratch,
    .attention = avx2_attention,
    .sample_scratch = sample_scratch_bytes,
    .sample = avx2_sample,
};

// ---- choice ------------------------------------------------------------------------------------

struct choice {
    const char *name;
    const struct ops *ops;
    bool (*usable)(void);
};

static bool always(void) {
    return true;
}

// The compiler's test covers the operating system's part too; F16C is not a name every compiler's
// test knows.
static bool has_avx2(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Best first.
static const struct choice CHOICES[] = {
    {"avx2", &ops_avx2, has_avx2},
    {"scalar", &ops_scalar, always},
};

const struct ops *ops_cpu(const char *name) {
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) {
        bool wanted = name == NULL || strcmp(name, CHOICES[i].name) == 0;
        if (wanted && CHOICES[i].usable()) {
            return CHOICES[i].ops;
        }
    }
    return NULL;
}
