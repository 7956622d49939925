// SPDX-License-Identifier: Apache-2.0
#include "worker/step_budget.h"

#include "common/bounds.h"

enum { UNIT = 64, DEVICE_SHARE = 32 };    // candidates are multiples of the unit

static const uint64_t WORKSPACE_MOST = 2ull * 1024 * 1024 * 1024;

static uint64_t workspace_limit(const struct engine_options *options,
                                const struct engine_plan *plan) {
    if (options->workspace_budget > 0) {
        return (uint64_t)options->workspace_budget;
    }
    uint64_t share = plan->ledger.device_bytes / DEVICE_SHARE;
    return share < WORKSPACE_MOST ? share : WORKSPACE_MOST;
}

// Anything else than a lack of memory is the caller's to hear of.
static enum status try_tokens(const struct engine_options *options, struct weights *weights,
                              uint32_t tokens, bool *good, struct error *err) {
    struct engine_options next = *options;
    struct engine_plan plan;
    struct error why = {0};
    next.step_tokens = tokens;
    enum status status = engine_plan(&next, weights, &plan, &why);
    *good = status == STATUS_OK && plan.workspace_bytes <= workspace_limit(options, &plan);
    if (status != STATUS_OK && status != STATUS_EXHAUSTED) {
        *err = why;
        return status;
    }
    return STATUS_OK;
}

enum status step_budget_find(const struct engine_options *options, struct weights *weights,
                             uint32_t *tokens, struct error *err) {
    // A step must hold every sequence that decodes.
    uint32_t low = (options->seqs + UNIT - 1) / UNIT;
    uint32_t high = BOUND_STEP_TOKENS / UNIT;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        bool good = false;
        TRY(try_tokens(options, weights, middle * UNIT, &good, err));
        if (good) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *tokens = low * UNIT;
    return STATUS_OK;
}
