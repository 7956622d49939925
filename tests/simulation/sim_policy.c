// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/sim_policy.h"

#include "common/memory.h"
#include "tests/simulation/sim_fail.h"
#include <stdlib.h>
#include <string.h>

struct job {
    uint64_t at_us, first_us;
    uint32_t prompt, output_max, natural;
    uint32_t outputs;     // drawn
    uint32_t computed;    // positions with KV
    uint32_t target;      // positions of its prompt, or of prompt and outputs after an eviction
    uint32_t blocks;
    bool again;    // it was evicted: what it computes it had
};

struct model {
    struct sim_policy_options options;
    const struct sim_source *source;
    struct sim_spec next;
    bool more;
    struct job *jobs;
    uint32_t job_count, job_max;
    uint32_t *line;    // a ring would do; the head moves, evicted ones come before it
    uint32_t line_first, line_end, line_max;
    uint32_t running[BOUND_SEQS];
    uint32_t running_count;
    uint32_t free_blocks, reserved_blocks;
    uint64_t now_us;
    uint64_t decoding_seen, paused_seen;
    struct sim_policy_result result;
};

static uint32_t blocks_for(const struct model *m, uint32_t tokens) {
    uint32_t block_tokens = m->options.machine.block_tokens;
    return (tokens + block_tokens - 1) / block_tokens;
}

static uint32_t worst_case(const struct model *m, const struct job *job) {
    return blocks_for(m, job->prompt + job->output_max - 1);
}

// ---- the line ----------------------------------------------------------------------------------

enum { FRONT = 4096 };    // room for evicted ones before the head

static void arrive(struct model *m) {
    while (m->more && m->next.at_us <= m->now_us) {
        if (m->job_count == m->job_max) {
            m->job_max = m->job_max == 0 ? 4096 : 2 * m->job_max;
            m->line_max = FRONT + m->job_max;
            m->jobs = memory_realloc(m->jobs, m->job_max * sizeof *m->jobs);
            m->line = memory_realloc(m->line, m->line_max * sizeof *m->line);
            SIM_CHECK(m->jobs != NULL && m->line != NULL, "no memory for a model");
        }
        m->jobs[m->job_count] = (struct job){.at_us = m->next.at_us,
                                             .prompt = m->next.prompt_count,
                                             .output_max = m->next.output_max,
                                             .natural = m->next.natural_length,
                                             .target = m->next.prompt_count};
        m->line[m->line_end++] = m->job_count++;
        m->more = m->source->next(m->source->ctx, &m->next);
    }
}

// ---- admission ---------------------------------------------------------------------------------

struct claim {
    uint32_t need, held;
};

static int by_need(const void *a, const void *b) {
    const struct claim *x = a;
    const struct claim *y = b;
    return (x->need > y->need) - (x->need < y->need);
}

// Everybody who runs can end in some order when `extra` takes `count` blocks now. NULL: nobody new.
static bool is_safe(const struct model *m, const struct job *extra, uint32_t count) {
    struct claim claims[BOUND_SEQS + 1];
    uint32_t n = 0;
    bool runs = false;
    for (uint32_t i = 0; i < m->running_count; i++) {
        const struct job *job = &m->jobs[m->running[i]];
        uint32_t held = job->blocks + (job == extra ? count : 0);
        runs = runs || job == extra;
        claims[n++] = (struct claim){worst_case(m, job) - held, held};
    }
    if (!runs) {
        claims[n++] = (struct claim){worst_case(m, extra) - count, count};
    }
    if (m->free_blocks < count) {
        return false;
    }
    qsort(claims, n, sizeof claims[0], by_need);
    uint64_t free_blocks = m->free_blocks - count;
    for (uint32_t i = 0; i < n; i++) {
        if (claims[i].need > free_blocks) {
            return false;
        }
        free_blocks += claims[i].held;
    }
    return true;
}

static bool may_start(const struct model *m, const struct job *job, bool paused) {
    uint32_t prompt = blocks_for(m, job->target);
    switch (m->options.policy) {
    case SIM_POLICY_RESERVATION:
        return m->reserved_blocks + worst_case(m, job) <= m->options.machine.kv_blocks;
    case SIM_POLICY_OPTIMISTIC:
        return prompt <= m->free_blocks;
    default:
        return !paused && is_safe(m, job, prompt);
    }
}

static void start(struct model *m, uint32_t index) {
    struct job *job = &m->jobs[index];
    job->blocks = blocks_for(m, job->target);
    job->computed = 0;
    SIM_CHECK(job->blocks <= m->free_blocks, "a model's policy hands out what it does not have");
    m->free_blocks -= job->blocks;
    m->reserved_blocks += worst_case(m, job);
    m->running[m->running_count++] = index;
    m->result.started++;
}

static void leave(struct model *m, uint32_t place) {
    struct job *job = &m->jobs[m->running[place]];
    m->free_blocks += job->blocks;
    m->reserved_blocks -= worst_case(m, job);
    job->blocks = 0;
    memmove(&m->running[place], &m->running[place + 1],
            (m->running_count - place - 1) * sizeof m->running[0]);
    m->running_count--;
}

static void evict_last(struct model *m) {
    uint32_t index = m->running[m->running_count - 1];
    struct job *job = &m->jobs[index];
    leave(m, m->running_count - 1);
    job->target = job->prompt + (job->outputs > 0 ? job->outputs - 1 : 0);
    job->computed = 0;
    job->again = true;
    SIM_CHECK(m->line_first > 0, "more evicted at once than the line has room for");
    m->line[--m->line_first] = index;
    m->result.evictions++;
}

// ---- the step ----------------------------------------------------------------------------------

struct shape {
    uint32_t rows, tokens;
    double pairs, contexts;
    bool paused;
};

static bool is_decoding(const struct job *job) {
    return job->computed >= job->target && job->outputs > 0;
}

// One more block for a decoding job, by the policy's way when none is left. False: not this step.
static bool make_room(struct model *m, uint32_t place) {
    uint32_t index = m->running[place];
    struct job *job = &m->jobs[index];
    if (job->computed < job->blocks * m->options.machine.block_tokens) {
        return true;
    }
    if (m->options.policy == SIM_POLICY_OPTIMISTIC) {
        while (m->free_blocks == 0) {
            bool self = m->running[m->running_count - 1] == index;
            evict_last(m);
            if (self) {
                return false;
            }
        }
    } else if (m->options.policy == SIM_POLICY_SAFE && !is_safe(m, job, 1)) {
        return false;
    }
    SIM_CHECK(m->free_blocks > 0, "a reservation that was not kept");
    job->blocks++;
    m->free_blocks--;
    return true;
}

static void decode(struct model *m, struct shape *shape) {
    for (uint32_t i = 0; i < m->running_count; i++) {
        struct job *job = &m->jobs[m->running[i]];
        if (!is_decoding(job)) {
            continue;
        }
        m->decoding_seen++;
        if (!make_room(m, i)) {
            m->paused_seen++;
            shape->paused = true;
            continue;
        }
        job->computed++;
        job->target = job->computed;
        shape->rows++;
        shape->contexts += job->computed;
    }
}

static double shape_us(const struct model *m, const struct shape *shape) {
    const struct sim_cost *cost = &m->options.cost;
    return cost->step_us + cost->prefill_token_us * shape->tokens +
           cost->decode_row_us * shape->rows + cost->prefill_pair_us * shape->pairs +
           cost->decode_context_us * shape->contexts;
}

// The most of `tokens` for which the step has time; a block goes on in any case.
static uint32_t in_time(const struct model *m, const struct shape *shape, uint32_t start,
                        uint32_t tokens) {
    double budget_us = shape->rows > 0 ? m->options.beside_us : m->options.alone_us;
    uint32_t good = 0, bad = tokens + 1;
    while (good + 1 < bad) {
        uint32_t next = good + (bad - good) / 2;
        struct shape trial = *shape;
        trial.tokens += next;
        trial.pairs += (double)next * (start + 0.5 * next);
        if (shape_us(m, &trial) <= budget_us) {
            good = next;
        } else {
            bad = next;
        }
    }
    uint32_t least = m->options.machine.block_tokens;
    least = least < tokens ? least : tokens;
    return good < least && shape->tokens == 0 ? least : good;
}

static uint32_t prefill(struct model *m, struct shape *shape, uint32_t from, uint32_t budget) {
    for (uint32_t i = from; i < m->running_count && budget > 0; i++) {
        struct job *job = &m->jobs[m->running[i]];
        if (job->computed >= job->target) {
            continue;
        }
        uint32_t tokens = job->target - job->computed;
        tokens = in_time(m, shape, job->computed, tokens < budget ? tokens : budget);
        if (tokens == 0) {
            return 0;
        }
        shape->pairs += (double)tokens * (job->computed + 0.5 * tokens);
        shape->tokens += tokens;
        job->computed += tokens;
        budget -= tokens;
        m->result.recomputed_tokens += job->again ? tokens : 0;
    }
    return budget;
}

static void admit(struct model *m, struct shape *shape, uint32_t budget) {
    while (budget > 0 && m->line_first < m->line_end &&
           m->running_count < m->options.machine.envelope.seqs) {
        uint32_t index = m->line[m->line_first];
        if (!may_start(m, &m->jobs[index], shape->paused)) {
            break;
        }
        m->line_first++;
        start(m, index);
        budget = prefill(m, shape, m->running_count - 1, budget);
    }
}

// Whoever has all its positions draws a token when the step ends.
static void draw(struct model *m) {
    for (uint32_t i = m->running_count; i > 0; i--) {
        struct job *job = &m->jobs[m->running[i - 1]];
        bool prompt_done = job->computed >= job->target && job->outputs == 0;
        bool decoded = job->outputs > 0 && job->computed == job->prompt + job->outputs;
        if (!prompt_done && !decoded) {
            continue;
        }
        job->first_us = job->outputs == 0 ? m->now_us : job->first_us;
        job->outputs++;
        if (job->outputs == job->natural || job->outputs == job->output_max) {
            leave(m, i - 1);
            m->result.finished++;
        }
    }
}

static void step(struct model *m) {
    struct shape shape = {0};
    decode(m, &shape);
    uint32_t budget = m->options.machine.envelope.tokens - shape.rows;
    budget = prefill(m, &shape, 0, budget);
    admit(m, &shape, budget);
    m->now_us += (uint64_t)shape_us(m, &shape);
    m->result.steps++;
    m->result.decode_rows += shape.rows;
    m->result.prefill_tokens += shape.tokens;
    draw(m);
}

// ---- the run -----------------------------------------------------------------------------------

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void summarise(struct model *m) {
    uint64_t *ttft = memory_array(m->job_count + 1, sizeof *ttft);
    SIM_CHECK(ttft != NULL, "no memory for a model");
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->job_count; i++) {
        if (m->jobs[i].outputs > 0) {
            ttft[count++] = m->jobs[i].first_us - m->jobs[i].at_us;
        }
    }
    qsort(ttft, count, sizeof *ttft, ascending);
    if (count > 0) {
        m->result.ttft_p50_us = ttft[count / 2];
        m->result.ttft_p99_us = ttft[(uint32_t)(0.99 * count)];
    }
    m->result.paused_share =
        m->decoding_seen > 0 ? (double)m->paused_seen / (double)m->decoding_seen : 0.0;
    memory_free(ttft);
}

void sim_policy_run(const struct sim_policy_options *options, const struct sim_source *source,
                    struct sim_policy_result *out) {
    struct model *m = memory_zalloc(sizeof *m);
    SIM_CHECK(m != NULL, "no memory for a model");
    m->options = *options;
    m->source = source;
    m->free_blocks = options->machine.kv_blocks;
    m->line_first = FRONT;
    m->line_end = FRONT;
    m->more = source->next(source->ctx, &m->next);
    while (m->now_us < options->until_us) {
        arrive(m);
        if (m->running_count > 0 || m->line_first < m->line_end) {
            step(m);
        } else if (m->more) {
            m->now_us = m->next.at_us;
        } else {
            break;
        }
    }
    summarise(m);
    *out = m->result;
    memory_free(m->jobs);
    memory_free(m->line);
    memory_free(m);
}
