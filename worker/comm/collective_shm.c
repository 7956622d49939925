// SPDX-License-Identifier: Apache-2.0
// Collectives of processes on one host, through memory that they share.
//
// A message is cut into chunks. Each rank has SLOTS places for chunks of its own ("in") and as many
// for sums that it made for others ("out"); chunk n of the epoch uses slot n % SLOTS, and a word
// counts the ranks that have filled it. The ranks are never told that a slot is free: a rank that
// has arrived at chunk n has read everything before chunk n - 1, so whoever saw all arrive at n may
// fill the slot of chunk n - 2 and older ones.
//
//   A(n)  copy the own part of chunk n into the slot, arrive at "in" n
//   B(n)  wait for all at "in" n; read the peers' slots
//   C(n)  only where ranks sum for each other: B wrote to the slot of "out" and arrived there; wait
//         for all at "out" n, read
//
// Order on every rank: A(0) A(1) B(0) A(2) B(1) ..., and with C: A(t) B(t-1) C(t-2). So copying
// goes on while others are waited for. When A(n) fills a slot, B(n-2) is done, so all have arrived
// at n-2 and have finished B(n-4) before: four slots are enough. The same holds between messages,
// since counts go on from one message to the next. With C: C(t-3) is done at A(t), so all have
// arrived at "out" t-3, behind their B(t-3); and B(t) has seen all arrive at "in" t, behind their
// C(t-3).
#include "worker/comm/collective.h"

#include "common/bounds.h"
#include "common/clock.h"
#include "common/integers.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "worker/comm/ordered_sum.h"
#include "worker/comm/shared_region.h"
#include <pthread.h>
#include <string.h>

enum {
    SLOTS = 4,
    WORD_IN = 0,
    WORD_OUT = SLOTS,
    LINE_FLOATS = SHARED_REGION_LINE_BYTES / sizeof(float),
    // Large enough that waiting is rare, small enough that a chunk stays in the second cache.
    CHUNK_FLOATS_MAX = 32 * 1024,
    // Below, every rank sums everything itself: less waiting than it costs in sums.
    DIRECT_BYTES_MAX = 32 * 1024,
    BUFFER_BYTES_MIN = 8 * 1024,
    MAILS = 2,    // halves of a mailbox
};
_Static_assert(SHARED_REGION_WORDS == 2 * SLOTS, "a word for each slot");

// Where things are in a rank's part of the body, in floats.
struct layout {
    size_t in_floats;     // of one slot
    size_t out_floats;    // of one slot: the chunk's share of a rank
    size_t mail_floats;
    size_t rank_floats;    // all of it
};

struct collective_shm {
    struct collective base;
    pthread_mutex_t lock;    // guards `shared`, and that the region stays while somebody aborts it
    bool shared;             // the region is open
    struct shared_region region;
    struct layout layout;
    _Atomic uint64_t aborted_epoch;
    uint64_t epoch;
    bool attached;
    bool broken;
    uint64_t in_count, out_count;    // chunks of this epoch so far
    uint32_t sent[BOUND_RANKS], taken[BOUND_RANKS];
};

static struct collective_shm *shm_of(struct collective *collective) {
    return (struct collective_shm *)(void *)collective;
}

// ---- life cycle --------------------------------------------------------------------------------

static enum status shm_create(const struct collective_options *options, struct collective **out,
                              struct error *err) {
    (void)options;
    struct collective_shm *c = memory_zalloc(sizeof *c);
    if (c == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a collective");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->region.fd = -1;
    *out = &c->base;
    return STATUS_OK;
}

static void shm_detach(struct collective *collective) {
    struct collective_shm *c = shm_of(collective);
    pthread_mutex_lock(&c->lock);
    c->shared = false;
    shared_region_close(&c->region);
    pthread_mutex_unlock(&c->lock);
    c->attached = false;
    c->broken = false;
}

static void shm_destroy(struct collective *collective) {
    struct collective_shm *c = shm_of(collective);
    shm_detach(collective);
    pthread_mutex_destroy(&c->lock);
    memory_free(c);
}

static bool is_aborted(void *ctx) {
    const struct collective_shm *c = ctx;
    return c->aborted_epoch >= c->epoch;
}

static size_t to_lines(size_t floats) {
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

// An eighth of the buffer is for letters between two ranks, the rest for slots.
static struct layout lay_out(uint64_t buffer_bytes, uint32_t world) {
    uint64_t bytes = buffer_bytes > BUFFER_BYTES_MIN ? buffer_bytes : BUFFER_BYTES_MIN;
    size_t floats = bytes / sizeof(float);
    size_t mail = floats / 8 / ((size_t)BOUND_RANKS * MAILS) / LINE_FLOATS * LINE_FLOATS;
    struct layout layout = {.mail_floats = mail < CHUNK_FLOATS_MAX ? mail : CHUNK_FLOATS_MAX};
    // A chunk is a whole number of lines for every rank.
    size_t unit = (size_t)world * LINE_FLOATS;
    size_t left = (floats - floats / 8) / SLOTS;
    size_t units = left / (unit + LINE_FLOATS);
    size_t most = CHUNK_FLOATS_MAX / unit;
    units = units < most ? units : most;
    layout.out_floats = units * LINE_FLOATS;
    layout.in_floats = units * unit;
    layout.rank_floats = SLOTS * (layout.in_floats + layout.out_floats) +
                         (size_t)BOUND_RANKS * MAILS * layout.mail_floats;
    INVARIANT(units > 0);
    INVARIANT(layout.mail_floats > 0);
    INVARIANT(layout.rank_floats <= floats);
    return layout;
}

static enum status shm_attach(struct collective *collective, const struct collective_epoch *epoch,
                              struct error *err) {
    struct collective_shm *c = shm_of(collective);
    pthread_mutex_lock(&c->lock);
    c->epoch = epoch->epoch;
    pthread_mutex_unlock(&c->lock);
    c->layout = lay_out(epoch->buffer_bytes, collective->world);
    c->in_count = 0;
    c->out_count = 0;
    memset(c->sent, 0, sizeof c->sent);
    memset(c->taken, 0, sizeof c->taken);
    struct shared_region_options options = {
        .id = epoch->comm_id,
        .rank = collective->rank,
        .world = collective->world,
        .body_bytes = c->layout.rank_floats * sizeof(float) * collective->world,
        .deadline_us = clock_monotonic_us() + epoch->patience_us,
        .cancelled = is_aborted,
        .ctx = c,
    };
    struct shared_region region;
    TRY(shared_region_open(&region, &options, err));
    // From here on an abort finds the region; one that came before is seen by meet.
    pthread_mutex_lock(&c->lock);
    c->region = region;
    c->shared = true;
    pthread_mutex_unlock(&c->lock);
    enum status status = shared_region_meet(&c->region, &options, err);
    if (status != STATUS_OK) {
        shm_detach(collective);
        return status;
    }
    c->attached = true;
    return STATUS_OK;
}

static void shm_abort(struct collective *collective, uint64_t epoch) {
    struct collective_shm *c = shm_of(collective);
    pthread_mutex_lock(&c->lock);
    if (epoch > c->aborted_epoch) {
        c->aborted_epoch = epoch;
    }
    if (c->shared && c->aborted_epoch >= c->epoch) {
        shared_region_abort(&c->region);
    }
    pthread_mutex_unlock(&c->lock);
}

static bool shm_broken(const struct collective *collective) {
    const struct collective_shm *c = (const struct collective_shm *)(const void *)collective;
    return !c->attached || c->broken || shared_region_aborted(&c->region);
}

// ---- chunks ------------------------------------------------------------------------------------

static float *in_slot(const struct collective_shm *c, uint32_t rank, uint64_t n) {
    float *body = (float *)(void *)c->region.body;
    return body + rank * c->layout.rank_floats + (n % SLOTS) * c->layout.in_floats;
}

static float *out_slot(const struct collective_shm *c, uint32_t rank, uint64_t n) {
    float *body = (float *)(void *)c->region.body;
    return body + rank * c->layout.rank_floats + SLOTS * c->layout.in_floats +
           (n % SLOTS) * c->layout.out_floats;
}

static float *mail(const struct collective_shm *c, uint32_t from, uint32_t to, uint32_t n) {
    float *body = (float *)(void *)c->region.body;
    return body + from * c->layout.rank_floats +
           SLOTS * (c->layout.in_floats + c->layout.out_floats) +
           ((size_t)to * MAILS + n % MAILS) * c->layout.mail_floats;
}

// What a word has counted, in twos, when all ranks have filled its slot for chunk n. It wraps
// around as the word does.
static uint32_t goal_of(const struct collective_shm *c, uint64_t n) {
    return (uint32_t)(2 * c->base.world * (n / SLOTS + 1));
}

enum message { MESSAGE_SUM = 1, MESSAGE_SCATTER, MESSAGE_GATHER, MESSAGE_BROADCAST };

// Ranks that are not in the same message have parted: better an end than mixed bytes.
static uint64_t tag_of(enum message message, uint64_t count) {
    return (uint64_t)message << 56 | count;
}

static void arrive_in(struct collective_shm *c, uint64_t n, uint64_t tag) {
    struct shared_region_head *head = c->region.head;
    atomic_store_explicit(&head->tag[c->base.rank].value[n % SLOTS], tag, memory_order_relaxed);
    shared_region_arrive(&c->region, &head->word[WORD_IN + n % SLOTS], goal_of(c, n));
}

static void break_off(struct collective_shm *c) {
    c->broken = true;
    shared_region_abort(&c->region);
}

static bool await_in(struct collective_shm *c, uint64_t n, uint64_t tag) {
    struct shared_region_head *head = c->region.head;
    if (!shared_region_wait(&c->region, &head->word[WORD_IN + n % SLOTS], goal_of(c, n))) {
        c->broken = true;
        return false;
    }
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        if (atomic_load_explicit(&head->tag[rank].value[n % SLOTS], memory_order_relaxed) != tag) {
            break_off(c);
            return false;
        }
    }
    return true;
}

static void arrive_out(struct collective_shm *c, uint64_t n) {
    shared_region_arrive(&c->region, &c->region.head->word[WORD_OUT + n % SLOTS], goal_of(c, n));
}

static bool await_out(struct collective_shm *c, uint64_t n) {
    if (!shared_region_wait(&c->region, &c->region.head->word[WORD_OUT + n % SLOTS],
                            goal_of(c, n))) {
        c->broken = true;
    }
    return !c->broken;
}

static bool speaks(const struct collective_shm *c) {
    return c->attached && !c->broken;
}

// ---- sums --------------------------------------------------------------------------------------

// Chunk `at` of a message: the part that each rank sums, for all, or for itself.
struct span {
    size_t begin, count;
};

struct sum {
    struct collective_shm *c;
    const float *part;
    float *y;
    size_t count;        // of the message
    size_t each;         // elements of a chunk that one rank sums
    size_t share;        // reduce-scatter: elements of the message that a rank keeps; 0: all-reduce
    uint64_t in, out;    // chunk numbers of chunk 0
    uint32_t chunks;
    uint64_t tag;
};

// Which elements of chunk t rank `rank` sums.
static struct span span_of(const struct sum *sum, uint32_t t, uint32_t rank) {
    size_t begin = sum->share > 0 ? rank * sum->share + t * sum->each
                                  : ((size_t)t * sum->c->base.world + rank) * sum->each;
    size_t end = begin + sum->each;
    if (sum->share > 0 && end > (rank + 1) * sum->share) {
        end = (rank + 1) * sum->share;
    }
    begin = begin < sum->count ? begin : sum->count;
    end = end < sum->count ? end : sum->count;
    return (struct span){begin, end > begin ? end - begin : 0};
}

// Everything of the chunk that others sum.
static void sum_put(const struct sum *sum, uint32_t t) {
    struct collective_shm *c = sum->c;
    uint32_t me = c->base.rank;
    float *slot = in_slot(c, me, sum->in + t);
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        struct span span = span_of(sum, t, rank);
        if (rank != me && span.count > 0) {
            memcpy(slot + rank * sum->each, sum->part + span.begin, span.count * sizeof(float));
        }
    }
    arrive_in(c, sum->in + t, sum->tag);
}

// The own share, from everybody's slots and the own part.
static bool sum_own(const struct sum *sum, uint32_t t) {
    struct collective_shm *c = sum->c;
    uint32_t me = c->base.rank;
    if (!await_in(c, sum->in + t, sum->tag)) {
        return false;
    }
    struct span span = span_of(sum, t, me);
    const float *parts[ORDERED_SUM_PARTS_MAX];
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        parts[rank] =
            rank == me ? sum->part + span.begin : in_slot(c, rank, sum->in + t) + me * sum->each;
    }
    if (sum->share > 0) {
        // A rank whose share lies past the end has nothing, and no place in `y` either.
        if (span.count > 0) {
            float *own = sum->y + (span.begin - me * sum->share);
            ordered_sum_add(parts, c->base.world, own, span.count);
        }
        return true;
    }
    float *slot = out_slot(c, me, sum->out + t);
    ordered_sum(parts, c->base.world, slot, span.count);
    arrive_out(c, sum->out + t);
    ordered_add(slot, sum->y + span.begin, span.count);
    return true;
}

static bool sum_get(const struct sum *sum, uint32_t t) {
    struct collective_shm *c = sum->c;
    if (!await_out(c, sum->out + t)) {
        return false;
    }
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        struct span span = span_of(sum, t, rank);
        if (rank != c->base.rank && span.count > 0) {
            ordered_add(out_slot(c, rank, sum->out + t), sum->y + span.begin, span.count);
        }
    }
    return true;
}

// A(t) B(t-1) C(t-2); a reduce-scatter has no C.
static void sum_run(struct sum *sum) {
    bool ok = true;
    for (uint32_t t = 0; t < sum->chunks + 2 && ok; t++) {
        if (t < sum->chunks) {
            sum_put(sum, t);
        }
        if (t >= 1 && t - 1 < sum->chunks) {
            ok = sum_own(sum, t - 1);
        }
        if (t >= 2 && ok && sum->share == 0) {
            ok = sum_get(sum, t - 2);
        }
    }
    sum->c->in_count += sum->chunks;
    sum->c->out_count += sum->share == 0 ? sum->chunks : 0;
}

// A small message: everybody sums everything.
static void sum_direct(struct collective_shm *c, const float *part, float *y, size_t count) {
    uint64_t n = c->in_count++;
    memcpy(in_slot(c, c->base.rank, n), part, count * sizeof(float));
    uint64_t tag = tag_of(MESSAGE_SUM, count);
    arrive_in(c, n, tag);
    if (!await_in(c, n, tag)) {
        return;
    }
    const float *parts[ORDERED_SUM_PARTS_MAX];
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        parts[rank] = rank == c->base.rank ? part : in_slot(c, rank, n);
    }
    ordered_sum_add(parts, c->base.world, y, count);
}

// Elements that a rank sums in one chunk of a message in which it sums `own`: at least two chunks,
// so that something overlaps, and whole lines.
static size_t chunk_each(const struct collective_shm *c, size_t own) {
    size_t half = to_lines((own + 1) / 2);
    return half < c->layout.out_floats ? half : c->layout.out_floats;
}

static void shm_all_reduce_add(struct collective *collective, const float *part, float *y,
                               uint32_t rows, uint32_t cols) {
    struct collective_shm *c = shm_of(collective);
    size_t count = (size_t)rows * cols;
    if (!speaks(c) || count == 0) {
        return;
    }
    if (count * sizeof(float) <= DIRECT_BYTES_MAX && count <= c->layout.in_floats) {
        sum_direct(c, part, y, count);
        return;
    }
    struct sum sum = {.c = c, .part = part, .y = y, .count = count};
    sum.each = chunk_each(c, (count + collective->world - 1) / collective->world);
    size_t chunk = sum.each * collective->world;
    sum.chunks = (uint32_t)((count + chunk - 1) / chunk);
    sum.in = c->in_count;
    sum.out = c->out_count;
    sum.tag = tag_of(MESSAGE_SUM, count);
    sum_run(&sum);
}

static void shm_reduce_scatter_add(struct collective *collective, const float *part, float *y,
                                   uint32_t rows, uint32_t cols) {
    struct collective_shm *c = shm_of(collective);
    if (!speaks(c) || rows == 0 || cols == 0) {
        return;
    }
    struct sum sum = {.c = c, .part = part, .y = y, .count = (size_t)rows * cols};
    sum.share = (size_t)collective_share(rows, 0, collective->world).count * cols;
    sum.each = chunk_each(c, sum.share);
    sum.chunks = (uint32_t)((sum.share + sum.each - 1) / sum.each);
    sum.in = c->in_count;
    sum.tag = tag_of(MESSAGE_SCATTER, sum.count);
    sum_run(&sum);
}

// ---- gathering ---------------------------------------------------------------------------------

// Elements begin .. begin + count - 1 of rank `rank`'s x, to their places in y.
static void place(const struct collective_gather *args, uint32_t rank, const float *from,
                  size_t begin, size_t count) {
    size_t offset = (size_t)rank * args->x_cols;
    size_t width = offset < args->y_cols ? args->y_cols - offset : 0;
    width = width < args->x_cols ? width : args->x_cols;
    while (count > 0) {
        size_t row = begin / args->x_cols;
        size_t col = begin % args->x_cols;
        size_t run = args->x_cols - col < count ? args->x_cols - col : count;
        size_t keep = col < width ? width - col : 0;
        keep = keep < run ? keep : run;
        if (keep > 0) {
            memcpy(args->y + row * args->y_cols + offset + col, from, keep * sizeof(float));
        }
        from += run;
        begin += run;
        count -= run;
    }
}

static void shm_all_gather(struct collective *collective, const struct collective_gather *args) {
    struct collective_shm *c = shm_of(collective);
    size_t count = (size_t)args->row_count * args->x_cols;
    if (!speaks(c) || count == 0) {
        return;
    }
    place(args, collective->rank, args->x, 0, count);
    size_t each = c->layout.in_floats;
    uint32_t chunks = (uint32_t)((count + each - 1) / each);
    uint64_t tag = tag_of(MESSAGE_GATHER, (uint64_t)args->row_count * args->y_cols);
    bool ok = true;
    for (uint32_t t = 0; t <= chunks && ok; t++) {
        if (t < chunks) {
            size_t begin = t * each;
            size_t put = count - begin < each ? count - begin : each;
            memcpy(in_slot(c, collective->rank, c->in_count + t), args->x + begin,
                   put * sizeof(float));
            arrive_in(c, c->in_count + t, tag);
        }
        if (t == 0) {
            continue;
        }
        size_t begin = (t - 1) * each;
        size_t got = count - begin < each ? count - begin : each;
        ok = await_in(c, c->in_count + t - 1, tag);
        for (uint32_t rank = 0; rank < collective->world && ok; rank++) {
            if (rank != collective->rank) {
                place(args, rank, in_slot(c, rank, c->in_count + t - 1), begin, got);
            }
        }
    }
    c->in_count += chunks;
}

static void shm_broadcast(struct collective *collective, uint32_t root, void *bytes,
                          size_t byte_count) {
    struct collective_shm *c = shm_of(collective);
    if (!speaks(c) || byte_count == 0) {
        return;
    }
    uint8_t *at = bytes;
    size_t each = c->layout.in_floats * sizeof(float);
    uint32_t chunks = (uint32_t)((byte_count + each - 1) / each);
    uint64_t tag = tag_of(MESSAGE_BROADCAST, byte_count << 3 | root);
    bool ok = true;
    for (uint32_t t = 0; t <= chunks && ok; t++) {
        if (t < chunks) {
            size_t begin = t * each;
            if (collective->rank == root) {
                memcpy(in_slot(c, root, c->in_count + t), at + begin,
                       byte_count - begin < each ? byte_count - begin : each);
            }
            arrive_in(c, c->in_count + t, tag);
        }
        if (t == 0) {
            continue;
        }
        size_t begin = (t - 1) * each;
        ok = await_in(c, c->in_count + t - 1, tag);
        if (ok && collective->rank != root) {
            memcpy(at + begin, in_slot(c, root, c->in_count + t - 1),
                   byte_count - begin < each ? byte_count - begin : each);
        }
    }
    c->in_count += chunks;
}

// ---- letters -----------------------------------------------------------------------------------

// Each pair has a mailbox of two halves and two words: letters put there, letters taken out.
static void shm_send(struct collective *collective, uint32_t peer, const void *bytes,
                     size_t byte_count) {
    struct collective_shm *c = shm_of(collective);
    const uint8_t *at = bytes;
    size_t each = c->layout.mail_floats * sizeof(float);
    uint32_t me = collective->rank;
    while (byte_count > 0 && speaks(c)) {
        struct shared_region_head *head = c->region.head;
        uint32_t n = c->sent[peer]++;
        // The letter before the last one was taken: its half is free.
        if (!shared_region_wait(&c->region, &head->taken[me][peer], 2 * (n + 1 - MAILS))) {
            c->broken = true;
            return;
        }
        size_t put = byte_count < each ? byte_count : each;
        memcpy(mail(c, me, peer, n), at, put);
        shared_region_arrive(&c->region, &head->sent[me][peer], 2 * (n + 1));
        at += put;
        byte_count -= put;
    }
}

static void shm_receive(struct collective *collective, uint32_t peer, void *bytes,
                        size_t byte_count) {
    struct collective_shm *c = shm_of(collective);
    uint8_t *at = bytes;
    size_t each = c->layout.mail_floats * sizeof(float);
    uint32_t me = collective->rank;
    while (byte_count > 0 && speaks(c)) {
        struct shared_region_head *head = c->region.head;
        uint32_t n = c->taken[peer]++;
        if (!shared_region_wait(&c->region, &head->sent[peer][me], 2 * (n + 1))) {
            c->broken = true;
            return;
        }
        size_t got = byte_count < each ? byte_count : each;
        memcpy(at, mail(c, peer, me, n), got);
        shared_region_arrive(&c->region, &head->taken[peer][me], 2 * (n + 1));
        at += got;
        byte_count -= got;
    }
}

// ---- the table ---------------------------------------------------------------------------------

const struct collective_table collective_shm = {
    .name = "shm",
    .create = shm_create,
    .destroy = shm_destroy,
    .attach = shm_attach,
    .detach = shm_detach,
    .abort = shm_abort,
    .broken = shm_broken,
    .all_reduce_add = shm_all_reduce_add,
    .reduce_scatter_add = shm_reduce_scatter_add,
    .all_gather = shm_all_gather,
    .broadcast = shm_broadcast,
    .send = shm_send,
    .receive = shm_receive,
};
