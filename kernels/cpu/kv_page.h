// SPDX-License-Identifier: Apache-2.0
#ifndef KERNELS_CPU_KV_PAGE_H
#define KERNELS_CPU_KV_PAGE_H

#include "kernels/ops.h"

// The inside of one (block, layer) page of the KV pool on the cpu.
//
// The idea: attention multiplies a query with many positions at once, so keys lie position-minor in
// spans of 16 positions (one dimension of 16 positions is two vectors of float32), and values lie
// dimension-minor (a probability times a row of values). One KV head's keys and values are
// neighbours, since one task reads both.
//
//   page  = kv_head_count x head
//   head  = keys   [block_tokens / 16][head_dim][16]
//           values [block_tokens][head_dim]
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

enum { KV_SPAN = 16 };

static inline size_t kv_element_bytes(const struct op_kv_layout *kv) {
    return kv->dtype == DTYPE_F16 ? 2 : 4;
}

// Elements of one head's keys in a page; its values take as many.
static inline size_t kv_part_elements(const struct op_kv_layout *kv) {
    return (size_t)kv->block_tokens * kv->head_dim;
}

static inline size_t kv_page_bytes(const struct op_kv_layout *kv) {
    return 2 * kv_part_elements(kv) * kv->kv_head_count * kv_element_bytes(kv);
}

static inline uint8_t *kv_page(const struct op_step *step, const struct op_kv_layout *kv,
                               uint32_t layer, uint32_t seq, uint32_t position) {
    uint32_t block =
        step->block_table[(size_t)seq * step->block_table_stride + position / kv->block_tokens];
    return step->kv_base + kv->block_stride_bytes * block + kv->layer_stride_bytes * layer;
}

// Byte offsets inside a page. A key span is [head_dim][16]; a value row is [head_dim].
static inline size_t kv_key_span_offset(const struct op_kv_layout *kv, uint32_t head,
                                        uint32_t position_in_block) {
    size_t element = 2 * kv_part_elements(kv) * head +
                     (size_t)(position_in_block / KV_SPAN) * KV_SPAN * kv->head_dim;
    return element * kv_element_bytes(kv);
}

static inline size_t kv_value_offset(const struct op_kv_layout *kv, uint32_t head,
                                     uint32_t position_in_block) {
    size_t element = 2 * kv_part_elements(kv) * head + kv_part_elements(kv) +
                     (size_t)position_in_block * kv->head_dim;
    return element * kv_element_bytes(kv);
}

#endif
