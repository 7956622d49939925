// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_report.h"

#include "common/invariant.h"
#include "common/json.h"
#include "worker/device/device.h"
#include "worker/device/device_sim.h"
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

// One rank of the group.
struct rank {
    struct engine_plan plan;
    enum status status;
    struct error err;
};

struct report {
    const struct engine_options *options;
    struct weights *weights;
    uint32_t rank_count;
    struct rank ranks[BOUND_RANKS];
    // Of the rank that binds: the first that does not fit, or the one with the least KV.
    struct engine_options rank_options;
    struct engine_plan plan;
    enum status status;
    struct error err;
    uint32_t ranks_needed;    // where this many do not fit: the fewest that do, or 0
    struct knob knobs[KNOBS_MAX];
    uint32_t knob_count;
};

static bool is_simulated(const struct report *report) {
    const struct device_table *table = device_find(report->options->device);
    return table != NULL && !table->computes;
}

// KV is what the budget leaves, not a default.
static bool fills_budget(const struct report *report) {
    const struct device_table *table = device_find(report->options->device);
    return report->options->kv_bytes == 0 && table != NULL &&
           (report->options->device_memory > 0 || table->kv_bytes_default == 0);
}

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
    struct engine_options next = report->rank_options;
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

// More ranks and fewer, where there may be more than one and the model divides over them.
static void try_group_sizes(struct report *report) {
    for (uint32_t i = 0; i < 2 && is_simulated(report); i++) {
        struct engine_options next = report->rank_options;
        next.shard =
            (struct model_shard){0, i == 0 ? report->rank_count / 2 : report->rank_count * 2};
        if (next.shard.world == 0 || next.shard.world > BOUND_RANKS) {
            continue;
        }
        try_number(report, "--tensor-parallel-size", next.shard.world, next);
        if (report->knobs[report->knob_count - 1].status == STATUS_UNSUPPORTED) {
            report->knob_count--;
        }
    }
}

// Half and double of the step's tokens and of the sequences, the other KV type, half the context,
// smaller tiles, a larger share where the share decides, and other numbers of ranks.
static void try_knobs(struct report *report) {
    const struct engine_options *now = &report->rank_options;
    struct engine_options next = *now;
    // Where sequences decode only, their number is that of the tokens.
    for (uint32_t i = 0; i < 2 && now->role != ENGINE_ROLE_DECODE; i++) {
        next.step_tokens = i == 0 ? now->step_tokens / 2 : now->step_tokens * 2;
        if (next.step_tokens > 0 && next.step_tokens <= BOUND_STEP_TOKENS) {
            try_number(report, "--max-num-batched-tokens", next.step_tokens, next);
        }
    }
    next = *now;
    for (uint32_t i = 0; i < 2; i++) {
        next.seqs = i == 0 ? now->seqs / 2 : now->seqs * 2;
        if (next.seqs > 0 && next.seqs <= 1024) {
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
    for (uint32_t i = 0; i < 2 && fills_budget(report); i++) {
        next.utilization = SHARES[i];
        char text[VALUE_BYTES];
        snprintf(text, sizeof text, "%.2f", SHARES[i]);
        try_knob(report, "--gpu-memory-utilization", text, &next);
    }
    try_group_sizes(report);
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
    if (!fills_budget(report)) {
        return "the default KV size: raise --kv-cache-memory-bytes or give --device-memory";
    }
    return report->options->device_memory > 0 ? "--device-memory times --gpu-memory-utilization"
                                              : "the device times --gpu-memory-utilization";
}

static const char *role_name(const struct engine_options *options) {
    static const char *const names[] = {"mixed", "prefill", "decode"};
    return names[options->role];
}

// Where found lines are from.
static const char *found_source(const struct report *report, const struct engine_plan *plan) {
    if (plan->from_seal) {
        return "last seal";
    }
    return is_simulated(report) ? "device table" : "device";
}

// Ranks that plan alike are shown once.
static bool same_as_first(const struct report *report, uint32_t rank) {
    const struct rank *a = &report->ranks[0];
    const struct rank *b = &report->ranks[rank];
    return a->status == b->status &&
           memcmp(&a->plan.ledger, &b->plan.ledger, sizeof a->plan.ledger) == 0;
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

static void write_ranks(const struct report *report, struct buf *out) {
    uint32_t alike = 1;
    while (alike < report->rank_count && same_as_first(report, alike)) {
        alike++;
    }
    for (uint32_t i = 0; i < report->rank_count; i += i == 0 ? alike : 1) {
        if (report->rank_count > 1) {
            buf_printf(out, i == 0 && alike > 1 ? "ranks %u to %u, each:\n" : "rank %u:\n", i,
                       alike - 1);
        }
        memory_ledger_print(&report->ranks[i].plan.ledger, out);
    }
    buf_printf(out, "found    lines marked so are from the %s\n",
               found_source(report, &report->plan));
}

// What is only assumed of a device that nobody has here.
static void write_facts(const struct report *report, struct buf *out) {
    const struct sim_spec *spec = sim_spec_find(report->options->device);
    if (spec == NULL) {
        return;
    }
    buf_printf(out, "facts    %s;", spec->title);
    for (unsigned fact = 0; fact < SIM_FACT_COUNT; fact++) {
        buf_printf(out, " %s %.10g%s%s", sim_fact_name((enum sim_fact)fact),
                   sim_fact_value(spec, (enum sim_fact)fact),
                   (spec->estimated & (1u << fact)) != 0 ? " (estimated)" : "",
                   fact + 1 == SIM_FACT_COUNT ? "\n" : ",");
    }
}

// Time of a step with its messages; 0 where nothing is simulated.
static double step_us(const struct report *report, const struct simulate_result *cost) {
    const struct sim_spec *spec = sim_spec_find(report->options->device);
    return spec == NULL ? 0.0
                        : cost->us + sim_message_us(spec, report->rank_count, cost->message_bytes,
                                                    cost->message_count);
}

static void write_times(const struct report *report, struct buf *out) {
    const struct engine_times *t = &report->plan.times;
    if (t->decode.seqs == 0) {
        return;
    }
    const char *separator = "";
    buf_append_str(out, "times    estimated:");
    if (report->options->role != ENGINE_ROLE_PREFILL) {
        buf_printf(out, " %u sequences of %u tokens decode in %.2f ms a step", t->decode.seqs,
                   t->decode.context, step_us(report, &t->decode_cost) / 1000.0);
        separator = ",";
    }
    if (report->options->role != ENGINE_ROLE_DECODE) {
        buf_printf(out, "%s a prompt of %u tokens takes %.2f ms", separator, t->prefill.rows_each,
                   step_us(report, &t->prefill_cost) / 1000.0);
    }
    buf_append_str(out, "\n");
}

static void write_text(const struct report *report, struct buf *out) {
    write_ranks(report, out);
    write_facts(report, out);
    if (report->status != STATUS_OK) {
        if (report->ranks_needed > 0) {
            buf_printf(out, "instead  --tensor-parallel-size %u fits\n", report->ranks_needed);
        }
        buf_printf(out, "fits     no: %s\n", report->err.message);
        return;
    }
    const struct engine_plan *plan = &report->plan;
    const struct message_capacity *c = &plan->capacity;
    const struct envelope *e = &c->envelope;
    buf_printf(out,
               is_simulated(report) ? "device   %s (%s), %u multiprocessors"
                                    : "device   %s (%s), %u threads",
               report->options->device, plan->isa, c->threads);
    buf_printf(out, "; a group of %u, %s\n", report->rank_count, role_name(report->options));
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
    write_times(report, out);
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

static void write_ledger(const struct report *report, const struct engine_plan *plan,
                         struct buf *out) {
    const struct memory_ledger *ledger = &plan->ledger;
    struct ledger_line lines[LEDGER_COUNT];
    memory_ledger_lines(ledger, lines);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        uint64_t bytes = lines[i].bytes > 0 ? lines[i].bytes : ledger->planned[i];
        buf_printf(out, "%s{\"line\":\"%s\",\"bytes\":%llu,\"kind\":\"%s\",\"source\":\"%s\"}",
                   i == 0 ? "" : ",", lines[i].name, (unsigned long long)bytes,
                   lines[i].planned ? "planned" : "found",
                   lines[i].planned ? "plan" : found_source(report, plan));
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
    const struct engine_times *t = &plan->times;
    if (t->decode.seqs > 0) {
        buf_printf(
            out,
            ",\"step_seconds\":{\"decode\":{\"sequences\":%u,\"context\":%u,\"seconds\":%.9f},"
            "\"prefill\":{\"tokens\":%u,\"seconds\":%.9f}}",
            t->decode.seqs, t->decode.context, step_us(report, &t->decode_cost) / 1e6,
            t->prefill.rows_each, step_us(report, &t->prefill_cost) / 1e6);
    }
    buf_append_str(out, ",\"knobs\":[");
    for (uint32_t i = 0; i < report->knob_count; i++) {
        buf_append_str(out, i == 0 ? "" : ",");
        write_json_knob(&report->knobs[i], out);
    }
    buf_append_str(out, "]");
}

static void write_json_ranks(const struct report *report, struct buf *out) {
    buf_append_str(out, ",\"ranks\":[");
    for (uint32_t i = 0; i < report->rank_count; i++) {
        const struct rank *rank = &report->ranks[i];
        buf_printf(out, "%s{\"rank\":%u,\"fits\":%s,\"ledger\":[", i == 0 ? "" : ",", i,
                   rank->status == STATUS_OK ? "true" : "false");
        write_ledger(report, &rank->plan, out);
        buf_append_str(out, "]");
        if (rank->status == STATUS_OK) {
            buf_printf(out, ",\"kv_capacity_tokens\":%llu",
                       (unsigned long long)kv_tokens(&rank->plan));
        }
        buf_append_str(out, "}");
    }
    buf_append_str(out, "]");
}

static void write_json_facts(const struct report *report, struct buf *out) {
    const struct sim_spec *spec = sim_spec_find(report->options->device);
    if (spec == NULL) {
        return;
    }
    buf_append_str(out, ",\"device_facts\":[");
    for (unsigned fact = 0; fact < SIM_FACT_COUNT; fact++) {
        buf_printf(out, "%s{\"name\":\"%s\",\"value\":", fact == 0 ? "" : ",",
                   sim_fact_name((enum sim_fact)fact));
        json_write_double(out, sim_fact_value(spec, (enum sim_fact)fact));
        buf_printf(out, ",\"known\":%s}", (spec->estimated & (1u << fact)) != 0 ? "false" : "true");
    }
    buf_append_str(out, "]");
}

static void write_json(const struct report *report, struct buf *out) {
    const struct memory_ledger *ledger = &report->plan.ledger;
    buf_printf(out, "{\"fits\":%s,\"device\":", report->status == STATUS_OK ? "true" : "false");
    write_string(out, report->options->device);
    buf_printf(out, ",\"role\":\"%s\",\"tensor_parallel_size\":%u", role_name(report->options),
               report->rank_count);
    buf_printf(out, ",\"device_bytes\":%llu,\"budget_bytes\":%llu,\"ledger\":[",
               (unsigned long long)ledger->device_bytes, (unsigned long long)ledger->budget_bytes);
    write_ledger(report, &report->plan, out);
    buf_append_str(out, "]");
    write_json_ranks(report, out);
    write_json_facts(report, out);
    buf_append_str(out, ",\"binds\":");
    write_string(out, binding(report));
    if (report->status == STATUS_OK) {
        write_json_capacity(report, out);
    } else {
        buf_append_str(out, ",");
        json_write_failure(out, &report->err);
        if (report->ranks_needed > 0) {
            buf_printf(out, ",\"tensor_parallel_size_needed\":%u", report->ranks_needed);
        }
    }
    buf_append_str(out, "}\n");
}

// ---- the report --------------------------------------------------------------------------------

// The fewest ranks with which the group fits.
static void find_ranks_needed(struct report *report) {
    struct engine_plan plan;
    for (uint32_t world = report->rank_count * 2; is_simulated(report) && world <= BOUND_RANKS;
         world *= 2) {
        struct engine_options next = *report->options;
        struct error err = {0};
        next.shard = (struct model_shard){0, world};
        if (engine_plan(&next, report->weights, &plan, &err) == STATUS_OK) {
            report->ranks_needed = world;
            return;
        }
    }
}

static void make(struct report *report) {
    uint32_t world = report->options->shard.world;
    report->rank_count = world > 1 ? world : 1;
    uint32_t binding_rank = 0;
    for (uint32_t i = 0; i < report->rank_count; i++) {
        struct rank *rank = &report->ranks[i];
        struct engine_options options = *report->options;
        options.shard = (struct model_shard){i, report->rank_count};
        rank->status = engine_plan(&options, report->weights, &rank->plan, &rank->err);
        const struct rank *worst = &report->ranks[binding_rank];
        bool worse = rank->status != STATUS_OK || kv_tokens(&rank->plan) < kv_tokens(&worst->plan);
        binding_rank = worst->status == STATUS_OK && worse ? i : binding_rank;
    }
    const struct rank *worst = &report->ranks[binding_rank];
    report->rank_options = *report->options;
    report->rank_options.shard = (struct model_shard){binding_rank, report->rank_count};
    report->plan = worst->plan;
    report->status = worst->status;
    report->err = worst->err;
    if (report->status == STATUS_OK) {
        try_knobs(report);
    } else if (report->status == STATUS_EXHAUSTED) {
        find_ranks_needed(report);
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
