// SPDX-License-Identifier: Apache-2.0
// What the HTTP front end costs, beside what libuv alone can do (bench_http_limit), in one run:
// tiny requests per second with keep-alive, streamed tokens per second over 256 streams, and the
// time that the front end adds to a request at a tenth of the target rate. Client of both on one
// thread; the server's worker should be a simulated device, whose steps take microseconds.
//
//   bench_http PORT LIMIT_PORT [SECONDS=2] [ROUNDS=3] [PART]
//
// Every part runs against the server and the limit in turn, ROUNDS times; figures are medians. One
// JSON line per figure. Every answer is checked for its status, its length and its token count.
// PART is tiny, streams or latency; without it all of them.
#include "common/clock.h"
#include "common/memory.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TINY_CLIENTS = 64,
    STREAMS = 256,
    LATENCY_CLIENTS = 32,
    LATENCY_RATE = 2000,    // requests per second
    CLIENTS_MAX = STREAMS,
    STREAM_TOKENS_PER_S = 400,    // asked for by each stream, times SECONDS
    HEAD_BYTES = 4096,
    TAIL_BYTES = 512,
    READ_BYTES = 256 * 1024,
    BODY_BYTES_MAX = 1 << 24,
    ROUNDS_MAX = 99,
    SAMPLES_MAX = 1 << 20,
    TINY_TARGET = 20000,
    STREAM_TARGET = 100000,
};

static _Noreturn PRINTF_LIKE(1, 2) void give_up(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("bench_http: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

// ---- answers -----------------------------------------------------------------------------------

enum answer_state {
    ANSWER_HEAD,
    ANSWER_LENGTH,
    ANSWER_SIZE,
    ANSWER_CHUNK,
    ANSWER_CRLF,
    ANSWER_END
};

struct client {
    int fd;
    bool busy;
    enum answer_state state;
    char head[HEAD_BYTES];    // the head, then lines of chunk sizes
    size_t head_bytes;
    size_t left;    // of the body or the chunk
    bool last_chunk;
    char tail[TAIL_BYTES];    // the end of the body so far
    size_t tail_bytes;
    uint64_t sent_us, first_us;
};

static void keep_tail(struct client *client, const char *bytes, size_t byte_count) {
    if (byte_count >= TAIL_BYTES) {
        memcpy(client->tail, bytes + byte_count - TAIL_BYTES, TAIL_BYTES);
        client->tail_bytes = TAIL_BYTES;
        return;
    }
    size_t keep = TAIL_BYTES - byte_count;
    keep = client->tail_bytes < keep ? client->tail_bytes : keep;
    memmove(client->tail, client->tail + client->tail_bytes - keep, keep);
    memcpy(client->tail + keep, bytes, byte_count);
    client->tail_bytes = keep + byte_count;
}

// Collects a line or a head that ends in `mark`; true once it is whole.
static bool collect(struct client *client, const char *mark, const char **at, const char *end) {
    size_t mark_bytes = strlen(mark);
    while (*at < end) {
        if (client->head_bytes == HEAD_BYTES - 1) {
            give_up("a head or a chunk line is too long");
        }
        client->head[client->head_bytes++] = *(*at)++;
        if (client->head_bytes >= mark_bytes &&
            memcmp(client->head + client->head_bytes - mark_bytes, mark, mark_bytes) == 0) {
            client->head[client->head_bytes] = '\0';
            client->head_bytes = 0;
            return true;
        }
    }
    return false;
}

static void read_head(struct client *client) {
    if (strncmp(client->head, "HTTP/1.1 200 ", 13) != 0) {
        give_up("the answer is %.40s", client->head);
    }
    const char *length = strstr(client->head, "\r\ncontent-length: ");
    client->last_chunk = false;
    client->state = ANSWER_SIZE;
    if (length != NULL) {
        client->left = strtoul(length + 18, NULL, 10);
        client->state = ANSWER_LENGTH;
    } else if (strstr(client->head, "\r\ntransfer-encoding: chunked\r\n") == NULL) {
        give_up("an answer without a length");
    }
}

static void read_body(struct client *client, const char **at, const char *end) {
    size_t here = (size_t)(end - *at);
    here = here < client->left ? here : client->left;
    keep_tail(client, *at, here);
    *at += here;
    client->left -= here;
    if (client->left == 0) {
        client->state = client->state == ANSWER_LENGTH ? ANSWER_END : ANSWER_CRLF;
    }
}

// True when the answer is whole.
static bool read_answer(struct client *client, const char *at, size_t byte_count,
                        uint64_t *chunks) {
    const char *end = at + byte_count;
    while (at < end && client->state != ANSWER_END) {
        switch (client->state) {
        case ANSWER_HEAD:
            if (collect(client, "\r\n\r\n", &at, end)) {
                read_head(client);
            }
            break;
        case ANSWER_LENGTH:
        case ANSWER_CHUNK:
            read_body(client, &at, end);
            break;
        case ANSWER_SIZE:
            if (collect(client, "\r\n", &at, end)) {
                client->left = strtoul(client->head, NULL, 16);
                client->last_chunk = client->left == 0;
                *chunks += client->last_chunk ? 0 : 1;
                client->state = client->last_chunk ? ANSWER_CRLF : ANSWER_CHUNK;
            }
            break;
        case ANSWER_CRLF:
            if (collect(client, "\r\n", &at, end)) {
                client->state = client->last_chunk ? ANSWER_END : ANSWER_SIZE;
            }
            break;
        case ANSWER_END:
            break;
        }
    }
    if (at < end) {
        give_up("%zu bytes behind an answer", (size_t)(end - at));
    }
    return client->state == ANSWER_END;
}

static uint64_t usage_of(struct client *client) {
    client->tail[client->tail_bytes < TAIL_BYTES ? client->tail_bytes : TAIL_BYTES - 1] = '\0';
    const char *count = strstr(client->tail, "\"completion_tokens\":");
    return count == NULL ? 0 : strtoull(count + 20, NULL, 10);
}

// ---- one run against one server ----------------------------------------------------------------

struct run {
    int epoll;
    struct client clients[CLIENTS_MAX];
    uint32_t client_count;
    char request[1024];
    size_t request_bytes;
    uint64_t tokens_wanted;    // of each answer
    uint64_t done;             // answers
    uint64_t chunks;           // of all chunked answers; the server sends one per write
};

static char read_buffer[READ_BYTES];
static float samples_us[SAMPLES_MAX];

static int dial(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        give_up("nobody answers at port %u", port);
    }
    return fd;
}

static void run_open(struct run *run, uint16_t port, uint32_t client_count, const char *body) {
    memset(run, 0, sizeof *run);
    run->epoll = epoll_create1(0);
    run->client_count = client_count;
    int byte_count = snprintf(run->request, sizeof run->request,
                              "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                              strlen(body), body);
    run->request_bytes = (size_t)byte_count;
    for (uint32_t i = 0; i < client_count; i++) {
        run->clients[i].fd = dial(port);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(run->epoll, EPOLL_CTL_ADD, run->clients[i].fd, &event);
    }
}

static void run_close(struct run *run) {
    for (uint32_t i = 0; i < run->client_count; i++) {
        close(run->clients[i].fd);
    }
    close(run->epoll);
}

static void send_request(struct run *run, struct client *client, uint64_t due_us) {
    client->busy = true;
    client->state = ANSWER_HEAD;
    client->tail_bytes = 0;
    client->first_us = 0;
    client->sent_us = due_us;
    ssize_t sent = send(client->fd, run->request, run->request_bytes, MSG_NOSIGNAL);
    if (sent != (ssize_t)run->request_bytes) {
        give_up("a request could not be sent");
    }
}

typedef void (*answered_fn)(struct run *run, struct client *client, uint64_t now_us);

// Waits up to `wait_ns` and reads what came.
static void run_turn(struct run *run, uint64_t wait_ns, answered_fn answered) {
    struct epoll_event events[CLIENTS_MAX];
    struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};
    int count = epoll_pwait2(run->epoll, events, CLIENTS_MAX, &wait, NULL);
    uint64_t now_us = clock_monotonic_us();
    for (int i = 0; i < count; i++) {
        struct client *client = &run->clients[events[i].data.u32];
        ssize_t got = recv(client->fd, read_buffer, sizeof read_buffer, 0);
        if (got <= 0 || !client->busy) {
            give_up("a connection ended, or spoke without being asked");
        }
        client->first_us = client->first_us == 0 ? now_us : client->first_us;
        if (read_answer(client, read_buffer, (size_t)got, &run->chunks)) {
            client->busy = false;
            run->done++;
            uint64_t tokens = usage_of(client);
            if (tokens != run->tokens_wanted) {
                give_up("an answer of %llu tokens instead of %llu", (unsigned long long)tokens,
                        (unsigned long long)run->tokens_wanted);
            }
            answered(run, client, now_us);
        }
    }
}

static void ask_again(struct run *run, struct client *client, uint64_t now_us) {
    send_request(run, client, now_us);
}

static void rest(struct run *run, struct client *client, uint64_t now_us) {
    (void)run;
    (void)client;
    (void)now_us;
}

static const char tiny_body[] = "{\"prompt\":\"hello\",\"max_tokens\":1,\"temperature\":0}";

struct rate {
    double per_s, tokens_per_write;
};

// Answers per second of clients that ask again at once.
static struct rate measure_tiny(struct run *run, uint16_t port, double seconds) {
    run_open(run, port, TINY_CLIENTS, tiny_body);
    run->tokens_wanted = 1;
    uint64_t begin_us = clock_monotonic_us();
    for (uint32_t i = 0; i < run->client_count; i++) {
        send_request(run, &run->clients[i], begin_us);
    }
    uint64_t span_us = (uint64_t)(seconds * 1e6);
    while (clock_monotonic_us() - begin_us < span_us) {
        run_turn(run, 1000 * 1000, ask_again);
    }
    double rate = (double)run->done * 1e6 / (double)(clock_monotonic_us() - begin_us);
    run_close(run);
    return (struct rate){.per_s = rate, .tokens_per_write = 1};
}

// Tokens per second of STREAMS streams that begin together, until the last one has ended.
static struct rate measure_streams(struct run *run, uint16_t port, double seconds) {
    char body[256];
    uint64_t tokens = (uint64_t)(seconds * STREAM_TOKENS_PER_S);
    snprintf(body, sizeof body,
             "{\"prompt\":\"hello\",\"max_tokens\":%llu,\"temperature\":0,\"ignore_eos\":true,"
             "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
             (unsigned long long)tokens);
    run_open(run, port, STREAMS, body);
    run->tokens_wanted = tokens;
    uint64_t begin_us = clock_monotonic_us();
    for (uint32_t i = 0; i < run->client_count; i++) {
        send_request(run, &run->clients[i], begin_us);
    }
    while (run->done < run->client_count) {
        run_turn(run, 1000 * 1000, rest);
    }
    double token_count = (double)(tokens * STREAMS);
    double seconds_taken = (double)(clock_monotonic_us() - begin_us) * 1e-6;
    run_close(run);
    return (struct rate){token_count / seconds_taken, token_count / (double)run->chunks};
}

// ---- time to the first byte --------------------------------------------------------------------

static uint32_t sample_count;

static void take_sample(struct run *run, struct client *client, uint64_t now_us) {
    (void)run;
    (void)now_us;
    if (sample_count < SAMPLES_MAX) {
        samples_us[sample_count++] = (float)(client->first_us - client->sent_us);
    }
}

static int by_value(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

struct times {
    double p50_us, p99_us;
};

// Requests are due at even times whether or not earlier ones were answered, and wait from then on.
static struct times measure_latency(struct run *run, uint16_t port, double seconds) {
    run_open(run, port, LATENCY_CLIENTS, tiny_body);
    run->tokens_wanted = 1;
    sample_count = 0;
    uint32_t request_count = (uint32_t)(seconds * LATENCY_RATE), sent = 0;
    uint64_t begin_us = clock_monotonic_us();
    while (run->done < request_count) {
        uint64_t now_us = clock_monotonic_us();
        uint64_t due_us = begin_us + (uint64_t)sent * (1000000 / LATENCY_RATE);
        for (uint32_t i = 0; i < LATENCY_CLIENTS && sent < request_count && now_us >= due_us; i++) {
            if (!run->clients[i].busy) {
                send_request(run, &run->clients[i], due_us);
                due_us = begin_us + (uint64_t)++sent * (1000000 / LATENCY_RATE);
            }
        }
        now_us = clock_monotonic_us();
        run_turn(run, sent < request_count && due_us > now_us ? (due_us - now_us) * 1000 : 1000000,
                 take_sample);
    }
    run_close(run);
    qsort(samples_us, sample_count, sizeof samples_us[0], by_value);
    return (struct times){(double)samples_us[sample_count / 2],
                          (double)samples_us[sample_count * 99ull / 100]};
}

// Mean time of a step that computes a whole tiny request, as the server reports it.
struct steps {
    double seconds, count;
};

static double metric(const char *text, const char *name, const char *label) {
    const char *at = text;
    size_t name_bytes = strlen(name);
    while ((at = strstr(at, name)) != NULL) {
        const char *end = strchr(at, '\n');
        const char *kind = strstr(at, label);
        if (at[name_bytes] == '{' && (at == text || at[-1] == '\n') && end != NULL &&
            kind != NULL && kind < end) {
            return strtod(strstr(kind, "} ") + 2, NULL);
        }
        at += name_bytes;
    }
    give_up("the server has no metric %s", name);
}

static struct steps read_steps(uint16_t port) {
    static const char request[] =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    int fd = dial(port);
    char *text = memory_alloc(BODY_BYTES_MAX);
    size_t used = 0;
    ssize_t got;
    if (text == NULL || send(fd, request, sizeof request - 1, 0) != (ssize_t)sizeof request - 1) {
        give_up("the metrics cannot be asked for");
    }
    while (used < BODY_BYTES_MAX - 1 &&
           (got = recv(fd, text + used, BODY_BYTES_MAX - 1 - used, 0)) > 0) {
        used += (size_t)got;
    }
    text[used] = '\0';
    close(fd);
    struct steps steps = {metric(text, "tare_step_seconds_sum", "kind=\"prefill\""),
                          metric(text, "tare_step_seconds_count", "kind=\"prefill\"")};
    memory_free(text);
    return steps;
}

// ---- figures -----------------------------------------------------------------------------------

static int by_double(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof values[0], by_double);
    return values[count / 2];
}

typedef struct rate (*measure_fn)(struct run *run, uint16_t port, double seconds);

struct plan {
    uint16_t port, limit_port;
    double seconds;
    uint32_t rounds;
};

static void print_rate(struct run *run, const struct plan *plan, const char *figure,
                       measure_fn measure, int target) {
    double ours[ROUNDS_MAX], limits[ROUNDS_MAX], per_write[ROUNDS_MAX];
    for (uint32_t i = 0; i < plan->rounds; i++) {
        struct rate rate = measure(run, plan->port, plan->seconds);
        ours[i] = rate.per_s;
        per_write[i] = rate.tokens_per_write;
        limits[i] = measure(run, plan->limit_port, plan->seconds).per_s;
    }
    double rate = median(ours, plan->rounds), limit = median(limits, plan->rounds);
    printf("{\"bench\":\"http\",\"figure\":\"%s\",\"rate\":%.0f,\"target\":%d,\"libuv_alone\":%.0f,"
           "\"ratio\":%.2f,\"tokens_per_write\":%.2f}\n",
           figure, rate, target, limit, rate / limit, median(per_write, plan->rounds));
    fflush(stdout);
}

static void print_latency(struct run *run, const struct plan *plan) {
    double p50[ROUNDS_MAX], p99[ROUNDS_MAX], limit_p50[ROUNDS_MAX], limit_p99[ROUNDS_MAX];
    struct steps before = read_steps(plan->port);
    for (uint32_t i = 0; i < plan->rounds; i++) {
        struct times times = measure_latency(run, plan->port, plan->seconds);
        p50[i] = times.p50_us;
        p99[i] = times.p99_us;
        times = measure_latency(run, plan->limit_port, plan->seconds);
        limit_p50[i] = times.p50_us;
        limit_p99[i] = times.p99_us;
    }
    struct steps after = read_steps(plan->port);
    double step_us = (after.seconds - before.seconds) / (after.count - before.count) * 1e6;
    printf("{\"bench\":\"http\",\"figure\":\"added_to_first_byte\",\"requests_per_s\":%d,"
           "\"step_us_mean\":%.1f,\"added_us_p50\":%.0f,\"added_us_p99\":%.0f,"
           "\"libuv_alone_us_p50\":%.0f,\"libuv_alone_us_p99\":%.0f}\n",
           LATENCY_RATE, step_us, median(p50, plan->rounds) - step_us,
           median(p99, plan->rounds) - step_us, median(limit_p50, plan->rounds),
           median(limit_p99, plan->rounds));
}

int main(int argc, char **argv) {
    static struct run run;
    if (argc < 3) {
        give_up("usage: bench_http PORT LIMIT_PORT [SECONDS=2] [ROUNDS=3] [PART]");
    }
    struct plan plan = {.port = (uint16_t)strtoul(argv[1], NULL, 10),
                        .limit_port = (uint16_t)strtoul(argv[2], NULL, 10),
                        .seconds = argc > 3 ? strtod(argv[3], NULL) : 2,
                        .rounds = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 3};
    if (plan.rounds < 1 || plan.rounds > ROUNDS_MAX || !(plan.seconds > 0)) {
        give_up("SECONDS must be positive, ROUNDS 1 to %d", ROUNDS_MAX);
    }
    prctl(PR_SET_TIMERSLACK, 1000);        // ns; waits for the next due request are short
    measure_tiny(&run, plan.port, 0.3);    // connections, pools and branch predictors warm up
    const char *part = argc > 5 ? argv[5] : "all";
    bool all = strcmp(part, "all") == 0;
    if (all || strcmp(part, "tiny") == 0) {
        print_rate(&run, &plan, "tiny_requests_per_s", measure_tiny, TINY_TARGET);
    }
    if (all || strcmp(part, "streams") == 0) {
        print_rate(&run, &plan, "streamed_tokens_per_s", measure_streams, STREAM_TARGET);
    }
    if (all || strcmp(part, "latency") == 0) {
        print_latency(&run, &plan);
    }
    return 0;
}
