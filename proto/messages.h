// SPDX-License-Identifier: Apache-2.0
#ifndef PROTO_MESSAGES_H
#define PROTO_MESSAGES_H

#include "common/bounds.h"
#include "common/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What the daemons say to each other, as plain C structs, and the validators used by both sides.
//
// The idea: a plan is a delta. It lists admissions, block appends, retirements, prompt chunks, and
// blocks that move when the pool shrinks;
// every admitted sequence whose prompt is complete and that is not paused decodes one token in
// every step without being named. All ranks of a group receive the same bytes. Each message carries
// (group, epoch, seq) in a fixed header, so a stale or repeated one is recognised before its body
// is decoded. codec.h turns these structs into bytes; nothing else sees the wire form.
//
//   Owns       nothing: arrays point into the builder's memory, or the arena given to the codec.
//   Thread     any.
//   Allocates  never.
//   Fails      validators: INVALID naming the field and the bound.

// ---- identity ----------------------------------------------------------------------------------

struct slot_ref {
    uint32_t slot;    // 0 .. envelope.seqs - 1
    uint32_t gen;     // generation of the slot; results for another generation are dropped
};

enum message_kind {
    MESSAGE_KIND_HELLO = 1,    // worker: here I am
    MESSAGE_KIND_WELCOME,      // controller: your epoch and rank
    MESSAGE_KIND_REFUSED,      // controller: you may not join, and why
    MESSAGE_KIND_PROGRESS,     // worker: loading
    MESSAGE_KIND_CAPACITY,     // worker: sealed or resized, this is what fits
    MESSAGE_KIND_HEARTBEAT,    // both ways
    MESSAGE_KIND_PLAN,         // controller: do this step
    MESSAGE_KIND_RESULT,       // worker: done, or refused
    MESSAGE_KIND_SHUTDOWN,     // controller: finish and leave
    MESSAGE_KIND_GOODBYE,      // worker: I am leaving, and why
    MESSAGE_KIND_ABORT,        // controller: a rank is lost, wait for it no longer
    MESSAGE_KIND_COUNT,
};

// Fixed 40-byte little-endian frame before every body.
struct message_header {
    uint32_t version;    // MESSAGE_VERSION
    uint32_t kind;       // enum message_kind
    uint64_t group;
    uint64_t epoch;
    uint64_t seq;    // plans and results; 0 elsewhere
    uint32_t body_bytes;
    uint32_t body_crc32c;
};
enum { MESSAGE_VERSION = 2, MESSAGE_HEADER_BYTES = 40 };

// ---- sampling ----------------------------------------------------------------------------------

struct token_bias {
    int32_t token;
    float bias;    // added to the logit
};

// How one sequence draws its tokens. Field meanings and ranges: the HTTP fields of the same name.
struct sampling_params {
    float temperature;           // 0 = the most likely token
    float top_p;                 // (0, 1]
    float min_p;                 // [0, 1]
    uint32_t top_k;              // 0 = off
    float repetition_penalty;    // (0, 10], 1 = off
    float presence_penalty;      // [-2, 2]
    float frequency_penalty;     // [-2, 2]
    uint64_t seed;
    uint32_t stream;              // choice index: choices of one request draw independently
    bool want_logprobs;           // of every generated token
    bool want_prompt_logprobs;    // of every prompt token but the first
    uint32_t top_logprobs;        // alternatives per position, 0 .. BOUND_LOGPROBS
    uint32_t min_tokens;          // stop tokens are banned until so many were generated
    uint32_t stop_token_count;
    int32_t stop_tokens[BOUND_STOP_TOKENS];    // generation ends after one of these
    uint32_t bias_count;
    const struct token_bias *bias;
};

// ---- plans -------------------------------------------------------------------------------------

struct plan_admit {
    struct slot_ref ref;
    uint32_t prompt_tokens;    // length of the whole prompt
    uint32_t len_max;          // prompt + output; generation stops there with "length"
    uint32_t block_count;
    const uint32_t *blocks;    // ids of the sequence's first blocks, in order
    // Positions whose KV stands in the first blocks already: computed for another sequence with the
    // same beginning, in whole blocks that are shared and never written again, or for this one in
    // an epoch before. The first chunk starts there.
    uint32_t cached_tokens;
    // Their tokens, where penalties count them: cached_tokens of them, or none.
    uint32_t history_count;
    const int32_t *history;
    struct sampling_params sampling;
};

struct plan_update {
    struct slot_ref ref;
    uint32_t append_count;
    const uint32_t *append_blocks;
    bool pause;     // stop decoding in place
    bool resume;    // go on
};

struct plan_retire {
    struct slot_ref ref;    // the slot and its blocks are dead to the worker after this plan
};

// Before anything else of the plan happens: block `index` of the sequence is copied, and is `block`
// from then on. Every `block` lies below every place that is left, so copies cannot meet. A block
// that several sequences share moves once for each of them, to the same place.
struct plan_move {
    struct slot_ref ref;
    uint32_t index;
    uint32_t block;
};

struct plan_prefill {
    struct slot_ref ref;
    uint32_t start_pos;    // position of the first token of this chunk
    uint32_t token_count;
    const int32_t *tokens;
    // With want_prompt_logprobs, unless `last`: the token after the chunk, which the chunk's last
    // row scores. -1 otherwise.
    int32_t next_token;
    bool last;    // the chunk ends the prompt: its last row draws the first token
};

struct plan {
    uint64_t group;
    uint64_t epoch;
    uint64_t seq;    // 1, 2, 3 ... within an epoch
    // So many plans right before it were refused, and are not part of the state that it changes: it
    // is carried out by whoever has applied plan seq - 1 - undone last, and by nobody else.
    uint32_t undone;
    // Implicit decode rows of this step, as the controller counts them: a check.
    uint32_t decode_rows;
    // After the step the pool is to have so many blocks, and the worker answers with a capacity
    // report behind the result; 0: as it is.
    uint32_t kv_blocks;
    uint32_t admit_count, update_count, retire_count, prefill_count, move_count;
    const struct plan_admit *admits;
    const struct plan_update *updates;
    const struct plan_retire *retires;
    const struct plan_prefill *prefills;
    const struct plan_move *moves;
};

// ---- results -----------------------------------------------------------------------------------

enum result_status {
    RESULT_STATUS_OK,
    RESULT_STATUS_REFUSED,    // the plan broke a rule or left the envelope; nothing was done
    RESULT_STATUS_GAP,        // seq was not applied + 1; nothing was done
    RESULT_STATUS_FAULT,      // the device failed; the group is lost
};

// One scored position. `token` was drawn, or for prompt rows was given.
struct result_row {
    struct slot_ref ref;
    uint32_t position;    // of `token` in the sequence
    int32_t token;
    float logprob;
    uint32_t rank;     // 1 = the most likely
    bool is_prompt;    // a prompt logprob, not a generated token
    bool has_logprob;
    uint32_t top_count;
    const int32_t *top_tokens;    // [top_count]
    const float *top_logprobs;    // [top_count], descending
};

struct step_result {
    uint64_t group;
    uint64_t epoch;
    uint64_t seq;
    enum result_status status;
    uint64_t applied_seq;    // last plan that was applied
    uint32_t step_us;        // time the step took on the worker
    uint32_t row_count;
    const struct result_row *rows;
    const char *message;    // why, when status is not OK; "" otherwise
    // Over the rows that the step drew and the slot table after it. Every rank computes the same
    // one, and only rank 0 sends rows: a difference means that the ranks have parted.
    uint64_t digest;
};

// ---- joining -----------------------------------------------------------------------------------

// What steps are proved to fit: the contract between worker and controller.
struct envelope {
    uint32_t tokens;               // rows of one step, prefill and decode together
    uint32_t seqs;                 // slots
    uint32_t seq_tokens;           // longest sequence (max_model_len)
    uint32_t logit_rows;           // rows that are projected to the vocabulary in one step
    uint32_t prompt_logit_rows;    // of these, how many may be prompt logprobs
    uint32_t blocks_per_seq;
    uint32_t logprob_rows;    // of the logit rows, how many may want logprobs, prompt ones too
    uint32_t draft_tokens;    // drafts of one sequence in one step; 0: steps carry none
    uint32_t attended_tokens_max;    // longest context that one sequence attends to in a step
    uint64_t attended_tokens;        // sum of the contexts over the sequences of one step
};

// How much of a step exists at once in the workspace; chosen by worker/step/tiles.h, reported for
// people. Tiles group rows, or fixed spans of positions that are combined in order: results have
// the same bits for every value >= 1.
struct tiles {
    uint32_t logit_rows;         // rows of logits
    uint32_t mlp_rows;           // rows of the MLP's inner width
    uint32_t matmul_rows;        // input rows that a product prepares
    uint32_t attention_parts;    // results of spans that attention holds
};

struct ledger_line {
    const char *name;
    uint64_t bytes;
    bool planned;    // known before it was measured; else found by measuring
};

struct message_hello {
    const char *worker_id;
    const char *build;     // version and commit
    const char *device;    // "cpu"
    const char *model_name;
    const char *model_digest;
    const char *config_digest;    // of the options that all ranks of a group must share
    uint32_t pid;
    uint32_t group, rank, world;
    // The header's epoch is the last one that the worker was welcomed into, 0 for none.
};

// Ranks of one host find each other's shared memory by this name: 32 hex digits, random for each
// epoch, so that nothing of an older epoch is ever met.
enum { MESSAGE_COMM_ID_DIGITS = 32 };

struct message_welcome {
    uint64_t epoch;
    uint32_t group, rank, world;
    uint32_t lease_ms;
    const char *comm_id;
};

// To the survivors of a group that lost a rank: no collective of that epoch will ever be complete.
// Weights and KV stay; the next WELCOME follows when all ranks are there again.
struct message_abort {
    uint64_t epoch;
    const char *reason;
};

struct message_text {    // REFUSED, SHUTDOWN, GOODBYE
    uint32_t code;       // a process exit code
    const char *text;
};

struct message_progress {
    const char *phase;    // "load", "warm-up"
    uint64_t bytes_done, bytes_total;
    uint64_t bytes_per_s;
};

struct message_capacity {
    struct envelope envelope;
    uint32_t block_tokens;
    uint32_t kv_blocks;    // usable block ids: 0 .. kv_blocks - 1
    // After a resize, why the pool is not as large as was asked; "" or NULL otherwise.
    const char *kv_note;
    // Random, kept in the memory that outlives the process: the same as before only where the
    // pool's bytes are those that the last process left. 0: nothing of them is known.
    uint64_t kv_stamp;
    uint64_t kv_bytes_per_token;
    // Of the device, of it for us, and of it held by other processes at the last look.
    uint64_t device_bytes, budget_bytes, foreign_bytes;
    uint32_t vocabulary;
    uint64_t parameters;
    const char *kv_dtype;
    uint32_t threads;
    struct tiles tiles;
    uint32_t line_count;
    const struct ledger_line *lines;
};

struct message_heartbeat {
    uint64_t applied_seq, completed_seq;
    uint64_t resident_bytes;
    uint64_t allocations_after_seal;
    bool report_awaited;    // controller: the worker's capacity report of this epoch has not come
};

// ---- validators --------------------------------------------------------------------------------

// Everything about a plan that can be judged without the slot table: counts, ranges, block ids, and
// the part of the step's size that is certain without it. The controller asserts it before sending,
// the worker answers REFUSED.
struct plan_limits {
    struct envelope envelope;
    uint32_t block_tokens;
    uint32_t kv_blocks;
    uint32_t vocabulary;
};
// Whether the plan goes on from plan `applied_seq`.
bool plan_follows(const struct plan *plan, uint64_t applied_seq);
enum status plan_validate(const struct plan *plan, const struct plan_limits *limits,
                          struct error *err) MUST_USE;
// Penalties look at the tokens of a sequence.
bool sampling_uses_history(const struct sampling_params *sampling);
enum status sampling_validate(const struct sampling_params *sampling, uint32_t vocabulary,
                              struct error *err) MUST_USE;
enum status result_validate(const struct step_result *result, const struct plan_limits *limits,
                            struct error *err) MUST_USE;
enum status capacity_validate(const struct message_capacity *capacity, struct error *err) MUST_USE;
// Group, rank and world within the bounds, and the rank inside the world.
enum status hello_validate(const struct message_hello *hello, struct error *err) MUST_USE;

// ---- the size of a step ------------------------------------------------------------------------

// What one sequence adds to a step.
struct step_share {
    uint32_t tokens;
    uint32_t context;    // positions it attends to: its length after the step
    uint32_t logit_rows, prompt_logit_rows, logprob_rows;
};

// What a step asks of the envelope. Both sides compute it, each from its own state: the controller
// to plan and to assert, the worker to judge.
struct step_size {
    uint32_t tokens, seqs;
    uint32_t logit_rows, prompt_logit_rows, logprob_rows;
    uint32_t attended_tokens_max;
    uint64_t attended_tokens;
};

// A chunk of a prompt: positions start .. start + count - 1 of a sequence.
struct step_chunk {
    uint32_t start, count;
    bool last;                 // its last row draws, unless the sequence is full then
    uint32_t prompt_tokens;    // rows before the last prompt token score the token after them
    uint32_t len_max;
    bool want_logprobs, want_prompt_logprobs;
};
struct step_share step_share_chunk(const struct step_chunk *chunk);
// One token of a decoding sequence, whose context is `context` with it.
struct step_share step_share_decode(uint32_t context, bool want_logprobs);

void step_size_add(struct step_size *size, const struct step_share *share);
bool step_size_fits(const struct step_size *size, const struct envelope *envelope);
// INVALID naming the limit that the step leaves.
enum status step_size_validate(const struct step_size *size, const struct envelope *envelope,
                               struct error *err) MUST_USE;

#endif
