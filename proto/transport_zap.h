// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_TRANSPORT_ZAP_H
#define PROTO_TRANSPORT_ZAP_H

#include "common/status.h"
#include "proto/link_keys.h"
#include "proto/transport.h"
#include <stdint.h>

// Judges who may connect to a listener with keys (ZeroMQ RFC 27). For transport_zmq.c only.
//
// The idea: CURVE proves that a peer holds the key it names; without a judge any key would do. Each
// new connection is asked about here, on a thread of its own, and let in under the name that the
// allow-list has for its key. Which place in which group that name may take is judged with HELLO.
//
//   Owns       its thread and socket; keeps the list.
//   Thread     start, stop and read on the transport's.
//   Allocates  while starting.
//   Fails      start: EXHAUSTED, IO.

#define ZAP_DOMAIN "tare"

struct zap;

// Before any address with keys is bound. `context` is the library's.
enum status zap_start(void *context, const struct link_allow *allow, struct zap **out,
                      struct error *err) MUST_USE;
// After the context was shut down, which ends the thread. Accepts NULL.
void zap_stop(struct zap *zap);
// Keys refused so far, and the address of the last one.
uint64_t zap_strangers(struct zap *zap, char last[TRANSPORT_PEER_BYTES]);

#endif
