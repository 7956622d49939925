// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128, WEIGHT_ALIGNMENT = 64 };

// The visible list of families. A new one: a line here and its forward function.
static const struct model_family families[] = {
    {"llama", false, model_dense_forward},
    {"qwen3", true, model_dense_forward},
};

// One tensor of the model: where it comes from, where it goes.
struct model_item {
    char name[NAME_BYTES];
    struct op_weight *weight;    // matrix, or
    const float **vector;        // float32 vector
    struct weights_tensor source;
    size_t offset;
    size_t bytes;
};

struct model {
    struct model_config config;
    const struct ops *ops;
    struct model_view view;
    struct model_layer *layers;
    struct op_weight embed, output;
    const float *output_norm;
    const float *rope_divisors;    // in the file, NULL unless ROPE_SCALING_TABLE
    struct model_item *items;
    uint32_t item_count, item_max;
    uint32_t position_count;
    size_t rope_offset;
    size_t bytes;
    uint8_t *memory;
    uint64_t parameters, source_bytes;
};

// ---- names -------------------------------------------------------------------------------------

struct tensor_name {
    const char *gguf;
    const char *hf;
};

static const struct tensor_name name_embed = {"token_embd", "model.embed_tokens"};
static const struct tensor_name name_output = {"output", "lm_head"};
static const struct tensor_name name_output_norm = {"output_norm", "model.norm"};
static const struct tensor_name name_attn_norm = {"attn_norm", "input_layernorm"};
static const struct tensor_name name_ffn_norm = {"ffn_norm", "post_attention_layernorm"};
static const struct tensor_name name_q = {"attn_q", "self_attn.q_proj"};
static const struct tensor_name name_k = {"attn_k", "self_attn.k_proj"};
static const struct tensor_name name_v = {"attn_v", "self_attn.v_proj"};
static const struct tensor_name name_o = {"attn_output", "self_attn.o_proj"};
static const struct tensor_name name_q_norm = {"attn_q_norm", "self_attn.q_norm"};
static const struct tensor_name name_k_norm = {"attn_k_norm", "self_attn.k_norm"};
static const struct tensor_name name_gate = {"ffn_gate", "mlp.gate_proj"};
static const struct tensor_name name_up = {"ffn_up", "mlp.up_proj"};
static const struct tensor_name name_down = {"ffn_down", "mlp.down_proj"};

enum { LAYER_NONE = -1 };

static void tensor_name(const struct weights *weights, const struct tensor_name *name, int layer,
                        const char *suffix, char *out) {
    bool gguf = weights_container(weights) == WEIGHTS_CONTAINER_GGUF;
    const char *stem = gguf ? name->gguf : name->hf;
    if (layer == LAYER_NONE) {
        snprintf(out, NAME_BYTES, "%s.%s", stem, suffix);
    } else {
        snprintf(out, NAME_BYTES, "%s.%d.%s.%s", gguf ? "blk" : "model.layers", layer, stem,
                 suffix);
    }
}

// ---- the list of weights -----------------------------------------------------------------------

static enum status check_shape(const struct model_item *item, uint64_t rows, uint64_t cols,
                               struct error *err) {
    if (item->source.rows != rows || item->source.cols != cols) {
        return error_set(err, STATUS_CORRUPT,
                         "tensor '%s' is [%llu, %llu]; the configuration asks for [%llu, %llu]",
                         item->name, (unsigned long long)item->source.rows,
                         (unsigned long long)item->source.cols, (unsigned long long)rows,
                         (unsigned long long)cols);
    }
    return STATUS_OK;
}

static struct model_item *next_item(struct model *model) {
    INVARIANT(model->item_count < model->item_max);
    return &model->items[model->item_count++];
}

static void place(struct model *model, struct model_item *item, size_t bytes) {
    item->offset = model->bytes;
    item->bytes = bytes;
    model->bytes += (bytes + WEIGHT_ALIGNMENT - 1) & ~(size_t)(WEIGHT_ALIGNMENT - 1);
    model->parameters += item->source.rows * item->source.cols;
    model->source_bytes += item->source.byte_count;
}

struct shape {
    uint32_t rows, cols;
};

static enum status add_matrix(struct model *model, const struct weights *weights,
                              const struct tensor_name *name, int layer, struct shape shape,
                              struct op_weight *weight, struct error *err) {
    struct model_item *item = next_item(model);
    tensor_name(weights, name, layer, "weight", item->name);
    char bias[NAME_BYTES];
    tensor_name(weights, name, layer, "bias", bias);
    if (weights_has(weights, bias)) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%s': biases are not built", bias);
    }
    TRY(weights_find(weights, item->name, &item->source, err));
    TRY(check_shape(item, shape.rows, shape.cols, err));
    if (!model->ops->weight_supported(item->source.dtype, shape.rows, shape.cols)) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "tensor '%s' of type %s and shape [%u, %u] cannot be computed on %s",
                         item->name, dtype_name(item->source.dtype), shape.rows, shape.cols,
                         model->ops->name);
    }
    *weight = (struct op_weight){item->source.dtype, shape.rows, shape.cols, NULL};
    item->weight = weight;
    place(model, item, model->ops->weight_bytes(weight->dtype, weight->rows, weight->cols));
    return STATUS_OK;
}

static enum status add_vector(struct model *model, const struct weights *weights,
                              const struct tensor_name *name, int layer, uint32_t count,
                              const float **vector, struct error *err) {
    struct model_item *item = next_item(model);
    tensor_name(weights, name, layer, "weight", item->name);
    TRY(weights_find(weights, item->name, &item->source, err));
    TRY(check_shape(item, 1, count, err));
    if (dtype_block_elements(item->source.dtype) != 1) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%s': a norm of type %s", item->name,
                         dtype_name(item->source.dtype));
    }
    item->vector = vector;
    place(model, item, (size_t)count * sizeof(float));
    return STATUS_OK;
}

static enum status add_layer(struct model *model, const struct weights *weights, int index,
                             struct error *err) {
    const struct model_config *c = &model->config;
    struct model_layer *layer = &model->layers[index];
    struct shape q = {c->q_head_count * c->head_dim, c->hidden};
    struct shape kv = {c->kv_head_count * c->head_dim, c->hidden};
    struct shape o = {c->hidden, c->q_head_count * c->head_dim};
    struct shape up = {c->inter, c->hidden};
    struct shape down = {c->hidden, c->inter};
    TRY(add_vector(model, weights, &name_attn_norm, index, c->hidden, &layer->attn_norm, err));
    TRY(add_matrix(model, weights, &name_q, index, q, &layer->q, err));
    TRY(add_matrix(model, weights, &name_k, index, kv, &layer->k, err));
    TRY(add_matrix(model, weights, &name_v, index, kv, &layer->v, err));
    if (model->view.family->qk_norm) {
        TRY(add_vector(model, weights, &name_q_norm, index, c->head_dim, &layer->q_norm, err));
        TRY(add_vector(model, weights, &name_k_norm, index, c->head_dim, &layer->k_norm, err));
    }
    TRY(add_matrix(model, weights, &name_o, index, o, &layer->o, err));
    TRY(add_vector(model, weights, &name_ffn_norm, index, c->hidden, &layer->ffn_norm, err));
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

static enum status list_weights(struct model *model, const struct weights *weights,
                                struct error *err) {
    const struct model_config *c = &model->config;
    struct shape vocabulary = {c->vocabulary, c->hidden};
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

// ---- life cycle --------------------------------------------------------------------------------

static const struct model_family *find_family(const char *arch) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].arch, arch) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

static enum status create(struct model *model, const struct weights *weights, struct error *err) {
    struct model_config *c = &model->config;
    TRY(model_config_read(weights, c, err));
    const struct model_family *family = find_family(c->arch);
    if (family == NULL) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "model architecture '%s' is not built; llama and qwen3 are", c->arch);
    }
    enum { ITEMS_PER_LAYER = 11, ITEMS_ELSEWHERE = 3 };
    model->item_max = c->layer_count * ITEMS_PER_LAYER + ITEMS_ELSEWHERE;
    model->items = memory_array(model->item_max, sizeof *model->items);
    model->layers = memory_array(c->layer_count, sizeof *model->layers);
    if (model->items == NULL || model->layers == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the tables of %u layers",
                         c->layer_count);
    }
    model->view = (struct model_view){
        .config = c,
        .family = family,
        .layers = model->layers,
        .embed = &model->embed,
        .output = c->tied_embeddings ? &model->embed : &model->output,
    };
    TRY(list_weights(model, weights, err));
    size_t rope_bytes = 0;
    size_t row = (size_t)c->head_dim * sizeof(float);
    if (!memory_mul(model->position_count, row, &rope_bytes)) {
        return error_set(err, STATUS_INVALID, "rotary table of %u positions overflows",
                         model->position_count);
    }
    model->rope_offset = model->bytes;
    model->bytes += (rope_bytes + WEIGHT_ALIGNMENT - 1) & ~(size_t)(WEIGHT_ALIGNMENT - 1);
    return STATUS_OK;
}

enum status model_create(const struct weights *weights, const struct ops *ops,
                         uint32_t position_count, struct model **out, struct error *err) {
    struct model *model = memory_zalloc(sizeof *model);
    if (model == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a model");
    }
    model->ops = ops;
    model->position_count = position_count;
    enum status status = create(model, weights, err);
    if (status != STATUS_OK) {
        model_destroy(model);
        return status;
    }
    *out = model;
    return STATUS_OK;
}

void model_destroy(struct model *model) {
    if (model == NULL) {
        return;
    }
    union {
        const float *from;
        void *to;
    } divisors = {.from = model->rope_divisors};
    memory_free(divisors.to);
    memory_free(model->items);
    memory_free(model->layers);
    memory_free(model);
}

const struct model_config *model_config(const struct model *model) {
    return &model->config;
}

const struct model_view *model_view(const struct model *model) {
    return &model->view;
}

size_t model_bytes(const struct model *model) {
    return model->bytes;
}

uint64_t model_parameters(const struct model *model) {
    return model->parameters;
}

void model_bind(struct model *model, void *memory) {
    INVARIANT((uintptr_t)memory % WEIGHT_ALIGNMENT == 0);
    model->memory = memory;
    for (uint32_t i = 0; i < model->item_count; i++) {
        struct model_item *item = &model->items[i];
        const void *at = model->memory + item->offset;
        if (item->weight != NULL) {
            item->weight->data = at;
        } else {
            *item->vector = at;
        }
    }
    model->view.output_norm = model->output_norm;
    model->view.rope_cos_sin = (const float *)(const void *)(model->memory + model->rope_offset);
}

// ---- loading -----------------------------------------------------------------------------------

struct pack_job {
    const struct ops *ops;
    const struct op_weight *weight;
    const void *source;
    void *packed;
    uint32_t rows_per_task;
};

static void pack_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    (void)thread_index;
    const struct pack_job *job = arg;
    uint32_t begin = task_index * job->rows_per_task;
    uint32_t left = job->weight->rows - begin;
    uint32_t end = begin + (left < job->rows_per_task ? left : job->rows_per_task);
    job->ops->weight_pack(job->weight, job->source, job->packed, begin, end);
}

static void load_matrix(struct model *model, struct model_item *item, const struct op_ctx *ctx) {
    enum { TASK_ROWS = 64 };
    uint32_t unit = model->ops->weight_pack_rows();
    uint32_t rows = (TASK_ROWS + unit - 1) / unit * unit;
    struct pack_job job = {model->ops, item->weight, item->source.data,
                           model->memory + item->offset, rows};
    ctx->parallel(ctx->pool, (item->weight->rows + rows - 1) / rows, pack_task, &job);
}

static void fill_rope_table(struct model *model) {
    const struct model_config *c = &model->config;
    double inv_freq[BOUND_HEAD_DIM / 2];
    double amplitude = 1.0;
    rope_frequencies(&c->rope, model->rope_divisors, inv_freq, &amplitude);
    float *table = (float *)(void *)(model->memory + model->rope_offset);
    uint32_t half = c->head_dim / 2;
    for (uint32_t position = 0; position < model->position_count; position++) {
        float *row = table + (size_t)position * c->head_dim;
        for (uint32_t j = 0; j < half; j++) {
            double angle = (double)position * inv_freq[j];
            row[j] = (float)(cos(angle) * amplitude);
            row[half + j] = (float)(sin(angle) * amplitude);
        }
    }
}

void model_load(struct model *model, const struct weights *weights, const struct op_ctx *ctx,
                model_progress_fn progress, void *progress_ctx) {
    INVARIANT(model->memory != NULL);
    uint64_t done = 0;
    for (uint32_t i = 0; i < model->item_count; i++) {
        struct model_item *item = &model->items[i];
        if (item->weight != NULL) {
            load_matrix(model, item, ctx);
        } else {
            dtype_decode(item->source.dtype, item->source.data, item->source.cols,
                         (float *)(void *)(model->memory + item->offset));
        }
        weights_release(weights, &item->source);
        done += item->source.byte_count;
        if (progress != NULL) {
            progress(progress_ctx, done, model->source_bytes);
        }
    }
    fill_rope_table(model);
}

void model_forward(const struct model *model, struct reader *reader,
                   const struct forward_step *step) {
    model->view.family->forward(model, reader, step);
}

void model_kv_layout(const struct model *model, enum dtype dtype, uint32_t block_tokens,
                     struct op_kv_layout *out) {
    const struct model_config *c = &model->config;
    *out = (struct op_kv_layout){
        .dtype = dtype,
        .block_tokens = block_tokens,
        .layer_count = c->layer_count,
        .kv_head_count = c->kv_head_count,
        .head_dim = c->head_dim,
    };
    size_t page = model->ops->kv_page_bytes(out);
    out->layer_stride_bytes = (page + 63) & ~(size_t)63;
    out->block_stride_bytes = out->layer_stride_bytes * c->layer_count;
}
