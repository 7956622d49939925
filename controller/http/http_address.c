// SPDX-License-Identifier: Apache-2.0
#include "controller/http/http_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
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

void http_address_clear_unix(const char *path) {
    struct stat file;
    if (lstat(path, &file) == 0 && S_ISSOCK(file.st_mode)) {
        (void)unlink(path);    // a failure shows up in bind
    }
}

enum status http_address_failed(const char *where, int os_code, struct error *err) {
    enum status status =
        error_set(err, STATUS_IO, "cannot listen on %s: %s", where, strerror(os_code));
    if (os_code == EADDRINUSE) {
        error_hint(err, "another process has this address; stop it or choose another --port");
    } else if (os_code == EACCES) {
        error_hint(err, "ports below 1024 need privileges; choose another --port");
    }
    return status;
}
