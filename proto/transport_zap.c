// SPDX-License-Identifier: Apache-2.0
#include "proto/transport_zap.h"

#include "common/memory.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

enum { FRAMES = 7, FRAME_BYTES = 256, CURVE_KEY_BYTES = 32 };

// Of a request: version, request id, domain, address, identity, mechanism, credentials.
enum {
    FRAME_VERSION,
    FRAME_REQUEST,
    FRAME_DOMAIN,
    FRAME_ADDRESS,
    FRAME_IDENTITY,
    FRAME_MECHANISM,
    FRAME_CREDENTIALS
};

struct frame {
    char bytes[FRAME_BYTES + 1];
    int byte_count;
};

struct zap {
    void *socket;
    const struct link_allow *allow;
    pthread_t thread;
    pthread_mutex_t mutex;    // of what follows
    uint64_t strangers;
    char stranger[TRANSPORT_PEER_BYTES];
};

// False when the context is shut down. A frame that is too long, or missing, reads as empty.
static bool receive_request(void *socket, struct frame frames[FRAMES]) {
    int more = 1;
    for (int i = 0; more != 0; i++) {
        struct frame spare;
        struct frame *frame = i < FRAMES ? &frames[i] : &spare;
        int byte_count;
        do {
            byte_count = zmq_recv(socket, frame->bytes, FRAME_BYTES, 0);
        } while (byte_count < 0 && errno == EINTR);
        if (byte_count < 0) {
            return false;
        }
        frame->byte_count = byte_count > FRAME_BYTES ? 0 : byte_count;
        frame->bytes[frame->byte_count] = '\0';
        size_t size = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) {
            return false;
        }
    }
    return true;
}

static const struct link_entry *judge(const struct zap *zap, const struct frame frames[FRAMES]) {
    char key[LINK_KEY_CHARS + 1];
    if (strcmp(frames[FRAME_VERSION].bytes, "1.0") != 0 ||
        strcmp(frames[FRAME_DOMAIN].bytes, ZAP_DOMAIN) != 0 ||
        strcmp(frames[FRAME_MECHANISM].bytes, "CURVE") != 0 ||
        frames[FRAME_CREDENTIALS].byte_count != CURVE_KEY_BYTES ||
        zmq_z85_encode(key, (const uint8_t *)frames[FRAME_CREDENTIALS].bytes, CURVE_KEY_BYTES) ==
            NULL) {
        return NULL;
    }
    return link_allow_find(zap->allow, key);
}

// Losing an answer makes its peer try again: it only fails while the context is shut down.
static void answer(struct zap *zap, const struct frame *request, const struct link_entry *entry) {
    const char *name = entry != NULL ? entry->name : "";
    const struct {
        const char *bytes;
        size_t byte_count;
    } parts[] = {
        {"1.0", 3},
        {request->bytes, (size_t)request->byte_count},
        {entry != NULL ? "200" : "400", 3},
        {entry != NULL ? "OK" : "key is not on the list", entry != NULL ? 2 : 22},
        {name, strlen(name)},
        {"", 0},
    };
    size_t count = sizeof parts / sizeof parts[0];
    for (size_t i = 0; i < count; i++) {
        int flags = i + 1 < count ? ZMQ_SNDMORE : 0;
        if (zmq_send(zap->socket, parts[i].bytes, parts[i].byte_count, flags) < 0) {
            return;
        }
    }
}

static void *run(void *arg) {
    struct zap *zap = arg;
    struct frame frames[FRAMES];
    memset(frames, 0, sizeof frames);
    while (receive_request(zap->socket, frames)) {
        const struct link_entry *entry = judge(zap, frames);
        if (entry == NULL) {
            pthread_mutex_lock(&zap->mutex);
            zap->strangers++;
            snprintf(zap->stranger, sizeof zap->stranger, "%.60s", frames[FRAME_ADDRESS].bytes);
            pthread_mutex_unlock(&zap->mutex);
        }
        answer(zap, &frames[FRAME_REQUEST], entry);
        memset(frames, 0, sizeof frames);
    }
    zmq_close(zap->socket);
    return NULL;
}

enum status zap_start(void *context, const struct link_allow *allow, struct zap **out,
                      struct error *err) {
    struct zap *zap = memory_zalloc(sizeof *zap);
    if (zap == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the judge of keys");
    }
    zap->allow = allow;
    pthread_mutex_init(&zap->mutex, NULL);
    zap->socket = zmq_socket(context, ZMQ_REP);
    int linger = 0;
    enum status status = STATUS_OK;
    if (zap->socket == NULL ||
        zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(zap->socket, "inproc://zeromq.zap.01") != 0) {
        status = error_set(err, STATUS_IO, "the judge of keys: %s", zmq_strerror(errno));
    }
    if (status == STATUS_OK) {
        // Signals are the other threads' business.
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &old);
        if (pthread_create(&zap->thread, NULL, run, zap) != 0) {
            status = error_set(err, STATUS_EXHAUSTED, "no thread for the judge of keys");
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (status != STATUS_OK) {
        if (zap->socket != NULL) {
            zmq_close(zap->socket);
        }
        pthread_mutex_destroy(&zap->mutex);
        memory_free(zap);
        return status;
    }
    *out = zap;
    return STATUS_OK;
}

void zap_stop(struct zap *zap) {
    if (zap == NULL) {
        return;
    }
    pthread_join(zap->thread, NULL);
    pthread_mutex_destroy(&zap->mutex);
    memory_free(zap);
}

uint64_t zap_strangers(struct zap *zap, char last[TRANSPORT_PEER_BYTES]) {
    pthread_mutex_lock(&zap->mutex);
    uint64_t count = zap->strangers;
    snprintf(last, TRANSPORT_PEER_BYTES, "%s", zap->stranger);
    pthread_mutex_unlock(&zap->mutex);
    return count;
}
