// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/resize.h"

#include "common/config.h"
#include "common/json.h"
#include "controller/cli/admin_client.h"
#include "controller/cli/words.h"
#include <stdio.h>
#include <string.h>

enum { SIZE_BYTES = 64, TIMEOUT_S = 600, NO_WAIT_MS = 5000, ANSWER_BYTES_MAX = 64 * 1024 };

struct options {
    const char *group, *size;
    const char *run_dir, *reason, *timeout;
    int64_t amount;
    bool bytes, relative;
    bool no_wait, json, help;
    int64_t timeout_s;
};

static const char USAGE[] =
    "usage: tare resize kv GROUP SIZE [--wait|--no-wait] [--timeout SECONDS] [--reason TEXT]\n"
    "                      [--run-dir DIR] [--json]\n"
    "  GROUP           as `tare status` shows it: 0\n"
    "  SIZE            blocks, or bytes with a unit (512M, 1.5GiB); +SIZE and -SIZE change what "
    "there is\n"
    "  --no-wait       do not wait for the end (default: --wait, for --timeout seconds at most: "
    "600)\n"
    "  --reason TEXT   for the controller's log\n"
    "  --run-dir DIR   of the controller (default: the only server of yours on this host)\n"
    "  --json, -o json one JSON object in place of the sentence\n";

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// "100" and "+100" are blocks; "512M", "-1.5GiB" and "4096B" bytes.
static bool parse_size(struct options *out) {
    const char *text = out->size;
    bool minus = *text == '-';
    out->relative = minus || *text == '+';
    text += out->relative ? 1 : 0;
    char number[SIZE_BYTES];
    size_t length = strlen(text);
    // Digits, perhaps with a point between them: the forms of C are no sizes.
    size_t digits = strspn(text, "0123456789.");
    if (length >= sizeof number || digits == 0 || !is_digit(text[0]) ||
        !is_digit(text[digits - 1]) || length > digits + 3) {
        return false;
    }
    memcpy(number, text, length + 1);
    out->bytes = length > digits;
    if (out->bytes && number[length - 1] == 'B') {
        number[--length] = '\0';
        if (length > digits + 1 && number[length - 1] == 'i') {
            number[--length] = '\0';
        }
    }
    if (strpbrk(number, "eExX") != NULL || !config_human_int(number, &out->amount)) {
        return false;
    }
    out->amount = minus ? -out->amount : out->amount;
    return true;
}

static bool is_flag(struct words *words, struct options *out) {
    const char *output = NULL;
    if (words_are(words, "--json", "-ojson")) {
        out->json = true;
    } else if (words_take(words, "-o", &output)) {
        out->json = words_take_json(words, output);
    } else if (words_are(words, "--wait", "--no-wait")) {
        out->no_wait = strcmp(words->argv[words->at], "--no-wait") == 0;
    } else if (words_are(words, "--help", "-h")) {
        out->help = true;
    } else {
        return words_take(words, "--run-dir", &out->run_dir) ||
               words_take(words, "--reason", &out->reason) ||
               words_take(words, "--timeout", &out->timeout);
    }
    return true;
}

// What the words are worth.
static bool check(struct options *out) {
    out->timeout_s = TIMEOUT_S;
    if (out->timeout != NULL && (!config_human_int(out->timeout, &out->timeout_s) ||
                                 out->timeout_s < 1 || out->timeout_s > 86400)) {
        fprintf(stderr, "tare resize: --timeout '%s': it takes 1 to 86400 seconds\n", out->timeout);
        return false;
    }
    if (out->size == NULL) {
        fprintf(stderr, "tare resize: GROUP and SIZE are needed\n%s", USAGE);
        return false;
    }
    if (!parse_size(out)) {
        fprintf(stderr,
                "tare resize: SIZE '%s': it takes whole blocks such as 100, or bytes with a unit "
                "such as 512M or 1.5GiB (B, k, K, M, G or T), and + or - before it to change what "
                "there is\n",
                out->size);
        return false;
    }
    return true;
}

static bool parse(int argc, char **argv, struct options *out) {
    struct words words = {.verb = "resize", .argc = argc, .argv = argv};
    bool kv = false;
    for (words.at = 1; words.at < argc && !words.wrong; words.at++) {
        const char *word = argv[words.at];
        if (is_flag(&words, out)) {
            continue;
        }
        if (strncmp(word, "--", 2) == 0) {
            words_unknown(&words);
        } else if (!kv && strcmp(word, "kv") == 0) {
            kv = true;
        } else if (kv && out->group == NULL) {
            out->group = word;
        } else if (kv && out->size == NULL) {
            out->size = word;
        } else {
            words_unknown(&words);
        }
    }
    if (words.wrong) {
        fputs(USAGE, stderr);
        return false;
    }
    return out->help || check(out);
}

static void write_body(const struct options *options, struct buf *out) {
    buf_append_str(out, "{\"group\":");
    json_write_string(out, options->group, strlen(options->group));
    buf_printf(out, ",\"amount\":%lld,\"unit\":\"%s\",\"relative\":%s,\"wait\":%s,\"reason\":",
               (long long)options->amount, options->bytes ? "bytes" : "blocks",
               options->relative ? "true" : "false", options->no_wait ? "false" : "true");
    const char *reason = options->reason == NULL ? "" : options->reason;
    json_write_string(out, reason, strlen(reason));
    buf_append_str(out, "}");
}

// ---- the answer --------------------------------------------------------------------------------

static int show_error(const struct json *root, long status) {
    const char *message = json_text(json_get(json_get(root, "error"), "message"), NULL);
    fprintf(stderr, "tare resize: %s\n",
            message == NULL ? "the controller's answer cannot be read" : message);
    switch (status) {
    case 400:
        return ADMIN_EXIT_USAGE;
    case 404:
        return ADMIN_EXIT_NOT_FOUND;
    case 503:
        return ADMIN_EXIT_UNREACHABLE;
    default:
        return ADMIN_EXIT_FAILED;
    }
}

static int exit_of(const char *state) {
    if (strcmp(state, "done") == 0 || strcmp(state, "running") == 0) {
        return ADMIN_EXIT_DONE;
    }
    if (strcmp(state, "partial") == 0) {
        return ADMIN_EXIT_PARTIAL;
    }
    return strcmp(state, "refused") == 0 ? ADMIN_EXIT_REFUSED : ADMIN_EXIT_UNREACHABLE;
}

static void show(const struct json *root, const char *state) {
    const double mib = 1024.0 * 1024.0;
    if (strcmp(state, "running") == 0) {
        printf("operation %lld is running; `tare status` shows the pool\n",
               (long long)json_int(json_get(root, "operation")));
        return;
    }
    const char *reason = json_text(json_get(root, "reason"), NULL);
    bool told = reason != NULL && reason[0] != '\0';
    printf("%s: %lld blocks (%.1f MiB), were %lld (%.1f MiB), asked %lld%s%s\n", state,
           (long long)json_int(json_get(root, "blocks_after")),
           (double)json_int(json_get(root, "bytes_after")) / mib,
           (long long)json_int(json_get(root, "blocks_before")),
           (double)json_int(json_get(root, "bytes_before")) / mib,
           (long long)json_int(json_get(root, "blocks_asked")), told ? ": " : "",
           told ? reason : "");
}

static int print(const struct options *options, const struct buf *answer, long status) {
    struct json_doc *doc = NULL;
    struct error err = {0};
    if (json_parse((const char *)answer->data, answer->bytes_used, &doc, &err) != STATUS_OK) {
        fprintf(stderr, "tare resize: the answer cannot be read: %s\n", err.message);
        return ADMIN_EXIT_FAILED;
    }
    const struct json *root = json_root(doc);
    const char *state = json_text(json_get(root, "state"), NULL);
    int code = state == NULL ? show_error(root, status) : exit_of(state);
    if (state != NULL && options->json) {
        fwrite(answer->data, 1, answer->bytes_used, stdout);
    } else if (state != NULL) {
        show(root, state);
    }
    json_destroy(doc);
    return code;
}

int resize_run(int argc, char **argv) {
    struct options options = {0};
    if (!parse(argc, argv, &options)) {
        return ADMIN_EXIT_USAGE;
    }
    if (options.help) {
        fputs(USAGE, stdout);
        return ADMIN_EXIT_DONE;
    }
    struct buf body, answer;
    buf_init(&body, ANSWER_BYTES_MAX);
    buf_init(&answer, ANSWER_BYTES_MAX);
    write_body(&options, &body);
    struct admin_call call = {
        .verb = "resize",
        .run_dir = options.run_dir,
        .path = "/admin/v1/resize/kv",
        .body = buf_cstr(&body),
        .timeout_ms = options.no_wait ? NO_WAIT_MS : (long)options.timeout_s * 1000,
    };
    long status = 0;
    int code = admin_client_call(&call, &answer, &status);
    if (code == ADMIN_EXIT_DONE) {
        code = print(&options, &answer, status);
    }
    buf_deinit(&body);
    buf_deinit(&answer);
    return code;
}
