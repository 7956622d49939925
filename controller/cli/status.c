// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/status.h"

#include "common/buf.h"
#include "common/json.h"
#include "controller/cli/admin_client.h"
#include "controller/cli/words.h"
#include <stdio.h>
#include <string.h>

enum { ANSWER_BYTES_MAX = 4 * 1024 * 1024, TIMEOUT_MS = 5000 };

// What to show: all of it, or one table.
enum view { VIEW_ALL, VIEW_GROUPS, VIEW_WORKERS };

struct options {
    const char *verb;
    enum view view;
    const char *run_dir;
    bool json;
    bool help;
};

static const double MIB = 1024.0 * 1024.0;

// ---- showing -----------------------------------------------------------------------------------

static const char *text_of(const struct json *object, const char *key) {
    const char *text = json_text(json_get(object, key), NULL);
    return text == NULL ? "-" : text;
}

static long long count_of(const struct json *object, const char *key) {
    return (long long)json_int(json_get(object, key));
}

static void show_worker(const struct json *worker) {
    const struct json *envelope = json_get(worker, "envelope");
    const struct json *ledger = json_get(worker, "ledger");
    printf("worker    epoch %lld, %lld threads, heartbeat %.1f s ago, resident %.1f MiB, "
           "%lld allocations after the seal\n",
           count_of(worker, "epoch"), count_of(worker, "threads"),
           json_number(json_get(worker, "heartbeat_age_seconds")),
           (double)count_of(worker, "resident_bytes") / MIB,
           count_of(worker, "allocations_after_seal"));
    printf("envelope  %lld tokens a step, %lld sequences of up to %lld tokens\n",
           count_of(envelope, "tokens"), count_of(envelope, "sequences"),
           count_of(envelope, "sequence_tokens"));
    printf("          %lld tokens attended to a step, %lld by one sequence, %lld logit rows, %lld "
           "with logprobs\n",
           count_of(envelope, "attended_tokens"), count_of(envelope, "attended_tokens_max"),
           count_of(envelope, "logit_rows"), count_of(envelope, "logprob_rows"));
    printf("memory                       MiB\n");
    for (size_t i = 0; i < json_count(ledger); i++) {
        const struct json *line = json_at(ledger, i);
        if (count_of(line, "bytes") > 0) {
            printf("  %-18s %10.2f  %s\n", text_of(line, "line"),
                   (double)count_of(line, "bytes") / MIB, text_of(line, "kind"));
        }
    }
    printf("  %-18s %10.2f  of %.2f MiB device memory\n", "budget",
           (double)count_of(worker, "budget_bytes") / MIB,
           (double)count_of(worker, "device_bytes") / MIB);
    printf("  %-18s %10.2f  by other processes, not ours\n", "foreign use",
           (double)count_of(worker, "foreign_bytes") / MIB);
}

static const char *place_text(const struct json *object, const char *key) {
    const char *text = text_of(object, key);
    return text[0] == '\0' ? "-" : text;
}

static void show_groups(const struct json *groups) {
    printf("group     state    ranks  ready  epoch  blocks\n");
    for (size_t g = 0; g < json_count(groups); g++) {
        const struct json *group = json_at(groups, g);
        const struct json *workers = json_get(group, "workers");
        long long ready = 0, epoch = 0, blocks = 0;
        for (size_t r = 0; r < json_count(workers); r++) {
            const struct json *worker = json_at(workers, r);
            long long own = count_of(worker, "kv_blocks");
            ready += strcmp(text_of(worker, "state"), "ready") == 0 ? 1 : 0;
            epoch = count_of(worker, "epoch") > epoch ? count_of(worker, "epoch") : epoch;
            blocks = r == 0 || own < blocks ? own : blocks;    // the group has the least of all
        }
        printf("%-8s  %-7s  %5lld  %5lld  %5lld  %lld\n", text_of(group, "group"),
               text_of(group, "state"), count_of(group, "world"), ready, epoch, blocks);
    }
}

static void show_workers(const struct json *groups) {
    printf("group     rank  worker    state    pid      epoch  heartbeat  resident MiB  key\n");
    for (size_t g = 0; g < json_count(groups); g++) {
        const struct json *group = json_at(groups, g);
        const struct json *workers = json_get(group, "workers");
        for (size_t r = 0; r < json_count(workers); r++) {
            const struct json *worker = json_at(workers, r);
            bool away = count_of(worker, "pid") == 0;
            printf("%-8s  %4lld  %-8s  %-7s  %-7lld  %5lld  %7.1f s  %12.1f  %s\n",
                   text_of(group, "group"), count_of(worker, "rank"), place_text(worker, "id"),
                   text_of(worker, "state"), count_of(worker, "pid"), count_of(worker, "epoch"),
                   away ? 0.0 : json_number(json_get(worker, "heartbeat_age_seconds")),
                   (double)count_of(worker, "resident_bytes") / MIB, place_text(worker, "key"));
        }
    }
}

static void show(const struct json *status) {
    const struct json *requests = json_get(status, "requests");
    const struct json *kv = json_get(status, "kv");
    printf("model     %s\n", text_of(status, "model"));
    printf("address   %s\n", text_of(status, "address"));
    printf("state     %s for %.0f s, version %s\n", text_of(status, "state"),
           json_number(json_get(status, "uptime_seconds")), text_of(status, "version"));
    printf("requests  %lld decoding, %lld prefilling, %lld queued (oldest %.1f s), %lld "
           "connections\n",
           count_of(requests, "decoding"), count_of(requests, "prefilling"),
           count_of(requests, "queued"), json_number(json_get(requests, "queue_oldest_seconds")),
           count_of(status, "connections"));
    printf("kv        group %s: %lld of %lld blocks of %.1f KiB free, %lld tokens in all, %s\n",
           text_of(kv, "group"), count_of(kv, "blocks_free"), count_of(kv, "blocks"),
           (double)count_of(kv, "block_bytes") / 1024.0, count_of(kv, "capacity_tokens"),
           text_of(kv, "state"));
    show_workers(json_get(status, "groups"));
    if (!json_absent(json_get(status, "worker"))) {
        show_worker(json_get(status, "worker"));
    }
}

static int print(const struct options *options, struct buf *answer) {
    if (options->json) {
        fputs(buf_cstr(answer), stdout);
        return ADMIN_EXIT_DONE;
    }
    struct json_doc *doc = NULL;
    struct error err = {0};
    if (json_parse((const char *)answer->data, answer->bytes_used, &doc, &err) != STATUS_OK) {
        fprintf(stderr, "tare %s: the answer cannot be read: %s\n", options->verb, err.message);
        return ADMIN_EXIT_FAILED;
    }
    const struct json *groups = json_get(json_root(doc), "groups");
    if (options->view == VIEW_GROUPS) {
        show_groups(groups);
    } else if (options->view == VIEW_WORKERS) {
        show_workers(groups);
    } else {
        show(json_root(doc));
    }
    json_destroy(doc);
    return ADMIN_EXIT_DONE;
}

// ---- the command -------------------------------------------------------------------------------

static const char USAGE[] =
    "usage: tare status [--run-dir DIR] [--json]\n"
    "  --run-dir DIR   of the controller (default: the only server of yours on this host)\n"
    "  --json, -o json one JSON object in place of the table\n";

static const char GET_USAGE[] =
    "usage: tare get groups|workers [--run-dir DIR]\n"
    "  --run-dir DIR   of the controller (default: the only server of yours on this host)\n"
    "`tare status --json` has the same and more as one JSON object\n";

static bool parse(int argc, char **argv, struct options *out) {
    struct words words = {.verb = out->verb, .argc = argc, .argv = argv};
    for (words.at = 1; words.at < argc && !words.wrong; words.at++) {
        const char *output = NULL;
        if (words_are(&words, "--json", "-ojson")) {
            out->json = true;
        } else if (words_take(&words, "-o", &output)) {
            out->json = words_take_json(&words, output);
        } else if (words_are(&words, "--help", "-h")) {
            out->help = true;
        } else if (!words_take(&words, "--run-dir", &out->run_dir)) {
            words_unknown(&words);
        }
    }
    if (words.wrong) {
        fputs(out->view == VIEW_ALL ? USAGE : GET_USAGE, stderr);
    }
    return !words.wrong;
}

static int ask(const struct options *options) {
    struct admin_call call = {.verb = options->verb,
                              .run_dir = options->run_dir,
                              .path = "/admin/v1/status",
                              .timeout_ms = TIMEOUT_MS};
    struct buf answer;
    buf_init(&answer, ANSWER_BYTES_MAX);
    long status = 0;
    int code = admin_client_call(&call, &answer, &status);
    if (code == ADMIN_EXIT_DONE && status != 200) {
        fprintf(stderr, "tare %s: the controller answers %ld: %.500s\n", options->verb, status,
                buf_cstr(&answer));
        code = ADMIN_EXIT_FAILED;
    }
    if (code == ADMIN_EXIT_DONE) {
        code = print(options, &answer);
    }
    buf_deinit(&answer);
    return code;
}

int status_run(int argc, char **argv) {
    struct options options = {.verb = "status"};
    if (!parse(argc, argv, &options)) {
        return ADMIN_EXIT_USAGE;
    }
    if (options.help) {
        fputs(USAGE, stdout);
        return ADMIN_EXIT_DONE;
    }
    return ask(&options);
}

int status_get_run(int argc, char **argv) {
    struct options options = {.verb = "get"};
    const char *kind = argc > 1 ? argv[1] : "";
    bool help = strcmp(kind, "--help") == 0 || strcmp(kind, "-h") == 0;
    if (strcmp(kind, "groups") == 0 || strcmp(kind, "workers") == 0) {
        options.view = kind[0] == 'g' ? VIEW_GROUPS : VIEW_WORKERS;
        if (!parse(argc - 1, argv + 1, &options)) {
            return ADMIN_EXIT_USAGE;
        }
    } else if (!help) {
        fprintf(stderr, "tare get: groups or workers?\n%s", GET_USAGE);
        return ADMIN_EXIT_USAGE;
    }
    if (help || options.help) {
        fputs(GET_USAGE, stdout);
        return ADMIN_EXIT_DONE;
    }
    return ask(&options);
}
