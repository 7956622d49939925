// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_HTTP_API_ACCOUNT_H
#define CONTROLLER_HTTP_API_ACCOUNT_H

#include "controller/core/core.h"
#include "controller/http/api_errors.h"
#include <stdbool.h>
#include <stdint.h>

// What an API key stands for: a tenant with a class, a weight and quotas, and what it has used.
//
// The idea: requests and tokens come in two token buckets that hold one minute's worth. A request
// needs one whole request and any tokens at all in them; its prompt is taken when it is submitted
// and its output when it is over, so that a bucket may go below zero and nobody has to guess what a
// request will cost. Concurrency counts calls until the core has ended all their sequences.
//
//   Owns       nothing; plain data of whoever holds the keys.
//   Thread     the loop thread.
//   Allocates  never.
//   Fails      judge: false with the failure filled (429 quota).

enum { API_ACCOUNT_NAME_BYTES = 64 };

struct api_limits {    // 0: none
    uint32_t concurrency;
    double requests_per_minute, tokens_per_minute;
};

struct api_account {
    char name[API_ACCOUNT_NAME_BYTES];    // for logs; "" without one
    enum request_class class_;
    float weight;       // of its share in its class
    uint32_t tenant;    // > 0; stays while the key stays
    struct api_limits limits;
    uint32_t open;              // calls that are not over
    double requests, tokens;    // in the buckets
    uint64_t filled_us;         // when; 0: they were never looked at, and are full
};

// Room for one more call now?
bool api_account_judge(struct api_account *account, uint64_t now_us, struct api_failure *failure);
// A call that was judged begins, with so many prompt tokens.
void api_account_take(struct api_account *account, uint64_t now_us, uint64_t prompt_tokens);
// It was refused before anything was done for it: what it took comes back.
void api_account_refund(struct api_account *account, uint64_t prompt_tokens);
// It is over, with so many tokens drawn.
void api_account_return(struct api_account *account, uint64_t output_tokens);

#endif
