// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include "common/integers.h"
#include "common/invariant.h"
#include "kernels/cpu/kv_page.h"

#include <string.h>

// With few tiles, tiles are cut along positions too. One part in three is the running sum of such a
// tile (so at most so many are cut), the others are results of chunks in flight.
enum { PARTS_PER_SUM = 3 };

static uint32_t div_up(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}

// ---- scratch -----------------------------------------------------------------------------------

struct job {
    const struct op_attention_args *args;
    const struct attention_kernels *kernels;
    uint32_t group;           // query heads per KV head
    uint32_t tile_rows;       // rows of a full tile
    uint32_t tile_queries;    // queries of a full tile
    uint32_t tile_count;      // over all sequences; a task also names one KV head
    uint32_t *seq_tile;       // [seq_count + 1] first tile of each sequence
    uint32_t split_max;       // most tile tasks that are cut along positions
    uint32_t *split_item;     // [split_max + 1] first chunk of each tile task
    uint32_t slot_count;
    uint32_t item_begin;    // chunks of the current pass
    uint32_t item_end;
    uint8_t *sums;     // [split_max] parts, running sums of the tile tasks
    uint8_t *slots;    // [slot_count] parts, results of one pass
    uint8_t *thread_scratch;
    size_t part_bytes;
    size_t kernel_bytes;
    size_t thread_bytes;
};

// Depends on counts only, never on what the step's arrays hold: the question is asked before they
// are filled.
static size_t lay_out(const struct op_ctx *ctx, const struct op_attention_args *args,
                      const struct attention_kernels *kernels, uint8_t *base, struct job *out) {
    const struct op_kv_layout *kv = args->kv;
    INVARIANT(args->q_head_count % kv->kv_head_count == 0);
    struct job job = {.args = args, .kernels = kernels};
    job.group = args->q_head_count / kv->kv_head_count;
    job.tile_rows = job.group >= ATTENTION_TILE_QUERIES ? 1 : ATTENTION_TILE_QUERIES / job.group;
    job.tile_rows = u32_min(job.tile_rows, args->step->row_count);
    job.tile_queries = job.tile_rows * job.group;
    uint32_t parts =
        args->parts > 0 ? args->parts : OP_ATTENTION_PARTS_PER_THREAD * ctx->thread_count;
    job.split_max = parts / PARTS_PER_SUM;    // below three parts nothing is cut
    job.slot_count = job.split_max > 0 ? parts - job.split_max : 0;
    job.part_bytes = bytes_to_lines((size_t)job.tile_queries * (kv->head_dim + 2) * sizeof(float));
    job.kernel_bytes =
        bytes_to_lines(kernels->thread_scratch_bytes(job.tile_queries, kv->head_dim));
    job.thread_bytes = job.kernel_bytes + 2 * job.part_bytes;

    uintptr_t start = (uintptr_t)base;
    uintptr_t at = start;
    job.seq_tile = (uint32_t *)at;
    at += bytes_to_lines(((size_t)args->step->seq_count + 1) * sizeof(uint32_t));
    job.split_item = (uint32_t *)at;
    at += bytes_to_lines(((size_t)job.split_max + 1) * sizeof(uint32_t));
    job.sums = (uint8_t *)at;
    at += job.split_max * job.part_bytes;
    job.slots = (uint8_t *)at;
    at += job.slot_count * job.part_bytes;
    job.thread_scratch = (uint8_t *)at;
    at += ctx->thread_count * job.thread_bytes;
    *out = job;
    return at - start;
}

size_t attention_scratch(const struct op_ctx *ctx, const struct op_attention_args *args,
                         const struct attention_kernels *kernels) {
    struct job job;
    return lay_out(ctx, args, kernels, NULL, &job);
}

static struct attention_part part_at(const struct job *job, uint8_t *memory) {
    float *base = (float *)(void *)memory;
    struct attention_part part = {
        .o = base,
        .m = base + (size_t)job->tile_queries * job->args->kv->head_dim,
    };
    part.l = part.m + job->tile_queries;
    return part;
}

// ---- tiles -------------------------------------------------------------------------------------

static void count_tiles(struct job *job) {
    const struct op_step *step = job->args->step;
    uint32_t count = 0;
    for (uint32_t s = 0; s < step->seq_count; s++) {
        job->seq_tile[s] = count;
        count += div_up(step->seq_row[s + 1] - step->seq_row[s], job->tile_rows);
    }
    job->seq_tile[step->seq_count] = count;
    job->tile_count = count;
}

// Tile task `task_index`: KV heads of one tile are neighbours.
static struct attention_tile tile_at(const struct job *job, uint32_t task_index,
                                     uint32_t thread_index) {
    const struct op_step *step = job->args->step;
    uint32_t kv_heads = job->args->kv->kv_head_count;
    uint32_t tile_index = task_index / kv_heads;
    uint32_t low = 0;
    uint32_t high = step->seq_count - 1;
    while (low < high) {    // the last sequence that starts at or before the tile
        uint32_t middle = (low + high + 1) / 2;
        if (job->seq_tile[middle] <= tile_index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    uint32_t row = step->seq_row[low] + (tile_index - job->seq_tile[low]) * job->tile_rows;
    return (struct attention_tile){
        .args = job->args,
        .seq = low,
        .kv_head = task_index % kv_heads,
        .group = job->group,
        .row_begin = row,
        .row_end = u32_min(row + job->tile_rows, step->seq_row[low + 1]),
        .scratch = job->thread_scratch + job->thread_bytes * thread_index,
    };
}

static uint32_t chunk_count(const struct attention_tile *tile) {
    return tile->args->step->position[tile->row_end - 1] / ATTENTION_CHUNK + 1;
}

static uint32_t query_count(const struct attention_tile *tile) {
    return (tile->row_end - tile->row_begin) * tile->group;
}

static void merge_part(const struct job *job, const struct attention_tile *tile, uint32_t chunk,
                       const struct attention_part *sum, const struct attention_part *part) {
    uint32_t head_dim = job->args->kv->head_dim;
    uint32_t count = query_count(tile);
    for (uint32_t i = 0; i < count; i++) {
        if (attention_query_limit(tile, i, chunk) > 0) {
            job->kernels->merge(&sum->m[i], &sum->l[i], sum->o + (size_t)i * head_dim, part->m[i],
                                part->l[i], part->o + (size_t)i * head_dim, head_dim);
        }
    }
}

static void finish_tile(const struct job *job, const struct attention_tile *tile,
                        const struct attention_part *sum) {
    uint32_t head_dim = job->args->kv->head_dim;
    uint32_t count = query_count(tile);
    for (uint32_t i = 0; i < count; i++) {
        job->kernels->finish(sum->l[i], sum->o + (size_t)i * head_dim,
                             job->args->y + attention_query_offset(tile, i), head_dim);
    }
}

// ---- enough tiles: one task walks all chunks of its tile ----------------------------------------

static void whole_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct job *job = arg;
    // Later rows see more positions: the long tasks start first.
    uint32_t task_count = job->tile_count * job->args->kv->kv_head_count;
    struct attention_tile tile = tile_at(job, task_count - 1 - task_index, thread_index);
    struct attention_part sum = part_at(job, tile.scratch + job->kernel_bytes);
    struct attention_part part = part_at(job, tile.scratch + job->kernel_bytes + job->part_bytes);
    job->kernels->chunk(&tile, 0, &sum);
    for (uint32_t c = 1; c < chunk_count(&tile); c++) {
        job->kernels->chunk(&tile, c, &part);
        merge_part(job, &tile, c, &sum, &part);
    }
    finish_tile(job, &tile, &sum);
}

// ---- few tiles: chunks are tasks, then each tile merges its own ---------------------------------

static void chunk_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct job *job = arg;
    uint32_t item = job->item_begin + task_index;
    uint32_t task = 0;
    while (job->split_item[task + 1] <= item) {
        task++;
    }
    struct attention_tile tile = tile_at(job, task, thread_index);
    struct attention_part part = part_at(job, job->slots + job->part_bytes * task_index);
    job->kernels->chunk(&tile, item - job->split_item[task], &part);
}

static void merge_task(void *arg, uint32_t task_index, uint32_t thread_index) {
    struct job *job = arg;
    uint32_t first = job->split_item[task_index];
    uint32_t last = job->split_item[task_index + 1];
    struct attention_tile tile = tile_at(job, task_index, thread_index);
    struct attention_part sum = part_at(job, job->sums + job->part_bytes * task_index);
    uint32_t begin = first > job->item_begin ? first : job->item_begin;
    uint32_t end = u32_min(last, job->item_end);
    for (uint32_t item = begin; item < end; item++) {
        uint8_t *slot = job->slots + job->part_bytes * (item - job->item_begin);
        struct attention_part part = part_at(job, slot);
        if (item == first) {
            memcpy(sum.o, part.o, job->part_bytes);
        } else {
            merge_part(job, &tile, item - first, &sum, &part);
        }
    }
    if (begin < end && end == last) {
        finish_tile(job, &tile, &sum);
    }
}

static void run_split(const struct op_ctx *ctx, struct job *job, uint32_t task_count) {
    uint32_t item_count = job->split_item[task_count];
    for (uint32_t begin = 0; begin < item_count; begin += job->slot_count) {
        job->item_begin = begin;
        job->item_end = u32_min(begin + job->slot_count, item_count);
        ctx->parallel(ctx->pool, job->item_end - begin, chunk_task, job);
        ctx->parallel(ctx->pool, task_count, merge_task, job);
    }
}

// Fills split_item; false when no tile has a second chunk, so that cutting gains nothing.
static bool worth_splitting(struct job *job, uint32_t task_count) {
    if (task_count > job->split_max) {
        return false;
    }
    uint32_t item = 0;
    for (uint32_t t = 0; t < task_count; t++) {
        struct attention_tile tile = tile_at(job, t, 0);
        job->split_item[t] = item;
        item += chunk_count(&tile);
    }
    job->split_item[task_count] = item;
    return item > task_count;
}

void attention_run(const struct op_ctx *ctx, const struct op_attention_args *args,
                   const struct attention_kernels *kernels) {
    if (args->step->row_count == 0) {
        return;
    }
    struct job job;
    size_t bytes = lay_out(ctx, args, kernels, ctx->scratch, &job);
    INVARIANT(bytes <= ctx->scratch_bytes);
    count_tiles(&job);
    uint32_t task_count = job.tile_count * args->kv->kv_head_count;
    if (ctx->thread_count > 1 && worth_splitting(&job, task_count)) {
        run_split(ctx, &job, task_count);
    } else {
        ctx->parallel(ctx->pool, task_count, whole_task, &job);
    }
}

void attention_find_spans(const struct attention_tile *tile, uint32_t chunk_index,
                          uint32_t span_count, const uint8_t **key, const uint8_t **value) {
    const struct op_kv_layout *kv = tile->args->kv;
    for (uint32_t s = 0; s < span_count; s++) {
        uint32_t position = chunk_index * ATTENTION_CHUNK + KV_SPAN * s;
        const uint8_t *page = kv_page(tile->args->step, kv, tile->args->layer, tile->seq, position);
        uint32_t in_block = position % kv->block_tokens;
        key[s] = page + kv_key_span_offset(kv, tile->kv_head, in_block);
        value[s] = page + kv_value_offset(kv, tile->kv_head, in_block);
    }
}
