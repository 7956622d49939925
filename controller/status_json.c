// SPDX-License-Identifier: Apache-2.0
#include "controller/status_json.h"

#include "common/json.h"
#include "common/version.h"
#include <stdio.h>
#include <string.h>

static void put_text(struct buf *out, const char *key, const char *text) {
    buf_printf(out, "\"%s\":", key);
    json_write_string(out, text, strlen(text));
    buf_append_str(out, ",");
}

static void put_count(struct buf *out, const char *key, uint64_t value) {
    buf_printf(out, "\"%s\":%llu,", key, (unsigned long long)value);
}

static void put_seconds(struct buf *out, const char *key, uint64_t us) {
    buf_printf(out, "\"%s\":%.3f,", key, (double)us / 1e6);
}

// Ends the object, whose last field left a comma. A buffer that failed keeps what it had: then
// there may be none.
static void close_object(struct buf *out, const char *end) {
    if (out->bytes_used > 0 && out->data[out->bytes_used - 1] == ',') {
        out->bytes_used--;
    }
    buf_append_str(out, end);
}

static void write_requests(const struct core_gauges *g, struct buf *out) {
    buf_append_str(out, "\"requests\":{");
    put_count(out, "queued", g->queued);
    put_count(out, "prefilling", g->prefilling);
    put_count(out, "decoding", g->decoding);
    put_count(out, "queued_tokens", g->queued_tokens);
    put_seconds(out, "queue_oldest_seconds", g->queue_oldest_us);
    close_object(out, "},");
}

static void write_kv(const struct core_gauges *g, const struct message_capacity *c,
                     struct buf *out) {
    uint64_t tokens = c != NULL ? (uint64_t)c->kv_blocks * c->block_tokens : 0;
    buf_append_str(out, "\"kv\":{");
    put_text(out, "group", STATUS_JSON_GROUP);
    put_text(out, "state", g->kv_resizing ? "resizing" : "steady");
    put_count(out, "blocks", g->kv_blocks_total);
    put_count(out, "block_bytes", c != NULL ? c->kv_bytes_per_token * c->block_tokens : 0);
    put_count(out, "blocks_free", g->kv_blocks_free);
    put_count(out, "blocks_quarantined", g->kv_blocks_quarantined);
    put_count(out, "block_tokens", c != NULL ? c->block_tokens : 0);
    put_count(out, "capacity_tokens", tokens);
    close_object(out, "},");
}

static void write_worker(const struct stats_view *s, struct buf *out) {
    const struct message_capacity *c = s->capacity;
    buf_append_str(out, "\"worker\":{");
    put_count(out, "epoch", s->epoch);
    put_count(out, "threads", c->threads);
    put_text(out, "kv_dtype", c->kv_dtype);
    put_seconds(out, "heartbeat_age_seconds", s->heartbeat_age_us);
    put_count(out, "resident_bytes", s->heartbeat != NULL ? s->heartbeat->resident_bytes : 0);
    put_count(out, "allocations_after_seal",
              s->heartbeat != NULL ? s->heartbeat->allocations_after_seal : 0);
    buf_append_str(out, "\"envelope\":{");
    put_count(out, "tokens", c->envelope.tokens);
    put_count(out, "sequences", c->envelope.seqs);
    put_count(out, "sequence_tokens", c->envelope.seq_tokens);
    put_count(out, "attended_tokens", c->envelope.attended_tokens);
    put_count(out, "attended_tokens_max", c->envelope.attended_tokens_max);
    put_count(out, "logit_rows", c->envelope.logit_rows);
    put_count(out, "prompt_logit_rows", c->envelope.prompt_logit_rows);
    put_count(out, "logprob_rows", c->envelope.logprob_rows);
    put_count(out, "draft_tokens", c->envelope.draft_tokens);
    close_object(out, "},");
    buf_append_str(out, "\"tiles\":{");
    put_count(out, "logit_rows", c->tiles.logit_rows);
    put_count(out, "mlp_rows", c->tiles.mlp_rows);
    put_count(out, "matmul_rows", c->tiles.matmul_rows);
    put_count(out, "attention_parts", c->tiles.attention_parts);
    close_object(out, "},");
    put_count(out, "device_bytes", c->device_bytes);
    put_count(out, "budget_bytes", c->budget_bytes);
    put_count(out, "foreign_bytes", c->foreign_bytes);
    buf_append_str(out, "\"ledger\":[");
    for (uint32_t i = 0; i < c->line_count; i++) {
        buf_append_str(out, i == 0 ? "{" : ",{");
        put_text(out, "line", c->lines[i].name);
        put_count(out, "bytes", c->lines[i].bytes);
        put_text(out, "kind", c->lines[i].planned ? "planned" : "found");
        close_object(out, "}");
    }
    buf_append_str(out, "]},");
}

static void write_place(uint32_t rank, const struct status_worker *worker, struct buf *out) {
    buf_append_str(out, rank == 0 ? "{" : ",{");
    put_count(out, "rank", rank);
    put_text(out, "id", worker->name);
    put_text(out, "state", worker->state);
    put_count(out, "pid", worker->pid);
    put_count(out, "epoch", worker->epoch);
    put_seconds(out, "heartbeat_age_seconds", worker->heartbeat_age_us);
    put_count(out, "applied_seq", worker->applied_seq);
    put_count(out, "completed_seq", worker->completed_seq);
    put_count(out, "resident_bytes", worker->resident_bytes);
    put_count(out, "kv_blocks", worker->kv_blocks);
    put_text(out, "device", worker->device);
    put_text(out, "key", worker->key);
    close_object(out, "}");
}

// A group is ready when all its ranks are.
static void write_groups(const struct status_view *view, struct buf *out) {
    buf_append_str(out, "\"groups\":[");
    for (uint32_t g = 0; g < view->groups; g++) {
        char name[16];
        bool ready = true;
        snprintf(name, sizeof name, "%u", g);
        buf_append_str(out, g == 0 ? "{" : ",{");
        put_text(out, "group", name);
        put_count(out, "world", view->world);
        buf_append_str(out, "\"workers\":[");
        for (uint32_t r = 0; r < view->world; r++) {
            struct status_worker worker;
            view->worker(view->ctx, g, r, &worker);
            ready = ready && strcmp(worker.state, "ready") == 0;
            write_place(r, &worker, out);
        }
        buf_append_str(out, "],");
        const char *served = view->doubted(view->ctx, g) ? "doubted" : "ready";
        put_text(out, "state", ready ? served : "forming");
        close_object(out, "}");
    }
    buf_append_str(out, "],");
}

void status_json(const struct status_view *view, struct buf *out) {
    const struct stats_view *s = view->stats;
    buf_append_str(out, "{\"apiVersion\":\"v1\",\"kind\":\"Status\",");
    put_text(out, "version", VERSION_BUILD);
    put_text(out, "model", view->model);
    put_text(out, "address", view->address);
    put_text(out, "state", view->state);
    put_seconds(out, "uptime_seconds", view->uptime_us);
    put_count(out, "connections", s->connections);
    write_requests(s->gauges, out);
    write_kv(s->gauges, s->capacity, out);
    if (s->capacity != NULL) {
        write_worker(s, out);
    }
    write_groups(view, out);
    put_count(out, "as_of_unix_ms", view->now_unix_ms);
    close_object(out, "}\n");
}
