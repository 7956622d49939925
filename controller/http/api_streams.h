// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_STREAMS_H
#define CONTROLLER_HTTP_API_STREAMS_H

#include "controller/http/api_internal.h"

// Responses that an earlier controller left unfinished: read from its journal, continued without a
// client, and given to the one that asks for them by id.
//
// The idea: a response is a call whose exchange is nobody's: memory that looks like a connection
// that never sends. Its request is read again and its steps are replayed, which writes the events
// that its client had, byte for byte; then the rest of it is computed and written behind them. The
// client that asks gets what lies there after the events it has, and from then on the call has that
// client's exchange and is a call like any other. Events are counted from 1, `data: [DONE]` too.
//
//   waiting ──a worker is there──► held ──asked for──► an ordinary call, or its answer's end
//      │                            │ too much without a client, cannot be read ──► failed (410)
//      └────────── nobody asked in time ──────────► dropped
//
//   A client may ask while it waits: it is answered as soon as the state is another one.
//
//   Owns       the streams (api.h adds them); the calls are the API's.
//   Thread     the loop thread.
//   Allocates  per stream; what is held grows up to API_STREAM_BYTES_MAX.
//   Fails      a stream's failure is its client's answer.

enum { API_STREAM_BYTES_MAX = 16 * 1024 * 1024 };

// Is this id in use? Its parts in order.
bool api_streams_have(const struct api *api, const char *prefix, const char *request_id);
// The client of an exchange without a call has left; false when it did not ask for a stream.
bool api_streams_gone(struct api *api, const struct http_exchange *exchange,
                      enum http_gone_reason reason, uint64_t now_us);
void api_streams_destroy(struct api *api);    // after the calls

#endif
