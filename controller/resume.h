// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_RESUME_H
#define CONTROLLER_RESUME_H

#include "controller/http/api.h"
#include "controller/stats.h"

// Between the API's streams and the journal in the run directory: what a stream needs to go on is
// written there, and what an earlier controller left there goes on.
//
// The idea: a journal is a convenience, and its failures are warnings: without one everything is
// served all the same.
//
//   Owns       the journal.
//   Thread     the loop thread.
//   Allocates  see journal.h.
//   Fails      create: NULL without memory.

struct resume;

// `on` false: --no-journal. Unclaimed responses are kept for `ttl_us` from open.
struct resume *resume_create(bool on, uint64_t ttl_us);
void resume_journal(struct resume *resume, struct api_journal *out);
// Once the run directory is ours. What is unfinished in its journal goes to the API.
void resume_open(struct resume *resume, const char *run_dir, struct api *api);
// Before anything of the turn is sent to a client, and at its end.
void resume_flush(struct resume *resume);
void resume_count(const struct resume *resume, const struct api *api, struct stats_view *out);
// `erase`: we leave in order, and owe nobody anything. Accepts NULL.
void resume_close(struct resume *resume, bool erase);

#endif
