// SPDX-License-Identifier: Apache-2.0
// Goal: a model of shapes has exactly the published parameters; the parts of a group make up the
// model, and what is held more than once is what the rules say. Method: the shipped models, every
// group size up to 8, parts counted by a second, independent rule.
#include "common/bounds.h"
#include "common/rng.h"
#include "kernels/sim/ops_sim.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/suites.h"
#include "worker/model/model.h"
#include "worker/step/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Published totals (models.md section 9 and the model cards); a tied matrix counts once.
static const struct {
    const char *name;
    uint64_t parameters;
    uint32_t group_max;    // largest group size up to 8 that can share it
} published[] = {
    {"SmolLM2-135M", 134515008, 3},       {"Llama-3.2-1B", 1235814400, 8},
    {"Llama-3.2-3B", 3212749824, 8},      {"Llama-3.1-8B", 8030261248, 8},
    {"Llama-3.1-70B", 70553706496, 8},    {"Llama-3.3-70B", 70553706496, 8},
    {"Qwen3-0.6B", 596049920, 8},         {"Qwen3-1.7B", 1720574976, 8},
    {"Qwen3-4B", 4022468096, 8},          {"Qwen3-8B", 8190735360, 8},
    {"Qwen3-14B", 14768307200, 8},        {"Qwen3-32B", 32762123264, 8},
    {"Llama-3.1-405B", 405853388800, 8},  {"Qwen3-30B-A3B", 30532122624, 8},
    {"Qwen3-235B-A22B", 235093634560, 8},
};
enum { PUBLISHED_COUNT = sizeof published / sizeof *published };

static struct weights *open_shapes(const char *name) {
    char path[128];
    struct weights *weights = NULL;
    struct error err = {0};
    snprintf(path, sizeof path, "deploy/models/%s", name);
    ck_assert_msg(weights_open(path, &weights, &err) == STATUS_OK, "%s", err.message);
    return weights;
}

static enum status make(const struct weights *weights, struct model_shard shard, struct model **out,
                        struct error *err) {
    return model_create(weights, ops_cpu("scalar"), shard, 16, out, err);
}

START_TEST(shapes_have_the_published_parameters) {
    struct weights *weights = open_shapes(published[_i].name);
    struct model *model = NULL;
    struct error err = {0};
    ck_assert(weights_shapes_only(weights));
    ck_assert_msg(make(weights, (struct model_shard){0, 1}, &model, &err) == STATUS_OK, "%s",
                  err.message);
    ck_assert_uint_eq(model_parameters(model), published[_i].parameters);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < model_tensor_count(model); i++) {
        struct model_tensor t = model_tensor_at(model, i);
        ck_assert_int_eq(t.split, MODEL_SPLIT_COPY);
        ck_assert_int_eq(t.dtype, DTYPE_BF16);
        elements += (uint64_t)t.rows * t.cols * t.matrices;
    }
    ck_assert_uint_eq(elements, published[_i].parameters);
    model_destroy(model);
    weights_close(weights);
}
END_TEST

// Elements of tensors whose names end so, in one rank.
struct sums {
    uint64_t copied, shared, kv, vocabulary;
    uint64_t bytes[MODEL_KIND_COUNT];    // what the ledger's lines are charged
};

static struct sums sum_rank(const struct model *model) {
    struct sums s = {0};
    for (unsigned kind = 0; kind < MODEL_KIND_COUNT; kind++) {
        s.bytes[kind] = model_kind_bytes(model, (enum model_kind)kind);
    }
    for (uint32_t i = 0; i < model_tensor_count(model); i++) {
        struct model_tensor t = model_tensor_at(model, i);
        uint64_t elements = (uint64_t)t.rows * t.cols * t.matrices;
        bool router = strstr(t.name, "mlp.gate.") != NULL;
        if (strstr(t.name, "norm") != NULL || router) {
            s.copied += elements;
        } else if (strstr(t.name, "k_proj") != NULL || strstr(t.name, "v_proj") != NULL) {
            s.kv += elements;
        } else if (strstr(t.name, "embed_tokens") != NULL || strstr(t.name, "lm_head") != NULL) {
            s.vocabulary += elements;
        } else {
            s.shared += elements;
        }
    }
    return s;
}

// Parts of all ranks = the model, and beyond it only: norms on each other rank, KV heads where
// there are fewer than ranks, and the padding of the vocabulary.
static void check_group(const struct weights *weights, uint32_t world) {
    struct model *whole = NULL;
    struct sums all = {0};
    ck_assert_int_eq(make(weights, (struct model_shard){0, 1}, &whole, NULL), STATUS_OK);
    struct sums one = sum_rank(whole);
    const struct model_config *c = model_config(whole);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct model *part = NULL;
        ck_assert_int_eq(make(weights, (struct model_shard){rank, world}, &part, NULL), STATUS_OK);
        ck_assert_uint_eq(model_parameters(part), model_parameters(whole));
        struct sums s = sum_rank(part);
        all.copied += s.copied;
        all.shared += s.shared;
        all.kv += s.kv;
        all.vocabulary += s.vocabulary;
        for (unsigned kind = 0; kind < MODEL_KIND_COUNT; kind++) {
            all.bytes[kind] += s.bytes[kind];
        }
        model_destroy(part);
    }
    uint32_t unit = 64 * world;
    uint32_t padding = world == 1 ? 0 : (unit - c->vocabulary % unit) % unit;
    uint32_t matrices = c->tied_embeddings ? 1 : 2;
    ck_assert_uint_eq(all.shared, one.shared);
    ck_assert_uint_eq(all.copied, one.copied * world);
    ck_assert_uint_eq(all.kv, one.kv * (world > c->kv_head_count ? world / c->kv_head_count : 1));
    ck_assert_uint_eq(all.vocabulary, one.vocabulary + (uint64_t)padding * matrices * c->hidden);
    // The same by the ledger's lines: all tensors here are bf16, norms float32 when packed.
    uint64_t kv_copies = all.kv - one.kv;
    ck_assert_uint_eq(all.bytes[MODEL_KIND_OTHER], one.bytes[MODEL_KIND_OTHER] * world);
    ck_assert_uint_eq(all.bytes[MODEL_KIND_EMBEDDING],
                      one.bytes[MODEL_KIND_EMBEDDING] + 2 * (all.vocabulary - one.vocabulary));
    ck_assert_uint_eq(all.bytes[MODEL_KIND_ATTENTION],
                      one.bytes[MODEL_KIND_ATTENTION] + 2 * kv_copies);
    ck_assert_uint_eq(all.bytes[MODEL_KIND_MLP], one.bytes[MODEL_KIND_MLP]);
    ck_assert_uint_eq(all.bytes[MODEL_KIND_EXPERTS], one.bytes[MODEL_KIND_EXPERTS]);
    ck_assert_uint_eq(one.bytes[MODEL_KIND_EXPERTS] > 0, c->expert_count > 0);
    model_destroy(whole);
}

START_TEST(the_parts_of_a_group_make_up_the_model) {
    struct weights *weights = open_shapes(published[_i].name);
    uint32_t largest = 1;
    for (uint32_t world = 1; world <= BOUND_RANKS; world++) {
        struct model *model = NULL;
        struct error err = {0};
        enum status status = make(weights, (struct model_shard){0, world}, &model, &err);
        model_destroy(model);
        if (status == STATUS_OK) {
            largest = world;
            check_group(weights, world);
        } else {
            ck_assert_int_eq(status, STATUS_UNSUPPORTED);
            ck_assert_ptr_nonnull(strstr(err.message, "do not divide"));
        }
    }
    ck_assert_uint_eq(largest, published[_i].group_max);
    weights_close(weights);
}
END_TEST

START_TEST(heads_that_do_not_divide_are_refused_with_what_does) {
    struct weights *weights = open_shapes("SmolLM2-135M");
    struct model *model = NULL;
    struct error err = {0};
    ck_assert_int_eq(make(weights, (struct model_shard){1, 2}, &model, &err), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.message, "--tensor-parallel-size 2: 9 attention heads"));
    ck_assert_ptr_nonnull(strstr(err.hint, "--tensor-parallel-size 1, 3"));
    weights_close(weights);
}
END_TEST

// A file of few KV heads: 4 query heads over 2 KV heads allow four ranks with a copy each.
START_TEST(fewer_kv_heads_than_ranks_are_copied) {
    static const struct tiny_model tiny = {"llama", 2, 64, 96, 4, 2, 16, 250, 256};
    char path[64];
    struct weights *weights = NULL;
    struct model *model = NULL;
    snprintf(path, sizeof path, "/tmp/tare-test-model-%d.gguf", (int)getpid());
    tiny_model_write(&tiny, path);
    ck_assert_int_eq(weights_open(path, &weights, NULL), STATUS_OK);
    ck_assert(!weights_shapes_only(weights));
    ck_assert_int_eq(make(weights, (struct model_shard){3, 4}, &model, NULL), STATUS_OK);
    struct op_kv_layout kv;
    model_kv_layout(model, DTYPE_F16, 16, &kv);
    ck_assert_uint_eq(kv.kv_head_count, 1);
    bool seen = false;
    for (uint32_t i = 0; i < model_tensor_count(model); i++) {
        struct model_tensor t = model_tensor_at(model, i);
        if (strcmp(t.name, "blk.1.attn_k.weight") == 0) {
            ck_assert_int_eq(t.split, MODEL_SPLIT_KV_ROWS);
            ck_assert_uint_eq(t.rows, 16);
            seen = true;
        }
        if (strcmp(t.name, "token_embd.weight") == 0) {
            ck_assert_uint_eq(t.rows, 64);    // 250 of 4 x 64
        }
    }
    ck_assert(seen);
    model_destroy(model);
    weights_close(weights);
    remove(path);
}
END_TEST

// Two sums a layer and one of the embedding, and the logits of each tile.
START_TEST(a_forward_pass_of_a_rank_says_what_it_tells_the_others) {
    enum { ROWS = 100, LOGITS = 70, TILE = 64 };
    struct weights *weights = open_shapes("Qwen3-0.6B");
    struct model *model = NULL;
    ck_assert_int_eq(make(weights, (struct model_shard){0, 4}, &model, NULL), STATUS_OK);
    const struct model_config *c = model_config(model);
    struct op_kv_layout kv;
    model_kv_layout(model, DTYPE_F16, 16, &kv);
    const struct op_ctx ctx = {.thread_count = 1};
    struct op_step step = {
        .row_count = ROWS, .seq_count = 1, .logit_count = LOGITS, .block_table_stride = 8};
    struct forward_step forward = {.step = &step, .kv = &kv, .tiles = {TILE, 3, 16, 1}};
    struct collective group;
    struct reader reader;
    collective_init_loopback(&group, 0, 4);
    reader_init_measure(&reader, ops_cpu("scalar"), &ctx);
    reader.collective = &group;
    model_forward(model, &reader, &forward);
    uint64_t sum = (uint64_t)ROWS * c->hidden * sizeof(float);
    uint64_t logits = (uint64_t)c->vocabulary * sizeof(float);
    ck_assert_uint_eq(group.message_count, 1 + 2 * c->layer_count + 2);
    ck_assert_uint_eq(group.message_bytes, sum * (1 + 2 * c->layer_count) + logits * LOGITS);
    ck_assert_uint_eq(group.message_bytes_max, logits * TILE);
    ck_assert_uint_eq(collective_buffer_bytes(&group), 2 * logits * TILE);
    model_destroy(model);
    weights_close(weights);
}
END_TEST

// What a rank reserves for the largest step, workspace and messages, holds every smaller one.
START_TEST(no_step_of_a_rank_needs_more_than_the_largest) {
    enum { SHAPES = 2000, TOKENS = 4096, SEQS = 256 };
    static const struct sim_machine machine = {132, 1e12, 1e14, 2};
    static const struct tiles tiles = {64, 512, 512, 1584};
    struct weights *weights = open_shapes(_i == 0 ? "Qwen3-0.6B" : "Llama-3.2-1B");
    struct model *model = NULL;
    struct sim_meter meter = {.machine = &machine};
    struct op_ctx ctx;
    struct op_kv_layout kv;
    ops_sim_context(&meter, &ctx);
    ck_assert_int_eq(model_create(weights, ops_sim(), (struct model_shard){1, 4}, 64, &model, NULL),
                     STATUS_OK);
    model_kv_layout(model, DTYPE_F16, 16, &kv);
    struct plan_limits limits = {.envelope = {.tokens = TOKENS,
                                              .seqs = SEQS,
                                              .seq_tokens = 8192,
                                              .logit_rows = TOKENS,
                                              .attended_tokens_max = 8192,
                                              .blocks_per_seq = 512},
                                 .block_tokens = 16};
    size_t arena = executor_workspace_bytes(model, ops_sim(), &ctx, &kv, &limits, &tiles);
    uint64_t messages = executor_message_bytes(model, ops_sim(), &ctx, &kv, &limits, &tiles);
    ck_assert_uint_gt(messages, 0);
    struct rng rng;
    rng_init(&rng, 11);
    for (uint32_t i = 0; i < SHAPES; i++) {
        struct envelope *e = &limits.envelope;
        e->tokens = 1 + (uint32_t)rng_below(&rng, i % 2 == 0 ? 16 : TOKENS);
        e->seqs = 1 + (uint32_t)rng_below(&rng, e->tokens < SEQS ? e->tokens : SEQS);
        e->logit_rows = (uint32_t)rng_below(&rng, e->tokens + 1);
        e->attended_tokens_max = 1 + (uint32_t)rng_below(&rng, 8192);
        ck_assert_uint_le(executor_workspace_bytes(model, ops_sim(), &ctx, &kv, &limits, &tiles),
                          arena);
        ck_assert_uint_le(executor_message_bytes(model, ops_sim(), &ctx, &kv, &limits, &tiles),
                          messages);
    }
    model_destroy(model);
    weights_close(weights);
}
END_TEST

// ---- experts' tensors --------------------------------------------------------------------------

enum { HIDDEN = 16, HEADS = 2, INNER = 8, EXPERTS = 4, VOCABULARY = 32, HEADER_BYTES = 8192 };

// A safetensors file that is written tensor by tensor, all zeros, with one thing wrong.
struct checkpoint {
    char header[HEADER_BYTES];
    size_t used, data_bytes;
    const char *wrong;    // name of the tensor that is left out, or is written as `wrong_entry`
    const char *wrong_entry;
};

static void add_tensor(struct checkpoint *c, const char *name, const char *type, const char *shape,
                       size_t bytes) {
    bool wrong = c->wrong != NULL && strcmp(name, c->wrong) == 0;
    if (wrong && c->wrong_entry == NULL) {
        return;
    }
    const char *separator = c->used == 0 ? "{" : ",";
    if (wrong) {
        // dtype and shape of the same number of bytes
        c->used += (size_t)snprintf(c->header + c->used, HEADER_BYTES - c->used,
                                    "%s\"%s\":{%s,\"data_offsets\":[%zu,%zu]}", separator, name,
                                    c->wrong_entry, c->data_bytes, c->data_bytes + bytes);
    } else {
        c->used += (size_t)snprintf(
            c->header + c->used, HEADER_BYTES - c->used,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", separator,
            name, type, shape, c->data_bytes, c->data_bytes + bytes);
    }
    c->data_bytes += bytes;
    ck_assert_uint_lt(c->used, HEADER_BYTES - 2);
}

static void add_f32(struct checkpoint *c, const char *name, uint32_t rows, uint32_t cols) {
    char shape[64];
    if (rows > 1) {
        snprintf(shape, sizeof shape, "%u,%u", rows, cols);
    } else {
        snprintf(shape, sizeof shape, "%u", cols);
    }
    add_tensor(c, name, "F32", shape, (size_t)rows * cols * sizeof(float));
}

static void add_layer_tensors(struct checkpoint *c, bool fused) {
    char name[96], shape[64];
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm"};
    static const char *const heads[] = {"q", "k", "v", "o"};
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s.weight", norms[i]);
        add_f32(c, name, 1, HIDDEN);
        snprintf(name, sizeof name, "model.layers.0.self_attn.%s_norm.weight", heads[i]);
        add_f32(c, name, 1, HIDDEN / HEADS);
    }
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "model.layers.0.self_attn.%s_proj.weight", heads[i]);
        add_f32(c, name, HIDDEN, HIDDEN);
    }
    add_f32(c, "model.layers.0.mlp.gate.weight", EXPERTS, HIDDEN);
    if (fused) {
        snprintf(shape, sizeof shape, "%u,%u,%u", EXPERTS, 2 * INNER, HIDDEN);
        add_tensor(c, "model.layers.0.mlp.experts.gate_up_proj", "F32", shape,
                   (size_t)EXPERTS * 2 * INNER * HIDDEN * sizeof(float));
        snprintf(shape, sizeof shape, "%u,%u,%u", EXPERTS, HIDDEN, INNER);
        add_tensor(c, "model.layers.0.mlp.experts.down_proj", "F32", shape,
                   (size_t)EXPERTS * INNER * HIDDEN * sizeof(float));
        return;
    }
    for (uint32_t e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.gate_proj.weight", e);
        add_f32(c, name, INNER, HIDDEN);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.up_proj.weight", e);
        add_f32(c, name, INNER, HIDDEN);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%u.down_proj.weight", e);
        add_f32(c, name, HIDDEN, INNER);
    }
}

static enum status make_checkpoint(bool fused, const char *wrong, const char *wrong_entry,
                                   struct error *err) {
    static struct checkpoint c;
    static const uint8_t zeros[64 * 1024];
    char dir[] = "/tmp/tare-test-model-XXXXXX", path[64];
    c = (struct checkpoint){.wrong = wrong, .wrong_entry = wrong_entry};
    add_f32(&c, "model.embed_tokens.weight", VOCABULARY, HIDDEN);
    add_f32(&c, "model.norm.weight", 1, HIDDEN);
    add_layer_tensors(&c, fused);
    c.header[c.used++] = '}';
    ck_assert_uint_le(c.data_bytes, sizeof zeros);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    fprintf(file,
            "{\"model_type\":\"qwen3_moe\",\"hidden_size\":%u,\"intermediate_size\":%u,"
            "\"num_hidden_layers\":1,\"num_attention_heads\":%u,\"vocab_size\":%u,"
            "\"max_position_embeddings\":128,\"tie_word_embeddings\":true,\"num_experts\":%u,"
            "\"num_experts_per_tok\":2,\"moe_intermediate_size\":%u}",
            HIDDEN, INNER, HEADS, VOCABULARY, EXPERTS, INNER);
    fclose(file);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    file = fopen(path, "wb");
    uint64_t header_bytes = c.used;
    fwrite(&header_bytes, sizeof header_bytes, 1, file);
    fwrite(c.header, c.used, 1, file);
    fwrite(zeros, c.data_bytes, 1, file);
    fclose(file);
    struct weights *weights = NULL;
    struct model *model = NULL;
    ck_assert_msg(weights_open(dir, &weights, err) == STATUS_OK, "%s", err->message);
    enum status status = make(weights, (struct model_shard){0, 2}, &model, err);
    model_destroy(model);
    weights_close(weights);
    remove(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    remove(path);
    remove(dir);
    return status;
}

static const struct {
    bool fused;
    const char *wrong, *entry, *word;
} wrong_tensors[] = {
    {false, "model.layers.0.mlp.gate.weight", NULL, "mlp.gate.weight"},
    {false, "model.layers.0.mlp.experts.0.gate_proj.weight", NULL, "experts.0.gate_proj"},
    {false, "model.layers.0.mlp.experts.3.down_proj.weight", NULL, "experts.3.down_proj"},
    {false, "model.layers.0.mlp.experts.2.up_proj.weight", "\"dtype\":\"F32\",\"shape\":[16,8]",
     "experts.2.up_proj"},
    {false, "model.layers.0.mlp.experts.2.up_proj.weight", "\"dtype\":\"BF16\",\"shape\":[16,16]",
     "experts.2.up_proj"},
    {false, "model.layers.0.mlp.experts.1.up_proj.weight", "\"dtype\":\"F32\",\"shape\":[2,4,16]",
     "3 dimensions"},
    {false, "model.layers.0.mlp.experts.1.up_proj.weight", "\"dtype\":\"I32\",\"shape\":[8,16]",
     "type I32"},
    {true, "model.layers.0.mlp.experts.gate_up_proj", NULL, "experts.0.gate_proj"},
    {true, "model.layers.0.mlp.experts.gate_up_proj", "\"dtype\":\"F32\",\"shape\":[2,32,16]",
     "[2, 32, 16]"},
    {true, "model.layers.0.mlp.experts.gate_up_proj", "\"dtype\":\"F32\",\"shape\":[64,16]",
     "2 dimensions"},
    {true, "model.layers.0.mlp.experts.down_proj", "\"dtype\":\"F32\",\"shape\":[4,8,16]",
     "[4, 8, 16]"},
};
enum { WRONG_TENSORS = sizeof wrong_tensors / sizeof *wrong_tensors };

START_TEST(experts_are_found_apart_and_fused) {
    struct error err = {0};
    ck_assert_msg(make_checkpoint(false, NULL, NULL, &err) == STATUS_OK, "%s", err.message);
    ck_assert_msg(make_checkpoint(true, NULL, NULL, &err) == STATUS_OK, "%s", err.message);
}
END_TEST

START_TEST(experts_that_do_not_fit_are_refused_by_name) {
    struct error err = {0};
    enum status status = make_checkpoint(wrong_tensors[_i].fused, wrong_tensors[_i].wrong,
                                         wrong_tensors[_i].entry, &err);
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_msg(strstr(err.message, wrong_tensors[_i].word) != NULL, "%s", err.message);
}
END_TEST

Suite *suite_model(void) {
    Suite *suite = suite_create("worker/model/model");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, shapes_have_the_published_parameters, 0, PUBLISHED_COUNT);
    tcase_add_loop_test(tc, the_parts_of_a_group_make_up_the_model, 0, PUBLISHED_COUNT);
    tcase_add_test(tc, heads_that_do_not_divide_are_refused_with_what_does);
    tcase_add_test(tc, experts_are_found_apart_and_fused);
    tcase_add_loop_test(tc, experts_that_do_not_fit_are_refused_by_name, 0, WRONG_TENSORS);
    tcase_add_test(tc, fewer_kv_heads_than_ranks_are_copied);
    tcase_add_test(tc, a_forward_pass_of_a_rank_says_what_it_tells_the_others);
    tcase_add_loop_test(tc, no_step_of_a_rank_needs_more_than_the_largest, 0, 2);
    suite_add_tcase(suite, tc);
    return suite;
}
