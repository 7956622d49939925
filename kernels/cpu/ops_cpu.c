// SPDX-License-Identifier: Apache-2.0
// The operation tables of the cpu device and the choice between them.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/kv_copy.h"
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

static void exchange(const struct op_ctx *ctx, const struct op_exchange_args *args) {
    (void)ctx;
    args->carry(args, op_rows_now(&args->rows));
}

// ---- tables ------------------------------------------------------------------------------------

// The table `ops_<isa>` from the inner pieces of each operation; all tables share packed weights
// and KV pages.
#define TABLE(isa, table_name, matmul_pieces, rms_norm_row, rope_row, attention_pieces,            \
              sample_pieces)                                                                       \
    static size_t isa##_matmul_scratch(const struct op_ctx *ctx,                                   \
                                       const struct op_matmul_args *args) {                        \
        return matmul_scratch(ctx, args, &matmul_pieces);                                          \
    }                                                                                              \
    static void isa##_matmul(const struct op_ctx *ctx, const struct op_matmul_args *args) {        \
        matmul_run(ctx, args, &matmul_pieces);                                                     \
    }                                                                                              \
    static size_t isa##_experts_scratch(const struct op_ctx *ctx,                                  \
                                        const struct op_experts_args *args) {                      \
        return experts_scratch(ctx, args, &matmul_pieces);                                         \
    }                                                                                              \
    static void isa##_experts(const struct op_ctx *ctx, const struct op_experts_args *args) {      \
        experts_run(ctx, args, &matmul_pieces);                                                    \
    }                                                                                              \
    static void isa##_rms_norm(const struct op_ctx *ctx, const struct op_rms_norm_args *args) {    \
        elementwise_rms_norm(ctx, args, rms_norm_row);                                             \
    }                                                                                              \
    static void isa##_rope_append(const struct op_ctx *ctx,                                        \
                                  const struct op_rope_append_args *args) {                        \
        rope_append_run(ctx, args, rope_row);                                                      \
    }                                                                                              \
    static size_t isa##_attention_scratch(const struct op_ctx *ctx,                                \
                                          const struct op_attention_args *args) {                  \
        return attention_scratch(ctx, args, &attention_pieces);                                    \
    }                                                                                              \
    static void isa##_attention(const struct op_ctx *ctx, const struct op_attention_args *args) {  \
        attention_run(ctx, args, &attention_pieces);                                               \
    }                                                                                              \
    static void isa##_sample(const struct op_ctx *ctx, const struct op_sample_args *args) {        \
        sample_run(ctx, args, &sample_pieces);                                                     \
    }                                                                                              \
    static const struct ops ops_##isa = {                                                          \
        .name = table_name,                                                                        \
        .weight_supported = pack_supported,                                                        \
        .weight_bytes = pack_weight_bytes,                                                         \
        .weight_pack_rows = pack_rows,                                                             \
        .weight_pack = pack_weight,                                                                \
        .kv_page_bytes = page_bytes,                                                               \
        .kv_copy = kv_copy_run,                                                                    \
        .embed = elementwise_embed,                                                                \
        .matmul_scratch = isa##_matmul_scratch,                                                    \
        .matmul = isa##_matmul,                                                                    \
        .route = experts_route,                                                                    \
        .experts_scratch = isa##_experts_scratch,                                                  \
        .experts = isa##_experts,                                                                  \
        .exchange = exchange,                                                                      \
        .rms_norm = isa##_rms_norm,                                                                \
        .rope_append = isa##_rope_append,                                                          \
        .attention_scratch = isa##_attention_scratch,                                              \
        .attention = isa##_attention,                                                              \
        .sample_scratch = sample_scratch_bytes,                                                    \
        .sample = isa##_sample,                                                                    \
    };

TABLE(scalar, "cpu-scalar", matmul_kernels_scalar, rms_norm_row_scalar, rope_row_scalar,
      attention_kernels_scalar, sample_kernels_scalar)
TABLE(avx2, "cpu-avx2", matmul_kernels_avx2, rms_norm_row_avx2, rope_row_avx2,
      attention_kernels_avx2, sample_kernels_avx2)
TABLE(avx512, "cpu-avx512", matmul_kernels_avx512, rms_norm_row_avx2, rope_row_avx2,
      attention_kernels_avx512, sample_kernels_avx2)

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

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

// Best first.
static const struct choice CHOICES[] = {
    {"avx512", &ops_avx512, has_avx512},
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
