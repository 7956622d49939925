// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_NET_FRAME_QUEUE_H
#define WORKER_NET_FRAME_QUEUE_H

#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A bounded queue of byte frames between the I/O thread and the step thread.
//
// The idea: two threads share nothing but plain bytes. Whoever takes sleeps on a descriptor; the
// queue's lock guards the ring and never a decision.
//
//   Owns       its slots, each of frame_bytes_max, and an event descriptor.
//   Thread     one that puts, one that takes.
//   Allocates  in create only.
//   Fails      put: BUSY when full, SHUTDOWN when closed, INVALID when the frame is too long.

struct frame_queue;

enum status frame_queue_create(uint32_t frame_count, size_t frame_bytes_max,
                               struct frame_queue **out, struct error *err) MUST_USE;
void frame_queue_destroy(struct frame_queue *queue);

int frame_queue_fd(const struct frame_queue *queue);    // readable while frames wait, or closed
// `kind` travels beside the bytes and is the caller's.
enum status frame_queue_put(struct frame_queue *queue, uint32_t kind, const void *bytes,
                            size_t byte_count) MUST_USE;
// BUSY when empty, SHUTDOWN when empty and closed. `out` has room for frame_bytes_max.
enum status frame_queue_take(struct frame_queue *queue, uint32_t *kind, void *out,
                             size_t *byte_count) MUST_USE;
// Waits for a frame. SHUTDOWN once closed and empty.
enum status frame_queue_wait(struct frame_queue *queue, uint32_t *kind, void *out,
                             size_t *byte_count) MUST_USE;
void frame_queue_close(struct frame_queue *queue);    // wakes the taker

#endif
