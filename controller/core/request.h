// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_REQUEST_H
#define CONTROLLER_CORE_REQUEST_H

#include "controller/core/core.h"
#include "controller/core/safety_tree.h"
#include <stddef.h>
#include <stdint.h>

// The request table: every request from arrival to its terminal action.
//
//        arrive             admit             last chunk sent
//   (none) ----> WAITING ----------> PREFILLING ------------> DECODING
//                  ^  |                  |                       |
//                  |  '--- cancel -----. |   .------- stop token, length, cancel, stop string
//                  |                   v v   v
//                  '--- KV lost       (none)            PAUSED is DECODING with `paused` set
//
//   from        to          by
//   (none)      WAITING     request_table_add
//   WAITING     PREFILLING  scheduler, when a slot is free and the state stays safe
//   PREFILLING  DECODING    scheduler, when the last chunk is planned: the worker goes on by itself
//   running     WAITING     core, when the group is lost with its KV: token log kept, blocks gone
//   DECODING    PREFILLING  scheduler_resume, when the group is back with its KV: the last token of
//                           the log is computed anew
//   any         (none)      request_table_remove, with exactly one terminal action
//
//   Owns       its entries and the id index; a request's tokens belong to the shell.
//   Thread     the loop thread.
//   Allocates  in create only.
//   Fails      add: EXHAUSTED when full.

#define REQUEST_NONE UINT32_MAX    // an index of no request

enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_PREFILLING, REQUEST_DECODING };

// What every step looks at comes first, so that it is one line of the processor's cache.
struct request {
    _Alignas(64) uint8_t state;    // enum request_state
    bool paused;
    bool suspect;             // had work in a plan that was refused, and in none that passed since
    bool guaranteed;          // never evicted; best-effort ones become it once evicted too often
    bool want_logprobs;       // of spec.sampling
    uint8_t stop_count;       // of spec.sampling
    uint8_t resumes;          // losses of its group at work on it at `lost_at`, in a row
    uint8_t class_;           // of spec
    uint32_t block_count;     // while running
    uint32_t known;           // tokens in the log: prompt and outputs
    uint32_t computed;        // positions whose KV a completed step has written
    uint32_t planned;         // positions that are computed once all outstanding plans are done
    uint32_t len_max;         // prompt + output_max, at most the group's sequence limit
    uint32_t publish_at;      // positions computed at which a block can be found by others
    int32_t stop_first;       // the first stop token
    uint32_t prompt_count;    // of spec
    uint32_t answered_seq;    // low bits of the plan whose result brought its last token
    // While it decodes and `planned` is below, its next row needs no block, and the worker knows
    // all there is; 0 where that is not certain.
    uint32_t steady_end;
    int32_t *tokens;         // of spec
    struct request_id id;    // of spec

    uint32_t slot;           // while running
    uint32_t group;          // index of the group that serves it
    uint32_t prefill_end;    // tokens of the log at admission: chunks end there
    uint64_t chunk_step;     // of the step that planned its last chunk
    struct core_request spec;
    uint64_t order;    // of arrival, unique
    uint64_t arrived_us;
    bool announced;          // ADMITTED was told
    uint64_t admitted_us;    // for the first time
    uint64_t deadline_us;    // for the first token; UINT64_MAX: none
    uint64_t held_us;        // since when it cannot be admitted for want of memory; 0: it can
    uint32_t evictions;
    uint32_t backlog;       // prompt tokens that count as work ahead of others, while it waits
    uint32_t expected;      // blocks at its end, as the statistical guard guesses
    uint32_t lost_at;       // computed at the last loss of its group
    uint32_t exclusive;     // blocks held by nobody else: they return when it ends
    uint32_t cached;        // positions that were found, at this admission
    uint32_t keys_known;    // keys of its blocks that are made
    uint32_t published;     // blocks that can be found by others
    struct safety_claim claim;    // as registered in the safety tree, while running
    uint32_t next;                // in the free list
};
_Static_assert(offsetof(struct request, slot) <= 64, "the hot part fits a cache line");

struct request_table;

enum status request_table_create(uint32_t request_max, struct request_table **out,
                                 struct error *err) MUST_USE;
void request_table_destroy(struct request_table *table);

// A new WAITING request; its index, or REQUEST_NONE when the table is full.
uint32_t request_table_add(struct request_table *table, const struct core_request *spec);
// As if it had arrived now.
void request_go_behind(struct request_table *table, uint32_t index);
void request_table_remove(struct request_table *table, uint32_t index);
struct request *request_at(struct request_table *table, uint32_t index);
// All entries, by index: for passes over many, whose indices are known to be live.
struct request *request_table_entries(struct request_table *table);
bool request_is_live(const struct request_table *table, uint32_t index);
uint32_t request_find(const struct request_table *table, struct request_id id);

uint32_t request_table_count(const struct request_table *table);
uint32_t request_table_max(const struct request_table *table);    // indices are below
void request_table_audit(const struct request_table *table);

#endif
