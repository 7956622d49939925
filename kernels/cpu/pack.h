// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include "kernels/ops.h"

// Packed weights of the cpu device: the file's bytes, 8 rows interleaved, 3 such groups in turn.
//
// The idea: a vector register has 8 lanes of 32 bits, so 8 rows (a group) are stored side by side
// and a lane is a row: no sum across lanes, 8 scales in one load. Four neighbouring columns of the
// 8 rows make one 32-byte vector, "quad" below, which one multiply-add takes against 4 broadcast
// activation bytes. Three groups (a strip) are stored block by block in turn, so that one linear
// read feeds three multiply-adds per broadcast. Types keep their bits per weight; the size equals
// the file's when rows are a multiple of 8. All cpu tables share this form.
//
//   Owns       nothing.
//   Thread     any; different groups may be packed at once.
//   Allocates  never.
//   Fails      unsupported shapes are refused by pack_supported; the rest is an invariant.
//
// weight = strips; strip = [unit of columns][group] units; the last strip may have 1 or 2 groups. A
// unit is 32 columns of 8 rows (quad g = columns 4g..4g+3, element order [row][column]; little
// endian, halves are float16):
//
//   Q4_0   d[8] half | nibbles[128]
//   Q4_1   d[8] half, m[8] half | nibbles[128]
//   Q5_0   d[8] half | fifth[32] | nibbles[128]
//   Q5_1   d[8] half, m[8] half | fifth[32] | nibbles[128]
//   Q8_0   d[8] half | int8[256] = quads 0..7
//
//   nibbles: vector k of 4 holds quad k in the low and quad k + 4 in the high nibbles
//   fifth:   bit g of the byte at [row][column] belongs to quad g
//
// or 256 columns of 8 rows for the K types:
//
//   Q4_K   d[8] half, dmin[8] half | scales[48], mins[48] | 8 x nibbles[128]
//   Q5_K   the same | 8 x (fifth[32], nibbles[128])
//   Q6_K   d[8] half | int8 scale[16][8] | 8 x (two[64], nibbles[128])
//
//   scales, mins: 6-bit values v[block][row]: byte i of 32 = low four bits of v[i] and v[i + 32];
//                 then byte i of 16 = high two bits of v[i], v[i + 16], v[i + 32], v[i + 48]
//   two:          vector h of 2: bits 2j, 2j + 1 of a byte belong to quad 4h + j
//
// or one column of 8 rows for the plain types (F32, F16, BF16).

enum {
    PACK_ROWS = 8,     // rows of a group
    PACK_STRIP = 3,    // groups of a strip
    PACK_STRIP_ROWS = 24,
    PACK_BLOCK = 32,          // columns of a block; the unit of activation scales too
    PACK_SUPER = 256,         // columns of a super-block of the K types
    PACK_SUPER_BLOCKS = 8,    // blocks of a super-block
    PACK_QUAD_BYTES = 32,     // 4 columns x 8 rows, a byte each
    PACK_NIBBLES_BYTES = 128,
    PACK_FIFTH_BYTES = 32,
    PACK_TWO_BYTES = 64,
    PACK_SIX_BYTES = 48,    // 64 six-bit values
};

bool pack_supported(enum dtype dtype, uint32_t rows, uint32_t cols);
bool pack_is_plain(enum dtype dtype);    // F32, F16, BF16: multiplied as float32
bool pack_has_min(enum dtype dtype);     // y = scale * q + min with q >= 0
size_t pack_group_bytes(enum dtype dtype, uint32_t cols);
size_t pack_weight_bytes(enum dtype dtype, uint32_t rows, uint32_t cols);
uint32_t pack_group_count(uint32_t rows);

// Where a group's first unit lies, and the bytes from one of its units to the next.
struct pack_place {
    const uint8_t *data;
    size_t step_bytes;
};
struct pack_place pack_place_of(const struct op_weight *weight, uint32_t group_index);

// op table entry weight_pack: writes the strips of rows [row_begin, row_end). Rows beyond the last
// one of a group, and those past the source, are zero.
void pack_weight(const struct op_weight *shape, const struct op_source *source, void *packed,
                 uint32_t row_begin, uint32_t row_end);

// One block in a form for plain code: weight = scale * value + min (min is 0 without pack_has_min;
// for Q6_K the sub-block's integer scale is already in `value`, which stays exact).
struct pack_block {
    int16_t value[PACK_ROWS][PACK_BLOCK];
    float scale[PACK_ROWS];
    float min[PACK_ROWS];
};
void pack_read_block(const struct op_weight *weight, uint32_t group_index, uint32_t block_index,
                     struct pack_block *out);

// Row `row` of the matrix in float32, equal to dtype_decode of the source row.
void pack_decode_row(const struct op_weight *weight, uint32_t row, float *out);

#endif
