// SPDX-License-Identifier: Apache-2.0
#include "controller/startup_text.h"

#include <string.h>

enum { BAR_COLUMNS = 24, PERCENT_STEP = 10 };

static const double MIB = 1024.0 * 1024.0;

void startup_bar_init(struct startup_bar *bar, bool terminal) {
    *bar = (struct startup_bar){.terminal = terminal, .columns = BAR_COLUMNS, .last_percent = -1};
}

void startup_bar_draw(struct startup_bar *bar, const struct message_progress *progress,
                      struct buf *out) {
    uint64_t total = progress->bytes_total == 0 ? 1 : progress->bytes_total;
    uint64_t done = progress->bytes_done > total ? total : progress->bytes_done;
    int percent = (int)(done * 100 / total);
    int step = bar->terminal ? 1 : PERCENT_STEP;
    if (bar->last_percent >= 0 && percent / step == bar->last_percent / step && percent != 100) {
        return;
    }
    if (percent == bar->last_percent) {
        return;
    }
    bar->last_percent = percent;
    uint32_t filled = (uint32_t)(done * bar->columns / total);
    buf_printf(out, "%s%-8s [", bar->terminal ? "\r" : "", progress->phase);
    for (uint32_t i = 0; i < bar->columns; i++) {
        buf_append_byte(out, i < filled ? '#' : '-');
    }
    double rate = (double)progress->bytes_per_s;
    double eta = rate > 0 ? (double)(total - done) / rate : 0.0;
    buf_printf(out, "] %3d%%  %.1f/%.1f MiB  %.1f MiB/s  ETA %d:%02d ", percent, (double)done / MIB,
               (double)total / MIB, rate / MIB, (int)eta / 60, (int)eta % 60);
    if (!bar->terminal || percent == 100) {
        buf_append_byte(out, '\n');
    }
}

static void write_ledger(const struct message_capacity *capacity, struct buf *out) {
    uint64_t sum = 0;
    buf_append_str(out, "memory                       MiB\n");
    for (uint32_t i = 0; i < capacity->line_count; i++) {
        const struct ledger_line *line = &capacity->lines[i];
        sum += line->bytes;
        if (line->bytes == 0) {
            continue;    // a device that has no such cost
        }
        buf_printf(out, "  %-20s %10.2f  %s\n", line->name, (double)line->bytes / MIB,
                   line->planned ? "planned" : "found");
    }
    buf_printf(out, "  %-20s %10.2f\n", "total", (double)sum / MIB);
}

static void write_kv(const struct message_capacity *capacity, struct buf *out) {
    uint64_t tokens = (uint64_t)capacity->kv_blocks * capacity->block_tokens;
    uint64_t bytes = tokens * capacity->kv_bytes_per_token;
    buf_printf(out,
               "kv       %.1f MiB = %llu tokens = %.1f requests of %u   "
               "(raise: --kv-cache-memory-bytes, now %llu)\n",
               (double)bytes / MIB, (unsigned long long)tokens,
               (double)tokens / capacity->envelope.seq_tokens, capacity->envelope.seq_tokens,
               (unsigned long long)bytes);
}

// As a shell reads it back.
static void write_word(const char *word, struct buf *out) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:@%+,";
    if (word[strspn(word, plain)] == '\0') {
        buf_append_str(out, word);
        return;
    }
    buf_append_byte(out, '\'');
    for (const char *at = word; *at != '\0'; at++) {
        if (*at == '\'') {
            buf_append_str(out, "'\\''");
        } else {
            buf_append_byte(out, (uint8_t)*at);
        }
    }
    buf_append_byte(out, '\'');
}

// An IPv6 address stands in brackets in a URL; behind a socket file any host is as good.
static void write_url(const struct startup_facts *facts, const char *path, struct buf *out) {
    if (facts->uds != NULL) {
        buf_printf(out, "http://localhost%s", path);
        return;
    }
    bool v6 = strchr(facts->host, ':') != NULL;
    bool any = strcmp(facts->host, "0.0.0.0") == 0 || strcmp(facts->host, "::") == 0;
    const char *host = any ? "127.0.0.1" : facts->host;
    v6 = v6 && !any;
    buf_printf(out, "http://%s%s%s:%u%s", v6 ? "[" : "", host, v6 ? "]" : "", facts->port, path);
}

void startup_ready_line(const struct startup_facts *facts, struct buf *out) {
    buf_append_str(out, "ready    ");
    write_url(facts, "/v1", out);
    if (facts->uds != NULL) {
        buf_printf(out, " on %s", facts->uds);
    }
    buf_printf(out, "   model %s   start-up %.2f s\n", facts->model_name, facts->start_seconds);
}

void startup_ready(const struct startup_facts *facts, struct buf *out) {
    write_ledger(facts->capacity, out);
    write_kv(facts->capacity, out);
    startup_ready_line(facts, out);
    buf_append_str(out, "try      curl ");
    if (facts->uds != NULL) {
        buf_append_str(out, "--unix-socket ");
        write_word(facts->uds, out);
        buf_append_byte(out, ' ');
    }
    write_url(facts, "/v1/chat/completions", out);
    if (facts->api_key_hint != NULL) {
        buf_printf(out, " -H \"Authorization: Bearer %s\"", facts->api_key_hint);
    }
    buf_printf(out,
               " -H \"Content-Type: application/json\" -d "
               "'{\"model\":\"%s\",\"temperature\":0,\"max_tokens\":64,\"messages\":"
               "[{\"role\":\"user\",\"content\":\"What is 2 + 2?\"}]}'\n",
               facts->model_name);
}
