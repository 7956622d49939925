// SPDX-License-Identifier: Apache-2.0
#include "worker/step/tiles.h"

#include "common/integers.h"
#include "common/invariant.h"

enum {
    // Rows over which the output matrix is read once: from here on products are bound by
    // arithmetic, so more rows cost memory and gain nothing.
    LOGIT_ROWS_USEFUL = 64,
    // Rows whose inner width exists at once: whole passes of the products.
    MLP_ROWS_USEFUL = OP_MATMUL_PASS_ROWS,
    // Fewer rows save next to nothing and read the weights once for each.
    ROWS_SMALLEST = 16,
};

static uint32_t clamp(uint32_t value, uint32_t least, uint32_t most) {
    return value < least ? least : u32_min(value, most);
}

// ---- the ends of the range ---------------------------------------------------------------------

void tiles_ask(const struct envelope *envelope, uint32_t thread_count, uint64_t budget_bytes,
               uint64_t share_bytes, struct tiles_question *out) {
    bool given = budget_bytes > 0;
    uint32_t tokens = envelope->tokens;
    uint32_t logit_rows = clamp(envelope->logit_rows, 1, tokens);
    uint32_t rows_least = u32_min(ROWS_SMALLEST, tokens);
    *out = (struct tiles_question){
        .step_tokens = tokens,
        .least = {.logit_rows = 1,
                  .mlp_rows = rows_least,
                  .matmul_rows = rows_least,
                  .attention_parts = 1},
        .most = {.logit_rows = given ? logit_rows : u32_min(logit_rows, LOGIT_ROWS_USEFUL),
                 .mlp_rows = given ? tokens : u32_min(tokens, MLP_ROWS_USEFUL),
                 .matmul_rows = u32_min(tokens, OP_MATMUL_PASS_ROWS),
                 .attention_parts = OP_ATTENTION_PARTS_PER_THREAD * thread_count},
        .limit_bytes = given ? budget_bytes : share_bytes,
        .required = given,
    };
}

// ---- bisection ---------------------------------------------------------------------------------

static bool fits(const struct tiles_question *q, const struct tiles *tiles) {
    return q->limit_bytes == 0 || q->measure(q->measure_ctx, tiles) <= q->limit_bytes;
}

static struct tiles of_rows(const struct tiles_question *q, uint32_t rows) {
    const struct tiles *least = &q->least;
    const struct tiles *most = &q->most;
    return (struct tiles){
        .logit_rows = clamp(rows, least->logit_rows, most->logit_rows),
        .mlp_rows = clamp(rows, least->mlp_rows, most->mlp_rows),
        .matmul_rows = clamp(rows, least->matmul_rows, most->matmul_rows),
        .attention_parts = clamp(rows, least->attention_parts, most->attention_parts),
    };
}

// The largest number of rows with which all tiles together fit; one row does.
static struct tiles grow_together(const struct tiles_question *q) {
    uint32_t low = 1;
    uint32_t high = q->most.logit_rows > q->most.mlp_rows ? q->most.logit_rows : q->most.mlp_rows;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        struct tiles tiles = of_rows(q, middle);
        if (fits(q, &tiles)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return of_rows(q, low);
}

static void grow_alone(const struct tiles_question *q, struct tiles *tiles, uint32_t *tile,
                       uint32_t most) {
    uint32_t low = *tile;
    uint32_t high = most;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        *tile = middle;
        if (fits(q, tiles)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *tile = low;
}

static enum status refuse(const struct tiles_question *q, struct error *err) {
    size_t need = q->measure(q->measure_ctx, &q->least);
    error_hint(err, "raise --workspace-budget to at least %zu, or lower --max-num-batched-tokens",
               need);
    return error_set(err, STATUS_EXHAUSTED,
                     "ledger line 'workspace arena': a step of %u tokens in the smallest tiles "
                     "needs %zu bytes, --workspace-budget gives %llu",
                     q->step_tokens, need, (unsigned long long)q->limit_bytes);
}

enum status tiles_choose(const struct tiles_question *question, struct tiles *out, size_t *bytes,
                         struct error *err) {
    const struct tiles_question *q = question;
    if (fits(q, &q->most)) {
        *out = q->most;
    } else if (fits(q, &q->least)) {
        *out = grow_together(q);
        // Products first: each of their passes reads a weight once.
        grow_alone(q, out, &out->matmul_rows, q->most.matmul_rows);
        grow_alone(q, out, &out->logit_rows, q->most.logit_rows);
        grow_alone(q, out, &out->mlp_rows, q->most.mlp_rows);
        grow_alone(q, out, &out->attention_parts, q->most.attention_parts);
    } else if (q->required) {
        return refuse(q, err);
    } else {
        *out = q->least;
    }
    *bytes = q->measure(q->measure_ctx, out);
    return STATUS_OK;
}
