// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_report.h"

#include "common/invariant.h"
#include "common/json.h"
#include <stdio.h>
#include <string.h>

enum { KNOBS_MAX = 16, VALUE_BYTES = 32 };

static const double MIB = 1024.0 * 1024.0;
// Request lengths whose concurrency is shown, besides the longest possible.
static const uint32_t LENGTHS[] = {512, 2048, 8192, 32768, 131072};
enum { LENGTH_COUNT = sizeof LENGTHS / sizeof *LENGTHS };

// One option changed, and what a start would report then.
struct knob {
    const char *option;
    char value[VALUE_BYTES];
    enum status status;
    struct engine_plan plan;
};

struct report {
    const struct engine_options *options;
    struct weights *weights;
    struct engine_plan plan;
    enum status status;
    struct error err;
    struct knob knobs[KNOBS_MAX];
    uint32_t knob_count;
};

static uint64_t kv_tokens(const struct engine_plan *plan) {
    return (uint64_t)plan->capacity.kv_blocks * plan->capacity.block_tokens;
}

// ---- knobs -------------------------------------------------------------------------------------

static void try_knob(struct report *report, const char *option, const char *value,
                     const struct engine_options *changed) {
    INVARIANT(report->knob_count < KNOBS_MAX);
    struct knob *knob = &report->knobs[report->knob_count++];
    knob->option = option;
    snprintf(knob->value, sizeof knob->value, "%s", value);
    struct error err = {0};
    knob->status = engine_plan(changed, report->weights, &knob->plan, &err);
}

static void try_number(struct report *report, const char *option, uint32_t value,
                       struct engine_options changed) {
    char text[VALUE_BYTES];
    snprintf(text, sizeof text, "%u", value);
    try_knob(report, option, text, &changed);
}

// Smaller tiles for more KV: half of the step's buffers, or the first of 3/4 and 7/8 that is
// possible.
static void try_workspace(struct report *report) {
    struct engine_options next = *report->options;
    uint64_t now = report->plan.workspace_bytes;
    char text[VALUE_BYTES];
    for (uint64_t less = now / 2; less > now / 16; less /= 2) {
        next.workspace_budget = (int64_t)(now - less);
        snprintf(text, sizeof text, "%lld", (long long)next.workspace_budget);
        try_knob(report, "--workspace-budget", text, &next);
        if (report->knobs[report->knob_count - 1].status == STATUS_OK) {
            return;
        }
        report->knob_count--;    // below the smallest tiles
    }
}

// Half and double of the step's tokens and of the sequences, the other KV type, half the context,
// and a larger share of a device whose size was given.
static void try_knobs(struct report *report) {
    const struct engine_options *now = report->options;
    struct engine_options next = *now;
    for (uint32_t i = 0; i < 2; i++) {
        next.step_tokens = i == 0 ? now->step_tokens / 2 : now->step_tokens * 2;
        if (next.step_tokens > 0 && next.step_tokens <= BOUND_STEP_TOKENS) {
            try_number(report, "--max-num-batched-tokens", next.step_tokens, next);
        }
    }
    next = *now;
    for (uint32_t i = 0; i < 2; i++) {
        next.seqs = i == 0 ? now->seqs / 2 : now->seqs * 2;
        if (next.seqs > 0 && next.seqs <= BOUND_SEQS) {
            try_number(report, "--max-num-seqs", next.seqs, next);
        }
    }
    next = *now;
    next.model_len = report->plan.capacity.envelope.seq_tokens / 2;
    if (next.model_len > 0) {
        try_number(report, "--max-model-len", (uint32_t)next.model_len, next);
    }
    next = *now;
    next.kv_dtype = now->kv_dtype == DTYPE_F16 ? DTYPE_F32 : DTYPE_F16;
    try_knob(report, "--kv-cache-dtype", next.kv_dtype == DTYPE_F16 ? "float16" : "float32", &next);
    try_workspace(report);
    next = *now;
    static const double SHARES[] = {0.95, 0.98};
    for (uint32_t i = 0; i < 2 && now->device_memory > 0 && now->kv_bytes == 0; i++) {
        next.utilization = SHARES[i];
        char text[VALUE_BYTES];
        snprintf(text, sizeof text, "%.2f", SHARES[i]);
        try_knob(report, "--gpu-memory-utilization", text, &next);
    }
}

// What stands in the way of more KV.
static const char *binding(const struct report *report) {
    if (report->status != STATUS_OK) {
        return "the device";
    }
    if (report->plan.capacity.kv_blocks == BOUND_BLOCKS) {
        return "the number of block ids: raise --block-size";
    }
    if (report->options->kv_bytes > 0) {
        return "--kv-cache-memory-bytes";
    }
    if (report->options->device_memory == 0) {
        return "the default KV size: raise --kv-cache-memory-bytes or give --device-memory";
    }
    return "--device-memory times --gpu-memory-utilization";
}

// ---- text --------------------------------------------------------------------------------------

static uint32_t requests_of(const struct engine_plan *plan, uint32_t length) {
    uint32_t block = plan->capacity.block_tokens;
    return plan->capacity.kv_blocks / ((length + block - 1) / block);
}

static void write_knob(const struct report *report, const struct knob *knob, struct buf *out) {
    buf_printf(out, "  %-26s %-10s", knob->option, knob->value);
    if (knob->status != STATUS_OK) {
        buf_append_str(out, "  does not fit\n");
        return;
    }
    int64_t tokens = (int64_t)kv_tokens(&knob->plan) - (int64_t)kv_tokens(&report->plan);
    double fixed = ((double)knob->plan.fixed_bytes - (double)report->plan.fixed_bytes) / MIB;
    buf_printf(out, "  %10llu KV tokens (%+lld), other lines %+.2f MiB\n",
               (unsigned long long)kv_tokens(&knob->plan), (long long)tokens, fixed);
}

static void write_text(const struct report *report, struct buf *out) {
    memory_ledger_print(&report->plan.ledger, out);
    if (report->status != STATUS_OK) {
        buf_printf(out, "fits     no: %s\n", report->err.message);
        return;
    }
    const struct engine_plan *plan = &report->plan;
    const struct message_capacity *c = &plan->capacity;
    const struct envelope *e = &c->envelope;
    buf_printf(out, "device   %s (%s), %u threads\n", report->options->device, plan->isa,
               c->threads);
    buf_printf(out,
               "envelope %u tokens a step, %u sequences of up to %u tokens, %llu tokens attended "
               "to, %u logit rows, %u with logprobs\n",
               e->tokens, e->seqs, e->seq_tokens, (unsigned long long)e->attended_tokens,
               e->logit_rows, e->logprob_rows);
    buf_printf(
        out, "tiles    %u logit rows, %u MLP rows, %u product rows, %u attention parts: %.1f MiB\n",
        c->tiles.logit_rows, c->tiles.mlp_rows, c->tiles.matmul_rows, c->tiles.attention_parts,
        (double)plan->workspace_bytes / MIB);
    buf_printf(out, "kv       %.1f MiB = %llu tokens of %llu bytes (%s)\n",
               (double)plan->kv_bytes / MIB, (unsigned long long)kv_tokens(plan),
               (unsigned long long)c->kv_bytes_per_token, c->kv_dtype);
    buf_append_str(out, "requests at once:");
    for (uint32_t i = 0; i < LENGTH_COUNT && LENGTHS[i] < e->seq_tokens; i++) {
        buf_printf(out, " %u of %u,", requests_of(plan, LENGTHS[i]), LENGTHS[i]);
    }
    buf_printf(out, " %u of %u tokens\n", requests_of(plan, e->seq_tokens), e->seq_tokens);
    buf_printf(out, "binds    %s\n", binding(report));
    buf_append_str(out, "what one change would give:\n");
    for (uint32_t i = 0; i < report->knob_count; i++) {
        write_knob(report, &report->knobs[i], out);
    }
    buf_append_str(out, "fits     yes\n");
}

// ---- JSON --------------------------------------------------------------------------------------

static void write_string(struct buf *out, const char *text) {
    json_write_string(out, text, strlen(text));
}

static void write_ledger(const struct memory_ledger *ledger, struct buf *out) {
    struct ledger_line lines[LEDGER_COUNT];
    memory_ledger_lines(ledger, lines);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        uint64_t bytes = lines[i].bytes > 0 ? lines[i].bytes : ledger->planned[i];
        buf_printf(out, "%s{\"line\":\"%s\",\"bytes\":%llu,\"kind\":\"%s\"}", i == 0 ? "" : ",",
                   lines[i].name, (unsigned long long)bytes,
                   lines[i].planned ? "planned" : "found");
    }
}

static void write_json_knob(const struct knob *knob, struct buf *out) {
    buf_printf(out, "{\"option\":\"%s\",\"value\":\"%s\",\"fits\":%s", knob->option, knob->value,
               knob->status == STATUS_OK ? "true" : "false");
    if (knob->status == STATUS_OK) {
        buf_printf(out, ",\"kv_capacity_tokens\":%llu,\"other_bytes\":%llu",
                   (unsigned long long)kv_tokens(&knob->plan),
                   (unsigned long long)knob->plan.fixed_bytes);
    }
    buf_append_str(out, "}");
}

static void write_json_capacity(const struct report *report, struct buf *out) {
    const struct engine_plan *plan = &report->plan;
    const struct message_capacity *c = &plan->capacity;
    const struct envelope *e = &c->envelope;
    buf_printf(out, ",\"isa\":\"%s\",\"threads\":%u", plan->isa, c->threads);
    buf_printf(out,
               ",\"kv_capacity_tokens\":%llu,\"kv_bytes\":%llu,\"kv_bytes_per_token\":%llu,"
               "\"kv_dtype\":\"%s\",\"block_tokens\":%u,\"kv_blocks\":%u",
               (unsigned long long)kv_tokens(plan), (unsigned long long)plan->kv_bytes,
               (unsigned long long)c->kv_bytes_per_token, c->kv_dtype, c->block_tokens,
               c->kv_blocks);
    buf_printf(out,
               ",\"envelope\":{\"tokens\":%u,\"sequences\":%u,\"sequence_tokens\":%u,"
               "\"attended_tokens\":%llu,\"attended_tokens_max\":%u,\"logit_rows\":%u,"
               "\"prompt_logit_rows\":%u,\"logprob_rows\":%u,\"draft_tokens\":%u}",
               e->tokens, e->seqs, e->seq_tokens, (unsigned long long)e->attended_tokens,
               e->attended_tokens_max, e->logit_rows, e->prompt_logit_rows, e->logprob_rows,
               e->draft_tokens);
    buf_printf(out,
               ",\"tiles\":{\"logit_rows\":%u,\"mlp_rows\":%u,\"matmul_rows\":%u,"
               "\"attention_parts\":%u},\"workspace_bytes\":%llu",
               c->tiles.logit_rows, c->tiles.mlp_rows, c->tiles.matmul_rows,
               c->tiles.attention_parts, (unsigned long long)plan->workspace_bytes);
    buf_append_str(out, ",\"requests_at\":{");
    for (uint32_t i = 0; i < LENGTH_COUNT && LENGTHS[i] < e->seq_tokens; i++) {
        buf_printf(out, "\"%u\":%u,", LENGTHS[i], requests_of(plan, LENGTHS[i]));
    }
    buf_printf(out, "\"%u\":%u}", e->seq_tokens, requests_of(plan, e->seq_tokens));
    buf_append_str(out, ",\"knobs\":[");
    for (uint32_t i = 0; i < report->knob_count; i++) {
        buf_append_str(out, i == 0 ? "" : ",");
        write_json_knob(&report->knobs[i], out);
    }
    buf_append_str(out, "]");
}

static void write_json(const struct report *report, struct buf *out) {
    const struct memory_ledger *ledger = &report->plan.ledger;
    buf_printf(out, "{\"fits\":%s,\"device\":", report->status == STATUS_OK ? "true" : "false");
    write_string(out, report->options->device);
    buf_printf(out, ",\"device_bytes\":%llu,\"budget_bytes\":%llu,\"ledger\":[",
               (unsigned long long)ledger->device_bytes, (unsigned long long)ledger->budget_bytes);
    write_ledger(ledger, out);
    buf_append_str(out, "],\"binds\":");
    write_string(out, binding(report));
    if (report->status == STATUS_OK) {
        write_json_capacity(report, out);
    } else {
        buf_append_str(out, ",\"reason\":");
        write_string(out, report->err.message);
    }
    buf_append_str(out, "}\n");
}

// ---- the report --------------------------------------------------------------------------------

static void make(struct report *report) {
    report->status = engine_plan(report->options, report->weights, &report->plan, &report->err);
    if (report->status == STATUS_OK) {
        try_knobs(report);
    }
}

enum status plan_report(const struct engine_options *options, enum plan_format format,
                        struct buf *out, struct error *err) {
    struct report report = {.options = options};
    TRY(weights_open(options->model_path, &report.weights, err));
    make(&report);
    // Other failures than size have no ledger to show.
    if (report.status == STATUS_OK || report.status == STATUS_EXHAUSTED) {
        (format == PLAN_FORMAT_JSON ? write_json : write_text)(&report, out);
    }
    weights_close(report.weights);
    *err = report.err;
    return report.status;
}
