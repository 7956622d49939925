// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_client.h"

#include "common/hash.h"
#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include "tests/simulation/sim_worker.h"
#include <stdlib.h>

void sim_fill_shared(const struct sim_spec *spec, uint64_t id, int32_t *tokens) {
    uint64_t seed = hash_u64(spec->key);
    for (uint32_t i = 0; i < spec->prompt_count; i++) {
        if (i == spec->shared_count) {
            seed ^= hash_u64(id ^ 0x5bd1e995u);
        }
        tokens[i] = (int32_t)(1 + (hash_u64(seed + i) >> 8) % (SIM_VOCABULARY - 1));
    }
}

void sim_clients_deinit(struct sim_clients *clients) {
    for (uint32_t i = 0; i < clients->count; i++) {
        memory_free(sim_client_at(clients, i)->tokens);
        memory_free(sim_client_at(clients, i)->keys);
    }
    for (uint32_t i = 0; i < clients->page_count; i++) {
        memory_free(clients->pages[i]);
    }
    memory_free(clients->pages);
    *clients = (struct sim_clients){0};
}

uint32_t sim_clients_add(struct sim_clients *clients, const struct sim_spec *spec) {
    uint32_t index = clients->count;
    if (index / SIM_CLIENT_PAGE == clients->page_count) {
        size_t bytes = (clients->page_count + 1) * sizeof(struct sim_client *);
        clients->pages = memory_realloc(clients->pages, bytes);
        SIM_CHECK(clients->pages != NULL, "no memory for clients");
        struct sim_client *page = memory_array(SIM_CLIENT_PAGE, sizeof *page);
        SIM_CHECK(page != NULL, "no memory for clients");
        clients->pages[clients->page_count++] = page;
    }
    clients->count++;
    *sim_client_at(clients, index) =
        (struct sim_client){.spec = *spec, .group = SIM_NEVER, .state = SIM_CLIENT_COMES};
    return index;
}

struct sim_client *sim_client_of(const struct sim_clients *clients, uint64_t id) {
    SIM_CHECK(id > 0 && id <= clients->count, "a request that nobody sent: %llu",
              (unsigned long long)id);
    return sim_client_at(clients, (uint32_t)id - 1);
}

void sim_client_arrive(struct sim_clients *clients, uint32_t index, struct sim_request *out) {
    struct sim_client *client = sim_client_at(clients, index);
    const struct sim_spec *spec = &client->spec;
    uint64_t id = (uint64_t)index + 1;
    client->tokens =
        memory_alloc(((size_t)spec->prompt_count + spec->output_max) * sizeof(int32_t));
    SIM_CHECK(client->tokens != NULL, "no memory for a prompt");
    spec->fill(spec, id, client->tokens);
    client->state = SIM_CLIENT_LIVES;
    clients->live++;
    *out = (struct sim_request){
        .id = id,
        .class_ = spec->class_,
        .tenant = spec->tenant,
        .tokens = client->tokens,
        .prompt_count = spec->prompt_count,
        .output_max = spec->output_max,
        .seed = sim_seed(id, spec->natural_length, spec->poison),
        .want_logprobs = spec->want_logprobs,
        .want_prompt_logprobs = spec->want_prompt_logprobs,
        .penalties = spec->penalties,
        .salt = spec->salt,
    };
    if (spec->cache) {
        client->keys = sim_core_keys(spec->prompt_count + spec->output_max, &out->key_capacity);
        out->keys = client->keys;
    }
}

static void take_score(struct sim_client *client, const struct result_row *row) {
    SIM_CHECK(client->spec.want_prompt_logprobs, "a score that nobody asked for");
    // After a loss the prompt is computed again, and scored again.
    bool in_order = row->position == client->scored + 1;
    SIM_CHECK(in_order || client->losses + client->evictions > 0,
              "prompt position %u is scored after %u", row->position, client->scored);
    SIM_CHECK(row->position < client->spec.prompt_count &&
                  row->token == client->tokens[row->position],
              "a score of another prompt");
    client->scored = row->position;
}

void sim_client_token(struct sim_client *client, const struct result_row *row, uint64_t id,
                      uint64_t now_us) {
    const struct sim_spec *spec = &client->spec;
    SIM_CHECK(client->state == SIM_CLIENT_LIVES, "a token for request %llu, which has ended",
              (unsigned long long)id);
    SIM_CHECK(client->announced, "a token before the admission of request %llu",
              (unsigned long long)id);
    if (row->is_prompt) {
        take_score(client, row);
        return;
    }
    SIM_CHECK(row->position == spec->prompt_count + client->outputs,
              "request %llu: position %u after %u outputs", (unsigned long long)id, row->position,
              client->outputs);
    if (client->outputs == 0) {
        for (uint32_t i = 0; i < spec->prompt_count; i++) {
            client->chain = sim_chain(client->chain, client->tokens[i]);
        }
        client->first_us = now_us;
    } else if (now_us - client->last_us > client->gap_us_max) {
        client->gap_us_max = now_us - client->last_us;
    }
    uint64_t seed = sim_seed(id, spec->natural_length, spec->poison);
    int32_t due = sim_next_token(client->chain, client->outputs, seed);
    SIM_CHECK(row->token == due, "request %llu: token %d at position %u, not %d",
              (unsigned long long)id, row->token, row->position, due);
    SIM_CHECK(client->tokens[row->position] == due, "the token log differs from the stream");
    SIM_CHECK(row->has_logprob == spec->want_logprobs, "logprobs other than asked for");
    client->chain = sim_chain(client->chain, due);
    client->outputs++;
    client->last_us = now_us;
}

static bool reason_fits(const struct sim_client *client, enum sim_end end, bool fault_is_due,
                        uint32_t seq_tokens) {
    const struct sim_spec *spec = &client->spec;
    uint32_t output_max = spec->output_max;
    if (spec->prompt_count + output_max > seq_tokens) {
        output_max = seq_tokens - spec->prompt_count;
    }
    switch (end) {
    case SIM_END_STOP:
        return client->stopped || client->outputs == spec->natural_length;
    case SIM_END_LENGTH:
        return client->outputs == output_max;
    case SIM_END_CANCELLED:
        return client->cancelled;
    case SIM_END_REFUSED:
        return spec->poison;
    case SIM_END_FAULT:
        // One that runs is lost at this moment: the core says so after it.
        return fault_is_due ||
               client->losses + (client->group != SIM_NEVER ? 1 : 0) > sim_core_resumes_max();
    case SIM_END_SHUTDOWN:
        return fault_is_due;
    case SIM_END_QUEUE_FULL:
    case SIM_END_TOO_LARGE:
    case SIM_END_UNAVAILABLE:
    case SIM_END_DRAINING:
        return !client->announced && client->outputs == 0;
    default:
        return false;
    }
}

void sim_client_end(struct sim_clients *clients, struct sim_client *client, enum sim_end end,
                    uint32_t output_count, bool fault_is_due, uint32_t seq_tokens) {
    SIM_CHECK(client->state == SIM_CLIENT_LIVES, "a request ends twice: %s, then %s",
              sim_end_name[client->end], sim_end_name[end]);
    SIM_CHECK(output_count == client->outputs, "%u outputs are said, %u were received",
              output_count, client->outputs);
    SIM_CHECK(reason_fits(client, end, fault_is_due, seq_tokens),
              "a request of %u + %u tokens ends with %s after %u outputs and %u losses",
              client->spec.prompt_count, client->spec.output_max, sim_end_name[end],
              client->outputs, client->losses);
    client->state = SIM_CLIENT_ENDED;
    client->end = end;
    clients->ended[end]++;
    clients->live--;
    memory_free(client->tokens);
    memory_free(client->keys);
    client->tokens = NULL;
    client->keys = NULL;
}

// ---- statistics --------------------------------------------------------------------------------

static bool measure_of(const struct sim_client *client, enum sim_measure measure, uint64_t *out) {
    uint64_t from = client->spec.at_us;
    switch (measure) {
    case SIM_MEASURE_TTFT:
        *out = client->first_us - from;
        return client->outputs > 0;
    case SIM_MEASURE_QUEUE:
        *out = client->admitted_us - from;
        return client->announced;
    case SIM_MEASURE_GAP:
        *out = client->gap_us_max;
        return client->outputs > 1;
    case SIM_MEASURE_TOTAL:
        *out = client->ended_us - from;
        return client->end == SIM_END_STOP || client->end == SIM_END_LENGTH;
    }
    return false;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t sim_clients_quantile(const struct sim_clients *clients, enum sim_measure measure,
                              uint32_t label, double quantile) {
    uint64_t *values = memory_array(clients->count + 1, sizeof *values);
    SIM_CHECK(values != NULL, "no memory for statistics");
    uint32_t count = 0;
    for (uint32_t i = 0; i < clients->count; i++) {
        const struct sim_client *client = sim_client_at(clients, i);
        bool counts = label == SIM_NEVER || client->spec.label == label;
        if (counts && client->state != SIM_CLIENT_COMES &&
            measure_of(client, measure, &values[count])) {
            count++;
        }
    }
    uint64_t result = 0;
    if (count > 0) {
        qsort(values, count, sizeof *values, ascending);
        uint32_t at = (uint32_t)(quantile * count);
        result = values[at < count ? at : count - 1];
    }
    memory_free(values);
    return result;
}
