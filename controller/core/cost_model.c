// SPDX-License-Identifier: Apache-2.0
#include "controller/core/cost_model.h"

#include <string.h>

// Terms are scaled so that typical shapes give numbers near 1: the covariance stays well formed.
static const double SCALE[COST_TERMS] = {1.0, 1.0 / 256, 1.0 / 64, 1.0 / 262144, 1.0 / 65536};
static const double FORGET = 0.998;
static const double COVARIANCE_START = 1e4;    // trusts the first steps far more than the guess
static const double COVARIANCE_MAX = 1e6;      // of a term that no step moves
static const double LATE_STEP = 0.02;
static const double LATE_MIN = 1.0, LATE_MAX = 4.0;
static const double CLIP = 4.0;    // a step that took more times its prediction is an accident

void cost_model_init(struct cost_model *model, double token_us) {
    memset(model, 0, sizeof *model);
    // A token of a prompt, a decoding row like some of them, attention little.
    const double guess[COST_TERMS] = {4 * token_us, token_us, 4 * token_us, token_us / 8192,
                                      token_us / 2048};
    for (int i = 0; i < COST_TERMS; i++) {
        model->weight[i] = guess[i] / SCALE[i];
        model->covariance[i][i] = COVARIANCE_START;
    }
    model->late_factor = 1.25;
}

static void terms_of(const struct cost_shape *shape, double out[COST_TERMS]) {
    out[0] = SCALE[0];
    out[1] = SCALE[1] * shape->prefill_tokens;
    out[2] = SCALE[2] * shape->decode_rows;
    out[3] = SCALE[3] * (double)shape->prefill_context;
    out[4] = SCALE[4] * (double)shape->decode_context;
}

// A negative coefficient is noise of the fit: more work never takes less time.
double cost_model_us(const struct cost_model *model, const struct cost_shape *shape) {
    double terms[COST_TERMS];
    double us = 0;
    terms_of(shape, terms);
    for (int i = 0; i < COST_TERMS; i++) {
        us += model->weight[i] > 0 ? model->weight[i] * terms[i] : 0;
    }
    return us < 1.0 ? 1.0 : us;
}

double cost_model_late_us(const struct cost_model *model, const struct cost_shape *shape) {
    return cost_model_us(model, shape) * model->late_factor;
}

static void learn_late(struct cost_model *model, double predicted_us, double measured_us) {
    double factor = model->late_factor;
    factor += measured_us > predicted_us * factor ? 9 * LATE_STEP : -LATE_STEP;
    factor = factor < LATE_MIN ? LATE_MIN : factor;
    model->late_factor = factor > LATE_MAX ? LATE_MAX : factor;
}

void cost_model_learn(struct cost_model *model, const struct cost_shape *shape, uint32_t step_us) {
    double terms[COST_TERMS], gain[COST_TERMS];
    double predicted = cost_model_us(model, shape);
    double measured = step_us;
    if (model->steps > 16 && measured > CLIP * predicted) {
        measured = CLIP * predicted;
    }
    learn_late(model, predicted, measured);
    terms_of(shape, terms);
    double scale = FORGET, linear = 0;
    for (int i = 0; i < COST_TERMS; i++) {
        gain[i] = 0;
        for (int j = 0; j < COST_TERMS; j++) {
            gain[i] += model->covariance[i][j] * terms[j];
        }
        scale += terms[i] * gain[i];
        linear += model->weight[i] * terms[i];
    }
    for (int i = 0; i < COST_TERMS; i++) {
        model->weight[i] += gain[i] / scale * (measured - linear);
    }
    for (int i = 0; i < COST_TERMS; i++) {
        for (int j = 0; j <= i; j++) {
            double next = (model->covariance[i][j] - gain[i] * gain[j] / scale) / FORGET;
            model->covariance[i][j] = next;
            model->covariance[j][i] = next;
        }
    }
    // Forgetting inflates what no step moves; a bound keeps the first step that does from a jump.
    for (int i = 0; i < COST_TERMS; i++) {
        if (model->covariance[i][i] > COVARIANCE_MAX) {
            for (int j = 0; j < COST_TERMS; j++) {
                model->covariance[i][j] = 0;
                model->covariance[j][i] = 0;
            }
            model->covariance[i][i] = COVARIANCE_START;
        }
    }
    model->steps++;
    model->prompt_steps += shape->prefill_tokens > 0 ? 1 : 0;
}

void cost_shape_add_chunk(struct cost_shape *shape, uint32_t start, uint32_t tokens) {
    shape->prefill_tokens += tokens;
    shape->prefill_context += (uint64_t)tokens * (start + tokens / 2);
}

void cost_shape_add_decodes(struct cost_shape *shape, uint32_t rows, uint64_t contexts) {
    shape->decode_rows += rows;
    shape->decode_context += contexts;
}

uint32_t cost_model_chunk(const struct cost_model *model, const struct cost_shape *shape,
                          uint32_t start, uint32_t tokens_max, double budget_us) {
    uint32_t good = 0, bad = tokens_max + 1, next = tokens_max;
    while (good + 1 < bad) {
        struct cost_shape trial = *shape;
        cost_shape_add_chunk(&trial, start, next);
        if (cost_model_late_us(model, &trial) <= budget_us) {
            good = next;
        } else {
            bad = next;
        }
        next = good + (bad - good) / 2;
    }
    return good;
}
