// SPDX-License-Identifier: Apache-2.0
// What the HTTP layer costs: tiny requests per second and streamed tokens per second, with a core
// that answers at once, over loopback. The clients run in a child process; the figures per second
// of CPU are those of the server process alone.
//
// usage: bench_http [SECONDS]
#include "common/clock.h"
#include "common/invariant.h"
#include "controller/http/api.h"
#include "controller/http/http_server.h"
#include "tests/tiny_tokenizer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

enum { CONTEXT = 8192, LIVE_MAX = 4096, CONNECTIONS = 64 };

// ---- the core: one token per sequence and turn -------------------------------------------------

struct bench {
    uv_loop_t loop;
    uv_idle_t idle;
    uv_timer_t end;
    struct http_server *server;
    struct api *api;
    struct core_request live[LIVE_MAX];
    uint32_t made[LIVE_MAX];
    uint32_t live_count;
    uint64_t tokens, requests;
    bool closed;
};

static enum status on_submit(void *ctx, const struct core_request *request) {
    struct bench *bench = ctx;
    if (bench->live_count >= LIVE_MAX) {
        return STATUS_BUSY;
    }
    bench->made[bench->live_count] = 0;
    bench->live[bench->live_count++] = *request;
    return STATUS_OK;
}

static void finish(struct bench *bench, uint32_t index, uint64_t now_us) {
    const struct core_action action = {
        .kind = CORE_ACTION_FINISHED,
        .finished = {.id = bench->live[index].id, .reason = FINISH_REASON_LENGTH}};
    bench->requests++;
    bench->live_count--;
    bench->live[index] = bench->live[bench->live_count];
    bench->made[index] = bench->made[bench->live_count];
    api_on_action(bench->api, &action, now_us);
}

static void on_cancel(void *ctx, struct request_id id) {
    struct bench *bench = ctx;
    for (uint32_t i = 0; i < bench->live_count; i++) {
        if (bench->live[i].id.value == id.value) {
            finish(bench, i, 0);
            return;
        }
    }
}

static void on_stop(void *ctx, struct request_id id) {
    on_cancel(ctx, id);
}

static void on_metrics(void *ctx, enum metric_format format, struct buf *out) {
    (void)ctx;
    (void)format;
    (void)out;
}

// One step of the engine: every live sequence gets a token of a few letters.
static void on_idle(uv_idle_t *handle) {
    struct bench *bench = handle->data;
    uint64_t now_us = clock_monotonic_us();
    for (uint32_t i = bench->live_count; i-- > 0;) {
        const struct result_row row = {.token =
                                           bench->made[i] % 2 == 0 ? TOKEN_HELLO : TOKEN_SPACE_W};
        const struct core_action action = {.kind = CORE_ACTION_TOKEN,
                                           .token = {.id = bench->live[i].id, .row = &row}};
        bench->tokens++;
        api_on_action(bench->api, &action, now_us);
        if (++bench->made[i] == bench->live[i].output_max) {
            finish(bench, i, now_us);
        }
    }
    api_turn_end(bench->api, now_us);
    http_server_flush(bench->server);
}

// ---- the server process ------------------------------------------------------------------------

static void on_end(uv_timer_t *timer) {
    uv_stop(timer->loop);
}

struct cpu {
    double user_s, all_s;
};

static struct cpu cpu_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double user_s = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    double system_s = (double)usage.ru_stime.tv_sec + 1e-6 * (double)usage.ru_stime.tv_usec;
    return (struct cpu){user_s, user_s + system_s};
}

static void start(struct bench *bench, const struct api_model *model) {
    struct api_config config;
    api_defaults(&config);
    config.ctx = bench;
    config.submit = on_submit;
    config.cancel = on_cancel;
    config.stop = on_stop;
    config.metrics = on_metrics;
    INVARIANT(api_create(&config, &bench->api, NULL) == STATUS_OK);
    const struct message_capacity capacity = {.envelope = {.seq_tokens = CONTEXT},
                                              .block_tokens = 16,
                                              .kv_blocks = 65536,
                                              .vocabulary = TINY_VOCABULARY};
    api_set_model(bench->api, model);
    api_on_capacity(bench->api, &capacity);
    struct http_server_config server;
    http_server_defaults(&server);
    server.handler = api_handler(bench->api);
    uv_loop_init(&bench->loop);
    INVARIANT(http_server_create(&bench->loop, &server, &bench->server, NULL) == STATUS_OK);
    INVARIANT(http_server_listen_tcp(bench->server, "127.0.0.1", 0, NULL) == STATUS_OK);
    uv_idle_init(&bench->loop, &bench->idle);
    bench->idle.data = bench;
    uv_idle_start(&bench->idle, on_idle);
    uv_timer_init(&bench->loop, &bench->end);
}

// ---- the client process ------------------------------------------------------------------------

static int dial(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        _exit(1);
    }
    return fd;
}

// Keeps CONNECTIONS requests open; the next one is sent when `mark` ends what came.
static void run_client(uint16_t port, const char *body, const char *mark) {
    char request[1024];
    int request_bytes = snprintf(request, sizeof request,
                                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                 strlen(body), body);
    struct pollfd fds[CONNECTIONS];
    size_t mark_bytes = strlen(mark);
    static char chunk[1 << 18];
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = (struct pollfd){.fd = dial(port), .events = POLLIN};
        if (send(fds[i].fd, request, (size_t)request_bytes, 0) != request_bytes) {
            _exit(1);
        }
    }
    for (;;) {
        poll(fds, CONNECTIONS, -1);
        for (int i = 0; i < CONNECTIONS; i++) {
            if ((fds[i].revents & POLLIN) == 0) {
                continue;
            }
            ssize_t got = recv(fds[i].fd, chunk, sizeof chunk, 0);
            if (got <= 0) {
                _exit(0);
            }
            bool over = (size_t)got >= mark_bytes &&
                        memcmp(chunk + got - mark_bytes, mark, mark_bytes) == 0;
            if (over && send(fds[i].fd, request, (size_t)request_bytes, MSG_NOSIGNAL) < 0) {
                _exit(0);
            }
        }
    }
}

static void measure(struct bench *bench, const char *what, const char *body, const char *mark,
                    uint64_t seconds) {
    pid_t child = fork();
    if (child == 0) {
        run_client(http_server_port(bench->server), body, mark);
    }
    bench->tokens = 0;
    bench->requests = 0;
    struct cpu before = cpu_now();
    uint64_t start_us = clock_monotonic_us();
    uv_timer_start(&bench->end, on_end, seconds * 1000, 0);
    uv_run(&bench->loop, UV_RUN_DEFAULT);
    double wall = (double)(clock_monotonic_us() - start_us) * 1e-6;
    struct cpu after = cpu_now();
    double cpu = after.all_s - before.all_s;
    printf("%-14s %7.0f requests/s %7.0f tokens/s; per CPU second %7.0f requests %7.0f tokens, "
           "%2.0f%% of it in our code\n",
           what, (double)bench->requests / wall, (double)bench->tokens / wall,
           (double)bench->requests / cpu, (double)bench->tokens / cpu,
           100 * (after.user_s - before.user_s) / cpu);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 100; i++) {
        uv_run(&bench->loop, UV_RUN_NOWAIT);    // notices that the clients left
    }
}

static void on_closed(void *ctx) {
    struct bench *bench = ctx;
    bench->closed = true;
}

int main(int argc, char **argv) {
    static struct bench bench;
    static const char *const names[] = {"tiny"};
    uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 3;
    struct tokenizer *tokenizer = tiny_tokenizer();
    const struct api_model model = {.names = names,
                                    .name_count = 1,
                                    .tokenizer = tokenizer,
                                    .defaults = api_sampling_neutral()};
    start(&bench, &model);
    measure(&bench, "tiny requests", "{\"prompt\":\"hello\",\"max_tokens\":1,\"temperature\":0}",
            "}}}", seconds);
    measure(&bench, "64 streams", "{\"prompt\":\"hello\",\"max_tokens\":4000,\"stream\":true}",
            "0\r\n\r\n", seconds);
    uv_close((uv_handle_t *)&bench.idle, NULL);
    uv_close((uv_handle_t *)&bench.end, NULL);
    http_server_close(bench.server, 100000, on_closed, &bench);
    while (!bench.closed) {
        uv_run(&bench.loop, UV_RUN_ONCE);
    }
    http_server_destroy(bench.server);
    api_destroy(bench.api);
    tokenizer_destroy(tokenizer);
    return 0;
}
