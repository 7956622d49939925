// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_METRICS_H
#define COMMON_METRICS_H

#include "common/buf.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Counters, gauges and fixed-bucket histograms, and their text for Prometheus.
//
// The idea: every series is created at start and is one plain cell afterwards, so counting is an
// addition and a scrape is one pass that prints. Series of one name form a family and are printed
// together, in the order of creation.
//
// Formats: the classic text format 0.0.4, and OpenMetrics 1.0 (families of counters without
// "_total", "# UNIT" lines, "# EOF").
//
//   Owns       its families and series, names and labels included.
//   Thread     one at a time; the loop thread counts and prints.
//   Allocates  while series are added; never when counting. Printing grows the given buffer.
//   Fails      metrics_add: INVALID for a name or label that Prometheus would refuse, EXHAUSTED
//   past
//              BOUND_METRIC_SERIES.

struct metrics;
struct metric;    // one series

enum metric_kind {
    METRIC_KIND_COUNTER,    // its name ends in "_total"
    METRIC_KIND_GAUGE,
    METRIC_KIND_HISTOGRAM,
    METRIC_KIND_INFO,    // its name ends in "_info"; the value is always 1
};

struct metric_desc {
    const char *name;
    const char *help;    // one sentence
    enum metric_kind kind;
    const double *edges;    // histogram: upper bounds, rising, without +Inf; kept by reference
    uint32_t edge_count;
};

struct metric_label {
    const char *name;
    const char *value;
};

enum status metrics_create(struct metrics **out, struct error *err) MUST_USE;
void metrics_destroy(struct metrics *metrics);

// Adds one series. Series of one name must share kind and edges; `labels` are copied.
enum status metrics_add(struct metrics *metrics, const struct metric_desc *desc,
                        const struct metric_label *labels, uint32_t label_count,
                        struct metric **out, struct error *err) MUST_USE;

void metric_increase(struct metric *counter, uint64_t by);
// Counters that are kept elsewhere are copied before a print; they must never fall.
void metric_set_total(struct metric *counter, uint64_t total);
void metric_set(struct metric *gauge, double value);
void metric_observe(struct metric *histogram, double value);
// A series that is not `shown` is left out, for values that do not exist yet.
void metric_show(struct metric *metric, bool shown);

uint64_t metric_total(const struct metric *metric);    // counter's value, or histogram's count

enum metric_format { METRIC_FORMAT_CLASSIC, METRIC_FORMAT_OPEN };
void metrics_print(const struct metrics *metrics, enum metric_format format, struct buf *out);
const char *metric_format_content_type(enum metric_format format);

#endif
