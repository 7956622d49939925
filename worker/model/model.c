// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model_items.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <stdio.h>
#include <string.h>

enum { VOCABULARY_UNIT = 64 };

// The visible list of families, under the names of both containers. A new one: a line here and its
// forward function.
static const struct model_family families[] = {
    {"llama", false, false, model_dense_forward},
    {"qwen3", true, false, model_dense_forward},
    {"qwen3_moe", true, true, model_dense_forward},
    {"qwen3moe", true, true, model_dense_forward},
};

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
    if (c->expert_count % world != 0) {
        *count = c->expert_count;
        return "experts";
    }
    if (c->shared_inter % world != 0) {
        *count = c->shared_inter;
        return "inner columns of the shared expert";
    }
    *count = c->inter;
    return c->inter % world == 0 || !model_config_has_dense(c) ? NULL : "inner columns";
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
    model->part.shared_inter = c->shared_inter / world;
    model->part.vocabulary = (c->vocabulary + unit - 1) / unit * VOCABULARY_UNIT;
}

// Parts of sums that cross the ranks (ops.h): a rank of a model that can be cut in eight has its
// share of the eight, any other just one.
static uint32_t count_parts(const struct model *model) {
    uint32_t world = model->view.shard.world;
    uint32_t unused;
    bool eighths = model->eighths && indivisible(&model->config, OP_PARTS_MAX, &unused) == NULL;
    return eighths && OP_PARTS_MAX % world == 0 ? OP_PARTS_MAX / world : 1;
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
                         "model architecture '%s' is not built; llama, qwen3 and qwen3_moe are",
                         c->arch);
    }
    if (family->experts != (c->expert_count > 0)) {
        return error_set(err, STATUS_UNSUPPORTED, "architecture '%s' with %u experts is not built",
                         c->arch, c->expert_count);
    }
    TRY(refuse_shard(c, shard.world, err));
    model->item_max = model_list_max(c->layer_count);
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
    TRY(model_list(model, weights, err));
    model->view.parts = count_parts(model);
    size_t rope_bytes = 0;
    size_t row = (size_t)c->head_dim * sizeof(float);
    if (!memory_mul(model->position_count, row, &rope_bytes)) {
        return error_set(err, STATUS_INVALID, "rotary table of %u positions overflows",
                         model->position_count);
    }
    model->rope_offset = model->bytes;
    model->bytes +=
        (rope_bytes + MODEL_WEIGHT_ALIGNMENT - 1) & ~(size_t)(MODEL_WEIGHT_ALIGNMENT - 1);
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
    uint32_t matrices = item->experts != NULL ? item->experts->count : 1;
    return (struct model_tensor){item->name, item->split, item->source.dtype, item->rows,
                                 item->cols, matrices,    item->bytes};
}

void model_bind(struct model *model, void *memory) {
    INVARIANT((uintptr_t)memory % MODEL_WEIGHT_ALIGNMENT == 0);
    model->memory = memory;
    for (uint32_t i = 0; i < model->item_count; i++) {
        struct model_item *item = &model->items[i];
        const void *at = model->memory + item->offset;
        if (item->experts != NULL) {
            item->experts->first.data = at;
        } else if (item->weight != NULL) {
            item->weight->data = at;
        } else {
            *item->vector = at;
        }
    }
    model->view.output_norm = model->output_norm;
    model->view.rope_cos_sin = (const float *)(const void *)(model->memory + model->rope_offset);
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
