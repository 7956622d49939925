// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CORE_COST_MODEL_H
#define CONTROLLER_CORE_COST_MODEL_H

#include <stdint.h>

// How long a step of some shape takes on one group, learnt from the steps that ran.
//
// The idea: time is close to linear in what a step computes,
//   t = a + b T + c D + d sum(chunk x context before and in it) + f sum(context of decode rows),
// T prompt tokens, D decode rows (serving.md 1.6). The five coefficients follow the reported step
// times by recursive least squares with forgetting (Ljung, System Identification, 11.2), so a
// machine that slows down is believed within some hundred steps. Whoever needs a bound rather than
// a mean asks for the 90th percentile: a factor that rises when a step took longer than it said,
// and falls when not, in the ratio 9 to 1.
//
//   Owns       nothing; plain data.
//   Thread     the loop thread.
//   Allocates  never.
//   Fails      never. Times that are absurd against the prediction are clipped before learning.

enum {
    COST_TERMS = 5,
    COST_LEARNT_STEPS = 8,    // learnt from, before what it says is more than the guess
};

struct cost_shape {
    uint32_t prefill_tokens;
    uint32_t decode_rows;
    uint64_t prefill_context;    // sum over chunks of tokens x mean context of a token
    uint64_t decode_context;     // sum over decode rows of their contexts
};

struct cost_model {
    double weight[COST_TERMS];
    double covariance[COST_TERMS][COST_TERMS];
    double late_factor;    // 90th percentile of measured / predicted
    uint64_t steps;
    uint64_t prompt_steps;    // of them, those with prompt tokens
};

// `token_us`: a guess of what one prompt token costs, corrected from the first step on.
void cost_model_init(struct cost_model *model, double token_us);

void cost_model_learn(struct cost_model *model, const struct cost_shape *shape, uint32_t step_us);

double cost_model_us(const struct cost_model *model, const struct cost_shape *shape);    // mean
double cost_model_late_us(const struct cost_model *model, const struct cost_shape *shape);    // p90

// Adds a chunk of `tokens` whose first token sees `start` positions before it.
void cost_shape_add_chunk(struct cost_shape *shape, uint32_t start, uint32_t tokens);
// Decode rows whose contexts have `contexts` positions together.
void cost_shape_add_decodes(struct cost_shape *shape, uint32_t rows, uint64_t contexts);

// The most tokens of a chunk starting at `start` with which the step stays within `budget_us` by
// the 90th percentile; 0 when not even one does.
uint32_t cost_model_chunk(const struct cost_model *model, const struct cost_shape *shape,
                          uint32_t start, uint32_t tokens_max, double budget_us);

#endif
