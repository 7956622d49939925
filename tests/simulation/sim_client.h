// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SIMULATION_SIM_CLIENT_H
#define TESTS_SIMULATION_SIM_CLIENT_H

#include "tests/simulation/sim_core.h"

// Clients: what each will send and do, what it must receive, and what it has received.
//
// The idea: a client knows its prompt, so it knows the chain and with it every token that is due; a
// token out of order, twice or of another sequence is noticed at once. It may leave at any time or
// after so many tokens. Each request ends exactly once, for a reason that the client can check.
//
//   Owns       its clients and their tokens.
//   Thread     one.
//   Allocates  as clients come.
//   Fails      by sim_fail.

#define SIM_NEVER UINT32_MAX

struct sim_spec {
    uint64_t at_us;
    enum sim_class class_;
    uint32_t tenant;
    uint32_t label;    // for statistics, below SIM_LABELS
    uint32_t prompt_count, output_max;
    uint32_t natural_length;     // it ends by itself after so many tokens; 0: never
    uint32_t cancel_outputs;     // leaves after so many tokens; SIM_NEVER
    uint64_t cancel_after_us;    // leaves so long after it came; 0: never
    uint32_t stop_outputs;       // a stop string ends with this token; SIM_NEVER
    bool poison;                 // the worker refuses every plan with its prompt
    bool want_logprobs, want_prompt_logprobs, penalties;
    bool cache;       // finds and leaves cached KV
    uint64_t salt;    // others share nothing
    // Writes the prompt. `key` and `shared_count` are the function's own.
    void (*fill)(const struct sim_spec *spec, uint64_t id, int32_t *tokens);
    const void *fill_ctx;
    uint64_t key;
    uint32_t shared_count;
};
enum { SIM_LABELS = 8, SIM_TENANTS = 8 };

// The first shared_count tokens depend on key and position alone, the others on the id too.
void sim_fill_shared(const struct sim_spec *spec, uint64_t id, int32_t *tokens);

// Writes the next client and returns true, or false when no more come. Times do not go back.
struct sim_source {
    bool (*next)(void *ctx, struct sim_spec *out);
    void *ctx;
};

enum sim_client_state { SIM_CLIENT_COMES, SIM_CLIENT_LIVES, SIM_CLIENT_ENDED };

struct sim_client {
    struct sim_spec spec;
    enum sim_client_state state;
    enum sim_end end;
    int32_t *tokens;
    void *keys;
    uint64_t chain;        // of prompt and outputs received
    uint32_t outputs;      // received
    uint32_t scored;       // prompt positions received
    uint32_t admitted;     // into slots, as the core says in plans
    uint64_t admit_seq;    // the plan that did it last
    uint32_t evictions;    // for others, without a fault
    uint32_t losses;       // of the group it ran in
    uint32_t prefilled;    // tokens computed for it in chunks
    uint32_t cached;       // tokens of its last admission that were found
    uint32_t found;        // of its prompt, at its first admission
    bool cancelled, stopped;
    bool announced;           // admitted for the first time
    uint32_t slot;            // in its group
    uint32_t group, place;    // where it runs, SIM_NEVER: nowhere; its place in that list
    uint64_t admitted_us, first_us, last_us, ended_us;
    uint64_t gap_us_max;    // between two tokens
    uint32_t retry_after_ms;
};

enum { SIM_CLIENT_PAGE = 256 };

struct sim_clients {
    struct sim_client **pages;
    uint32_t count, page_count;
    uint32_t live;
    uint32_t ended[SIM_END_COUNT];
};

void sim_clients_deinit(struct sim_clients *clients);
uint32_t sim_clients_add(struct sim_clients *clients, const struct sim_spec *spec);
static inline struct sim_client *sim_client_at(const struct sim_clients *clients, uint32_t index) {
    return &clients->pages[index / SIM_CLIENT_PAGE][index % SIM_CLIENT_PAGE];
}
// The client of a request id, which is its index and one.
struct sim_client *sim_client_of(const struct sim_clients *clients, uint64_t id);

// It sends its request: makes the prompt.
void sim_client_arrive(struct sim_clients *clients, uint32_t index, struct sim_request *out);
// A row of its stream.
void sim_client_token(struct sim_client *client, const struct result_row *row, uint64_t id,
                      uint64_t now_us);
// Its one terminal action, whose reason must fit what happened. `fault_is_due`: something happened
// to groups that excuses a failure of any request.
void sim_client_end(struct sim_clients *clients, struct sim_client *client, enum sim_end end,
                    uint32_t output_count, bool fault_is_due, uint32_t seq_tokens);

// ---- statistics --------------------------------------------------------------------------------

enum sim_measure {
    SIM_MEASURE_TTFT,    // from arrival to the first token
    SIM_MEASURE_QUEUE,
    SIM_MEASURE_GAP,      // the longest between two tokens
    SIM_MEASURE_TOTAL,    // from arrival to the end
};
// A quantile over the clients with this label that have the measure, in us; label SIM_NEVER: all.
uint64_t sim_clients_quantile(const struct sim_clients *clients, enum sim_measure measure,
                              uint32_t label, double quantile);

#endif
