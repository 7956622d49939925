// SPDX-License-Identifier: Apache-2.0
// What libuv alone can do, as the limit for bench_http: a responder that reads whatever comes and
// answers with fixed bytes as long as the server's own. It parses nothing but `"max_tokens":N`; a
// request with `"stream":true` is answered by N events, one per connection and turn of the loop.
// Prints its port, then serves until it is killed.
//
// usage: bench_http_limit
#include "common/invariant.h"
#include "common/memory.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

enum { BACKLOG = 1024, READ_BYTES = 64 * 1024 };

#define ID "cmpl-0123456789abcdefghijklmn"
#define HEAD_COMMON                                                                                \
    "date: Mon, 30 Nov 2026 00:00:00 GMT\r\nx-request-id: 0123456789abcdefghijklmn\r\n"
#define BODY_HEAD                                                                                  \
    "{\"id\":\"" ID "\",\"object\":\"text_completion\",\"created\":1796000000,"                    \
    "\"model\":\"smollm2-135m-instruct-q4_1\",\"system_fingerprint\":\"tare-0.1.0-tp1-00000000\"," \
    "\"choices\":[{\"index\":0,\"text\":\" limits\",\"logprobs\":null,"
#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":%lu,\"total_tokens\":%lu,"               \
    "\"prompt_tokens_details\":{\"cached_tokens\":0},"                                             \
    "\"completion_tokens_details\":{\"reasoning_tokens\":0}}"

static const char body_format[] =
    BODY_HEAD "\"finish_reason\":\"length\",\"stop_reason\":null}]," USAGE "}";
static const char head_format[] =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" HEAD_COMMON
    "server: tare/0.1.0\r\nopenai-processing-ms: 0\r\n"
    "content-length: %zu\r\n\r\n%s";
static const char stream_head[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n" HEAD_COMMON
    "server: tare/0.1.0\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"
    "transfer-encoding: chunked\r\n\r\n";
static const char event[] = "data: " BODY_HEAD "\"finish_reason\":null,\"stop_reason\":null}]}\n\n";
static const char end_format[] =
    "data: {\"id\":\"" ID "\",\"choices\":[]," USAGE "}\n\ndata: [DONE]\n\n";

struct peer {
    uv_tcp_t tcp;
    struct peer *prev, *next;    // in `streams`
    unsigned long left, asked;
    uv_write_t write;
    bool busy;    // a write that did not go out at once
    char out[1024];
};

struct limit {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_idle_t idle;
    struct peer *streams;
    char read_buffer[READ_BYTES];
    char answer[1024], frame[1024];
    size_t answer_bytes, frame_bytes;
};

static void on_closed(uv_handle_t *handle) {
    memory_free(handle->data);
}

static void leave_streams(struct limit *limit, struct peer *peer) {
    if (peer->left == 0) {
        return;
    }
    peer->left = 0;
    if (peer->prev != NULL) {
        peer->prev->next = peer->next;
    } else {
        limit->streams = peer->next;
    }
    if (peer->next != NULL) {
        peer->next->prev = peer->prev;
    }
    if (limit->streams == NULL) {
        uv_idle_stop(&limit->idle);
    }
}

static void on_written(uv_write_t *write, int status) {
    (void)status;
    struct peer *peer = write->data;
    peer->busy = false;
}

// `bytes` stay as they are until written.
static void put(struct peer *peer, const char *bytes, size_t byte_count) {
    uv_buf_t piece = uv_buf_init((char *)(uintptr_t)bytes, (unsigned)byte_count);
    int sent = uv_try_write((uv_stream_t *)&peer->tcp, &piece, 1);
    size_t sent_bytes = sent > 0 ? (size_t)sent : 0;
    if (sent_bytes < byte_count) {
        piece =
            uv_buf_init((char *)(uintptr_t)bytes + sent_bytes, (unsigned)(byte_count - sent_bytes));
        peer->write.data = peer;
        peer->busy = uv_write(&peer->write, (uv_stream_t *)&peer->tcp, &piece, 1, on_written) == 0;
    }
}

static size_t frame(const char *payload, char *out, size_t out_bytes, const char *end) {
    int length = snprintf(out, out_bytes, "%zx\r\n%s\r\n%s", strlen(payload), payload, end);
    INVARIANT(length > 0 && (size_t)length < out_bytes);
    return (size_t)length;
}

static void on_idle(uv_idle_t *idle) {
    struct limit *limit = idle->data;
    for (struct peer *peer = limit->streams, *next; peer != NULL; peer = next) {
        next = peer->next;
        if (peer->busy) {
            continue;
        }
        if (peer->left > 1) {
            peer->left--;
            put(peer, limit->frame, limit->frame_bytes);
            continue;
        }
        char payload[900];
        size_t event_bytes = strlen(event);
        memcpy(payload, event, event_bytes);
        snprintf(payload + event_bytes, sizeof payload - event_bytes, end_format, peer->asked,
                 peer->asked + 1);
        size_t byte_count = frame(payload, peer->out, sizeof peer->out, "0\r\n\r\n");
        leave_streams(limit, peer);
        put(peer, peer->out, byte_count);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    (void)suggested;
    struct limit *limit = handle->loop->data;
    *buffer = uv_buf_init(limit->read_buffer, READ_BYTES - 1);
}

static void on_read(uv_stream_t *stream, ssize_t byte_count, const uv_buf_t *buffer) {
    struct peer *peer = stream->data;
    struct limit *limit = stream->loop->data;
    if (byte_count < 0) {
        leave_streams(limit, peer);
        uv_close((uv_handle_t *)stream, on_closed);
        return;
    }
    buffer->base[byte_count] = '\0';
    if (strstr(buffer->base, "\"stream\":true") == NULL) {
        put(peer, limit->answer, limit->answer_bytes);
        return;
    }
    const char *asked = strstr(buffer->base, "\"max_tokens\":");
    peer->asked = asked != NULL ? strtoul(asked + 13, NULL, 10) : 1;
    peer->left = peer->asked;
    peer->prev = NULL;
    peer->next = limit->streams;
    if (limit->streams != NULL) {
        limit->streams->prev = peer;
    }
    limit->streams = peer;
    put(peer, stream_head, sizeof stream_head - 1);
    uv_idle_start(&limit->idle, on_idle);
}

static void on_connection(uv_stream_t *listener, int status) {
    struct peer *peer = memory_zalloc(sizeof *peer);
    INVARIANT(status == 0 && peer != NULL);
    uv_tcp_init(listener->loop, &peer->tcp);
    peer->tcp.data = peer;
    INVARIANT(uv_accept(listener, (uv_stream_t *)&peer->tcp) == 0);
    uv_tcp_nodelay(&peer->tcp, 1);
    uv_read_start((uv_stream_t *)&peer->tcp, on_alloc, on_read);
}

int main(void) {
    static struct limit limit;
    char body[900];
    int length = snprintf(body, sizeof body, body_format, 1ul, 2ul);
    limit.answer_bytes =
        (size_t)snprintf(limit.answer, sizeof limit.answer, head_format, (size_t)length, body);
    INVARIANT(limit.answer_bytes < sizeof limit.answer);
    limit.frame_bytes = frame(event, limit.frame, sizeof limit.frame, "");
    uv_loop_init(&limit.loop);
    limit.loop.data = &limit;
    uv_idle_init(&limit.loop, &limit.idle);
    limit.idle.data = &limit;
    uv_tcp_init(&limit.loop, &limit.listener);
    struct sockaddr_in address;
    uv_ip4_addr("127.0.0.1", 0, &address);
    INVARIANT(uv_tcp_bind(&limit.listener, (struct sockaddr *)&address, 0) == 0);
    INVARIANT(uv_listen((uv_stream_t *)&limit.listener, BACKLOG, on_connection) == 0);
    int address_bytes = sizeof address;
    uv_tcp_getsockname(&limit.listener, (struct sockaddr *)&address, &address_bytes);
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return uv_run(&limit.loop, UV_RUN_DEFAULT);
}
