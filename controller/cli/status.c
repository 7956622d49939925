// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/status.h"

#include "common/buf.h"
#include "common/json.h"
#include <curl/curl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, ANSWER_BYTES_MAX = 4 * 1024 * 1024, TIMEOUT_MS = 5000 };
// Exit codes of one who asks; those in common/exit_code.h say what a start lacked.
enum {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_NOT_FOUND = 3,
    EXIT_UNREACHABLE = 6,
};

struct options {
    const char *run_dir;
    bool json;
    bool help;
};

static const double MIB = 1024.0 * 1024.0;

// ---- which controller --------------------------------------------------------------------------

// A socket of ours that somebody answers on: a server that was killed leaves one behind.
static bool is_alive(const char *path) {
    struct stat info;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (stat(path, &info) != 0 || !S_ISSOCK(info.st_mode) || info.st_uid != geteuid() ||
        strlen(path) >= sizeof address.sun_path) {
        return false;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    bool alive = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return alive;
}

static int find_named(const char *run_dir, char *out) {
    snprintf(out, PATH_BYTES, "%.4000s/admin.sock", run_dir);
    if (!is_alive(out)) {
        fprintf(stderr, "tare status: no server of yours has the run directory '%s'\n", run_dir);
        return EXIT_NOT_FOUND;
    }
    return EXIT_DONE;
}

// The only server that `tare serve` started for this user. Several are named.
static int find_only(char *out) {
    glob_t found = {0};
    int count = 0;
    // A pattern that matches nothing leaves `found` without paths.
    (void)glob("/tmp/tare-*/admin.sock", 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (is_alive(found.gl_pathv[i])) {
            count++;
            snprintf(out, PATH_BYTES, "%.4000s", found.gl_pathv[i]);
        }
    }
    if (count == 0) {
        fputs("tare status: no server of yours runs on this host; --run-dir DIR names one that was "
              "started with its own run directory\n",
              stderr);
    } else if (count > 1) {
        fputs("tare status: several servers run here; name one with --run-dir:\n", stderr);
    }
    for (size_t i = 0; count > 1 && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (is_alive(path)) {
            fprintf(stderr, "  %.*s\n", (int)(strlen(path) - strlen("/admin.sock")), path);
        }
    }
    globfree(&found);
    return count == 1 ? EXIT_DONE : EXIT_NOT_FOUND;
}

// ---- asking ------------------------------------------------------------------------------------

static size_t on_bytes(char *bytes, size_t size, size_t count, void *ctx) {
    struct buf *answer = ctx;
    buf_append(answer, bytes, size * count);
    return buf_status(answer) == STATUS_OK ? size * count : 0;
}

static int ask(const char *socket_path, struct buf *answer) {
    CURL *curl = curl_easy_init();
    if (curl == NULL) {
        fputs("tare status: no memory for a request\n", stderr);
        return EXIT_FAILED;
    }
    curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket_path);
    curl_easy_setopt(curl, CURLOPT_URL, "http://localhost/admin/v1/status");
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    CURLcode code = curl_easy_perform(curl);
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    if (code != CURLE_OK) {
        fprintf(stderr, "tare status: the controller at '%s' does not answer: %s\n", socket_path,
                curl_easy_strerror(code));
        return EXIT_UNREACHABLE;
    }
    if (status != 200) {
        fprintf(stderr, "tare status: the controller answers %ld: %.500s\n", status,
                buf_cstr(answer));
        return EXIT_FAILED;
    }
    return EXIT_DONE;
}

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
    printf("kv        %lld of %lld blocks free, %lld tokens in all\n", count_of(kv, "blocks_free"),
           count_of(kv, "blocks"), count_of(kv, "capacity_tokens"));
    if (!json_absent(json_get(status, "worker"))) {
        show_worker(json_get(status, "worker"));
    }
}

static int print(const struct options *options, struct buf *answer) {
    if (options->json) {
        fputs(buf_cstr(answer), stdout);
        return EXIT_DONE;
    }
    struct json_doc *doc = NULL;
    struct error err = {0};
    if (json_parse((const char *)answer->data, answer->bytes_used, &doc, &err) != STATUS_OK) {
        fprintf(stderr, "tare status: the answer cannot be read: %s\n", err.message);
        return EXIT_FAILED;
    }
    show(json_root(doc));
    json_destroy(doc);
    return EXIT_DONE;
}

// ---- the command -------------------------------------------------------------------------------

static const char USAGE[] =
    "usage: tare status [--run-dir DIR] [--json]\n"
    "  --run-dir DIR   of the controller (default: the only server of yours on this host)\n"
    "  --json, -o json one JSON object in place of the table\n";

static bool parse(int argc, char **argv, struct options *out) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(word, "--json") == 0 || strcmp(word, "-ojson") == 0) {
            out->json = true;
        } else if (strcmp(word, "-o") == 0 && next != NULL && strcmp(next, "json") == 0) {
            out->json = true;
            i++;
        } else if (strncmp(word, "--run-dir=", 10) == 0) {
            out->run_dir = word + 10;
        } else if (strcmp(word, "--run-dir") == 0 && next != NULL) {
            out->run_dir = next;
            i++;
        } else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            out->help = true;
        } else {
            fprintf(stderr, "tare status: '%s' is not known here\n%s", word, USAGE);
            return false;
        }
    }
    return true;
}

int status_run(int argc, char **argv) {
    struct options options = {0};
    if (!parse(argc, argv, &options)) {
        return EXIT_USAGE;
    }
    if (options.help) {
        fputs(USAGE, stdout);
        return EXIT_DONE;
    }
    char path[PATH_BYTES];
    int code = options.run_dir != NULL ? find_named(options.run_dir, path) : find_only(path);
    if (code != EXIT_DONE) {
        return code;
    }
    struct buf answer;
    buf_init(&answer, ANSWER_BYTES_MAX);
    code = ask(path, &answer);
    if (code == EXIT_DONE) {
        code = print(&options, &answer);
    }
    buf_deinit(&answer);
    return code;
}
