// SPDX-License-Identifier: Apache-2.0
// Load generator for OpenAI-shaped servers: streams completions of random token ids, greedy,
// ignoring the end token, and prints one JSON line with what the clients saw.
//
//   bench_load HOST PORT [clients=1] [requests=1] [prompt=128] [output=128] [seed=1] [model=NAME]
//
// Prompts are lists of ids, so that the server's tokenizer plays no part and no prefix repeats.
// Each client has one connection and one request at a time. Times: to the first token of a stream,
// between tokens, and of the whole run.
#include "common/clock.h"
#include "common/memory.h"
#include "common/rng.h"
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLIENTS_MAX = 1024, BODY_BYTES = 256 * 1024, READ_BYTES = 64 * 1024, SAMPLES_MAX = 1 << 20 };

struct settings {
    const char *host, *port, *model;
    uint32_t clients, requests, prompt, output;
    uint32_t vocabulary;    // prompts are of ids below
    uint64_t seed;
};

struct shared {
    const struct settings *settings;
    atomic_uint next;
    pthread_mutex_t lock;
    float *gaps_ms;      // between tokens
    float *firsts_ms;    // to the first token
    uint32_t gap_count, first_count;
    uint64_t tokens;
    uint32_t failed;
    uint64_t decode_us;    // sum over streams of first to last token
    uint64_t decode_tokens;
};

static int dial(const struct settings *s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(s->host, s->port, &hints, &found) != 0) {
        return -1;
    }
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    int one = 1;
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    freeaddrinfo(found);
    return fd;
}

static size_t write_request(const struct settings *s, uint32_t number, char *out) {
    static const char body_head[] = "{\"model\":\"%s\",\"max_tokens\":%u,\"temperature\":0,"
                                    "\"ignore_eos\":true,\"stream\":true,\"cache_prompt\":false,"
                                    "\"prompt\":[";
    char *body = memory_alloc(BODY_BYTES);
    struct rng rng;
    rng_init(&rng, s->seed * 1000003 + number);
    size_t used = (size_t)snprintf(body, BODY_BYTES, body_head, s->model, s->output);
    for (uint32_t i = 0; i < s->prompt; i++) {
        used += (size_t)snprintf(body + used, BODY_BYTES - used, "%s%llu", i > 0 ? "," : "",
                                 (unsigned long long)(100 + rng_below(&rng, s->vocabulary - 100)));
    }
    used += (size_t)snprintf(body + used, BODY_BYTES - used, "]}");
    size_t head = (size_t)snprintf(out, BODY_BYTES,
                                   "POST /v1/completions HTTP/1.1\r\nHost: %s:%s\r\n"
                                   "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                                   "Connection: close\r\n\r\n",
                                   s->host, s->port, used);
    memcpy(out + head, body, used);
    memory_free(body);
    return head + used;
}

static bool send_all(int fd, const char *bytes, size_t count) {
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        bytes += sent;
        count -= (size_t)sent;
    }
    return true;
}

struct stream {
    uint64_t start_us, first_us, last_us;
    uint32_t events;    // with a token
    float gaps_ms[8192];
    char line[READ_BYTES];
    size_t line_bytes;
    bool done;
};

// One line of the answer. A token is an event whose finish text or piece is there; usage-only and
// [DONE] lines are none.
static void take_line(struct stream *stream, const char *line) {
    if (strncmp(line, "data: ", 6) != 0) {
        return;
    }
    if (strncmp(line + 6, "[DONE]", 6) == 0) {
        stream->done = true;
        return;
    }
    if (strstr(line, "\"choices\":[{") == NULL) {
        return;
    }
    uint64_t now_us = clock_monotonic_us();
    if (stream->events == 0) {
        stream->first_us = now_us;
    } else if (stream->events < 8192) {
        stream->gaps_ms[stream->events - 1] = (float)(now_us - stream->last_us) / 1000.0f;
    }
    stream->last_us = now_us;
    stream->events++;
}

static void take_bytes(struct stream *stream, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\n') {
            stream->line[stream->line_bytes] = '\0';
            take_line(stream, stream->line);
            stream->line_bytes = 0;
        } else if (stream->line_bytes + 1 < sizeof stream->line) {
            stream->line[stream->line_bytes++] = bytes[i];
        }
    }
}

static bool run_request(const struct settings *s, uint32_t number, struct stream *stream,
                        char *request) {
    size_t bytes = write_request(s, number, request);
    memset(stream, 0, sizeof *stream);
    int fd = dial(s);
    if (fd < 0) {
        return false;
    }
    stream->start_us = clock_monotonic_us();
    bool good = send_all(fd, request, bytes);
    char *buffer = memory_alloc(READ_BYTES);
    while (good && !stream->done) {
        ssize_t got = recv(fd, buffer, READ_BYTES, 0);
        if (got <= 0) {
            break;
        }
        take_bytes(stream, buffer, (size_t)got);
    }
    memory_free(buffer);
    close(fd);
    return stream->done && stream->events > 0;
}

static void record(struct shared *shared, const struct stream *stream) {
    pthread_mutex_lock(&shared->lock);
    // Servers may send the finish reason as an event of its own: tokens are what was asked for.
    uint32_t tokens = shared->settings->output;
    shared->tokens += tokens;
    shared->firsts_ms[shared->first_count++] =
        (float)(stream->first_us - stream->start_us) / 1000.0f;
    for (uint32_t i = 0; i + 1 < stream->events && i < 8192; i++) {
        if (shared->gap_count < SAMPLES_MAX) {
            shared->gaps_ms[shared->gap_count++] = stream->gaps_ms[i];
        }
    }
    shared->decode_us += stream->last_us - stream->first_us;
    shared->decode_tokens += tokens - 1;
    pthread_mutex_unlock(&shared->lock);
}

static void *client_thread(void *arg) {
    struct shared *shared = arg;
    struct stream *stream = memory_alloc(sizeof *stream);
    char *request = memory_alloc(2 * BODY_BYTES);
    for (;;) {
        uint32_t number = atomic_fetch_add(&shared->next, 1);
        if (number >= shared->settings->requests) {
            break;
        }
        if (run_request(shared->settings, number, stream, request)) {
            record(shared, stream);
        } else {
            pthread_mutex_lock(&shared->lock);
            shared->failed++;
            pthread_mutex_unlock(&shared->lock);
        }
    }
    memory_free(stream);
    memory_free(request);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double quantile(const float *sorted, uint32_t count, double q) {
    return count == 0 ? 0.0 : (double)sorted[(uint32_t)(q * (count - 1))];
}

static void parse_word(const char *word, struct settings *s) {
    const char *equals = strchr(word, '=');
    uint32_t number = equals == NULL ? 0 : (uint32_t)strtoul(equals + 1, NULL, 10);
    if (equals == NULL) {
        fprintf(stderr, "bench_load: '%s' is not name=value\n", word);
        exit(64);
    } else if (strncmp(word, "clients=", 8) == 0) {
        s->clients = number < CLIENTS_MAX ? number : CLIENTS_MAX;
    } else if (strncmp(word, "requests=", 9) == 0) {
        s->requests = number;
    } else if (strncmp(word, "prompt=", 7) == 0) {
        s->prompt = number;
    } else if (strncmp(word, "output=", 7) == 0) {
        s->output = number;
    } else if (strncmp(word, "vocabulary=", 11) == 0 && number > 100) {
        s->vocabulary = number;
    } else if (strncmp(word, "seed=", 5) == 0) {
        s->seed = number;
    } else if (strncmp(word, "model=", 6) == 0) {
        s->model = equals + 1;
    } else {
        fprintf(stderr, "bench_load: unknown setting '%s'\n", word);
        exit(64);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: bench_load HOST PORT [clients=] [requests=] [prompt=] [output=] "
                        "[seed=] [model=] [vocabulary=]\n");
        return 64;
    }
    struct settings s = {argv[1], argv[2], "", 1, 1, 128, 128, 40100, 1};
    for (int i = 3; i < argc; i++) {
        parse_word(argv[i], &s);
    }
    struct shared shared = {.settings = &s};
    pthread_mutex_init(&shared.lock, NULL);
    shared.gaps_ms = memory_array(SAMPLES_MAX, sizeof(float));
    shared.firsts_ms = memory_array(s.requests + 1, sizeof(float));
    pthread_t threads[CLIENTS_MAX];
    uint64_t start_us = clock_monotonic_us();
    for (uint32_t i = 0; i < s.clients; i++) {
        pthread_create(&threads[i], NULL, client_thread, &shared);
    }
    for (uint32_t i = 0; i < s.clients; i++) {
        pthread_join(threads[i], NULL);
    }
    double seconds = (double)(clock_monotonic_us() - start_us) / 1e6;
    qsort(shared.gaps_ms, shared.gap_count, sizeof(float), by_value);
    qsort(shared.firsts_ms, shared.first_count, sizeof(float), by_value);
    double decode =
        shared.decode_us == 0 ? 0.0 : (double)shared.decode_tokens * 1e6 / (double)shared.decode_us;
    double first_ms = quantile(shared.firsts_ms, shared.first_count, 0.5);
    printf("{\"clients\":%u,\"requests\":%u,\"prompt\":%u,\"output\":%u,\"failed\":%u,"
           "\"seconds\":%.3f,\"output_tok_s\":%.2f,\"stream_tok_s\":%.2f,\"ttft_ms_p50\":%.2f,"
           "\"ttft_ms_p99\":%.2f,\"prefill_tok_s\":%.1f,\"gap_ms_p50\":%.3f,\"gap_ms_p99\":%.3f}\n",
           s.clients, s.requests, s.prompt, s.output, shared.failed, seconds,
           (double)shared.tokens / seconds, decode, first_ms,
           quantile(shared.firsts_ms, shared.first_count, 0.99),
           first_ms > 0.0 ? 1000.0 * s.prompt / first_ms : 0.0,
           quantile(shared.gaps_ms, shared.gap_count, 0.5),
           quantile(shared.gaps_ms, shared.gap_count, 0.99));
    return shared.failed == 0 ? 0 : 1;
}
