// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_HTTP_ADDRESS_H
#define CONTROLLER_HTTP_HTTP_ADDRESS_H

#include "common/status.h"
#include <stdint.h>
#include <sys/socket.h>

// Where to listen: numeric addresses, and socket files.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails INVALID, naming the text.

struct http_address {
    struct sockaddr_storage storage;
};

// `host` is a numeric IPv4 or IPv6 address, or "localhost".
enum status http_address_parse(const char *host, uint16_t port, struct http_address *out,
                               struct error *err) MUST_USE;
uint16_t http_address_port(const struct http_address *address);

// A path fits the system's address of a socket file.
enum status http_address_check_unix(const char *path, struct error *err) MUST_USE;
// Removes a socket file that a process left behind; one that still answers and anything else at
// `path` stay.
void http_address_clear_unix(const char *path);

// The failure to listen on `where`, with what to do about it. `option` is the one that chose it,
// `os_code` an errno.
enum status http_address_failed(const char *where, const char *option, int os_code,
                                struct error *err);

#endif
