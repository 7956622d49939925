// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pack.h"

#include "common/bounds.h"
#include "common/integers.h"
#include "common/invariant.h"

#include <string.h>

// ---- shapes ------------------------------------------------------------------------------------

bool pack_is_plain(enum dtype dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

bool pack_has_min(enum dtype dtype) {
    return !pack_is_plain(dtype) && dtype != DTYPE_Q8_0 && dtype != DTYPE_Q6_K;
}

uint32_t pack_group_count(uint32_t rows) {
    return rows / PACK_ROWS + (rows % PACK_ROWS != 0);
}

size_t pack_group_bytes(enum dtype dtype, uint32_t cols) {
    uint64_t row_bytes = 0;
    bool whole = dtype_row_bytes(dtype, cols, &row_bytes);
    INVARIANT(whole);
    return (size_t)row_bytes * PACK_ROWS;
}

size_t pack_weight_bytes(enum dtype dtype, uint32_t rows, uint32_t cols) {
    return pack_group_bytes(dtype, cols) * pack_group_count(rows);
}

bool pack_supported(enum dtype dtype, uint32_t rows, uint32_t cols) {
    uint64_t row_bytes = 0;
    if ((unsigned)dtype >= DTYPE_COUNT || rows == 0 || cols == 0) {
        return false;
    }
    if (rows > BOUND_VOCABULARY_TOKENS || cols > BOUND_MATRIX_COLS) {
        return false;
    }
    return dtype_row_bytes(dtype, cols, &row_bytes);
}

// ---- writing -----------------------------------------------------------------------------------

static void copy_quad(uint8_t *quad, unsigned row, const uint8_t *bytes) {
    memcpy(quad + 4 * row, bytes, 4);
}

static void copy_half(uint8_t *halves, unsigned row, const uint8_t *half) {
    memcpy(halves + 2 * row, half, 2);
}

// The file's 16 bytes already pair element j with element j + 16, that is quad k with quad k + 4.
static void copy_nibbles(uint8_t *nibbles, unsigned row, const uint8_t *qs) {
    for (unsigned k = 0; k < 4; k++) {
        copy_quad(nibbles + PACK_QUAD_BYTES * k, row, qs + 4 * k);
    }
}

static void put_nibbles(uint8_t *nibbles, unsigned row, const uint8_t *value) {
    uint8_t qs[16];
    for (unsigned j = 0; j < 16; j++) {
        qs[j] = (uint8_t)((value[j] & 15) | ((value[j + 16] & 15) << 4));
    }
    copy_nibbles(nibbles, row, qs);
}

static void put_fifth(uint8_t *fifth, unsigned row, uint32_t bits) {
    for (unsigned i = 0; i < PACK_BLOCK; i++) {
        unsigned bit = (bits >> i) & 1;
        fifth[4 * row + i % 4] = (uint8_t)(fifth[4 * row + i % 4] | (bit << (i / 4)));
    }
}

static void put_two(uint8_t *two, unsigned row, const uint8_t *value) {
    for (unsigned i = 0; i < PACK_BLOCK; i++) {
        unsigned quad = i / 4;
        uint8_t *at = two + PACK_QUAD_BYTES * (quad / 4) + 4 * row + i % 4;
        *at = (uint8_t)(*at | (((value[i] >> 4) & 3) << (2 * (quad % 4))));
    }
}

static void put_six(uint8_t *six, unsigned index, unsigned value) {
    uint8_t *low = six + index % 32;
    uint8_t *high = six + 32 + index % 16;
    *low = (uint8_t)(*low | ((value & 15) << (4 * (index / 32))));
    *high = (uint8_t)(*high | ((value >> 4) << (2 * (index / 16))));
}

// Q4_0 .. Q8_0: one block of one row.
static void pack_small(enum dtype dtype, uint8_t *out, unsigned row, const uint8_t *block) {
    copy_half(out, row, block);
    out += 16;
    block += 2;
    if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1) {
        copy_half(out, row, block);
        out += 16;
        block += 2;
    }
    if (dtype == DTYPE_Q8_0) {
        for (unsigned g = 0; g < 8; g++) {
            copy_quad(out + PACK_QUAD_BYTES * g, row, block + 4 * g);
        }
        return;
    }
    if (dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1) {
        uint32_t bits;
        memcpy(&bits, block, sizeof bits);
        put_fifth(out, row, bits);
        out += PACK_FIFTH_BYTES;
        block += sizeof bits;
    }
    copy_nibbles(out, row, block);
}

// Six-bit scale and minimum j of the 12 packed bytes of Q4_K.
static void k_scale(const uint8_t *b, unsigned j, unsigned *scale, unsigned *min) {
    if (j < 4) {
        *scale = b[j] & 63;
        *min = b[j + 4] & 63;
    } else {
        *scale = ((unsigned)b[j + 4] & 15) | (((unsigned)b[j - 4] >> 6) << 4);
        *min = ((unsigned)b[j + 4] >> 4) | (((unsigned)b[j] >> 6) << 4);
    }
}

// Q4_K, Q5_K: one super-block of one row.
static void pack_k45(bool fifth_bit, uint8_t *out, unsigned row, const uint8_t *block) {
    const uint8_t *qh = block + 16;
    const uint8_t *qs = block + (fifth_bit ? 48 : 16);
    copy_half(out, row, block);
    copy_half(out + 16, row, block + 2);
    uint8_t *scales = out + 32;
    uint8_t *mins = scales + PACK_SIX_BYTES;
    uint8_t *data = mins + PACK_SIX_BYTES;
    for (unsigned j = 0; j < PACK_SUPER_BLOCKS; j++) {
        unsigned scale, min;
        k_scale(block + 4, j, &scale, &min);
        put_six(scales, PACK_ROWS * j + row, scale);
        put_six(mins, PACK_ROWS * j + row, min);
        uint8_t value[PACK_BLOCK];
        uint32_t fifth = 0;
        for (unsigned l = 0; l < PACK_BLOCK; l++) {
            uint8_t byte = qs[32 * (j / 2) + l];
            value[l] = j % 2 == 0 ? byte & 15 : byte >> 4;
            fifth |= fifth_bit ? ((uint32_t)(qh[l] >> j) & 1) << l : 0;
        }
        if (fifth_bit) {
            put_fifth(data, row, fifth);
            data += PACK_FIFTH_BYTES;
        }
        put_nibbles(data, row, value);
        data += PACK_NIBBLES_BYTES;
    }
}

// Q6_K: one super-block of one row.
static void pack_k6(uint8_t *out, unsigned row, const uint8_t *block) {
    copy_half(out, row, block + 208);
    for (unsigned j = 0; j < 16; j++) {
        out[16 + PACK_ROWS * j + row] = block[192 + j];
    }
    uint8_t *data = out + 16 + 128;
    for (unsigned j = 0; j < PACK_SUPER_BLOCKS; j++) {
        const uint8_t *ql = block + 64 * (j / 4);
        const uint8_t *qh = block + 128 + 32 * (j / 4);
        unsigned part = j % 4;    // which 32 of the 128 elements
        uint8_t value[PACK_BLOCK];
        for (unsigned l = 0; l < PACK_BLOCK; l++) {
            unsigned low = ql[l + 32 * (part % 2)];
            low = part < 2 ? low & 15 : low >> 4;
            value[l] = (uint8_t)(low | (((qh[l] >> (2 * part)) & 3u) << 4));
        }
        put_two(data, row, value);
        put_nibbles(data + PACK_TWO_BYTES, row, value);
        data += PACK_TWO_BYTES + PACK_NIBBLES_BYTES;
    }
}

// One unit of one row; `out` is the group's unit.
static void pack_unit(enum dtype dtype, uint8_t *out, unsigned row, const uint8_t *block) {
    switch (dtype) {
    case DTYPE_F32:
        memcpy(out + 4 * row, block, 4);
        return;
    case DTYPE_F16:
    case DTYPE_BF16:
        memcpy(out + 2 * row, block, 2);
        return;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        pack_k45(dtype == DTYPE_Q5_K, out, row, block);
        return;
    case DTYPE_Q6_K:
        pack_k6(out, row, block);
        return;
    default:
        pack_small(dtype, out, row, block);
        return;
    }
}

static void pack_one_row(enum dtype dtype, uint8_t *group, size_t step_bytes, unsigned row,
                         const uint8_t *source, uint32_t cols) {
    size_t block_bytes = dtype_block_bytes(dtype);
    uint32_t unit_count = cols / dtype_block_elements(dtype);
    for (uint32_t u = 0; u < unit_count; u++) {
        pack_unit(dtype, group + step_bytes * u, row, source + block_bytes * u);
    }
}
// Byte offset of a group's first unit, and the bytes between its units.
static size_t group_offset(enum dtype dtype, uint32_t rows, uint32_t cols, uint32_t group_index,
                           size_t *step_bytes) {
    uint32_t strip_first = group_index - group_index % PACK_STRIP;
    uint32_t strip_groups = u32_min(pack_group_count(rows) - strip_first, PACK_STRIP);
    size_t unit_bytes = (size_t)PACK_ROWS * dtype_block_bytes(dtype);
    *step_bytes = unit_bytes * strip_groups;
    return pack_group_bytes(dtype, cols) * strip_first + unit_bytes * (group_index % PACK_STRIP);
}

void pack_weight(const struct op_weight *shape, const struct op_source *source, void *packed,
                 uint32_t row_begin, uint32_t row_end) {
    INVARIANT(row_begin % PACK_STRIP_ROWS == 0);
    INVARIANT(row_end % PACK_STRIP_ROWS == 0 || row_end == shape->rows);
    INVARIANT(row_end <= shape->rows);
    enum dtype dtype = shape->dtype;
    size_t group_bytes = pack_group_bytes(dtype, shape->cols);
    uint32_t group_begin = row_begin / PACK_ROWS;
    uint32_t group_end = pack_group_count(row_end);
    memset((uint8_t *)packed + group_bytes * group_begin, 0,
           group_bytes * (group_end - group_begin));
    uint32_t end = u32_min(row_end, source->rows);
    for (uint32_t row = row_begin; row < end; row++) {
        size_t step_bytes;
        size_t offset = group_offset(dtype, shape->rows, shape->cols, row / PACK_ROWS, &step_bytes);
        pack_one_row(dtype, (uint8_t *)packed + offset, step_bytes, row % PACK_ROWS,
                     (const uint8_t *)source->data + source->row_bytes * row, shape->cols);
    }
}

// ---- reading -----------------------------------------------------------------------------------

static float half_at(const uint8_t *halves, unsigned row) {
    uint16_t half;
    memcpy(&half, halves + 2 * row, sizeof half);
    return dtype_f16_to_f32(half);
}

static int nibble_at(const uint8_t *nibbles, unsigned row, unsigned i) {
    uint8_t byte = nibbles[PACK_QUAD_BYTES * (i / 4 % 4) + 4 * row + i % 4];
    return i < 16 ? byte & 15 : byte >> 4;
}

static int fifth_at(const uint8_t *fifth, unsigned row, unsigned i) {
    return ((fifth[4 * row + i % 4] >> (i / 4)) & 1) << 4;
}

static int two_at(const uint8_t *two, unsigned row, unsigned i) {
    unsigned quad = i / 4;
    uint8_t byte = two[PACK_QUAD_BYTES * (quad / 4) + 4 * row + i % 4];
    return ((byte >> (2 * (quad % 4))) & 3) << 4;
}

static int six_at(const uint8_t *six, unsigned index) {
    int low = (six[index % 32] >> (4 * (index / 32))) & 15;
    int high = (six[32 + index % 16] >> (2 * (index / 16))) & 3;
    return low | (high << 4);
}

static void read_small(enum dtype dtype, const uint8_t *at, unsigned row, struct pack_block *out) {
    bool own_min = dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1;
    bool fifth = dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1;
    float d = half_at(at, row);
    at += 16;
    float min = 0.0f;
    if (own_min) {
        min = half_at(at, row);
        at += 16;
    } else if (dtype == DTYPE_Q4_0) {
        min = -8.0f * d;
    } else if (dtype == DTYPE_Q5_0) {
        min = -16.0f * d;
    }
    const uint8_t *nibbles = fifth ? at + PACK_FIFTH_BYTES : at;
    for (unsigned i = 0; i < PACK_BLOCK; i++) {
        int value;
        if (dtype == DTYPE_Q8_0) {
            value = (int8_t)at[PACK_QUAD_BYTES * (i / 4) + 4 * row + i % 4];
        } else {
            value = nibble_at(nibbles, row, i) + (fifth ? fifth_at(at, row, i) : 0);
        }
        out->value[row][i] = (int16_t)value;
    }
    out->scale[row] = d;
    out->min[row] = min;
}

static void read_k45(bool fifth, const uint8_t *super, unsigned j, unsigned row,
                     struct pack_block *out) {
    const uint8_t *scales = super + 32;
    const uint8_t *mins = scales + PACK_SIX_BYTES;
    size_t step = PACK_NIBBLES_BYTES + (fifth ? PACK_FIFTH_BYTES : 0);
    const uint8_t *data = mins + PACK_SIX_BYTES + step * j;
    const uint8_t *nibbles = fifth ? data + PACK_FIFTH_BYTES : data;
    for (unsigned i = 0; i < PACK_BLOCK; i++) {
        int value = nibble_at(nibbles, row, i) + (fifth ? fifth_at(data, row, i) : 0);
        out->value[row][i] = (int16_t)value;
    }
    // Products of an 11-bit and a 6-bit number: exact.
    out->scale[row] = half_at(super, row) * (float)six_at(scales, PACK_ROWS * j + row);
    out->min[row] = -(half_at(super + 16, row) * (float)six_at(mins, PACK_ROWS * j + row));
}

static void read_k6(const uint8_t *super, unsigned j, unsigned row, struct pack_block *out) {
    const uint8_t *data = super + 16 + 128 + (size_t)(PACK_TWO_BYTES + PACK_NIBBLES_BYTES) * j;
    for (unsigned i = 0; i < PACK_BLOCK; i++) {
        int scale = (int8_t)super[16 + PACK_ROWS * (2 * j + i / 16) + row];
        int value = nibble_at(data + PACK_TWO_BYTES, row, i) + two_at(data, row, i) - 32;
        out->value[row][i] = (int16_t)(scale * value);
    }
    out->scale[row] = half_at(super, row);
    out->min[row] = 0.0f;
}

static void read_row_block(enum dtype dtype, struct pack_place place, uint32_t block, unsigned row,
                           struct pack_block *out) {
    if (dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K || dtype == DTYPE_Q6_K) {
        const uint8_t *super = place.data + place.step_bytes * (block / PACK_SUPER_BLOCKS);
        if (dtype == DTYPE_Q6_K) {
            read_k6(super, block % PACK_SUPER_BLOCKS, row, out);
        } else {
            read_k45(dtype == DTYPE_Q5_K, super, block % PACK_SUPER_BLOCKS, row, out);
        }
    } else {
        read_small(dtype, place.data + place.step_bytes * block, row, out);
    }
}

struct pack_place pack_place_of(const struct op_weight *weight, uint32_t group_index) {
    INVARIANT(group_index < pack_group_count(weight->rows));
    struct pack_place place;
    size_t offset =
        group_offset(weight->dtype, weight->rows, weight->cols, group_index, &place.step_bytes);
    place.data = (const uint8_t *)weight->data + offset;
    return place;
}

void pack_read_block(const struct op_weight *weight, uint32_t group_index, uint32_t block_index,
                     struct pack_block *out) {
    INVARIANT(!pack_is_plain(weight->dtype));
    struct pack_place place = pack_place_of(weight, group_index);
    for (unsigned row = 0; row < PACK_ROWS; row++) {
        read_row_block(weight->dtype, place, block_index, row, out);
    }
}

static void decode_plain_row(const struct op_weight *weight, uint32_t row, float *out) {
    struct pack_place place = pack_place_of(weight, row / PACK_ROWS);
    const uint8_t *at = place.data + dtype_block_bytes(weight->dtype) * (row % PACK_ROWS);
    for (uint32_t c = 0; c < weight->cols; c++) {
        dtype_decode(weight->dtype, at + place.step_bytes * c, 1, &out[c]);
    }
}

void pack_decode_row(const struct op_weight *weight, uint32_t row, float *out) {
    INVARIANT(row < weight->rows);
    if (pack_is_plain(weight->dtype)) {
        decode_plain_row(weight, row, out);
        return;
    }
    struct pack_place place = pack_place_of(weight, row / PACK_ROWS);
    unsigned lane = row % PACK_ROWS;
    bool min = pack_has_min(weight->dtype);
    struct pack_block block;
    for (uint32_t b = 0; b < weight->cols / PACK_BLOCK; b++) {
        read_row_block(weight->dtype, place, b, lane, &block);
        for (unsigned i = 0; i < PACK_BLOCK; i++) {
            float product = block.scale[lane] * (float)block.value[lane][i];
            out[PACK_BLOCK * b + i] = min ? product + block.min[lane] : product;
        }
    }
}
