// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_CONTROLLER_HTTP_HTTP_APP_H
#define TESTS_UNIT_CONTROLLER_HTTP_HTTP_APP_H

#include "common/buf.h"
#include "controller/http/http_server.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

// A small application behind a real server on loopback, and raw sockets as its clients.
//
// The idea: the path says what the application does: /early answers before the body, /hold and
// /stream leave the answer to the test, /big is more than sockets hold, /alarm answers 20 ms later,
// any other gives the body back. What it hears is counted.
//
// Owns its loop and server.  Thread one.  Allocates at will.  Fails the test.

struct http_app {
    uv_loop_t loop;
    struct http_server *server;
    struct http_server_config config;
    struct http_exchange *held;    // of /hold and /stream
    int heads, requests, refusals, alarms, gone;
    uint64_t receipt;    // the last one that came back
    int refused_status;
    enum http_gone_reason gone_reason;
    bool closed;
};

void http_app_init(struct http_app *app);    // `config` may be changed before the start
void http_app_start(struct http_app *app);
void http_app_stop(struct http_app *app);
void http_app_on_closed(void *ctx);    // for a test that closes the server by itself
void http_app_answer(struct http_exchange *exchange, int status, const char *body,
                     size_t byte_count);

// ---- a raw client ------------------------------------------------------------------------------

struct raw_client {
    int fd;
    struct buf got;
    bool ended;    // end of file
    bool reset;
};

void raw_client_dial(struct raw_client *client, struct http_app *app);
void raw_client_close(struct raw_client *client);
void raw_client_send(struct raw_client *client, const char *bytes, size_t byte_count);
void raw_client_say(struct raw_client *client, const char *text);
void raw_client_take(struct raw_client *client);    // what has come, into `got`

// Turns the loop until `text` has come, the connection ends (text NULL), or 5 s are over.
bool http_app_pump(struct http_app *app, struct raw_client *client, const char *text);
bool http_app_pump_until(struct http_app *app, const int *counter, int value);

#endif
