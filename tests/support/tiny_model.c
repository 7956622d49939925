// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_model.h"

#include "common/buf.h"
#include "common/gguf.h"
#include "common/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 16 * 1024 * 1024, ALIGNMENT = 32, NAME_BYTES = 64 };

struct writer {
    struct buf head;    // header, keys, tensor table
    struct buf data;
    struct rng rng;
    struct tiny_form form;
    uint64_t keys, tensors;
};

static void put(struct buf *b, uint64_t value, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) {
        buf_append_byte(b, (uint8_t)(value >> (8 * i)));
    }
}

static void put_text(struct buf *b, const char *text) {
    put(b, strlen(text), 8);
    buf_append_str(b, text);
}

static void key_u32(struct writer *w, const char *arch, const char *name, uint32_t value) {
    char key[NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    put_text(&w->head, key);
    put(&w->head, GGUF_TYPE_U32, 4);
    put(&w->head, value, 4);
    w->keys++;
}

static void key_f32(struct writer *w, const char *arch, const char *name, float value) {
    char key[NAME_BYTES];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    snprintf(key, sizeof key, "%s.%s", arch, name);
    put_text(&w->head, key);
    put(&w->head, GGUF_TYPE_F32, 4);
    put(&w->head, bits, 4);
    w->keys++;
}

static void floats(struct writer *w, uint64_t count, bool norm) {
    for (uint64_t i = 0; i < count; i++) {
        // Norms near one, matrices small: activations keep their size.
        float value = (float)rng_unit(&w->rng) - 0.5f;
        value = norm ? 1.0f + 0.2f * value : value * 0.4f;
        buf_append(&w->data, &value, sizeof value);
    }
}

// The same range in blocks of 32: a half scale and 32 signed bytes.
static void blocks(struct writer *w, uint64_t count) {
    for (uint64_t i = 0; i < count; i += 32) {
        put(&w->data, dtype_f32_to_f16(0.2f / 127.0f), 2);
        for (uint32_t k = 0; k < 32; k++) {
            buf_append_byte(&w->data, (uint8_t)((int)rng_below(&w->rng, 255) - 127));
        }
    }
}

// [count, rows, cols], of fewer dimensions where the first are 1.
static void tensor_of(struct writer *w, const char *name, enum dtype dtype, uint32_t count,
                      uint32_t rows, uint32_t cols) {
    enum { GGML_F32 = 0, GGML_Q8_0 = 8 };
    uint64_t elements = (uint64_t)count * rows * cols;
    put_text(&w->head, name);
    put(&w->head, count > 1 ? 3 : rows > 1 ? 2 : 1, 4);
    put(&w->head, cols, 8);
    if (rows > 1) {
        put(&w->head, rows, 8);
    }
    if (count > 1) {
        put(&w->head, count, 8);
    }
    put(&w->head, dtype == DTYPE_Q8_0 ? GGML_Q8_0 : GGML_F32, 4);
    put(&w->head, w->data.bytes_used, 8);
    if (dtype == DTYPE_Q8_0) {
        blocks(w, elements);
    } else {
        floats(w, elements, rows == 1);
    }
    while (w->data.bytes_used % ALIGNMENT != 0) {
        buf_append_byte(&w->data, 0);
    }
    w->tensors++;
}

static void tensor(struct writer *w, const char *name, uint32_t rows, uint32_t cols) {
    tensor_of(w, name, rows > 1 ? w->form.dtype : DTYPE_F32, 1, rows, cols);
}

static void layer_tensor(struct writer *w, uint32_t layer, const char *stem, uint32_t rows,
                         uint32_t cols) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, stem);
    tensor(w, name, rows, cols);
}

static void expert_tensor(struct writer *w, uint32_t layer, const char *stem, uint32_t rows,
                          uint32_t cols) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, stem);
    tensor_of(w, name, w->form.dtype, w->form.experts, rows, cols);
}

static void write_keys(struct writer *w, const struct tiny_model *m) {
    put_text(&w->head, "general.architecture");
    put(&w->head, GGUF_TYPE_STRING, 4);
    put_text(&w->head, m->arch);
    w->keys++;
    key_u32(w, m->arch, "context_length", m->context);
    key_u32(w, m->arch, "embedding_length", m->hidden);
    key_u32(w, m->arch, "block_count", m->layers);
    key_u32(w, m->arch, "feed_forward_length", m->inter);
    key_u32(w, m->arch, "attention.head_count", m->q_heads);
    key_u32(w, m->arch, "attention.head_count_kv", m->kv_heads);
    key_u32(w, m->arch, "attention.key_length", m->head_dim);
    key_u32(w, m->arch, "attention.value_length", m->head_dim);
    key_f32(w, m->arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(w, m->arch, "rope.freq_base", 10000.0f);
    if (w->form.experts > 0) {
        key_u32(w, m->arch, "expert_count", w->form.experts);
        key_u32(w, m->arch, "expert_used_count", w->form.experts_used);
        key_u32(w, m->arch, "expert_feed_forward_length", w->form.expert_inter);
        if (w->form.shared_inter > 0) {
            key_u32(w, m->arch, "expert_shared_feed_forward_length", w->form.shared_inter);
        }
    }
}

static void write_layer(struct writer *w, const struct tiny_model *m, uint32_t layer) {
    uint32_t q = m->q_heads * m->head_dim;
    uint32_t kv = m->kv_heads * m->head_dim;
    layer_tensor(w, layer, "attn_norm", 1, m->hidden);
    layer_tensor(w, layer, "ffn_norm", 1, m->hidden);
    layer_tensor(w, layer, "attn_q", q, m->hidden);
    layer_tensor(w, layer, "attn_k", kv, m->hidden);
    layer_tensor(w, layer, "attn_v", kv, m->hidden);
    layer_tensor(w, layer, "attn_output", m->hidden, q);
    if (w->form.experts > 0) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", layer);
        tensor_of(w, name, DTYPE_F32, 1, w->form.experts, m->hidden);
        if (w->form.shared_inter > 0) {
            layer_tensor(w, layer, "ffn_gate_inp_shexp", 1, m->hidden);
            layer_tensor(w, layer, "ffn_gate_shexp", w->form.shared_inter, m->hidden);
            layer_tensor(w, layer, "ffn_up_shexp", w->form.shared_inter, m->hidden);
            layer_tensor(w, layer, "ffn_down_shexp", m->hidden, w->form.shared_inter);
        }
        expert_tensor(w, layer, "ffn_gate_exps", w->form.expert_inter, m->hidden);
        expert_tensor(w, layer, "ffn_up_exps", w->form.expert_inter, m->hidden);
        expert_tensor(w, layer, "ffn_down_exps", m->hidden, w->form.expert_inter);
    } else {
        layer_tensor(w, layer, "ffn_gate", m->inter, m->hidden);
        layer_tensor(w, layer, "ffn_up", m->inter, m->hidden);
        layer_tensor(w, layer, "ffn_down", m->hidden, m->inter);
    }
    if (strncmp(m->arch, "qwen3", 5) == 0) {
        layer_tensor(w, layer, "attn_q_norm", 1, m->head_dim);
        layer_tensor(w, layer, "attn_k_norm", 1, m->head_dim);
    }
}

static bool write_all(const struct buf *b, FILE *file) {
    return fwrite(b->data, 1, b->bytes_used, file) == b->bytes_used;
}

void tiny_model_write(const struct tiny_model *model, const char *path) {
    tiny_model_write_as(model, &(struct tiny_form){.dtype = DTYPE_F32}, path);
}

void tiny_model_write_as(const struct tiny_model *model, const struct tiny_form *form,
                         const char *path) {
    struct writer w = {0};
    struct buf start;
    rng_init(&w.rng, 7);
    w.form = *form;
    buf_init(&w.head, FILE_BYTES_MAX);
    buf_init(&w.data, FILE_BYTES_MAX);
    buf_init(&start, 64);
    write_keys(&w, model);
    tensor(&w, "token_embd.weight", model->vocabulary, model->hidden);
    tensor(&w, "output_norm.weight", 1, model->hidden);
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        write_layer(&w, model, layer);
    }
    buf_append_str(&start, "GGUF");
    put(&start, 3, 4);
    put(&start, w.tensors, 8);
    put(&start, w.keys, 8);
    while ((start.bytes_used + w.head.bytes_used) % ALIGNMENT != 0) {
        buf_append_byte(&w.head, 0);
    }
    FILE *file = fopen(path, "wb");
    bool good =
        file != NULL && buf_status(&w.head) == STATUS_OK && buf_status(&w.data) == STATUS_OK;
    good = good && write_all(&start, file) && write_all(&w.head, file) && write_all(&w.data, file);
    good = file != NULL && fclose(file) == 0 && good;
    if (!good) {
        fprintf(stderr, "'%s' cannot be written\n", path);
        abort();
    }
    buf_deinit(&start);
    buf_deinit(&w.head);
    buf_deinit(&w.data);
}
