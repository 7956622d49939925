// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum status http_address_parse(const char *host, uint16_t port, struct http_address *out,
                               struct error *err) {
    const char *numeric = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, numeric, &v4.sin_addr) == 1) {
        memcpy(&out->storage, &v4, sizeof v4);
        return STATUS_OK;
    }
    if (inet_pton(AF_INET6, numeric, &v6.sin6_addr) == 1) {
        memcpy(&out->storage, &v6, sizeof v6);
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "'%s' is not an address to listen on; give a numeric one or localhost", host);
}

uint16_t http_address_port(const struct http_address *address) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memcpy(&v4, &address->storage, sizeof v4);
    memcpy(&v6, &address->storage, sizeof v6);
    return ntohs(address->storage.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

// The library that binds would cut a longer path, and an empty one would be no file at all.
enum status http_address_check_unix(const char *path, struct error *err) {
    size_t byte_count = strlen(path);
    size_t byte_count_max = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    if (byte_count == 0 || byte_count > byte_count_max) {
        return error_set(err, STATUS_INVALID,
                         "'%.200s' has %zu bytes; the path of a unix socket has 1 to %zu", path,
                         byte_count, byte_count_max);
    }
    return STATUS_OK;
}

// Whether a process listens there. Without waiting: a full line of callers is an answer too.
static bool answers(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return true;    // unknown: bind will say
    }
    bool reached = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ||
                   errno == EAGAIN || errno == EACCES;
    close(fd);
    return reached;
}

void http_address_clear_unix(const char *path) {
    struct stat file;
    if (lstat(path, &file) == 0 && S_ISSOCK(file.st_mode) && !answers(path)) {
        (void)unlink(path);    // a failure shows up in bind
    }
}

enum status http_address_failed(const char *where, const char *option, int os_code,
                                struct error *err) {
    enum status status =
        error_set(err, STATUS_IO, "cannot listen on %s: %s", where, strerror(os_code));
    if (os_code == EADDRINUSE) {
        error_hint(err, "another process has this address; stop it or choose another --%s", option);
    } else if (os_code == EACCES) {
        error_hint(err, "%s; choose another --%s",
                   strcmp(option, "port") == 0 ? "ports below 1024 need privileges"
                                               : "its directory refuses new files",
                   option);
    }
    return status;
}
