// SPDX-License-Identifier: Apache-2.0
#include "common/metrics.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct metric {
    struct metric *next;    // of the same family
    const struct family *family;
    char *labels;    // "a=\"b\",c=\"d\"", or "" without any
    bool shown;
    uint64_t total;       // counter; number of observations of a histogram
    double value;         // gauge; sum of a histogram
    uint64_t *buckets;    // [edge_count], not cumulative; above the last edge only `total` counts
};

struct family {
    struct family *next;
    char *name;
    char *help;
    enum metric_kind kind;
    const double *edges;
    uint32_t edge_count;
    struct metric *first;
    struct metric **end;
};

struct metrics {
    struct family *first;
    struct family **end;
    uint32_t series_count;
};

// ---- life cycle --------------------------------------------------------------------------------

enum status metrics_create(struct metrics **out, struct error *err) {
    struct metrics *metrics = memory_zalloc(sizeof *metrics);
    if (metrics == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for metrics");
    }
    metrics->end = &metrics->first;
    *out = metrics;
    return STATUS_OK;
}

static void metric_free(struct metric *metric) {
    memory_free(metric->labels);
    memory_free(metric->buckets);
    memory_free(metric);
}

void metrics_destroy(struct metrics *metrics) {
    if (metrics == NULL) {
        return;
    }
    while (metrics->first != NULL) {
        struct family *family = metrics->first;
        metrics->first = family->next;
        while (family->first != NULL) {
            struct metric *metric = family->first;
            family->first = metric->next;
            metric_free(metric);
        }
        memory_free(family->name);
        memory_free(family->help);
        memory_free(family);
    }
    memory_free(metrics);
}

// ---- adding ------------------------------------------------------------------------------------

static bool ends_with(const char *text, const char *end) {
    size_t text_bytes = strlen(text);
    size_t end_bytes = strlen(end);
    return text_bytes > end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

static bool is_name(const char *name, bool colon) {
    for (const char *at = name; *at != '\0'; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || *at == '_';
        bool digit = *at >= '0' && *at <= '9' && at != name;
        if (!letter && !digit && !(colon && *at == ':')) {
            return false;
        }
    }
    return *name != '\0';
}

static enum status check_desc(const struct metric_desc *desc, struct error *err) {
    bool histogram = desc->kind == METRIC_KIND_HISTOGRAM;
    bool suffix_fits = ends_with(desc->name, "_total") == (desc->kind == METRIC_KIND_COUNTER) &&
                       ends_with(desc->name, "_info") == (desc->kind == METRIC_KIND_INFO);
    bool edges_rise = histogram == (desc->edge_count > 0);
    for (uint32_t i = 1; i < desc->edge_count; i++) {
        edges_rise = edges_rise && desc->edges[i - 1] < desc->edges[i];
    }
    if (!is_name(desc->name, true) || !suffix_fits || !edges_rise || desc->help[0] == '\0') {
        return error_set(err, STATUS_INVALID,
                         "metric '%s' needs a plain name with the suffix of its kind, a help text "
                         "and rising edges for a histogram",
                         desc->name);
    }
    return STATUS_OK;
}

static struct family *find_family(struct metrics *metrics, const char *name) {
    struct family *family = metrics->first;
    while (family != NULL && strcmp(family->name, name) != 0) {
        family = family->next;
    }
    return family;
}

static struct family *add_family(struct metrics *metrics, const struct metric_desc *desc) {
    struct family *family = memory_zalloc(sizeof *family);
    if (family == NULL) {
        return NULL;
    }
    family->name = memory_strdup(desc->name);
    family->help = memory_strdup(desc->help);
    if (family->name == NULL || family->help == NULL) {
        memory_free(family->name);
        memory_free(family->help);
        memory_free(family);
        return NULL;
    }
    family->kind = desc->kind;
    family->edges = desc->edges;
    family->edge_count = desc->edge_count;
    family->end = &family->first;
    *metrics->end = family;
    metrics->end = &family->next;
    return family;
}

// Label values escape backslash, quote and newline (text format 0.0.4; OpenMetrics agrees).
static void write_escaped(struct buf *out, const char *text) {
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\n') {
            buf_append_str(out, "\\n");
            continue;
        }
        if (*at == '\\' || *at == '"') {
            buf_append_byte(out, '\\');
        }
        buf_append_byte(out, (uint8_t)*at);
    }
}

static enum status render_labels(const struct metric_label *labels, uint32_t label_count,
                                 char **out, struct error *err) {
    struct buf text;
    buf_init(&text, BOUND_METRIC_LABEL_BYTES);
    for (uint32_t i = 0; i < label_count; i++) {
        if (!is_name(labels[i].name, false)) {
            buf_deinit(&text);
            return error_set(err, STATUS_INVALID, "'%s' is not a label name", labels[i].name);
        }
        buf_append_str(&text, i == 0 ? "" : ",");
        buf_append_str(&text, labels[i].name);
        buf_append_str(&text, "=\"");
        write_escaped(&text, labels[i].value);
        buf_append_byte(&text, '"');
    }
    enum status status = buf_status(&text);
    *out = status == STATUS_OK ? memory_strdup(buf_cstr(&text)) : NULL;
    buf_deinit(&text);
    if (*out == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "the labels of a metric are too long");
    }
    return STATUS_OK;
}

enum status metrics_add(struct metrics *metrics, const struct metric_desc *desc,
                        const struct metric_label *labels, uint32_t label_count,
                        struct metric **out, struct error *err) {
    TRY(check_desc(desc, err));
    struct family *family = find_family(metrics, desc->name);
    if (family != NULL && (family->kind != desc->kind || family->edges != desc->edges)) {
        return error_set(err, STATUS_INVALID, "metric '%s' exists with another kind", desc->name);
    }
    if (metrics->series_count >= BOUND_METRIC_SERIES) {
        return error_set(err, STATUS_EXHAUSTED, "more than %u metric series", BOUND_METRIC_SERIES);
    }
    struct metric *metric = memory_zalloc(sizeof *metric);
    if (metric == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for metric '%s'", desc->name);
    }
    enum status status = render_labels(labels, label_count, &metric->labels, err);
    if (status == STATUS_OK && desc->edge_count > 0) {
        metric->buckets = memory_array(desc->edge_count, sizeof *metric->buckets);
    }
    if (status == STATUS_OK && family == NULL) {
        family = add_family(metrics, desc);
    }
    if (status != STATUS_OK || family == NULL ||
        (desc->edge_count > 0 && metric->buckets == NULL)) {
        metric_free(metric);
        return status != STATUS_OK
                   ? status
                   : error_set(err, STATUS_EXHAUSTED, "no memory for metric '%s'", desc->name);
    }
    metric->family = family;
    metric->shown = true;
    *family->end = metric;
    family->end = &metric->next;
    metrics->series_count++;
    *out = metric;
    return STATUS_OK;
}

// ---- counting ----------------------------------------------------------------------------------

void metric_increase(struct metric *counter, uint64_t by) {
    counter->total += by;
}

void metric_set_total(struct metric *counter, uint64_t total) {
    counter->total = total > counter->total ? total : counter->total;
}

void metric_set(struct metric *gauge, double value) {
    gauge->value = value;
}

void metric_observe(struct metric *histogram, double value) {
    const struct family *family = histogram->family;
    // First edge that is not below the value: `le` is inclusive.
    uint32_t low = 0;
    uint32_t high = family->edge_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (family->edges[middle] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low < family->edge_count) {
        histogram->buckets[low]++;
    }
    histogram->total++;
    histogram->value += value;
}

void metric_show(struct metric *metric, bool shown) {
    metric->shown = shown;
}

uint64_t metric_total(const struct metric *metric) {
    return metric->total;
}

// ---- printing ----------------------------------------------------------------------------------

// OpenMetrics wants a point in numbers of buckets; whole numbers are the common case and cheap.
static void write_number(struct buf *out, double value, bool point) {
    if (isnan(value)) {
        buf_append_str(out, "NaN");
    } else if (isinf(value)) {
        buf_append_str(out, value > 0 ? "+Inf" : "-Inf");
    } else if (value >= 0 && value < 9007199254740992.0 && floor(value) == value) {
        buf_append_u64(out, (uint64_t)value);
        buf_append_str(out, point ? ".0" : "");
    } else {
        buf_printf(out, "%.15g", value);
    }
}

// name{labels,extra} with only the parts that exist.
static void write_series(struct buf *out, const char *name, size_t name_bytes, const char *suffix,
                         const char *labels) {
    buf_append(out, name, name_bytes);
    buf_append_str(out, suffix);
    if (labels[0] != '\0') {
        buf_append_byte(out, '{');
        buf_append_str(out, labels);
        buf_append_byte(out, '}');
    }
    buf_append_byte(out, ' ');
}

static void write_bucket(struct buf *out, const struct metric *metric, double edge,
                         uint64_t count) {
    buf_append_str(out, metric->family->name);
    buf_append_str(out, "_bucket{");
    buf_append_str(out, metric->labels);
    buf_append_str(out, metric->labels[0] != '\0' ? ",le=\"" : "le=\"");
    write_number(out, edge, true);
    buf_append_str(out, "\"} ");
    buf_append_u64(out, count);
    buf_append_byte(out, '\n');
}

static void write_histogram(struct buf *out, const struct metric *metric) {
    const struct family *family = metric->family;
    size_t name_bytes = strlen(family->name);
    uint64_t cumulative = 0;
    for (uint32_t i = 0; i < family->edge_count; i++) {
        cumulative += metric->buckets[i];
        write_bucket(out, metric, family->edges[i], cumulative);
    }
    write_bucket(out, metric, (double)INFINITY, metric->total);
    write_series(out, family->name, name_bytes, "_sum", metric->labels);
    write_number(out, metric->value, false);
    buf_append_byte(out, '\n');
    write_series(out, family->name, name_bytes, "_count", metric->labels);
    buf_append_u64(out, metric->total);
    buf_append_byte(out, '\n');
}

static void write_metric(struct buf *out, const struct metric *metric) {
    const struct family *family = metric->family;
    if (family->kind == METRIC_KIND_HISTOGRAM) {
        write_histogram(out, metric);
        return;
    }
    write_series(out, family->name, strlen(family->name), "", metric->labels);
    if (family->kind == METRIC_KIND_COUNTER) {
        buf_append_u64(out, metric->total);
    } else {
        write_number(out, family->kind == METRIC_KIND_INFO ? 1.0 : metric->value, false);
    }
    buf_append_byte(out, '\n');
}

// The unit that a name of so many bytes ends with; NULL for none.
static const char *unit_of(const char *name, size_t name_bytes) {
    static const char *const units[] = {"seconds", "bytes", "tokens", "blocks", "ratio"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t unit_bytes = strlen(units[i]);
        if (name_bytes > unit_bytes + 1 && name[name_bytes - unit_bytes - 1] == '_' &&
            memcmp(name + name_bytes - unit_bytes, units[i], unit_bytes) == 0) {
            return units[i];
        }
    }
    return NULL;
}

static void write_family_head(struct buf *out, const struct family *family,
                              enum metric_format format) {
    static const char *const kinds[] = {"counter", "gauge", "histogram", "info"};
    bool open = format == METRIC_FORMAT_OPEN;
    size_t name_bytes = strlen(family->name);
    if (open && family->kind == METRIC_KIND_COUNTER) {
        name_bytes -= strlen("_total");
    } else if (open && family->kind == METRIC_KIND_INFO) {
        name_bytes -= strlen("_info");
    }
    const char *kind = family->kind == METRIC_KIND_INFO && !open ? "gauge" : kinds[family->kind];
    buf_append_str(out, "# HELP ");
    buf_append(out, family->name, name_bytes);
    buf_append_byte(out, ' ');
    write_escaped(out, family->help);
    buf_append_str(out, "\n# TYPE ");
    buf_append(out, family->name, name_bytes);
    buf_append_byte(out, ' ');
    buf_append_str(out, kind);
    buf_append_byte(out, '\n');
    const char *unit = unit_of(family->name, name_bytes);
    if (open && unit != NULL) {
        buf_append_str(out, "# UNIT ");
        buf_append(out, family->name, name_bytes);
        buf_append_byte(out, ' ');
        buf_append_str(out, unit);
        buf_append_byte(out, '\n');
    }
}

void metrics_print(const struct metrics *metrics, enum metric_format format, struct buf *out) {
    for (const struct family *family = metrics->first; family != NULL; family = family->next) {
        bool headed = false;
        for (const struct metric *metric = family->first; metric != NULL; metric = metric->next) {
            if (!metric->shown) {
                continue;
            }
            if (!headed) {
                write_family_head(out, family, format);
                headed = true;
            }
            write_metric(out, metric);
        }
    }
    if (format == METRIC_FORMAT_OPEN) {
        buf_append_str(out, "# EOF\n");
    }
}

const char *metric_format_content_type(enum metric_format format) {
    return format == METRIC_FORMAT_OPEN
               ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8";
}
