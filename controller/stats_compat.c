// SPDX-License-Identifier: Apache-2.0
#include "controller/stats_internal.h"

#include <stdio.h>

// vLLM's own edges, so that boards which name a bucket keep working.
static const double vllm_ttft_edges[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double vllm_itl_edges[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                        .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double vllm_request_edges[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double vllm_token_edges[] = {1,     2,      5,      10,     20,     50,    100,
                                          200,   500,    1000,   2000,   5000,   10000, 20000,
                                          50000, 100000, 200000, 500000, 1000000};

// What vLLM has no word for is not in its block.
static const char *const finished_reasons[FINISH_REASON_COUNT] = {
    [FINISH_REASON_STOP] = "stop",
    [FINISH_REASON_LENGTH] = "length",
    [FINISH_REASON_CANCELLED] = "abort",
};

static struct metric *add_one(struct stats_builder *builder, const struct metric_desc *desc,
                              const char *label, const char *value) {
    const struct metric_label labels[] = {
        {"model_name", builder->model}, {"engine", "0"}, {label, value}};
    return stats_add(builder, desc, labels, label == NULL ? 2 : 3);
}

static void add_values(struct stats_compat *compat, struct stats_builder *builder) {
    compat->running =
        add_one(builder, GAUGE("vllm:num_requests_running", "Sequences that run."), NULL, NULL);
    compat->waiting =
        add_one(builder, GAUGE("vllm:num_requests_waiting", "Sequences that wait."), NULL, NULL);
    compat->kv_usage =
        add_one(builder, GAUGE("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1."),
                NULL, NULL);
    compat->prompt_tokens_total = add_one(
        builder, COUNTER("vllm:prompt_tokens_total", "Prompt tokens processed."), NULL, NULL);
    compat->generation_tokens_total =
        add_one(builder, COUNTER("vllm:generation_tokens_total", "Tokens generated."), NULL, NULL);
    for (uint32_t i = 0; i < FINISH_REASON_COUNT; i++) {
        if (finished_reasons[i] != NULL) {
            compat->success[i] =
                add_one(builder, COUNTER("vllm:request_success_total", "Sequences that ended."),
                        "finished_reason", finished_reasons[i]);
        }
    }
    compat->prefix_queries =
        add_one(builder, COUNTER("vllm:prefix_cache_queries_total", "Prompt tokens looked up."),
                NULL, NULL);
    compat->prefix_hits = add_one(
        builder, COUNTER("vllm:prefix_cache_hits_total", "Prompt tokens found."), NULL, NULL);
    compat->preemptions =
        add_one(builder, COUNTER("vllm:num_preemptions_total", "Sequences set back."), NULL, NULL);
}

static void add_histograms(struct stats_compat *compat, struct stats_builder *builder) {
    compat->ttft = add_one(
        builder,
        HISTOGRAM("vllm:time_to_first_token_seconds", "Time to the first token.", vllm_ttft_edges),
        NULL, NULL);
    compat->itl = add_one(
        builder,
        HISTOGRAM("vllm:inter_token_latency_seconds", "Time between deliveries.", vllm_itl_edges),
        NULL, NULL);
    compat->tpot = add_one(builder,
                           HISTOGRAM("vllm:request_time_per_output_token_seconds",
                                     "Mean time per token, by sequence.", vllm_itl_edges),
                           NULL, NULL);
    compat->e2e = add_one(builder,
                          HISTOGRAM("vllm:e2e_request_latency_seconds", "Time to the last token.",
                                    vllm_request_edges),
                          NULL, NULL);
    compat->queue = add_one(
        builder,
        HISTOGRAM("vllm:request_queue_time_seconds", "Time in the queue.", vllm_request_edges),
        NULL, NULL);
    compat->prefill = add_one(
        builder,
        HISTOGRAM("vllm:request_prefill_time_seconds", "Time in prefill.", vllm_request_edges),
        NULL, NULL);
    compat->decode = add_one(
        builder,
        HISTOGRAM("vllm:request_decode_time_seconds", "Time in decode.", vllm_request_edges), NULL,
        NULL);
    compat->prompt_tokens = add_one(
        builder,
        HISTOGRAM("vllm:request_prompt_tokens", "Prompt tokens of a sequence.", vllm_token_edges),
        NULL, NULL);
    compat->generation_tokens =
        add_one(builder,
                HISTOGRAM("vllm:request_generation_tokens", "Generated tokens of a sequence.",
                          vllm_token_edges),
                NULL, NULL);
}

void stats_compat_add(struct stats_compat *compat, struct stats_builder *builder) {
    compat->metrics = builder->metrics;
    compat->model = builder->model;
    add_values(compat, builder);
    add_histograms(compat, builder);
}

// ---- scrape ------------------------------------------------------------------------------------

static void copy_counts(struct stats_compat *compat, const struct stats_view *view) {
    const struct core_gauges *gauges = view->gauges;
    const struct core_counters *counters = view->counters;
    metric_set(compat->running, (double)gauges->prefilling + gauges->decoding);
    metric_set(compat->waiting, gauges->queued);
    uint32_t used = gauges->kv_blocks_total - gauges->kv_blocks_free;
    metric_set(compat->kv_usage,
               gauges->kv_blocks_total == 0 ? 0.0 : (double)used / gauges->kv_blocks_total);
    uint64_t prompt_tokens = counters->tokens_prompt_computed + counters->tokens_prompt_cached;
    metric_set_total(compat->prompt_tokens_total, prompt_tokens);
    metric_set_total(compat->generation_tokens_total, counters->tokens_generated);
    metric_set_total(compat->prefix_queries, prompt_tokens);
    metric_set_total(compat->prefix_hits, counters->tokens_prompt_cached);
    metric_set_total(compat->preemptions, counters->preemptions);
    for (uint32_t i = 0; i < FINISH_REASON_COUNT; i++) {
        uint64_t total = 0;
        for (uint32_t class_ = 0; class_ < REQUEST_CLASS_COUNT; class_++) {
            total += counters->requests_finished[class_][i];
        }
        if (compat->success[i] != NULL) {
            metric_set_total(compat->success[i], total);
        }
    }
}

// The shape is known only once a worker has sealed; the series begins then.
static void show_cache(struct stats_compat *compat, const struct message_capacity *capacity) {
    char block_size[16];
    char block_count[16];
    snprintf(block_size, sizeof block_size, "%u", capacity->block_tokens);
    snprintf(block_count, sizeof block_count, "%u", capacity->kv_blocks);
    const struct metric_label labels[] = {{"model_name", compat->model},
                                          {"engine", "0"},
                                          {"block_size", block_size},
                                          {"num_gpu_blocks", block_count},
                                          {"cache_dtype", capacity->kv_dtype}};
    if (metrics_add(compat->metrics, INFO("vllm:cache_config_info", "The KV cache's shape."),
                    labels, COUNT_OF(labels), &compat->cache_info, NULL) != STATUS_OK) {
        compat->cache_info = NULL;    // no memory: the next scrape tries again
    }
}

void stats_compat_copy(struct stats_compat *compat, const struct stats_view *view) {
    copy_counts(compat, view);
    if (compat->cache_info == NULL && view->capacity != NULL) {
        show_cache(compat, view->capacity);
    }
}
