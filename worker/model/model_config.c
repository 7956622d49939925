// SPDX-License-Identifier: Apache-2.0
#include "worker/model/model_config.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

// ---- checks shared by both containers ----------------------------------------------------------

static enum status check_range(const char *what, uint64_t value, uint64_t min, uint64_t max,
                               struct error *err) {
    if (value < min || value > max) {
        return error_set(err, STATUS_CORRUPT, "model %s is %llu; it must lie in %llu..%llu", what,
                         (unsigned long long)value, (unsigned long long)min,
                         (unsigned long long)max);
    }
    return STATUS_OK;
}

// Numbers that the scaling formulas divide by or take logarithms of.
static enum status check_rope(const struct rope_config *rope, struct error *err) {
    bool good =
        rope->theta >= 1.0 && rope->theta < 1e15 && rope->factor >= 1.0 && rope->factor < 1e6;
    if (rope->scaling == ROPE_SCALING_LLAMA3) {
        good = good && rope->original_context >= 1.0 && rope->low_freq_factor > 0.0 &&
               rope->high_freq_factor > rope->low_freq_factor;
    }
    if (rope->scaling == ROPE_SCALING_YARN) {
        good = good && rope->theta > 1.0 && rope->original_context >= 1.0 &&
               rope->beta_slow > 0.0 && rope->beta_fast > rope->beta_slow &&
               rope->attention_factor >= 0.0;
    }
    if (!good) {
        return error_set(err, STATUS_CORRUPT,
                         "rotary numbers are out of range: base %g, factor %g, original context %g",
                         rope->theta, rope->factor, rope->original_context);
    }
    return STATUS_OK;
}

bool model_config_has_dense(const struct model_config *config) {
    for (uint32_t layer = 0; layer < config->layer_count; layer++) {
        if (!model_config_has_experts(config, layer)) {
            return true;
        }
    }
    return false;
}

static enum status check_experts(const struct model_config *c, struct error *err) {
    if (c->expert_count == 0) {
        return STATUS_OK;
    }
    TRY(check_range("expert count", c->expert_count, 1, BOUND_EXPERTS, err));
    uint32_t most = c->expert_count < BOUND_EXPERTS_USED ? c->expert_count : BOUND_EXPERTS_USED;
    TRY(check_range("number of experts per token", c->expert_used, 1, most, err));
    TRY(check_range("expert inner size", c->expert_inter, 1, (uint64_t)BOUND_HIDDEN * 8, err));
    return check_range("shared expert's inner size", c->shared_inter, 0, (uint64_t)BOUND_HIDDEN * 8,
                       err);
}

static enum status check_config(const struct model_config *c, struct error *err) {
    TRY(check_range("hidden size", c->hidden, 1, BOUND_HIDDEN, err));
    TRY(check_range("layer count", c->layer_count, 1, BOUND_LAYERS, err));
    TRY(check_experts(c, err));
    if (model_config_has_dense(c)) {
        TRY(check_range("inner size", c->inter, 1, (uint64_t)BOUND_HIDDEN * 8, err));
    }
    TRY(check_range("head count", c->q_head_count, 1, BOUND_HEADS, err));
    TRY(check_range("KV head count", c->kv_head_count, 1, c->q_head_count, err));
    TRY(check_range("head dimension", c->head_dim, 2, BOUND_HEAD_DIM, err));
    TRY(check_range("vocabulary", c->vocabulary, 1, BOUND_VOCABULARY_TOKENS, err));
    TRY(check_range("context length", c->context, 2, UINT32_MAX, err));
    if (c->q_head_count % c->kv_head_count != 0) {
        return error_set(err, STATUS_CORRUPT, "%u heads do not divide over %u KV heads",
                         c->q_head_count, c->kv_head_count);
    }
    if (c->rope.dims != c->head_dim) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "rotary embedding of %u of %u head dimensions is not built", c->rope.dims,
                         c->head_dim);
    }
    if (c->head_dim % 2 != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "head dimension %u is odd", c->head_dim);
    }
    if (!(c->rms_eps > 0.0f && c->rms_eps < 1.0f)) {
        return error_set(err, STATUS_CORRUPT, "RMS norm epsilon is %g", (double)c->rms_eps);
    }
    return check_rope(&c->rope, err);
}

static void set_defaults(struct model_config *c) {
    memset(c, 0, sizeof *c);
    c->rope = (struct rope_config){.theta = 10000.0,
                                   .scaling = ROPE_SCALING_NONE,
                                   .factor = 1.0,
                                   .low_freq_factor = 1.0,
                                   .high_freq_factor = 4.0,
                                   .original_context = 8192.0,
                                   .beta_fast = 32.0,
                                   .beta_slow = 1.0};
}

// ---- GGUF --------------------------------------------------------------------------------------

struct gguf_reader {
    const struct gguf *gguf;
    const char *arch;
    char key[128];
};

static const char *arch_key(struct gguf_reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%.40s.%.80s", r->arch, name);
    return r->key;
}

static enum status read_heads(struct gguf_reader *r, struct model_config *c, struct error *err) {
    TRY(gguf_get_u32(r->gguf, arch_key(r, "attention.head_count"), &c->q_head_count, NULL, err));
    c->kv_head_count = c->q_head_count;
    bool found = false;
    TRY(gguf_get_u32(r->gguf, arch_key(r, "attention.head_count_kv"), &c->kv_head_count, &found,
                     err));
    if (c->q_head_count == 0) {
        return error_set(err, STATUS_CORRUPT, "attention.head_count is 0");
    }
    c->head_dim = c->hidden / c->q_head_count;
    TRY(gguf_get_u32(r->gguf, arch_key(r, "attention.key_length"), &c->head_dim, &found, err));
    uint32_t value_dim = c->head_dim;
    TRY(gguf_get_u32(r->gguf, arch_key(r, "attention.value_length"), &value_dim, &found, err));
    if (value_dim != c->head_dim) {
        return error_set(err, STATUS_UNSUPPORTED, "key length %u and value length %u differ",
                         c->head_dim, value_dim);
    }
    c->rope.dims = c->head_dim;
    return gguf_get_u32(r->gguf, arch_key(r, "rope.dimension_count"), &c->rope.dims, &found, err);
}

static enum status read_gguf_rope(struct gguf_reader *r, const struct weights *weights,
                                  struct model_config *c, struct error *err) {
    bool found = false;
    TRY(gguf_get_f64(r->gguf, arch_key(r, "rope.freq_base"), &c->rope.theta, &found, err));
    TRY(gguf_get_f64(r->gguf, arch_key(r, "rope.scaling.factor"), &c->rope.factor, &found, err));
    TRY(gguf_get_f64(r->gguf, arch_key(r, "rope.scaling.original_context_length"),
                     &c->rope.original_context, &found, err));
    TRY(gguf_get_f64(r->gguf, arch_key(r, "rope.scaling.attn_factor"), &c->rope.attention_factor,
                     &found, err));
    struct gguf_text type = {"none", 4};
    TRY(gguf_get_string(r->gguf, arch_key(r, "rope.scaling.type"), &type, &found, err));
    if (weights_has(weights, "rope_freqs.weight")) {
        c->rope.scaling = ROPE_SCALING_TABLE;
        c->rope.factor = 1.0;
    } else if (type.byte_count == 4 && memcmp(type.bytes, "none", 4) == 0) {
        c->rope.scaling = ROPE_SCALING_NONE;
        c->rope.factor = 1.0;
    } else if (type.byte_count == 6 && memcmp(type.bytes, "linear", 6) == 0) {
        c->rope.scaling = ROPE_SCALING_LINEAR;
    } else if (type.byte_count == 4 && memcmp(type.bytes, "yarn", 4) == 0) {
        c->rope.scaling = ROPE_SCALING_YARN;
    } else {
        return error_set(err, STATUS_UNSUPPORTED, "rotary scaling '%.*s' is not built",
                         (int)(type.byte_count < 40 ? type.byte_count : 40), type.bytes);
    }
    // Llama files have their Q and K rows permuted for interleaved pairs.
    c->rope.pairing = strcmp(c->arch, "llama") == 0 ? OP_ROPE_INTERLEAVED : OP_ROPE_HALF;
    return STATUS_OK;
}

// Files of this kind have experts in every layer, and shares that sum to one unless they say
// otherwise.
static enum status read_gguf_experts(struct gguf_reader *r, struct model_config *c,
                                     struct error *err) {
    bool found = false;
    TRY(gguf_get_u32(r->gguf, arch_key(r, "expert_count"), &c->expert_count, &found, err));
    if (c->expert_count == 0) {
        return STATUS_OK;
    }
    TRY(gguf_get_u32(r->gguf, arch_key(r, "expert_used_count"), &c->expert_used, NULL, err));
    TRY(gguf_get_u32(r->gguf, arch_key(r, "expert_feed_forward_length"), &c->expert_inter, NULL,
                     err));
    c->expert_normalise = true;
    TRY(gguf_get_bool(r->gguf, arch_key(r, "expert_weights_norm"), &c->expert_normalise, &found,
                      err));
    uint32_t gating = 1;
    float scale = 1.0f;
    TRY(gguf_get_u32(r->gguf, arch_key(r, "expert_shared_feed_forward_length"), &c->shared_inter,
                     &found, err));
    TRY(gguf_get_u32(r->gguf, arch_key(r, "expert_gating_func"), &gating, &found, err));
    TRY(gguf_get_f32(r->gguf, arch_key(r, "expert_weights_scale"), &scale, &found, err));
    if (gating != 1 || (scale != 1.0f && scale != 0.0f)) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "experts with gating function %u and scale %g are not built; softmax (1) "
                         "and 1 are",
                         gating, (double)scale);
    }
    return STATUS_OK;
}

static enum status read_gguf(const struct weights *weights, struct model_config *c,
                             struct error *err) {
    struct gguf_reader r = {.gguf = weights_gguf(weights)};
    struct gguf_text arch;
    TRY(gguf_get_string(r.gguf, "general.architecture", &arch, NULL, err));
    if (arch.byte_count >= sizeof c->arch) {
        return error_set(err, STATUS_UNSUPPORTED, "architecture name of %zu bytes is not known",
                         arch.byte_count);
    }
    memcpy(c->arch, arch.bytes, arch.byte_count);
    r.arch = c->arch;
    bool found = false;
    TRY(gguf_get_u32(r.gguf, arch_key(&r, "context_length"), &c->context, NULL, err));
    TRY(gguf_get_u32(r.gguf, arch_key(&r, "embedding_length"), &c->hidden, NULL, err));
    TRY(gguf_get_u32(r.gguf, arch_key(&r, "block_count"), &c->layer_count, NULL, err));
    TRY(read_gguf_experts(&r, c, err));
    TRY(gguf_get_u32(r.gguf, arch_key(&r, "feed_forward_length"), &c->inter,
                     c->expert_count > 0 ? &found : NULL, err));
    TRY(gguf_get_f32(r.gguf, arch_key(&r, "attention.layer_norm_rms_epsilon"), &c->rms_eps, NULL,
                     err));
    TRY(read_heads(&r, c, err));
    struct weights_tensor embed;
    TRY(weights_find(weights, "token_embd.weight", &embed, err));
    TRY(check_range("vocabulary", embed.rows, 1, BOUND_VOCABULARY_TOKENS, err));
    c->vocabulary = (uint32_t)embed.rows;
    c->tied_embeddings = !weights_has(weights, "output.weight");
    return read_gguf_rope(&r, weights, c, err);
}

// ---- config.json -------------------------------------------------------------------------------

static enum status read_u32(const struct json *object, const char *key, uint32_t *out, bool *found,
                            struct error *err) {
    int64_t value = *out;
    TRY(json_field_int(object, key, (struct json_range_int){0, UINT32_MAX}, &value, found, err));
    *out = (uint32_t)value;
    return STATUS_OK;
}

static enum status read_f64(const struct json *object, const char *key, double *out,
                            struct error *err) {
    bool found = false;
    return json_field_real(object, key, (struct json_range_real){-1e15, 1e15}, out, &found, err);
}

static enum status read_scaling(const struct json *scaling, struct rope_config *rope,
                                struct error *err) {
    const char *type = NULL;
    bool found = false;
    if (json_kind(scaling) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_CORRUPT, "config.json: the rotary scaling is no object");
    }
    TRY(json_field_string(scaling, "rope_type", &type, NULL, &found, err));
    if (!found) {
        TRY(json_field_string(scaling, "type", &type, NULL, &found, err));
    }
    TRY(read_f64(scaling, "rope_theta", &rope->theta, err));
    if (!found && !json_absent(json_get(scaling, "factor"))) {
        return error_set(err, STATUS_UNSUPPORTED, "config.json: a rotary scaling without its type");
    }
    if (!found || strcmp(type, "default") == 0) {
        return STATUS_OK;
    }
    if (strcmp(type, "linear") == 0) {
        rope->scaling = ROPE_SCALING_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        rope->scaling = ROPE_SCALING_LLAMA3;
    } else if (strcmp(type, "yarn") == 0) {
        rope->scaling = ROPE_SCALING_YARN;
    } else {
        return error_set(err, STATUS_UNSUPPORTED, "rotary scaling '%.40s' is not built", type);
    }
    TRY(read_f64(scaling, "factor", &rope->factor, err));
    TRY(read_f64(scaling, "low_freq_factor", &rope->low_freq_factor, err));
    TRY(read_f64(scaling, "high_freq_factor", &rope->high_freq_factor, err));
    TRY(read_f64(scaling, "original_max_position_embeddings", &rope->original_context, err));
    TRY(read_f64(scaling, "beta_fast", &rope->beta_fast, err));
    TRY(read_f64(scaling, "beta_slow", &rope->beta_slow, err));
    return read_f64(scaling, "attention_factor", &rope->attention_factor, err);
}

static enum status refuse_unbuilt(const struct json *config, struct error *err) {
    static const char *const switches[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        bool on = false;
        bool found = false;
        TRY(json_field_bool(config, switches[i], &on, &found, err));
        if (on) {
            return error_set(err, STATUS_UNSUPPORTED, "config.json: '%s' is true; not built",
                             switches[i]);
        }
    }
    const char *act = NULL;
    bool found = false;
    TRY(json_field_string(config, "hidden_act", &act, NULL, &found, err));
    if (found && strcmp(act, "silu") != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "config.json: activation '%.40s' is not built",
                         act);
    }
    return STATUS_OK;
}

static enum status read_hf_sizes(const struct json *config, struct model_config *c,
                                 struct error *err) {
    bool found = false;
    TRY(read_u32(config, "hidden_size", &c->hidden, NULL, err));
    TRY(read_u32(config, "intermediate_size", &c->inter, NULL, err));
    TRY(read_u32(config, "num_hidden_layers", &c->layer_count, NULL, err));
    TRY(read_u32(config, "num_attention_heads", &c->q_head_count, NULL, err));
    c->kv_head_count = c->q_head_count;
    TRY(read_u32(config, "num_key_value_heads", &c->kv_head_count, &found, err));
    TRY(read_u32(config, "vocab_size", &c->vocabulary, NULL, err));
    TRY(read_u32(config, "max_position_embeddings", &c->context, NULL, err));
    if (c->q_head_count == 0) {
        return error_set(err, STATUS_CORRUPT, "config.json: num_attention_heads is 0");
    }
    c->head_dim = c->hidden / c->q_head_count;
    TRY(read_u32(config, "head_dim", &c->head_dim, &found, err));
    double eps = 1e-6;
    TRY(read_f64(config, "rms_norm_eps", &eps, err));
    c->rms_eps = (float)eps;
    TRY(json_field_bool(config, "tie_word_embeddings", &c->tied_embeddings, &found, err));
    return STATUS_OK;
}

// Layer i has experts unless `mlp_only_layers` names it or i + 1 is no multiple of
// `decoder_sparse_step`.
static enum status read_dense_layers(const struct json *config, struct model_config *c,
                                     struct error *err) {
    uint32_t step = 1;
    bool found = false;
    TRY(read_u32(config, "decoder_sparse_step", &step, &found, err));
    TRY(check_range("decoder_sparse_step", step, 1, BOUND_LAYERS, err));
    TRY(check_range("layer count", c->layer_count, 1, BOUND_LAYERS, err));
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        if ((layer + 1) % step != 0) {
            c->dense_layers[layer / 64] |= 1ull << (layer % 64);
        }
    }
    const struct json *only = json_get(config, "mlp_only_layers");
    for (size_t i = 0; i < json_count(only); i++) {
        const struct json *layer = json_at(only, i);
        if (json_kind(layer) != JSON_KIND_INT || json_int(layer) < 0 ||
            json_int(layer) >= (int64_t)c->layer_count) {
            return error_set(err, STATUS_CORRUPT,
                             "config.json: 'mlp_only_layers' names no layer of the %u",
                             c->layer_count);
        }
        c->dense_layers[json_int(layer) / 64] |= 1ull << (json_int(layer) % 64);
    }
    return STATUS_OK;
}

static enum status read_hf_experts(const struct json *config, struct model_config *c,
                                   struct error *err) {
    bool found = false;
    TRY(read_u32(config, "num_experts", &c->expert_count, &found, err));
    if (c->expert_count == 0) {
        return STATUS_OK;
    }
    TRY(read_u32(config, "num_experts_per_tok", &c->expert_used, NULL, err));
    TRY(read_u32(config, "moe_intermediate_size", &c->expert_inter, NULL, err));
    TRY(json_field_bool(config, "norm_topk_prob", &c->expert_normalise, &found, err));
    TRY(read_u32(config, "shared_expert_intermediate_size", &c->shared_inter, &found, err));
    return read_dense_layers(config, c, err);
}

// The element type that the tensors of a model without tensors would have.
static enum status read_shape_dtype(const struct json *config, enum dtype *out, struct error *err) {
    static const struct {
        const char *name;
        enum dtype dtype;
    } rows[] = {{"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}, {"float32", DTYPE_F32}};
    const char *name = "bfloat16";
    bool found = false;
    TRY(json_field_string(config, "torch_dtype", &name, NULL, &found, err));
    TRY(json_field_string(config, "dtype", &name, NULL, &found, err));
    if (!json_absent(json_get(config, "quantization_config"))) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "config.json: the shapes of quantised weights do not follow from it");
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *out = rows[i].dtype;
            return STATUS_OK;
        }
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "config.json: type '%.40s' is not built; bfloat16, float16 and float32 are",
                     name);
}

static enum status read_hf(const struct weights *weights, struct model_config *c,
                           struct error *err) {
    const struct json *config = weights_config(weights);
    const struct json *inner = json_get(config, "text_config");
    if (json_kind(inner) == JSON_KIND_OBJECT) {
        config = inner;
    }
    const char *type = NULL;
    TRY(json_field_string(config, "model_type", &type, NULL, NULL, err));
    snprintf(c->arch, sizeof c->arch, "%.30s", type);
    TRY(refuse_unbuilt(config, err));
    TRY(read_hf_sizes(config, c, err));
    TRY(read_hf_experts(config, c, err));
    if (weights_shapes_only(weights)) {
        TRY(read_shape_dtype(config, &c->dtype, err));
    }
    c->rope.dims = c->head_dim;
    c->rope.pairing = OP_ROPE_HALF;
    TRY(read_f64(config, "rope_theta", &c->rope.theta, err));
    const struct json *scaling = json_get(config, "rope_parameters");
    if (json_absent(scaling)) {
        scaling = json_get(config, "rope_scaling");
    }
    return json_absent(scaling) ? STATUS_OK : read_scaling(scaling, &c->rope, err);
}

enum status model_config_read(const struct weights *weights, struct model_config *out,
                              struct error *err) {
    set_defaults(out);
    bool gguf = weights_container(weights) == WEIGHTS_CONTAINER_GGUF;
    enum status status = gguf ? read_gguf(weights, out, err) : read_hf(weights, out, err);
    if (status == STATUS_OK) {
        status = check_config(out, err);
    }
    return status == STATUS_INVALID ? STATUS_CORRUPT : status;    // the file's fault
}

// ---- rotary frequencies ------------------------------------------------------------------------

// Scaling llama3: long wavelengths are divided, short ones kept, between them blended.
static double llama3_frequency(const struct rope_config *rope, double frequency) {
    double wavelength = 2.0 * PI / frequency;
    if (wavelength < rope->original_context / rope->high_freq_factor) {
        return frequency;
    }
    if (wavelength > rope->original_context / rope->low_freq_factor) {
        return frequency / rope->factor;
    }
    double smooth = (rope->original_context / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - smooth) * frequency / rope->factor + smooth * frequency;
}

// Scaling yarn: the dimension at which a frequency turns `rotations` times within the original
// context.
static double yarn_dimension(const struct rope_config *rope, double rotations) {
    return rope->dims * log(rope->original_context / (2.0 * PI * rotations)) /
           (2.0 * log(rope->theta));
}

static double yarn_frequency(const struct rope_config *rope, uint32_t j, double frequency) {
    double low = fmax(floor(yarn_dimension(rope, rope->beta_fast)), 0.0);
    double high = fmin(ceil(yarn_dimension(rope, rope->beta_slow)), (double)rope->dims - 1.0);
    if (low == high) {
        high += 0.001;
    }
    double ramp = fmin(fmax(((double)j - low) / (high - low), 0.0), 1.0);
    return frequency / rope->factor * ramp + frequency * (1.0 - ramp);
}

void rope_frequencies(const struct rope_config *rope, const float *divisors, double *inv_freq,
                      double *amplitude) {
    INVARIANT(rope->scaling != ROPE_SCALING_TABLE || divisors != NULL);
    *amplitude = 1.0;
    if (rope->scaling == ROPE_SCALING_YARN) {
        *amplitude =
            rope->attention_factor > 0.0 ? rope->attention_factor : 0.1 * log(rope->factor) + 1.0;
    }
    for (uint32_t j = 0; j < rope->dims / 2; j++) {
        double frequency = pow(rope->theta, -2.0 * j / rope->dims);
        switch (rope->scaling) {
        case ROPE_SCALING_NONE:
            break;
        case ROPE_SCALING_LINEAR:
            frequency /= rope->factor;
            break;
        case ROPE_SCALING_LLAMA3:
            frequency = llama3_frequency(rope, frequency);
            break;
        case ROPE_SCALING_YARN:
            frequency = yarn_frequency(rope, j, frequency);
            break;
        case ROPE_SCALING_TABLE:
            frequency /= (double)divisors[j];
            break;
        }
        inv_freq[j] = frequency;
    }
}
