// SPDX-License-Identifier: Apache-2.0
#include "worker/net/frame_queue.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct frame {
    uint32_t kind;
    size_t byte_count;
};

struct frame_queue {
    pthread_mutex_t lock;
    int event;
    bool closed;
    uint32_t frame_count;    // capacity
    size_t frame_bytes_max;
    uint32_t first, used;
    struct frame *frames;
    uint8_t *bytes;    // [frame_count, frame_bytes_max]
};

enum status frame_queue_create(uint32_t frame_count, size_t frame_bytes_max,
                               struct frame_queue **out, struct error *err) {
    INVARIANT(frame_count > 0);
    struct frame_queue *queue = memory_zalloc(sizeof *queue);
    if (queue == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a frame queue");
    }
    queue->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    queue->frame_count = frame_count;
    queue->frame_bytes_max = frame_bytes_max;
    queue->frames = memory_array(frame_count, sizeof *queue->frames);
    queue->bytes = memory_array(frame_count, frame_bytes_max);
    pthread_mutex_init(&queue->lock, NULL);
    if (queue->event < 0 || queue->frames == NULL || queue->bytes == NULL) {
        frame_queue_destroy(queue);
        return error_set(err, STATUS_EXHAUSTED, "no memory for a queue of %u frames", frame_count);
    }
    *out = queue;
    return STATUS_OK;
}

void frame_queue_destroy(struct frame_queue *queue) {
    if (queue == NULL) {
        return;
    }
    if (queue->event >= 0) {
        close(queue->event);
    }
    pthread_mutex_destroy(&queue->lock);
    memory_free(queue->frames);
    memory_free(queue->bytes);
    memory_free(queue);
}

int frame_queue_fd(const struct frame_queue *queue) {
    return queue->event;
}

static void ring_bell(const struct frame_queue *queue) {
    uint64_t one = 1;
    ssize_t written = write(queue->event, &one, sizeof one);
    // The counter cannot overflow: it is drained whenever the queue is found empty.
    INVARIANT(written == (ssize_t)sizeof one || errno == EAGAIN);
}

enum status frame_queue_put(struct frame_queue *queue, uint32_t kind, const void *bytes,
                            size_t byte_count) {
    if (byte_count > queue->frame_bytes_max) {
        return STATUS_INVALID;
    }
    pthread_mutex_lock(&queue->lock);
    enum status status = queue->closed                       ? STATUS_SHUTDOWN
                         : queue->used == queue->frame_count ? STATUS_BUSY
                                                             : STATUS_OK;
    if (status == STATUS_OK) {
        uint32_t at = (queue->first + queue->used) % queue->frame_count;
        queue->frames[at] = (struct frame){kind, byte_count};
        memcpy(queue->bytes + at * queue->frame_bytes_max, bytes, byte_count);
        queue->used++;
    }
    pthread_mutex_unlock(&queue->lock);
    if (status == STATUS_OK) {
        ring_bell(queue);
    }
    return status;
}

enum status frame_queue_take(struct frame_queue *queue, uint32_t *kind, void *out,
                             size_t *byte_count) {
    pthread_mutex_lock(&queue->lock);
    enum status status = queue->closed ? STATUS_SHUTDOWN : STATUS_BUSY;
    if (queue->used > 0) {
        uint32_t at = queue->first;
        *kind = queue->frames[at].kind;
        *byte_count = queue->frames[at].byte_count;
        memcpy(out, queue->bytes + at * queue->frame_bytes_max, *byte_count);
        queue->first = (at + 1) % queue->frame_count;
        queue->used--;
        status = STATUS_OK;
    }
    if (queue->used == 0 && !queue->closed) {
        uint64_t drained = 0;
        ssize_t got = read(queue->event, &drained, sizeof drained);
        (void)got;    // EAGAIN when it was already drained
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

enum status frame_queue_wait(struct frame_queue *queue, uint32_t *kind, void *out,
                             size_t *byte_count) {
    for (;;) {
        enum status status = frame_queue_take(queue, kind, out, byte_count);
        if (status != STATUS_BUSY) {
            return status;
        }
        struct pollfd wait = {.fd = queue->event, .events = POLLIN};
        poll(&wait, 1, -1);
    }
}

void frame_queue_close(struct frame_queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_mutex_unlock(&queue->lock);
    ring_bell(queue);
}
