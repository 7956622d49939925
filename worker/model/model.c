// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128, WEIGHT_ALIGNMENT = 64, VOCABULARY_UNIT = 64 };

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
    enum model_split split;
    enum model_kind kind;
    uint32_t rows, cols;             // of this rank
    struct weights_tensor source;    // of the whole model; no data in a model of shapes only
    size_t offset;
    size_t bytes;
};

struct model {
    struct model_config config;    // whole
    struct model_config part;      // of this rank
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
    size_t kind_bytes[MODEL_KIND_COUNT];
    uint8_t *memory;
    uint64_t parameters, source_bytes;
};

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
static const struct tensor_name name_gate = {"ffn_gate", "mlp.gate_proj", MODEL_KIND_MLP};
static const struct tensor_name name_up = {"ffn_up", "mlp.up_proj", MODEL_KIND_MLP};
static const struct tensor_name name_down = {"ffn_down", "mlp.down_proj", MODEL_KIND_MLP};

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

static void place(struct model *model, struct model_item *item, size_t bytes) {
    size_t room = (bytes + WEIGHT_ALIGNMENT - 1) & ~(size_t)(WEIGHT_ALIGNMENT - 1);
    item->offset = model->bytes;
    item->bytes = bytes;
    model->bytes += room;
    model->kind_bytes[item->kind] += room;
    model->parameters += item->source.rows * item->source.cols;
    model->source_bytes += item->source.byte_count;
}

// A matrix of the model and what this rank has of it.
struct piece {
    enum model_split split;
    struct shape whole, part;
};

static enum status add_matrix(struct model *model, const struct weights *weights,
                              const struct tensor_name *name, int layer, struct piece piece,
                              struct op_weight *weight, struct error *err) {
    struct model_item *item = next_item(model);
    tensor_name(weights, name, layer, "weight", item->name);
    char bias[NAME_BYTES];
    tensor_name(weights, name, layer, "bias", bias);
    if (weights_has(weights, bias)) {
        return error_set(err, STATUS_UNSUPPORTED, "tensor '%s': biases are not built", bias);
    }
    TRY(find_source(model, weights, item, piece.whole, err));
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
    place(model, item, model->ops->weight_bytes(weight->dtype, weight->rows, weight->cols));
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
    place(model, item, (size_t)count * sizeof(float));
    return STATUS_OK;
}

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

// ---- sharding ----------------------------------------------------------------------------------

// What stands in the way of sharing the model out, or NULL.
static const char *indivisible(const struct model_config *c, uint32_t world, uint32_t *count) {
    if (c->q_head_count % world != 0) {
        *count = c->q_head_count;
        return "attention heads";
    }
    bool kv_divides =
        c->kv_head_count >= world ? c->kv_head_count % world == 0 : world % c->kv_head_count == 0;
    if (!kv_divides) {
        *count = c->kv_head_count;
        return "KV heads";
    }
    *count = c->inter;
    return c->inter % world == 0 ? NULL : "inner columns";
}

static enum status refuse_shard(const struct model_config *c, uint32_t world, struct error *err) {
    uint32_t count = 0;
    const char *what = indivisible(c, world, &count);
    if (what == NULL) {
        return STATUS_OK;
    }
    char allowed[64] = "";
    size_t used = 0;
    for (uint32_t p = 1; p <= BOUND_RANKS; p++) {
        uint32_t unused;
        if (indivisible(c, p, &unused) == NULL) {
            used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%u",
                                     used == 0 ? "" : ", ", p);
        }
    }
    error_hint(err, "this model allows --tensor-parallel-size %s", allowed);
    return error_set(err, STATUS_UNSUPPORTED,
                     "--tensor-parallel-size %u: %u %s do not divide over the ranks", world, count,
                     what);
}

// models.md section 6.1.
static void share_out(struct model *model) {
    const struct model_config *c = &model->config;
    uint32_t world = model->view.shard.world;
    model->part = *c;
    if (world == 1) {
        return;
    }
    uint32_t unit = VOCABULARY_UNIT * world;
    model->part.q_head_count = c->q_head_count / world;
    model->part.kv_head_count = c->kv_head_count >= world ? c->kv_head_count / world : 1;
    model->part.inter = c->inter / world;
    model->part.vocabulary = (c->vocabulary + unit - 1) / unit * VOCABULARY_UNIT;
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

static enum status create(struct model *model, const struct weights *weights,
                          struct model_shard shard, struct error *err) {
    struct model_config *c = &model->config;
    TRY(model_config_read(weights, c, err));
    const struct model_family *family = find_family(c->arch);
    if (family == NULL) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "model architecture '%s' is not built; llama and qwen3 are", c->arch);
    }
    TRY(refuse_shard(c, shard.world, err));
    enum { ITEMS_PER_LAYER = 11, ITEMS_ELSEWHERE = 3 };
    model->item_max = c->layer_count * ITEMS_PER_LAYER + ITEMS_ELSEWHERE;
    model->items = memory_array(model->item_max, sizeof *model->items);
    model->layers = memory_array(c->layer_count, sizeof *model->layers);
    if (model->items == NULL || model->layers == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the tables of %u layers",
                         c->layer_count);
    }
    model->view = (struct model_view){
        .config = &model->part,
        .shard = shard,
        .vocabulary = c->vocabulary,
        .family = family,
        .layers = model->layers,
        .embed = &model->embed,
        .output = c->tied_embeddings ? &model->embed : &model->output,
    };
    share_out(model);
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
                         struct model_shard shard, uint32_t position_count, struct model **out,
                         struct error *err) {
    INVARIANT(shard.world >= 1 && shard.world <= BOUND_RANKS);
    INVARIANT(shard.rank < shard.world);
    struct model *model = memory_zalloc(sizeof *model);
    if (model == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a model");
    }
    model->ops = ops;
    model->position_count = position_count;
    enum status status = create(model, weights, shard, err);
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

size_t model_kind_bytes(const struct model *model, enum model_kind kind) {
    return model->kind_bytes[kind];
}

uint64_t model_parameters(const struct model *model) {
    return model->parameters;
}

uint32_t model_tensor_count(const struct model *model) {
    return model->item_count;
}

struct model_tensor model_tensor_at(const struct model *model, uint32_t index) {
    INVARIANT(index < model->item_count);
    const struct model_item *item = &model->items[index];
    return (struct model_tensor){item->name, item->split, item->source.dtype,
                                 item->rows, item->cols,  item->bytes};
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
    if (model->ops->weight_pack == NULL) {
        return;
    }
    INVARIANT(model->view.shard.world == 1);
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
    const struct model_config *c = &model->part;
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
