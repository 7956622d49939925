// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_STATS_INTERNAL_H
#define CONTROLLER_STATS_INTERNAL_H

#include "common/metrics.h"
#include "common/status.h"
#include "controller/core/core.h"
#include "controller/stats.h"

// What the files of the statistics share: stats.c has our own families and all that is observed;
// stats_compat.c has the block under vLLM's names. Nobody else includes this.
//
//   Owns, Thread, Allocates, Fails as stats.h.

#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

#define COUNTER(metric_name, text)                                                                 \
    &(const struct metric_desc) {                                                                  \
        .name = (metric_name), .help = (text), .kind = METRIC_KIND_COUNTER                         \
    }
#define GAUGE(metric_name, text)                                                                   \
    &(const struct metric_desc) {                                                                  \
        .name = (metric_name), .help = (text), .kind = METRIC_KIND_GAUGE                           \
    }
#define INFO(metric_name, text)                                                                    \
    &(const struct metric_desc) {                                                                  \
        .name = (metric_name), .help = (text), .kind = METRIC_KIND_INFO                            \
    }
#define HISTOGRAM(metric_name, text, bounds)                                                       \
    &(const struct metric_desc) {                                                                  \
        .name = (metric_name), .help = (text), .kind = METRIC_KIND_HISTOGRAM, .edges = (bounds),   \
        .edge_count = COUNT_OF(bounds)                                                             \
    }

// Collects the first failure, so that the lists of series stay lists.
struct stats_builder {
    struct metrics *metrics;
    const char *model;    // value of every series' label
    struct error *err;
    enum status status;
};
// stats.c. Adds one series; NULL after a failure.
struct metric *stats_add(struct stats_builder *builder, const struct metric_desc *desc,
                         const struct metric_label *labels, uint32_t label_count);

// The series under vLLM's names.
struct stats_compat {
    struct metrics *metrics;    // where it was added
    const char *model;
    struct metric *running, *waiting, *kv_usage, *cache_info;
    struct metric *prompt_tokens_total, *generation_tokens_total;
    struct metric *success[FINISH_REASON_COUNT];
    struct metric *prefix_queries, *prefix_hits, *preemptions;
    struct metric *ttft, *itl, *tpot, *e2e, *queue, *prefill, *decode;
    struct metric *prompt_tokens, *generation_tokens;
};

// stats_compat.c
// Keeps the builder's metrics and model, which must outlive `compat`.
void stats_compat_add(struct stats_compat *compat, struct stats_builder *builder);
// Everything that is not observed as it happens.
void stats_compat_copy(struct stats_compat *compat, const struct stats_view *view);

#endif
