// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_CORE_H
#define CONTROLLER_CORE_CORE_H

#include "common/hash.h"
#include "common/status.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The core: decides everything and does nothing. Inputs and a time in, actions out.
//
// The idea: the shell turns sockets into inputs and actions into sockets; callbacks only enqueue,
// the tick decides. No clock, no socket, no allocation after create, so the same object runs in the
// daemon, under a simulator with invented time, and in a replay of a recorded input log.
//
//   Owns       its tables, sized at create. A request's token array belongs to the caller, who
//              keeps it alive and unmoved from the input until the request's terminal action.
//   Thread     the loop thread.
//   Allocates  in core_create only.
//   Fails      a tick never fails. Bad inputs become REJECTED or are ignored where the thing they
//              name is gone; a refused plan is divided and planned again; a broken result begins
//              a new epoch.

struct core;
struct prefix_key;

struct request_id {
    uint64_t value;    // minted by the shell, never reused, never 0
};

// A group's worker: all of its ranks.
struct worker_id {
    uint32_t value;    // connection index minted by the shell
};

enum request_class {
    REQUEST_CLASS_REALTIME,
    REQUEST_CLASS_STANDARD,
    REQUEST_CLASS_BATCH,
    REQUEST_CLASS_COUNT,
};

const char *core_class_name(enum request_class class_);    // "realtime"
// False when no class has this name.
bool core_class_parse(const char *name, size_t name_bytes, enum request_class *out);

// One sequence to generate. A client request with n choices or several prompts is several of these.
struct core_request {
    struct request_id id;
    enum request_class class_;
    uint32_t tenant;
    int32_t *tokens;            // [token_capacity]; prompt first, outputs are appended by the core
    uint32_t token_capacity;    // >= prompt_count + output_max
    uint32_t prompt_count;      // >= 1
    // Outputs that `tokens` holds behind the prompt already, drawn before this core knew of it.
    uint32_t resumed_count;             // < output_max, or 0
    uint32_t output_max;                // >= 1; 0 only with want_prompt_logprobs (score the prompt)
    struct sampling_params sampling;    // bias array: alive as long as tokens
    // Room for the keys of the sequence's blocks, alive as long as tokens; NULL: it neither finds
    // nor leaves cached KV. Blocks hold at least CORE_KEY_TOKENS tokens.
    struct prefix_key *keys;
    uint32_t key_capacity;
    uint64_t salt;    // requests with another salt share nothing
    float weight;     // of its tenant, when tenants share, <= CORE_WEIGHT_MAX; 0: 1
};
enum { CORE_KEY_TOKENS = 16, CORE_WEIGHT_MAX = 100 };

// ---- inputs ------------------------------------------------------------------------------------

enum core_input_kind {
    CORE_INPUT_REQUEST,         // a request arrived
    CORE_INPUT_CANCEL,          // its client left, or it failed upstairs
    CORE_INPUT_STOP,            // a stop string matched: finish it with "stop"
    CORE_INPUT_WORKER_READY,    // a group's ranks sent their capacity; again after a resize
    CORE_INPUT_WORKER_LOST,     // one of them left, died or broke the protocol
    CORE_INPUT_RESULT,          // a rank finished a step
    CORE_INPUT_DRAIN,           // accept nothing new, finish what runs
    CORE_INPUT_ABORT_ALL,       // end everything now (second signal, drain deadline)
    CORE_INPUT_RESIZE_KV,       // an operator wants another size of the KV pool
};

struct core_input {
    enum core_input_kind kind;
    union {
        const struct core_request *request;    // REQUEST; copied
        struct request_id id;                  // CANCEL, STOP
        struct {
            struct worker_id worker;
            const struct message_capacity *capacity;
            uint64_t epoch;
            uint32_t group;    // index of the group whose worker it is
            uint32_t world;    // ranks, 1 .. ranks_max
            bool kv_kept;      // its KV is what it was when it was lost, on every rank
        } ready;
        struct {
            struct worker_id worker;
            const char *reason;    // static or alive during the tick
        } lost;
        struct {
            struct worker_id worker;
            uint32_t rank;                       // 0 has the rows
            const struct step_result *result;    // alive during the tick
        } result;
        struct {
            uint64_t operation;    // comes back with RESIZED
            uint32_t blocks;       // >= 1
            uint32_t group;        // index
        } resize;
    };
};

// ---- actions -----------------------------------------------------------------------------------

enum core_action_kind {
    CORE_ACTION_SEND_PLAN,
    CORE_ACTION_ADMITTED,     // left the waiting line for the first time
    CORE_ACTION_TOKEN,        // one generated token, or one scored prompt position
    CORE_ACTION_FINISHED,     // terminal
    CORE_ACTION_REJECTED,     // terminal: never started, at arrival or while it waited
    CORE_ACTION_DRAINED,      // nothing is left after DRAIN or ABORT_ALL
    CORE_ACTION_RESYNC,       // the group's epoch is over: give its workers a new one
    CORE_ACTION_RECOVERED,    // a group that was lost is back
    CORE_ACTION_RESIZED,      // a resize of the KV pool has ended, one for each input
};

// Why an epoch of a group was over.
enum epoch_end {
    EPOCH_END_LOST,        // a rank died, left or fell silent
    EPOCH_END_LATE,        // a step got no answer in time
    EPOCH_END_STATE,       // plans or answers were missed, or slots are not the same on both sides
    EPOCH_END_BROKEN,      // an answer that cannot be
    EPOCH_END_DIVERGED,    // ranks answered differently
    EPOCH_END_COUNT,
};

enum resize_outcome {
    RESIZE_OUTCOME_DONE,           // as asked
    RESIZE_OUTCOME_ROUNDED,        // the worker's memory comes in whole chunks: a few blocks more
    RESIZE_OUTCOME_NEEDED,         // accepted requests need what was not given back
    RESIZE_OUTCOME_SHORT,          // the worker has no more memory; `note` says what is missing
    RESIZE_OUTCOME_BUSY,           // another resize is under way
    RESIZE_OUTCOME_UNAVAILABLE,    // no worker is ready
    RESIZE_OUTCOME_LOST,           // its worker was lost on the way; the next one tells its size
};

enum finish_reason {
    FINISH_REASON_STOP,      // a stop token, or CORE_INPUT_STOP
    FINISH_REASON_LENGTH,    // output_max or the model's limit
    FINISH_REASON_CANCELLED,
    FINISH_REASON_FAULT,       // its group was lost
    FINISH_REASON_SHUTDOWN,    // aborted by a drain deadline
    FINISH_REASON_REFUSED,     // its worker refuses every plan with it
    FINISH_REASON_COUNT,
};

// In the order of the tests at arrival (serving.md 1.8).
enum reject_reason {
    REJECT_REASON_TOO_LARGE,       // 400: can never fit
    REJECT_REASON_QUEUE_FULL,      // 429: as many wait as may
    REJECT_REASON_QUEUE_TOKENS,    // 429: as many uncached prompt tokens wait as may
    REJECT_REASON_WOULD_MISS,      // 429: its first token would come too late
    REJECT_REASON_MISSED,          // 429: the same, found out while it waited
    REJECT_REASON_DRAINING,        // 503
    REJECT_REASON_UNAVAILABLE,     // 503: no group is ready, and none will be at once
    REJECT_REASON_COUNT,
};

struct core_action {
    enum core_action_kind kind;
    union {
        struct {
            struct worker_id worker;
            const struct plan *plan;    // encode it at once: chunks point into requests' tokens
        } send;
        struct {
            struct worker_id worker;
            enum epoch_end why;
            uint32_t missing;    // ranks whose answer is late, one bit each; 0: all have answered
            bool doubted;        // its ranks diverged, and not for the first time
        } resync;
        struct {
            struct worker_id worker;
            enum epoch_end why;
            bool kv_kept;
            uint64_t away_us;
        } recovered;
        struct {
            struct request_id id;
            enum request_class class_;
            uint64_t queue_us;         // time in the line
            uint32_t cached_tokens;    // of the prompt, that need not be computed
        } admitted;
        struct {
            struct request_id id;
            enum request_class class_;
            // Alive until the next tick; row->is_prompt marks scores.
            const struct result_row *row;
            uint64_t prefill_us;    // first generated token: time since admission; 0 for others
            bool is_stop_token;     // the token is in stop_tokens: its text is not shown
        } token;
        struct {
            struct request_id id;
            enum finish_reason reason;
            uint32_t prompt_count, output_count;
        } finished;
        struct {
            struct request_id id;
            enum reject_reason reason;
            uint32_t retry_after_ms;    // prediction; 0 = a retry is useless
        } rejected;
        struct {
            uint64_t operation;
            enum resize_outcome outcome;
            uint32_t asked, before, after;    // blocks
            const char *note;                 // the worker's, alive during the action; may be NULL
        } resized;
    };
};

// Receives actions in order, during the tick.
typedef void (*core_action_fn)(void *ctx, const struct core_action *action);

// ---- life cycle --------------------------------------------------------------------------------

// For queued_tokens_max: what is computed within the class's ttft_target_us; without one no bound.
#define CORE_QUEUED_TOKENS_AUTO UINT64_MAX

// What an operator may turn. Times in microseconds.
struct core_policy {
    double itl_target_us;                          // between two tokens of a sequence
    double prefill_step_us;                        // a step of prompts alone
    double ttft_target_us[REQUEST_CLASS_COUNT];    // 0: no deadline
    double guard[REQUEST_CLASS_COUNT];        // of free blocks that expectation may fill; 0: off
    double share_min[REQUEST_CLASS_COUNT];    // of the work, promised
    uint64_t hold_us;                         // until who lacks memory gets a ticket
    uint32_t evictions_max;                   // of one best-effort request
    uint64_t queued_tokens_max;               // uncached prompt tokens that wait; 0: no bound
};
void core_policy_defaults(struct core_policy *policy);

struct core_config {
    uint32_t seqs_max;              // running sequences, <= BOUND_SEQS
    uint32_t waiting_max;           // queued requests, <= BOUND_WAITING
    uint32_t step_tokens_max;       // --max-num-batched-tokens
    uint32_t blocks_max;            // most KV blocks a worker may report
    uint64_t group;                 // id of the first group it drives
    uint32_t depth;                 // plans that may be outstanding, 1 to 3
    uint32_t groups_max;            // groups it drives; ids are group, group + 1, ...
    uint32_t ranks_max;             // of a group, 1 .. BOUND_RANKS; 0: 1
    uint32_t tenant_max;            // tenants are below
    uint32_t blocks_per_seq_max;    // 0: BOUND_BLOCKS_PER_SEQ
    struct core_policy policy;
    // Key of the hash under which blocks are found again: the deployment's secret.
    uint8_t prefix_secret[HASH_KEY_BYTES];
};

enum status core_create(const struct core_config *config, struct core **out,
                        struct error *err) MUST_USE;
void core_destroy(struct core *core);

// The only entrance. `now_us` never goes back. Actions are delivered to `action` before it returns.
void core_tick(struct core *core, uint64_t now_us, const struct core_input *inputs,
               uint32_t input_count, core_action_fn action, void *ctx);

// ---- queries -----------------------------------------------------------------------------------

struct core_counters {
    uint64_t requests_finished[REQUEST_CLASS_COUNT][FINISH_REASON_COUNT];
    uint64_t requests_rejected[REQUEST_CLASS_COUNT][REJECT_REASON_COUNT];
    uint64_t tokens_prompt_computed, tokens_prompt_cached, tokens_generated, tokens_recomputed;
    uint64_t plans, results_stale;
    uint64_t plan_refusals;    // plans that a worker refused; their work was planned again
    uint64_t epochs_ended[EPOCH_END_COUNT];    // of groups that were ready
    uint64_t losses_kept;                      // groups that came back with their KV
    uint64_t preemptions;
    uint64_t kv_blocks_moved;                // for a shrinking pool
    uint64_t prefix_queries, prefix_hits;    // prompt tokens of admissions, and those found
};

struct core_gauges {
    uint32_t queued, prefilling, decoding, paused;
    uint64_t queued_tokens;    // uncached ones of the prompts that wait
    uint32_t kv_blocks_total, kv_blocks_free, kv_blocks_quarantined;
    uint32_t kv_blocks_cached;    // of the free ones, those that can be found again
    uint32_t kv_blocks_held;      // while the pool shrinks, those above its new end too
    bool kv_resizing;
    uint64_t queue_oldest_us;    // age of the oldest waiting request
    bool ready;                  // a worker is there and steps make progress
    bool draining;
    bool doubted;                // a group's ranks diverged twice within an hour
    uint64_t step_overdue_us;    // > 0: the outstanding step is past its deadline
};

const struct core_counters *core_counters(const struct core *core);
void core_gauges(const struct core *core, uint64_t now_us, struct core_gauges *out);
// What the first group's worker reported; NULL before that. Alive until the next tick.
const struct message_capacity *core_capacity(const struct core *core);

// The same of one group.
void core_group_gauges(const struct core *core, uint32_t group, uint64_t now_us,
                       struct core_gauges *out);
const struct message_capacity *core_group_capacity(const struct core *core, uint32_t group);

// Tests and simulation: walks every structure and checks all that must hold.
void core_audit(const struct core *core);

#endif
