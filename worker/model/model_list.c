// SPDX-License-Identifier: Apache-2.0
// The list of a model's weights: names in either container, shapes, what of each a rank has.
#include "worker/model/model_items.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <stdio.h>
#include <string.h>

// ---- names -------------------------------------------------------------------------------------

struct tensor_name {
    const char *gguf;
    const char *hf;
    enum model_kind kind;
};

static const struct tensor_name name_embed = {"token_embd", "model.embed_tokens",
                                              MODEL_KIND_EMBEDDING};
static const struct tensor_name name_output = {"output", "lm_head", MODEL_KIND_EMBEDDING};
static const struct tensor_name name_output_norm = {"output_norm", "model.norm", MODEL_KIND_OTHER};
static const struct tensor_name name_attn_norm = {"attn_norm", "input_layernorm", MODEL_KIND_OTHER};
static const struct tensor_name name_ffn_norm = {"ffn_norm", "post_attention_layernorm",
                                                 MODEL_KIND_OTHER};
static const struct tensor_name name_q = {"attn_q", "self_attn.q_proj", MODEL_KIND_ATTENTION};
static const struct tensor_name name_k = {"attn_k", "self_attn.k_proj", MODEL_KIND_ATTENTION};
static const struct tensor_name name_v = {"attn_v", "self_attn.v_proj", MODEL_KIND_ATTENTION};
static const struct tensor_name name_o = {"attn_output", "self_attn.o_proj", MODEL_KIND_ATTENTION};
static const struct tensor_name name_q_norm = {"attn_q_norm", "self_attn.q_norm", MODEL_KIND_OTHER};
static const struct tensor_name name_k_norm = {"attn_k_norm", "self_attn.k_norm", MODEL_KIND_OTHER};
static const struct tensor_name name_router = {"ffn_gate_inp", "mlp.gate", MODEL_KIND_OTHER};
static const struct tensor_name name_gate = {"ffn_gate", "mlp.gate_proj", MODEL_KIND_MLP};
static const struct tensor_name name_up = {"ffn_up", "mlp.up_proj", MODEL_KIND_MLP};
static const struct tensor_name name_down = {"ffn_down", "mlp.down_proj", MODEL_KIND_MLP};

static const struct tensor_name name_shared_switch = {"ffn_gate_inp_shexp",
                                                      "mlp.shared_expert_gate", MODEL_KIND_OTHER};
static const struct tensor_name name_shared_gate = {"ffn_gate_shexp", "mlp.shared_expert.gate_proj",
                                                    MODEL_KIND_MLP};
static const struct tensor_name name_shared_up = {"ffn_up_shexp", "mlp.shared_expert.up_proj",
                                                  MODEL_KIND_MLP};
static const struct tensor_name name_shared_down = {"ffn_down_shexp", "mlp.shared_expert.down_proj",
                                                    MODEL_KIND_MLP};
static const struct model_expert_name name_expert_gate = {
    "ffn_gate_exps", "gate_proj", "ffn_gate_up_exps", "gate_up_proj", 2, 0};
static const struct model_expert_name name_expert_up = {
    "ffn_up_exps", "up_proj", "ffn_gate_up_exps", "gate_up_proj", 2, 1};
static const struct model_expert_name name_expert_down = {"ffn_down_exps", "down_proj", NULL,
                                                          "down_proj",     1,           0};

enum { LAYER_NONE = -1 };

static void tensor_name(const struct weights *weights, const struct tensor_name *name, int layer,
                        const char *suffix, char *out) {
    bool gguf = weights_container(weights) == WEIGHTS_CONTAINER_GGUF;
    const char *stem = gguf ? name->gguf : name->hf;
    if (layer == LAYER_NONE) {
        snprintf(out, MODEL_NAME_BYTES, "%s.%s", stem, suffix);
    } else {
        snprintf(out, MODEL_NAME_BYTES, "%s.%d.%s.%s", gguf ? "blk" : "model.layers", layer, stem,
                 suffix);
    }
}

// ---- the list of weights -----------------------------------------------------------------------

struct shape {
    uint32_t rows, cols;
};

// Where the item's tensor lies in the files, or what it would be.
static enum status find_source(const struct model *model, const struct weights *weights,
                               struct model_item *item, struct shape shape, struct error *err) {
    if (weights_shapes_only(weights)) {
        item->source =
            (struct weights_tensor){model->config.dtype, shape.rows, shape.cols, NULL, 0};
        bool good = dtype_row_bytes(model->config.dtype, (uint64_t)shape.rows * shape.cols,
                                    &item->source.byte_count);
        INVARIANT(good);    // plain types, and sizes within bounds
        return STATUS_OK;
    }
    TRY(weights_find(weights, item->name, &item->source, err));
    if (item->source.rows != shape.rows || item->source.cols != shape.cols) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%s' is [%llu, %llu]; the configuration asks for [%u, %u]",
                         item->name, (unsigned long long)item->source.rows,
                         (unsigned long long)item->source.cols, shape.rows, shape.cols);
    }
    return STATUS_OK;
}

static struct model_item *next_item(struct model *model) {
    INVARIANT(model->item_count < model->item_max);
    return &model->items[model->item_count++];
}

// `matrices`: of the whole model under this item's name.
static void place(struct model *model, struct model_item *item, uint32_t matrices, size_t bytes) {
    size_t room = (bytes + MODEL_WEIGHT_ALIGNMENT - 1) & ~(size_t)(MODEL_WEIGHT_ALIGNMENT - 1);
    item->offset = model->bytes;
    item->bytes = bytes;
    model->bytes += room;
    model->kind_bytes[item->kind] += room;
    model->parameters += item->source.rows * item->source.cols * matrices;
    model->source_bytes += item->source.byte_count * matrices;
}

// A matrix of the model and what this rank has of it.
struct piece {
    enum model_split split;
    struct shape whole, part;
};

// Where the rank's part of a matrix begins.
static void find_begin(const struct model *model, const struct piece *piece,
                       struct model_item *item) {
    const struct model_shard *shard = &model->view.shard;
    uint32_t kv_heads = model->config.kv_head_count;
    switch (piece->split) {
    case MODEL_SPLIT_COPY:
    case MODEL_SPLIT_EXPERTS:
        return;
    case MODEL_SPLIT_KV_ROWS:
        if (kv_heads < shard->world) {
            item->row_begin = shard->rank * kv_heads / shard->world * piece->part.rows;
            return;
        }
        item->row_begin = shard->rank * piece->part.rows;
        return;
    case MODEL_SPLIT_ROWS:
    case MODEL_SPLIT_VOCABULARY:
        item->row_begin = shard->rank * piece->part.rows;
        return;
    case MODEL_SPLIT_COLS:
        item->col_begin = shard->rank * piece->part.cols;
        return;
    }
    UNREACHABLE();
}

// Columns of quantised types come in blocks, which no cut may go through.
static enum status check_blocks(struct model *model, const struct piece *piece,
                                const struct model_item *item, struct error *err) {
    if (piece->split != MODEL_SPLIT_COLS) {
        return STATUS_OK;
    }
    uint32_t block = dtype_block_elements(item->source.dtype);
    if (piece->whole.cols % (OP_PARTS_MAX * block) != 0) {
        model->eighths = false;
    }
    if (piece->part.cols % block != 0) {
        error_hint(err, "take a smaller --tensor-parallel-size, or weights of another type");
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor '%s' of type %s: %u columns for each of %u ranks do not end where "
                         "a block of %u does",
                         item->name, dtype_name(item->source.dtype), piece->part.cols,
                         model->view.shard.world, block);
    }
    return STATUS_OK;
}

static enum status add_matrix(struct model *model, const struct weights *weights,
                              const struct tensor_name *name, int layer, struct piece piece,
                              struct op_weight *weight, struct error *err) {
    struct model_item *item = next_item(model);
    tensor_name(weights, name, layer, "weight", item->name);
    char bias[MODEL_NAME_BYTES];
    tensor_name(weights, name, layer, "bias", bias);
    if (weights_has(weights, bias)) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%s': biases are not built", bias);
    }
    TRY(find_source(model, weights, item, piece.whole, err));
    TRY(check_blocks(model, &piece, item, err));
    struct shape part = piece.part;
    if (!model->ops->weight_supported(item->source.dtype, part.rows, part.cols)) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor '%s' of type %s and shape [%u, %u] cannot be computed on %s",
                         item->name, dtype_name(item->source.dtype), part.rows, part.cols,
                         model->ops->name);
    }
    *weight = (struct op_weight){item->source.dtype, part.rows, part.cols, NULL};
    item->weight = weight;
    item->kind = name->kind;
    item->split = model->view.shard.world == 1 ? MODEL_SPLIT_COPY : piece.split;
    item->rows = part.rows;
    item->cols = part.cols;
    find_begin(model, &piece, item);
    place(model, item, 1, model->ops->weight_bytes(weight->dtype, weight->rows, weight->cols));
    return STATUS_OK;
}

static enum status add_vector(struct model *model, const struct weights *weights,
                              const struct tensor_name *name, int layer, uint32_t count,
                              const float **vector, struct error *err) {
    struct model_item *item = next_item(model);
    tensor_name(weights, name, layer, "weight", item->name);
    TRY(find_source(model, weights, item, (struct shape){1, count}, err));
    if (dtype_block_elements(item->source.dtype) != 1) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%s': a norm of type %s", item->name,
                         dtype_name(item->source.dtype));
    }
    item->vector = vector;
    item->kind = name->kind;
    item->split = MODEL_SPLIT_COPY;
    item->rows = 1;
    item->cols = count;
    place(model, item, 1, (size_t)count * sizeof(float));
    return STATUS_OK;
}

// ---- experts -----------------------------------------------------------------------------------

enum status model_find_expert(const struct weights *weights, const struct model_item *item,
                              uint32_t expert, struct weights_tensor *out, struct error *err) {
    if (item->stride > 0 || weights_shapes_only(weights)) {
        *out = item->source;
        out->data = out->data == NULL ? NULL : out->data + item->stride * expert;
        return STATUS_OK;
    }
    char name[MODEL_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%u.%s.weight", item->layer, expert,
             item->expert_name->hf);
    TRY(weights_find(weights, name, out, err));
    if (expert > 0 && (out->rows != item->source.rows || out->cols != item->source.cols ||
                       out->dtype != item->source.dtype)) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%s' is %s [%llu, %llu]; the first expert's is %s [%llu, %llu]",
                         name, dtype_name(out->dtype), (unsigned long long)out->rows,
                         (unsigned long long)out->cols, dtype_name(item->source.dtype),
                         (unsigned long long)item->source.rows,
                         (unsigned long long)item->source.cols);
    }
    return STATUS_OK;
}

// The name of the tensor that holds all experts, alone (`fused` false) or with its sister; false
// where there is none.
static bool stack_name(const struct weights *weights, const struct model_item *item, bool fused,
                       char *out) {
    const struct model_expert_name *name = item->expert_name;
    bool gguf = weights_container(weights) == WEIGHTS_CONTAINER_GGUF;
    const char *stem = gguf ? (fused ? name->gguf_fused : name->gguf) : name->hf_fused;
    if (stem == NULL || (!gguf && !fused)) {
        return false;
    }
    snprintf(out, MODEL_NAME_BYTES, gguf ? "blk.%d.%s.weight" : "model.layers.%d.mlp.experts.%s",
             item->layer, stem);
    return weights_has(weights, out);
}

// All experts in one tensor: `item->source` becomes the first of them.
static enum status take_stack(const struct model *model, const struct weights *weights,
                              struct model_item *item, struct shape shape, uint32_t parts,
                              struct error *err) {
    uint64_t count = 0;
    struct weights_tensor *first = &item->source;
    TRY(weights_find_stack(weights, item->name, first, &count, err));
    if (count != model->config.expert_count || first->rows != (uint64_t)shape.rows * parts ||
        first->cols != shape.cols) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%s' is [%llu, %llu, %llu]; the configuration asks for "
                         "[%u, %u, %u]",
                         item->name, (unsigned long long)count, (unsigned long long)first->rows,
                         (unsigned long long)first->cols, model->config.expert_count,
                         shape.rows * parts, shape.cols);
    }
    item->stride = first->byte_count;
    first->byte_count /= parts;
    first->rows = shape.rows;
    if (parts > 1) {
        first->data += first->byte_count * item->expert_name->fused_index;
    }
    return STATUS_OK;
}

static enum status find_experts(const struct model *model, const struct weights *weights,
                                struct model_item *item, struct shape shape, struct error *err) {
    if (stack_name(weights, item, false, item->name)) {
        return take_stack(model, weights, item, shape, 1, err);
    }
    if (stack_name(weights, item, true, item->name)) {
        return take_stack(model, weights, item, shape, item->expert_name->fused_parts, err);
    }
    bool gguf = weights_container(weights) == WEIGHTS_CONTAINER_GGUF;
    snprintf(item->name, sizeof item->name,
             gguf ? "blk.%d.%s.weight" : "model.layers.%d.mlp.experts.0.%s.weight", item->layer,
             gguf ? item->expert_name->gguf : item->expert_name->hf);
    TRY(find_source(model, weights, item, shape, err));
    for (uint32_t e = 1; e < model->config.expert_count; e++) {
        struct weights_tensor other;
        TRY(model_find_expert(weights, item, e, &other, err));
    }
    return STATUS_OK;
}

static enum status add_experts(struct model *model, const struct weights *weights,
                               const struct model_expert_name *name, int layer, struct shape shape,
                               struct op_experts *experts, struct error *err) {
    struct model_item *item = next_item(model);
    const struct model_shard *shard = &model->view.shard;
    uint32_t count = model->config.expert_count / shard->world;
    item->expert_name = name;
    item->layer = layer;
    TRY(find_experts(model, weights, item, shape, err));
    enum dtype dtype = item->source.dtype;
    if (!model->ops->weight_supported(dtype, shape.rows, shape.cols)) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor '%s' of type %s and shape [%u, %u] cannot be computed on %s",
                         item->name, dtype_name(dtype), shape.rows, shape.cols, model->ops->name);
    }
    size_t bytes = model->ops->weight_bytes(dtype, shape.rows, shape.cols);
    *experts = (struct op_experts){
        .first = {dtype, shape.rows, shape.cols, NULL},
        .count = count,
        .stride_bytes =
            (bytes + MODEL_WEIGHT_ALIGNMENT - 1) & ~(size_t)(MODEL_WEIGHT_ALIGNMENT - 1),
    };
    item->experts = experts;
    item->kind = MODEL_KIND_EXPERTS;
    item->split = shard->world == 1 ? MODEL_SPLIT_COPY : MODEL_SPLIT_EXPERTS;
    item->rows = shape.rows;
    item->cols = shape.cols;
    item->expert_begin = shard->rank * count;
    place(model, item, model->config.expert_count, experts->stride_bytes * count);
    return STATUS_OK;
}

// An expert that every row goes to: columns shared out like a dense layer's.
static enum status add_shared_expert(struct model *model, const struct weights *weights, int index,
                                     struct error *err) {
    const struct model_config *c = &model->config;
    struct model_layer *layer = &model->layers[index];
    uint32_t whole = c->shared_inter, part = model->part.shared_inter;
    struct piece copy = {MODEL_SPLIT_COPY, {1, c->hidden}, {1, c->hidden}};
    struct piece up = {MODEL_SPLIT_ROWS, {whole, c->hidden}, {part, c->hidden}};
    struct piece down = {MODEL_SPLIT_COLS, {c->hidden, whole}, {c->hidden, part}};
    TRY(add_matrix(model, weights, &name_shared_switch, index, copy, &layer->shared_switch, err));
    TRY(add_matrix(model, weights, &name_shared_gate, index, up, &layer->gate, err));
    TRY(add_matrix(model, weights, &name_shared_up, index, up, &layer->up, err));
    return add_matrix(model, weights, &name_shared_down, index, down, &layer->down, err);
}

static enum status add_expert_layer(struct model *model, const struct weights *weights, int index,
                                    struct error *err) {
    const struct model_config *c = &model->config;
    struct model_layer *layer = &model->layers[index];
    struct shape inner = {c->expert_inter, c->hidden};
    struct shape outer = {c->hidden, c->expert_inter};
    struct shape router = {c->expert_count, c->hidden};
    struct piece copy = {MODEL_SPLIT_COPY, router, router};
    TRY(add_matrix(model, weights, &name_router, index, copy, &layer->router, err));
    if (c->shared_inter > 0) {
        TRY(add_shared_expert(model, weights, index, err));
    }
    TRY(add_experts(model, weights, &name_expert_gate, index, inner, &layer->expert_gate, err));
    TRY(add_experts(model, weights, &name_expert_up, index, inner, &layer->expert_up, err));
    return add_experts(model, weights, &name_expert_down, index, outer, &layer->expert_down, err);
}

// ---- layers ------------------------------------------------------------------------------------

static enum status add_layer(struct model *model, const struct weights *weights, int index,
                             struct error *err) {
    const struct model_config *c = &model->config;
    const struct model_config *p = &model->part;
    struct model_layer *layer = &model->layers[index];
    uint32_t d = c->head_dim;
    struct piece q = {
        MODEL_SPLIT_ROWS, {c->q_head_count * d, c->hidden}, {p->q_head_count * d, c->hidden}};
    struct piece kv = {
        MODEL_SPLIT_KV_ROWS, {c->kv_head_count * d, c->hidden}, {p->kv_head_count * d, c->hidden}};
    struct piece o = {
        MODEL_SPLIT_COLS, {c->hidden, c->q_head_count * d}, {c->hidden, p->q_head_count * d}};
    struct piece up = {MODEL_SPLIT_ROWS, {c->inter, c->hidden}, {p->inter, c->hidden}};
    struct piece down = {MODEL_SPLIT_COLS, {c->hidden, c->inter}, {c->hidden, p->inter}};
    TRY(add_vector(model, weights, &name_attn_norm, index, c->hidden, &layer->attn_norm, err));
    TRY(add_matrix(model, weights, &name_q, index, q, &layer->q, err));
    TRY(add_matrix(model, weights, &name_k, index, kv, &layer->k, err));
    TRY(add_matrix(model, weights, &name_v, index, kv, &layer->v, err));
    if (model->view.family->qk_norm) {
        TRY(add_vector(model, weights, &name_q_norm, index, d, &layer->q_norm, err));
        TRY(add_vector(model, weights, &name_k_norm, index, d, &layer->k_norm, err));
    }
    TRY(add_matrix(model, weights, &name_o, index, o, &layer->o, err));
    TRY(add_vector(model, weights, &name_ffn_norm, index, c->hidden, &layer->ffn_norm, err));
    if (model_config_has_experts(c, (uint32_t)index)) {
        return add_expert_layer(model, weights, index, err);
    }
    TRY(add_matrix(model, weights, &name_gate, index, up, &layer->gate, err));
    TRY(add_matrix(model, weights, &name_up, index, up, &layer->up, err));
    return add_matrix(model, weights, &name_down, index, down, &layer->down, err);
}

static enum status find_rope_divisors(struct model *model, const struct weights *weights,
                                      struct error *err) {
    if (model->config.rope.scaling != ROPE_SCALING_TABLE) {
        return STATUS_OK;
    }
    struct weights_tensor tensor;
    TRY(weights_find(weights, "rope_freqs.weight", &tensor, err));
    if (tensor.dtype != DTYPE_F32 || tensor.rows != 1 ||
        tensor.cols != model->config.rope.dims / 2) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor 'rope_freqs.weight' is %s [%llu, %llu], not F32 [%u]",
                         dtype_name(tensor.dtype), (unsigned long long)tensor.rows,
                         (unsigned long long)tensor.cols, model->config.rope.dims / 2);
    }
    float *copy = memory_array(tensor.cols, sizeof *copy);
    if (copy == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for rotary divisors");
    }
    memcpy(copy, tensor.data, tensor.byte_count);
    model->rope_divisors = copy;
    for (uint64_t i = 0; i < tensor.cols; i++) {
        if (!(copy[i] > 0.0f && copy[i] < 1e9f)) {
            return error_set(err, STATUS_CORRUPT, "rope_freqs.weight[%llu] is %g",
                             (unsigned long long)i, (double)copy[i]);
        }
    }
    return STATUS_OK;
}

uint32_t model_list_max(uint32_t layer_count) {
    enum { ITEMS_PER_LAYER = 16, ITEMS_ELSEWHERE = 3 };
    return layer_count * ITEMS_PER_LAYER + ITEMS_ELSEWHERE;
}

enum status model_list(struct model *model, const struct weights *weights, struct error *err) {
    const struct model_config *c = &model->config;
    model->eighths = true;
    struct piece vocabulary = {
        MODEL_SPLIT_VOCABULARY, {c->vocabulary, c->hidden}, {model->part.vocabulary, c->hidden}};
    TRY(add_matrix(model, weights, &name_embed, LAYER_NONE, vocabulary, &model->embed, err));
    for (uint32_t i = 0; i < c->layer_count; i++) {
        TRY(add_layer(model, weights, (int)i, err));
    }
    TRY(add_vector(model, weights, &name_output_norm, LAYER_NONE, c->hidden, &model->output_norm,
                   err));
    if (!c->tied_embeddings) {
        TRY(add_matrix(model, weights, &name_output, LAYER_NONE, vocabulary, &model->output, err));
    }
    return find_rope_divisors(model, weights, err);
}
