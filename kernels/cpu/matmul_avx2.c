// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/matmul_avx2.h"

static void tile_avx2(const struct matmul_tile *tile) {
    if (pack_is_plain(tile->weight->dtype)) {
        matmul_plain_avx2(tile);
    } else {
        matmul_tiled_avx2(tile, &matmul_panel_kernels_avx2);
    }
}

const struct matmul_kernels matmul_kernels_avx2 = {
    .prepare = matmul_prepare_avx2,
    .tile = tile_avx2,
    .thread_scratch_bytes = MATMUL_SCRATCH_BYTES,
    .row_step = 3,
};
