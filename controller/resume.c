// SPDX-License-Identifier: Apache-2.0
#include "controller/resume.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "controller/journal.h"
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

struct resume {
    bool on;
    uint64_t ttl_us;
    struct journal *journal;    // NULL until it is open, or when it cannot be
};

// ---- from the API ------------------------------------------------------------------------------

static uint64_t on_begin(void *ctx, const void *bytes, size_t byte_count) {
    struct resume *resume = ctx;
    return journal_begin(resume->journal, bytes, byte_count);
}

static bool on_step(void *ctx, uint64_t entry, const void *bytes, size_t byte_count) {
    struct resume *resume = ctx;
    return journal_step(resume->journal, entry, bytes, byte_count);
}

static void on_end(void *ctx, uint64_t entry) {
    struct resume *resume = ctx;
    journal_end(resume->journal, entry);
}

void resume_journal(struct resume *resume, struct api_journal *out) {
    *out = resume->on ? (struct api_journal){resume, on_begin, on_step, on_end}
                      : (struct api_journal){0};
}

// ---- from an earlier controller ----------------------------------------------------------------

struct found {
    struct api *api;
    uint64_t expires_us;
    uint32_t count;
};

static bool on_found(void *ctx, const struct journal_unfinished *unfinished) {
    struct found *found = ctx;
    const struct api_unfinished stream = {
        .entry = unfinished->entry,
        .begin = unfinished->begin,
        .steps = unfinished->steps,
        .begin_bytes = unfinished->begin_bytes,
        .steps_bytes = unfinished->steps_bytes,
        .expires_us = found->expires_us,
    };
    bool added = api_stream_add(found->api, &stream);
    found->count += added ? 1 : 0;
    return added;
}

void resume_open(struct resume *resume, const char *run_dir, struct api *api) {
    char path[PATH_MAX];
    struct error err = {0};
    struct found found = {.api = api, .expires_us = clock_monotonic_us() + resume->ttl_us};
    if (snprintf(path, sizeof path, "%s/journal", run_dir) >= (int)sizeof path) {
        log_warn("journal", "the run directory's path is too long for a journal");
        return;
    }
    if (!resume->on) {
        unlink(path);    // of a controller that had one: it would come back with the next such one
        return;
    }
    if (journal_open(path, on_found, &found, &resume->journal, &err) != STATUS_OK) {
        char why[LOG_VALUE_BYTES];
        log_warn("journal", "streams will not survive this controller because=\"%s\"",
                 log_value(err.message, why));
        return;
    }
    if (found.count > 0) {
        log_info("journal", "an earlier controller left responses unfinished count=%u",
                 found.count);
    }
}

// ---- life cycle --------------------------------------------------------------------------------

struct resume *resume_create(bool on, uint64_t ttl_us) {
    struct resume *resume = memory_zalloc(sizeof *resume);
    if (resume != NULL) {
        *resume = (struct resume){.on = on, .ttl_us = ttl_us};
    }
    return resume;
}

void resume_flush(struct resume *resume) {
    journal_flush(resume->journal);
}

void resume_count(const struct resume *resume, const struct api *api, struct stats_view *out) {
    struct journal_counters counters;
    journal_count(resume->journal, &counters);
    out->journal_bytes = counters.bytes;
    out->journal_entries = counters.entries;
    out->journal_refused = counters.refused;
    out->journal_failed = counters.failed;
    out->streams_resumed = api_streams_resumed(api);
}

void resume_close(struct resume *resume, bool erase) {
    if (resume != NULL) {
        journal_close(resume->journal, erase);
        memory_free(resume);
    }
}
