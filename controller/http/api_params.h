// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_PARAMS_H
#define CONTROLLER_HTTP_API_PARAMS_H

#include "common/bounds.h"
#include "common/json.h"
#include "controller/http/api_errors.h"
#include "controller/http/http_parse.h"
#include "proto/messages.h"
#include <stdbool.h>
#include <stdint.h>

// Sampling and control fields of a request body, with their ranges and defaults.
//
// The idea: a field is accepted, ignored by name, or refused by name; nothing that would restrict
// the output is ever ignored. null means absent. Unknown plain fields are ignored, as clients send
// many.
//
//   Owns       `bias`. Stop strings point into the JSON document.
//   Thread     any.
//   Allocates  `bias`, through common/memory.
//   Fails      false with the failure naming the field; `out` may then still hold a bias to
//   release.

enum api_endpoint { API_ENDPOINT_COMPLETIONS, API_ENDPOINT_CHAT };

// What the model's generation_config.json says, or the neutral values of api_sampling_neutral.
struct api_sampling_defaults {
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};
struct api_sampling_defaults api_sampling_neutral(void);

struct api_params_rules {
    enum api_endpoint endpoint;
    struct api_sampling_defaults defaults;
    uint32_t vocabulary;
    uint32_t logprobs_max;    // --max-logprobs
    const uint32_t *eos;      // [eos_count]
    uint32_t eos_count;
};

struct api_params {
    struct sampling_params
        sampling;               // stop_tokens: EOS first (unless ignored), then the request's
    struct token_bias *bias;    // sampling.bias, owned
    uint32_t eos_count;         // of sampling.stop_tokens
    bool seed_given;
    bool max_given;
    uint32_t max_tokens;    // valid with max_given
    uint32_t choice_count;
    bool stream, usage_in_stream, usage_in_every_chunk;
    bool echo;
    bool skip_special, include_stop;
    bool add_special;
    uint32_t truncate_tokens;    // keep so many at the end; 0 = all, UINT32_MAX = what fits
    uint64_t keepalive_us;       // asked by the request; 0 = the server's
    struct http_span stops[BOUND_STOP_STRINGS];
    uint32_t stop_count;
    const char *ignored;    // a sampler field without effect here, to be warned of once; or NULL
};

bool api_params_parse(const struct json_fields *body, const struct api_params_rules *rules,
                      struct api_params *out, struct api_failure *failure);
void api_params_deinit(struct api_params *params);

// Single fields, for the routes without sampling. Absent leaves `*out` alone.
bool api_field_bool(const struct json_fields *body, const char *key, bool *out,
                    struct api_failure *failure);
bool api_field_int(const struct json_fields *body, const char *key, struct json_range_int range,
                   int64_t *out, struct api_failure *failure);
// `*text` is NULL when absent.
bool api_field_text(const struct json_fields *body, const char *key, struct http_span *text,
                    struct api_failure *failure);

#endif
