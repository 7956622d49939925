// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/admin_client.h"

#include <curl/curl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

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

static int find_named(const struct admin_call *call, char *out) {
    snprintf(out, PATH_BYTES, "%.4000s/admin.sock", call->run_dir);
    if (!is_alive(out)) {
        fprintf(stderr, "tare %s: no server of yours has the run directory '%s'\n", call->verb,
                call->run_dir);
        return ADMIN_EXIT_NOT_FOUND;
    }
    return ADMIN_EXIT_DONE;
}

// The only server that `tare serve` started for this user. Several are named.
static int find_only(const char *verb, char *out) {
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
        fprintf(stderr,
                "tare %s: no server of yours runs on this host; --run-dir DIR names one that was "
                "started with its own run directory\n",
                verb);
    } else if (count > 1) {
        fprintf(stderr, "tare %s: several servers run here; name one with --run-dir:\n", verb);
    }
    for (size_t i = 0; count > 1 && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (is_alive(path)) {
            fprintf(stderr, "  %.*s\n", (int)(strlen(path) - strlen("/admin.sock")), path);
        }
    }
    globfree(&found);
    return count == 1 ? ADMIN_EXIT_DONE : ADMIN_EXIT_NOT_FOUND;
}

// ---- asking ------------------------------------------------------------------------------------

static size_t on_bytes(char *bytes, size_t size, size_t count, void *ctx) {
    struct buf *answer = ctx;
    buf_append(answer, bytes, size * count);
    return buf_status(answer) == STATUS_OK ? size * count : 0;
}

int admin_client_call(const struct admin_call *call, struct buf *answer, long *status) {
    char path[PATH_BYTES];
    char url[128];
    int found = call->run_dir != NULL ? find_named(call, path) : find_only(call->verb, path);
    if (found != ADMIN_EXIT_DONE) {
        return found;
    }
    CURL *curl = curl_easy_init();
    if (curl == NULL) {
        fprintf(stderr, "tare %s: no memory for a request\n", call->verb);
        return ADMIN_EXIT_FAILED;
    }
    snprintf(url, sizeof url, "http://localhost%.100s", call->path);
    curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, path);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, call->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, answer);
    if (call->body != NULL) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, call->body);
    }
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    curl_easy_cleanup(curl);
    if (code == CURLE_OPERATION_TIMEDOUT && call->body != NULL) {
        fprintf(stderr, "tare %s: no end after %.0f s; the operation goes on\n", call->verb,
                (double)call->timeout_ms / 1000.0);
        return ADMIN_EXIT_TIMED_OUT;
    }
    if (code != CURLE_OK) {
        fprintf(stderr, "tare %s: the controller at '%s' does not answer: %s\n", call->verb, path,
                curl_easy_strerror(code));
        return ADMIN_EXIT_UNREACHABLE;
    }
    return ADMIN_EXIT_DONE;
}
