// SPDX-License-Identifier: Apache-2.0
#include "common/dtype.h"

#include "common/invariant.h"
#include <string.h>

struct dtype_row {
    const char *text;
    uint32_t block_elements;
    uint32_t block_bytes;
    uint32_t gguf;
};

static const struct dtype_row dtype_rows[DTYPE_COUNT] = {
#define X(name, text, elements, bytes, gguf) {text, elements, bytes, gguf},
    DTYPE_TABLE(X)
#undef X
};

const char *dtype_name(enum dtype dtype) {
    INVARIANT((unsigned)dtype < DTYPE_COUNT);
    return dtype_rows[dtype].text;
}

uint32_t dtype_block_elements(enum dtype dtype) {
    INVARIANT((unsigned)dtype < DTYPE_COUNT);
    return dtype_rows[dtype].block_elements;
}

uint32_t dtype_block_bytes(enum dtype dtype) {
    INVARIANT((unsigned)dtype < DTYPE_COUNT);
    return dtype_rows[dtype].block_bytes;
}

bool dtype_from_gguf(uint32_t gguf_type, enum dtype *out) {
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_rows[i].gguf == gguf_type) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_row_bytes(enum dtype dtype, uint64_t elements, uint64_t *out) {
    uint32_t block = dtype_block_elements(dtype);
    if (elements % block != 0) {
        return false;
    }
    return !__builtin_mul_overflow(elements / block, (uint64_t)dtype_block_bytes(dtype), out);
}

// ---- scalar conversions ------------------------------------------------------------------------

static float bits_to_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t f32_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float dtype_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1F;
    uint32_t mantissa = half & 0x3FF;
    if (exponent == 0) {
        // Zero or subnormal: mantissa * 2^-24 is exact in float32.
        float magnitude = (float)mantissa * 0x1.0p-24f;
        return bits_to_f32(f32_to_bits(magnitude) | sign);
    }
    if (exponent == 31) {
        return bits_to_f32(sign | 0x7F800000u | (mantissa << 13));
    }
    return bits_to_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t dtype_f32_to_f16(float value) {
    uint32_t bits = f32_to_bits(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00);    // a quiet NaN
    }
    if (magnitude >= 0x477FF000u) {
        return (uint16_t)(sign | 0x7C00);    // rounds to 65536 or above: infinity
    }
    if (magnitude < 0x38800000u) {
        // Below 2^-14: subnormal result. Adding 0.5 (2^-24 units of the last place) rounds to even.
        float rounded = bits_to_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_to_bits(rounded) - 0x3F000000u));
    }
    uint32_t odd = (magnitude >> 13) & 1;
    uint32_t rounded = magnitude + 0xFFF + odd - 0x38000000u;
    return (uint16_t)(sign | (rounded >> 13));
}

float dtype_bf16_to_f32(uint16_t half) {
    return bits_to_f32((uint32_t)half << 16);
}

uint16_t dtype_f32_to_bf16(float value) {
    uint32_t bits = f32_to_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return (uint16_t)((bits >> 16) | 0x40);
    }
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// ---- block decoders ----------------------------------------------------------------------------

static float half_at(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return dtype_f16_to_f32(half);
}

// {d f16; qs[16]}: y = d * (q - 8); low nibbles are elements 0..15, high ones 16..31.
static void decode_q4_0(const uint8_t *block, float *out) {
    float d = half_at(block);
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)((block[2 + j] & 15) - 8);
        out[j + 16] = d * (float)((block[2 + j] >> 4) - 8);
    }
}

// {d f16; m f16; qs[16]}: y = d * q + m.
static void decode_q4_1(const uint8_t *block, float *out) {
    float d = half_at(block);
    float m = half_at(block + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)(block[4 + j] & 15) + m;
        out[j + 16] = d * (float)(block[4 + j] >> 4) + m;
    }
}

// Five-bit values: four low bits in qs, the fifth in the 32-bit word qh.
static void q5_values(const uint8_t *qh_bytes, const uint8_t *qs, int *q) {
    uint32_t qh;
    memcpy(&qh, qh_bytes, sizeof qh);
    for (int j = 0; j < 16; j++) {
        q[j] = (qs[j] & 15) | (int)(((qh >> j) & 1) << 4);
        q[j + 16] = (qs[j] >> 4) | (int)(((qh >> (j + 16)) & 1) << 4);
    }
}

// {d f16; qh u32; qs[16]}: y = d * (q - 16).
static void decode_q5_0(const uint8_t *block, float *out) {
    int q[32];
    float d = half_at(block);
    q5_values(block + 2, block + 6, q);
    for (int j = 0; j < 32; j++) {
        out[j] = d * (float)(q[j] - 16);
    }
}

// {d f16; m f16; qh u32; qs[16]}: y = d * q + m.
static void decode_q5_1(const uint8_t *block, float *out) {
    int q[32];
    float d = half_at(block);
    float m = half_at(block + 2);
    q5_values(block + 4, block + 8, q);
    for (int j = 0; j < 32; j++) {
        out[j] = d * (float)q[j] + m;
    }
}

// {d f16; i8 qs[32]}: y = d * q.
static void decode_q8_0(const uint8_t *block, float *out) {
    float d = half_at(block);
    for (int j = 0; j < 32; j++) {
        out[j] = d * (float)(int8_t)block[2 + j];
    }
}

// Six-bit scale and minimum number j (0..7) out of the 12 packed bytes of Q4_K and Q5_K.
static void k_scale(const uint8_t *b, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = b[j] & 63;
        *min = b[j + 4] & 63;
    } else {
        *scale = (b[j + 4] & 15) | ((b[j - 4] >> 6) << 4);
        *min = (b[j + 4] >> 4) | ((b[j] >> 6) << 4);
    }
}

// {d f16; dmin f16; scales[12]; qs[128]}: y = d * sc * q - dmin * mn, sub-blocks of 32.
static void decode_q4_k(const uint8_t *block, float *out) {
    float d = half_at(block);
    float dmin = half_at(block + 2);
    const uint8_t *qs = block + 16;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(block + 4, j, &scale, &min);
        for (int l = 0; l < 32; l++) {
            uint8_t byte = qs[32 * (j / 2) + l];
            int q = j % 2 == 0 ? byte & 15 : byte >> 4;
            out[32 * j + l] = d * (float)scale * (float)q - dmin * (float)min;
        }
    }
}

// {d f16; dmin f16; scales[12]; qh[32]; qs[128]}: Q4_K with a fifth bit, bit j of qh[l].
static void decode_q5_k(const uint8_t *block, float *out) {
    float d = half_at(block);
    float dmin = half_at(block + 2);
    const uint8_t *qh = block + 16;
    const uint8_t *qs = block + 48;
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(block + 4, j, &scale, &min);
        for (int l = 0; l < 32; l++) {
            uint8_t byte = qs[32 * (j / 2) + l];
            int q = (j % 2 == 0 ? byte & 15 : byte >> 4) + 16 * ((qh[l] >> j) & 1);
            out[32 * j + l] = d * (float)scale * (float)q - dmin * (float)min;
        }
    }
}

// {ql[128]; qh[64]; i8 scales[16]; d f16}: y = d * scale * (q - 32), scales per 16 elements.
static void decode_q6_k(const uint8_t *block, float *out) {
    float d = half_at(block + 208);
    for (int n = 0; n < 2; n++) {
        const uint8_t *ql = block + 64 * n;
        const uint8_t *qh = block + 128 + 32 * n;
        const uint8_t *scales = block + 192 + 8 * n;
        for (int l = 0; l < 32; l++) {
            int q[4] = {
                (ql[l] & 15) | ((qh[l] & 3) << 4),
                (ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4),
                (ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4),
                (ql[l + 32] >> 4) | (((qh[l] >> 6) & 3) << 4),
            };
            for (int part = 0; part < 4; part++) {
                int scale = (int8_t)scales[l / 16 + 2 * part];
                out[128 * n + l + 32 * part] = d * (float)scale * (float)(q[part] - 32);
            }
        }
    }
}

typedef void (*decode_fn)(const uint8_t *block, float *out);

static decode_fn block_decoder(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_Q4_0:
        return decode_q4_0;
    case DTYPE_Q4_1:
        return decode_q4_1;
    case DTYPE_Q5_0:
        return decode_q5_0;
    case DTYPE_Q5_1:
        return decode_q5_1;
    case DTYPE_Q8_0:
        return decode_q8_0;
    case DTYPE_Q4_K:
        return decode_q4_k;
    case DTYPE_Q5_K:
        return decode_q5_k;
    case DTYPE_Q6_K:
        return decode_q6_k;
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_COUNT:
        break;
    }
    return NULL;
}

void dtype_decode(enum dtype dtype, const void *blocks, uint64_t elements, float *out) {
    INVARIANT(elements % dtype_block_elements(dtype) == 0);
    const uint8_t *at = blocks;
    if (dtype == DTYPE_F32) {
        memcpy(out, at, elements * sizeof *out);
        return;
    }
    if (dtype == DTYPE_F16 || dtype == DTYPE_BF16) {
        for (uint64_t i = 0; i < elements; i++) {
            uint16_t half;
            memcpy(&half, at + 2 * i, sizeof half);
            out[i] = dtype == DTYPE_F16 ? dtype_f16_to_f32(half) : dtype_bf16_to_f32(half);
        }
        return;
    }
    decode_fn decode = block_decoder(dtype);
    INVARIANT(decode != NULL);
    uint32_t block_elements = dtype_block_elements(dtype);
    uint32_t block_bytes = dtype_block_bytes(dtype);
    for (uint64_t i = 0; i < elements / block_elements; i++) {
        decode(at + i * block_bytes, out + i * block_elements);
    }
}
