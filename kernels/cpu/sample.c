// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sample.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "common/rng.h"

#include <math.h>
#include <string.h>

// Below this a temperature means "the largest": its reciprocal would overflow.
#define TEMPERATURE_MIN 1e-5f

// Floors tried when gathering candidates, as weights relative to the largest; then every weight
// above zero. Real rows have a few hundred tokens above the first.
static const float WEIGHT_FLOOR[] = {0x1p-7f, 0x1p-16f, 0x1p-149f};
// The same for logits below the largest one, when listing alternatives.
static const float LOGIT_FLOOR[] = {6.0f, 14.0f, INFINITY};
enum { FLOOR_COUNT = 3 };

// ---- scratch -----------------------------------------------------------------------------------

// One thread's memory. Lifetimes do not overlap where two names share it.
struct memory {
    float *adjusted;      // [vocabulary] logits after penalties, bias and bans; then list values
    uint32_t *count;      // [vocabulary] occurrences in the output; then list indices
    float *weight;        // [vocabulary]; then work of the selection
    float *spare;         // [vocabulary] work of the selection
    double *block_sum;    // [vocabulary / 256 + 1]
};

static size_t thread_bytes(uint32_t vocabulary) {
    size_t block_count = vocabulary / SAMPLE_BLOCK + 1;
    return 4 * bytes_to_lines((size_t)vocabulary * 4) +
           bytes_to_lines(block_count * sizeof(double));
}

size_t sample_scratch(const struct op_ctx *ctx, const struct op_sample_args *args) {
    return thread_bytes(args->vocabulary) * ctx->thread_count;
}

static struct memory memory_at(uint8_t *base, uint32_t vocabulary) {
    uintptr_t at = (uintptr_t)base;
    size_t step = bytes_to_lines((size_t)vocabulary * 4);
    return (struct memory){
        .adjusted = (float *)at,
        .count = (uint32_t *)(at + step),
        .weight = (float *)(at + 2 * step),
        .spare = (float *)(at + 3 * step),
        .block_sum = (double *)(at + 4 * step),
    };
}

// ---- logits ------------------------------------------------------------------------------------

struct task {
    const struct sample_kernels *kernels;
    struct op_sample_row *row;
    struct memory memory;
    uint32_t vocabulary;
};

static uint32_t checked_token(const struct task *task, int32_t token) {
    INVARIANT(token >= 0);
    INVARIANT((uint32_t)token < task->vocabulary);
    return (uint32_t)token;
}

// As vLLM defines them: the repetition penalty divides positive and multiplies negative logits of
// every token seen; frequency and presence subtract for tokens of the output.
static void apply_penalties(const struct task *task) {
    const struct op_sample_row *row = task->row;
    const uint32_t in_prompt = 0x80000000u;
    uint32_t *count = task->memory.count;
    memset(count, 0, task->vocabulary * sizeof *count);
    for (uint32_t i = 0; i < row->prompt_count; i++) {
        count[checked_token(task, row->history[i])] |= in_prompt;
    }
    uint32_t total = row->prompt_count + row->output_count;
    for (uint32_t i = row->prompt_count; i < total; i++) {
        count[checked_token(task, row->history[i])]++;
    }
    for (uint32_t i = 0; i < total; i++) {
        uint32_t *seen = &count[row->history[i]];
        if (*seen == 0) {
            continue;    // done at its first occurrence
        }
        float *logit = &task->memory.adjusted[row->history[i]];
        *logit =
            *logit > 0.0f ? *logit / row->repetition_penalty : *logit * row->repetition_penalty;
        uint32_t in_output = *seen & ~in_prompt;
        *logit -= row->frequency_penalty * (float)in_output;
        *logit -= in_output > 0 ? row->presence_penalty : 0.0f;
        *seen = 0;
    }
}

// The row's own logits, or an adjusted copy where anything adjusts them.
static const float *adjusted_logits(const struct task *task) {
    const struct op_sample_row *row = task->row;
    bool penalties = row->repetition_penalty != 1.0f || row->frequency_penalty != 0.0f ||
                     row->presence_penalty != 0.0f;
    penalties = penalties && row->prompt_count + row->output_count > 0;
    if (!penalties && row->bias_count == 0 && row->banned_count == 0) {
        return row->logits;
    }
    float *adjusted = task->memory.adjusted;
    memcpy(adjusted, row->logits, task->vocabulary * sizeof *adjusted);
    if (penalties) {
        apply_penalties(task);
    }
    for (uint32_t i = 0; i < row->bias_count; i++) {
        adjusted[checked_token(task, row->bias[i].token)] += row->bias[i].bias;
    }
    for (uint32_t i = 0; i < row->banned_count; i++) {
        adjusted[checked_token(task, row->banned[i])] = -INFINITY;
    }
    return adjusted;
}

// ---- the draw ----------------------------------------------------------------------------------

static double list_mass(const struct sample_list *list) {
    double mass = 0.0;
    for (uint32_t i = 0; i < list->count; i++) {
        mass += (double)list->value[i];
    }
    return mass;
}

static uint32_t draw_from_list(const struct sample_list *list, double unit) {
    double target = unit * list_mass(list);
    double sum = 0.0;
    for (uint32_t i = 0; i < list->count; i++) {
        sum += (double)list->value[i];
        if (sum > target) {
            return list->index[i];
        }
    }
    return list->index[list->count - 1];
}

// The whole vocabulary: find the block by its sum, then the token in it. When rounding inside a
// block leaves the target unreached, its last token with any weight takes it.
static uint32_t draw_from_all(const struct task *task, double total, double unit) {
    double target = unit * total;
    uint32_t block = 0;
    uint32_t block_count = (task->vocabulary + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
    while (block + 1 < block_count && target >= task->memory.block_sum[block]) {
        target -= task->memory.block_sum[block];
        block++;
    }
    uint32_t end = (block + 1) * SAMPLE_BLOCK;
    end = end < task->vocabulary ? end : task->vocabulary;
    uint32_t last = block * SAMPLE_BLOCK;
    double sum = 0.0;
    for (uint32_t i = last; i < end; i++) {
        sum += (double)task->memory.weight[i];
        last = task->memory.weight[i] > 0.0f ? i : last;
        if (sum > target) {
            return i;
        }
    }
    return last;
}

// Enough of the largest weights that the filters cannot want one that is left out.
static struct sample_list gather_candidates(const struct task *task, double mass) {
    const struct op_sample_row *row = task->row;
    struct sample_list list = {.index = task->memory.count, .value = task->memory.adjusted};
    bool only_min_p = row->top_k == 0 && row->top_p >= 1.0f;
    for (int i = 0; i < FLOOR_COUNT; i++) {
        float floor = only_min_p && row->min_p > 0.0f ? row->min_p : WEIGHT_FLOOR[i];
        list.count = task->kernels->gather(task->memory.weight, task->vocabulary, floor, list.index,
                                           list.value);
        if (only_min_p) {
            break;
        }
        if (row->top_k > 0 ? list.count >= row->top_k : list_mass(&list) >= mass) {
            break;
        }
    }
    return list;
}

static uint32_t draw(const struct task *task, const float *logits, uint32_t best) {
    const struct op_sample_row *row = task->row;
    struct rng_key key = {.seed = row->seed, .stream = row->stream};
    double unit = rng_draw_unit(key, row->position);
    double total =
        task->kernels->weights(logits, task->vocabulary, logits[best], 1.0f / row->temperature,
                               task->memory.weight, task->memory.block_sum);
    if (row->top_k == 0 && row->top_p >= 1.0f && row->min_p <= 0.0f) {
        return draw_from_all(task, total, unit);
    }
    struct sample_list list = gather_candidates(task, (double)row->top_p * total);
    float *work[2] = {task->memory.weight, task->memory.spare};
    if (row->top_k > 0) {
        sample_keep_top(&list, row->top_k, work);
    }
    if (row->top_p < 1.0f) {
        double mass = row->top_k > 0 ? list_mass(&list) : total;
        sample_keep_mass(&list, (double)row->top_p * mass, work);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list.count; i++) {
        list.index[kept] = list.index[i];
        list.value[kept] = list.value[i];
        kept += list.value[i] >= row->min_p;    // the largest weight is 1
    }
    list.count = kept;
    return draw_from_list(&list, unit);
}

static int32_t choose(const struct task *task) {
    const struct op_sample_row *row = task->row;
    if (row->target >= 0) {
        return (int32_t)checked_token(task, row->target);
    }
    const float *logits = adjusted_logits(task);
    uint32_t best = task->kernels->argmax(logits, task->vocabulary);
    if (row->temperature < TEMPERATURE_MIN || !isfinite(logits[best])) {
        return (int32_t)best;
    }
    return (int32_t)draw(task, logits, best);
}

// ---- log-probabilities -------------------------------------------------------------------------

// Raw logits: log softmax without temperature, penalties, bias or bans.
static float logprob_of(float logit, float max, double log_total) {
    return (float)((double)logit - (double)max - log_total);
}

static bool comes_before(const struct sample_list *list, uint32_t a, uint32_t b) {
    if (list->value[a] != list->value[b]) {
        return list->value[a] > list->value[b];
    }
    return list->index[a] < list->index[b];
}

static void fill_top(const struct task *task, float max, double log_total) {
    struct op_sample_row *row = task->row;
    INVARIANT(row->top_count <= OP_SAMPLE_TOP_MAX);
    uint32_t wanted = row->top_count < task->vocabulary ? row->top_count : task->vocabulary;
    struct sample_list list = {.index = task->memory.count, .value = task->memory.adjusted};
    for (int i = 0; i < FLOOR_COUNT && list.count < wanted; i++) {
        list.count = task->kernels->gather(row->logits, task->vocabulary, max - LOGIT_FLOOR[i],
                                           list.index, list.value);
    }
    row->top_count = list.count < wanted ? list.count : wanted;
    if (row->top_count == 0) {
        return;
    }
    float *work[2] = {task->memory.weight, task->memory.spare};
    sample_keep_top(&list, row->top_count, work);
    for (uint32_t i = 0; i < list.count; i++) {    // at most 20: each finds its own place
        uint32_t place = 0;
        for (uint32_t j = 0; j < list.count; j++) {
            place += comes_before(&list, j, i);
        }
        row->top_token[place] = (int32_t)list.index[i];
        row->top_logprob[place] = logprob_of(list.value[i], max, log_total);
    }
}

static void fill_logprobs(const struct task *task) {
    struct op_sample_row *row = task->row;
    const float *logits = row->logits;
    float max = logits[task->kernels->argmax(logits, task->vocabulary)];
    double total = task->kernels->weights(logits, task->vocabulary, max, 1.0f, task->memory.weight,
                                          task->memory.block_sum);
    double log_total = log(total);
    row->logprob = logprob_of(logits[row->token], max, log_total);
    row->rank = task->kernels->count_before(logits, task->vocabulary, (uint32_t)row->token) + 1;
    fill_top(task, max, log_total);
}

// ---- rows over threads -------------------------------------------------------------------------

struct job {
    const struct op_sample_args *args;
    const struct sample_kernels *kernels;
    uint8_t *scratch;
};

static void row_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct job *job = arg;
    uint32_t vocabulary = job->args->vocabulary;
    uint8_t *base = job->scratch + thread_bytes(vocabulary) * thread_index;
    struct task task = {
        .kernels = job->kernels,
        .row = &job->args->row[task_index],
        .memory = memory_at(base, vocabulary),
        .vocabulary = vocabulary,
    };
    if (job->args->logits != NULL) {
        task.row->logits = job->args->logits + (size_t)task_index * vocabulary;
    }
    task.row->token = choose(&task);
    if (task.row->want_logprob) {
        fill_logprobs(&task);
    }
}

void sample_run(const struct op_ctx *ctx, const struct op_sample_args *args,
                const struct sample_kernels *kernels) {
    INVARIANT(args->vocabulary > 0);
    INVARIANT(ctx->scratch_bytes >= sample_scratch(ctx, args));
    struct job job = {.args = args, .kernels = kernels, .scratch = ctx->scratch};
    uint32_t row_count = op_rows_now(&args->rows);
    if (row_count > 0) {
        ctx->parallel(ctx->pool, row_count, row_task, &job);
    }
}
