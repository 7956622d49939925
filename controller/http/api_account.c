// SPDX-License-Identifier: Apache-2.0
#include "controller/http/api_account.h"

#include "common/invariant.h"

enum {
    MINUTE_US = 60 * 1000 * 1000,
    SOON_US = 60 * 1000 * 1000,    // what comes back later is not worth waiting for
    CONCURRENCY_RETRY_US = 1000 * 1000,
};

static double fill(double level, double per_minute, uint64_t since_us) {
    level += per_minute * (double)since_us / MINUTE_US;
    return level < per_minute ? level : per_minute;
}

static void refill(struct api_account *account, uint64_t now_us) {
    const struct api_limits *limits = &account->limits;
    if (account->filled_us == 0) {
        account->requests = limits->requests_per_minute;
        account->tokens = limits->tokens_per_minute;
    } else if (now_us > account->filled_us) {
        uint64_t since_us = now_us - account->filled_us;
        account->requests = fill(account->requests, limits->requests_per_minute, since_us);
        account->tokens = fill(account->tokens, limits->tokens_per_minute, since_us);
    }
    account->filled_us = now_us;
}

static bool refuse(struct api_failure *failure, double wait_us, const char *what) {
    double seconds = wait_us / 1e6;
    api_fail(failure, API_CODE_QUOTA, NULL, "The %s of this API key are used up for %.0f s.", what,
             seconds < 1 ? 1 : seconds);
    failure->retryable = wait_us <= SOON_US;
    failure->retry_after_ms = wait_us <= SOON_US ? (uint32_t)(wait_us / 1000) + 1 : 0;
    return false;
}

bool api_account_judge(struct api_account *account, uint64_t now_us, struct api_failure *failure) {
    const struct api_limits *limits = &account->limits;
    refill(account, now_us);
    if (limits->concurrency > 0 && account->open >= limits->concurrency) {
        api_fail(failure, API_CODE_QUOTA, NULL, "This key has %u requests under way; %u may be.",
                 account->open, limits->concurrency);
        failure->retry_after_ms = CONCURRENCY_RETRY_US / 1000;
        return false;
    }
    if (limits->requests_per_minute > 0 && account->requests < 1 &&
        account->requests < limits->requests_per_minute) {
        double missing = 1 - account->requests;
        return refuse(failure, missing / limits->requests_per_minute * MINUTE_US, "requests");
    }
    if (limits->tokens_per_minute > 0 && account->tokens <= 0) {
        double missing = 1 - account->tokens;
        return refuse(failure, missing / limits->tokens_per_minute * MINUTE_US, "tokens");
    }
    return true;
}

void api_account_take(struct api_account *account, uint64_t now_us, uint64_t prompt_tokens) {
    refill(account, now_us);
    account->open++;
    account->requests -= 1;
    account->tokens -= (double)prompt_tokens;
}

void api_account_refund(struct api_account *account, uint64_t prompt_tokens) {
    account->requests += 1;
    account->tokens += (double)prompt_tokens;
}

void api_account_return(struct api_account *account, uint64_t output_tokens) {
    INVARIANT(account->open > 0);
    account->open--;
    account->tokens -= (double)output_tokens;
}
