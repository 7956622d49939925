// SPDX-License-Identifier: Apache-2.0
#ifndef WORKER_PLAN_REPORT_H
#define WORKER_PLAN_REPORT_H

#include "common/buf.h"
#include "worker/engine.h"

// The answer to `tare plan`: what a start would weigh, before it is tried.
//
// The idea: the engine plans with the options as they are, for each rank of the group, and again
// with one option changed at a time, so that every row is what a start with that option would
// report. Nothing here computes a size. A group has the KV of its poorest rank.
//
//   Owns       nothing.
//   Thread     one at a time.
//   Allocates  while planning.
//   Fails      as engine_plan. EXHAUSTED, after the report, when the model does not fit; any other
//              failure leaves `out` empty.

enum plan_format { PLAN_FORMAT_TEXT, PLAN_FORMAT_JSON };

// JSON is one object with base units.
enum status plan_report(const struct engine_options *options, enum plan_format format,
                        struct buf *out, struct error *err) MUST_USE;

#endif
