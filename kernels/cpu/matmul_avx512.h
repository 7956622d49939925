// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_MATMUL_AVX512_H
#define KERNELS_CPU_MATMUL_AVX512_H

#include "kernels/cpu/matmul_avx2.h"

// The matrix product on AVX-512 with VNNI: rows are prepared and single rows multiplied as on AVX2
// (those are bound by memory); many rows take wider panels (matmul_tile_avx512.c).
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum { MATMUL_AVX512_ROWS = 4 };    // input rows of one inner step

extern const struct matmul_panel_kernels matmul_panel_kernels_avx512;

#endif
