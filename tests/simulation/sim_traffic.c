// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_traffic.h"

#include "common/hash.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- invented ----------------------------------------------------------------------------------

static bool chance(struct sim_traffic *traffic, double share) {
    return rng_unit(&traffic->rng) < share;
}

// Log-normal with sigma 1, so that some are ten times as long as most; the sum of twelve uniform
// draws is close enough to normal.
static uint32_t length(struct sim_traffic *traffic, double mean, uint32_t max) {
    double normal = -6.0;
    for (int i = 0; i < 12; i++) {
        normal += rng_unit(&traffic->rng);
    }
    double value = mean * exp(normal - 0.5);
    return value < 1.0 ? 1 : value > max ? max : (uint32_t)value;
}

static uint64_t next_time(struct sim_traffic *traffic) {
    const struct sim_traffic_options *o = &traffic->options;
    if (traffic->burst_left > 0) {
        traffic->burst_left--;
        return traffic->at_us;
    }
    // Bursts of 32 on average, as many as make their share.
    double mean = 1.0 + o->burst_share * 31.0;
    if (chance(traffic, o->burst_share * (mean / 32.0))) {
        traffic->burst_left = (uint32_t)rng_below(&traffic->rng, 64);
    }
    double wait = -log(1.0 - rng_unit(&traffic->rng)) * mean / o->per_s;
    return traffic->at_us + (uint64_t)(wait * 1e6);
}

static bool traffic_next(void *ctx, struct sim_spec *out) {
    struct sim_traffic *traffic = ctx;
    const struct sim_traffic_options *o = &traffic->options;
    traffic->at_us = next_time(traffic);
    if (traffic->at_us >= o->until_us) {
        return false;
    }
    *out = (struct sim_spec){
        .at_us = traffic->at_us,
        .class_ =
            o->one_class ? SIM_STANDARD : (enum sim_class)rng_below(&traffic->rng, SIM_CLASS_COUNT),
        .tenant = (uint32_t)rng_below(&traffic->rng, SIM_TENANTS),
        .prompt_count = length(traffic, o->prompt_mean, o->prompt_max),
        .natural_length = length(traffic, o->output_mean, o->output_max),
        .cancel_outputs = SIM_NEVER,
        .stop_outputs = SIM_NEVER,
        .fill = sim_fill_shared,
        .key = rng_u64(&traffic->rng),
    };
    // What is asked for is more than what comes, by any factor.
    out->output_max = out->natural_length +
                      (uint32_t)rng_below(&traffic->rng, o->output_max - out->natural_length + 1);
    if (chance(traffic, o->shared_share)) {
        out->key = 1 + rng_below(&traffic->rng, o->families);
        out->shared_count = (uint32_t)rng_below(&traffic->rng, out->prompt_count + 1);
    }
    if (chance(traffic, o->endless_share)) {
        out->natural_length = 0;
    }
    if (chance(traffic, o->cancel_share)) {
        if (chance(traffic, 0.5)) {
            out->cancel_outputs = 1 + (uint32_t)rng_below(&traffic->rng, out->output_max);
        } else {
            out->cancel_after_us = 1 + rng_below(&traffic->rng, 20 * 1000 * 1000);
        }
    } else if (chance(traffic, o->stop_share)) {
        out->stop_outputs = 1 + (uint32_t)rng_below(&traffic->rng, out->output_max);
    }
    out->want_logprobs = chance(traffic, o->logprob_share);
    out->want_prompt_logprobs = chance(traffic, o->score_share);
    out->penalties = chance(traffic, o->penalty_share);
    out->cache = chance(traffic, o->cache_share);
    out->salt = o->salts > 0 ? rng_below(&traffic->rng, o->salts) : 0;
    out->poison = chance(traffic, o->poison_share);
    return true;
}

struct sim_source sim_traffic_source(struct sim_traffic *traffic,
                                     const struct sim_traffic_options *options) {
    *traffic = (struct sim_traffic){.options = *options};
    rng_init(&traffic->rng, options->seed ^ 0x74726166u);
    return (struct sim_source){traffic_next, traffic};
}

// ---- recorded ----------------------------------------------------------------------------------

struct loading {
    struct sim_trace trace;
    uint32_t rows_max, ids_max;
};

static enum status grow(void **array, uint32_t *max, uint32_t count, size_t element,
                        struct error *err) {
    if (count < *max) {
        return STATUS_OK;
    }
    uint32_t wanted = *max == 0 ? 4096 : 2 * *max;
    void *larger = memory_realloc(*array, wanted * element);
    if (larger == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a trace");
    }
    *array = larger;
    *max = wanted;
    return STATUS_OK;
}

static enum status add_row(struct loading *loading, const struct sim_trace_row *row,
                           struct error *err) {
    void *rows = loading->trace.rows;
    TRY(grow(&rows, &loading->rows_max, loading->trace.row_count, sizeof *row, err));
    loading->trace.rows = rows;
    loading->trace.rows[loading->trace.row_count++] = *row;
    return STATUS_OK;
}

static enum status add_id(struct loading *loading, uint32_t id, struct error *err) {
    void *ids = loading->trace.ids;
    TRY(grow(&ids, &loading->ids_max, loading->trace.id_count, sizeof(uint32_t), err));
    loading->trace.ids = ids;
    loading->trace.ids[loading->trace.id_count++] = id;
    return STATUS_OK;
}

// "2023-11-16 18:15:46.6805900,374,44"; the times of a file lie in one day.
static enum status read_csv_line(struct loading *loading, const char *line, struct error *err) {
    unsigned hours, minutes, prompt, output;
    double seconds;
    if (strncmp(line, "TIMESTAMP", 9) == 0) {
        return STATUS_OK;
    }
    int fields =
        sscanf(line, "%*u-%*u-%*u %u:%u:%lf,%u,%u", &hours, &minutes, &seconds, &prompt, &output);
    if (fields != 5 || prompt == 0) {
        return error_set(err, STATUS_INVALID, "not TIMESTAMP,ContextTokens,GeneratedTokens");
    }
    double at = (hours * 60.0 + minutes) * 60.0 + seconds;
    struct sim_trace_row row = {(uint64_t)(at * 1e6), prompt, output, NULL};
    return add_row(loading, &row, err);
}

static enum status read_json_fields(struct loading *loading, const struct json *root,
                                    struct error *err) {
    int64_t at_ms = 0, prompt = 0, output = 0;
    const struct json_range_int any = {0, INT32_MAX};
    TRY(json_field_int(root, "timestamp", any, &at_ms, NULL, err));
    TRY(json_field_int(root, "input_length", any, &prompt, NULL, err));
    TRY(json_field_int(root, "output_length", any, &output, NULL, err));
    const struct json *ids = json_get(root, "hash_ids");
    size_t pieces = ((size_t)prompt + SIM_TRACE_PIECE - 1) / SIM_TRACE_PIECE;
    if (prompt == 0 || json_count(ids) != pieces) {
        return error_set(err, STATUS_INVALID, "%zu hash_ids for %lld tokens", json_count(ids),
                         (long long)prompt);
    }
    for (size_t i = 0; i < pieces; i++) {
        TRY(add_id(loading, (uint32_t)json_int(json_at(ids, i)), err));
    }
    struct sim_trace_row row = {(uint64_t)at_ms * 1000, (uint32_t)prompt, (uint32_t)output, NULL};
    return add_row(loading, &row, err);
}

static enum status read_json_line(struct loading *loading, const char *line, struct error *err) {
    struct json_doc *doc = NULL;
    TRY(json_parse(line, strlen(line), &doc, err));
    enum status status = read_json_fields(loading, json_root(doc), err);
    json_destroy(doc);
    return status;
}

// Row by row the ids lie one after the other; times count from the first.
static void settle(struct sim_trace *trace, bool has_ids) {
    const uint32_t *ids = trace->ids;
    uint64_t first_us = trace->row_count > 0 ? trace->rows[0].at_us : 0;
    for (uint32_t i = 0; i < trace->row_count; i++) {
        struct sim_trace_row *row = &trace->rows[i];
        row->at_us = row->at_us < first_us ? 0 : row->at_us - first_us;
        row->output_count = row->output_count == 0 ? 1 : row->output_count;
        if (has_ids) {
            row->ids = ids;
            ids += (row->prompt_count + SIM_TRACE_PIECE - 1) / SIM_TRACE_PIECE;
        }
    }
}

static enum status read_lines(struct loading *loading, FILE *file, bool json, struct error *err) {
    char *line = NULL;
    size_t line_bytes = 0;
    enum status status = STATUS_OK;
    for (uint32_t number = 1; status == STATUS_OK && getline(&line, &line_bytes, file) > 0;
         number++) {
        status = json ? read_json_line(loading, line, err) : read_csv_line(loading, line, err);
        if (status != STATUS_OK) {
            error_context(err, "line %u", number);
        }
    }
    memory_free(line);
    return status;
}

enum status sim_trace_load(const char *path, struct sim_trace *out, struct error *err) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return error_set_os(err, STATUS_NOT_FOUND, "cannot open the trace %s", path);
    }
    struct loading loading = {0};
    size_t bytes = strlen(path);
    bool json = bytes > 6 && strcmp(path + bytes - 6, ".jsonl") == 0;
    enum status status = read_lines(&loading, file, json, err);
    fclose(file);
    if (status == STATUS_OK && loading.trace.row_count == 0) {
        status = error_set(err, STATUS_INVALID, "no rows");
    }
    if (status != STATUS_OK) {
        error_context(err, "%s", path);
        sim_trace_deinit(&loading.trace);
        return status;
    }
    settle(&loading.trace, json);
    *out = loading.trace;
    return STATUS_OK;
}

void sim_trace_deinit(struct sim_trace *trace) {
    memory_free(trace->rows);
    memory_free(trace->ids);
    *trace = (struct sim_trace){0};
}

static void fill_pieces(const struct sim_spec *spec, uint64_t id, int32_t *tokens) {
    const struct sim_trace_row *row = spec->fill_ctx;
    for (uint32_t i = 0; i < spec->prompt_count; i++) {
        uint32_t piece = i / SIM_TRACE_PIECE;
        uint64_t seed = row->ids != NULL ? row->ids[piece] : hash_u64(id) + piece;
        uint64_t mixed = (hash_u64(seed) + i) * 0x9E3779B97F4A7C15u;
        tokens[i] = (int32_t)(1 + (mixed >> 40) % (SIM_VOCABULARY - 1));
    }
}

static bool replay_next(void *ctx, struct sim_spec *out) {
    struct sim_replay *replay = ctx;
    const struct sim_replay_options *o = &replay->options;
    if (replay->next == o->trace->row_count) {
        return false;
    }
    const struct sim_trace_row *row = &o->trace->rows[replay->next++];
    uint32_t output_max = row->output_count > o->output_max ? row->output_count : o->output_max;
    uint32_t prompt_max = o->length_max - output_max;
    *out = (struct sim_spec){
        .at_us = (uint64_t)((double)row->at_us / o->speed),
        .class_ = SIM_STANDARD,
        .prompt_count = row->prompt_count < prompt_max ? row->prompt_count : prompt_max,
        .output_max = output_max,
        .natural_length = row->output_count,
        .cancel_outputs = SIM_NEVER,
        .stop_outputs = SIM_NEVER,
        .cache = o->cache,
        .fill = fill_pieces,
        .fill_ctx = row,
    };
    return out->at_us < o->until_us;
}

struct sim_source sim_replay_source(struct sim_replay *replay,
                                    const struct sim_replay_options *options) {
    SIM_CHECK(options->length_max > options->output_max, "a trace of sequences without prompts");
    *replay = (struct sim_replay){.options = *options};
    return (struct sim_source){replay_next, replay};
}
