// SPDX-License-Identifier: Apache-2.0
// Collectives of CUDA devices on one host, through NCCL 2.28.9.
//
// The ranks find each other, and see who is gone, through a small shared region as in
// collective_shm.c; rank 0's NCCL id travels in its head. The communicator is non-blocking, so no
// thread is ever stuck inside the library, and ncclCommAbort is safe from the I/O thread as long as
// no other thread is inside a call at that moment: `lock` is held around each one, and around none
// that waits. What waits on the stream ends when the communicator is aborted.
//
// NCCL connects when an operation first needs it, and takes device memory then. So attach runs
// every operation once at every class of size that the library tells apart (device-memory.md 2.6),
// before anything is weighed. A graph that captured messages is dead with its communicator: it is
// captured again after every attach.
#include "worker/comm/collective.h"

#include "common/clock.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/memory.h"
#include "worker/comm/shared_region.h"
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BODY_BYTES = 4096,
    CHANNELS = 8,    // of a communicator: its connections' memory grows with them
    LOOK_MS = 1,     // between looks at what is under way
};

struct collective_nccl {
    struct collective base;
    const struct collective_device *device;
    pthread_mutex_t lock;    // around every call of the library, and what follows
    bool shared;             // the region is open
    struct shared_region region;
    ncclComm_t comm;    // NULL: none, or aborted
    uint64_t epoch;
    _Atomic uint64_t aborted_epoch;
    uint64_t deadline_us;    // while attaching; UINT64_MAX later
    bool broken;
};

static struct collective_nccl *nccl_of(struct collective *collective) {
    return (struct collective_nccl *)(void *)collective;
}

// ---- settings ----------------------------------------------------------------------------------

// The library reads these when it is first used; they decide how much device memory its connections
// take. A person's own value stays.
static const struct {
    const char *name, *value;
} SETTINGS[] = {
    {"NCCL_BUFFSIZE", "1048576"},
    {"NCCL_LL128_BUFFSIZE", "262144"},
    {"NCCL_GRAPH_REGISTER", "0"},    // a captured message would register addresses that move
    {"NCCL_RUNTIME_CONNECT", "0"},
};

static void apply_settings(void) {
    for (size_t i = 0; i < sizeof SETTINGS / sizeof SETTINGS[0]; i++) {
        setenv(SETTINGS[i].name, SETTINGS[i].value, 0);
        log_info("nccl", "setting %s default=%s", SETTINGS[i].name, SETTINGS[i].value);
    }
}

// ---- life cycle --------------------------------------------------------------------------------

// Before other threads exist: it sets the environment.
static enum status nccl_create(const struct collective_options *options, struct collective **out,
                               struct error *err) {
    if (options->device == NULL) {
        return error_set(err, STATUS_INVALID, "nccl needs a CUDA device");
    }
    struct collective_nccl *c = memory_zalloc(sizeof *c);
    if (c == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a collective");
    }
    c->device = options->device;
    c->broken = true;
    c->region.fd = -1;
    pthread_mutex_init(&c->lock, NULL);
    apply_settings();
    *out = &c->base;
    return STATUS_OK;
}

// Under the lock. Destroying would wait for the other ranks, who may be gone.
static void drop_comm(struct collective_nccl *c) {
    if (c->comm != NULL) {
        ncclCommAbort(c->comm);
        c->comm = NULL;
    }
    c->broken = true;
}

static void nccl_detach(struct collective *collective) {
    struct collective_nccl *c = nccl_of(collective);
    pthread_mutex_lock(&c->lock);
    drop_comm(c);
    c->shared = false;
    shared_region_close(&c->region);
    pthread_mutex_unlock(&c->lock);
}

static void nccl_destroy(struct collective *collective) {
    struct collective_nccl *c = nccl_of(collective);
    nccl_detach(collective);
    pthread_mutex_destroy(&c->lock);
    memory_free(c);
}

static bool is_aborted(void *ctx) {
    const struct collective_nccl *c = ctx;
    return c->aborted_epoch >= c->epoch;
}

static void nccl_abort(struct collective *collective, uint64_t epoch) {
    struct collective_nccl *c = nccl_of(collective);
    pthread_mutex_lock(&c->lock);
    if (epoch > c->aborted_epoch) {
        c->aborted_epoch = epoch;
    }
    if (c->aborted_epoch >= c->epoch) {
        if (c->shared) {
            shared_region_abort(&c->region);
        }
        drop_comm(c);
    }
    pthread_mutex_unlock(&c->lock);
}

static void break_off(struct collective_nccl *c) {
    pthread_mutex_lock(&c->lock);
    if (c->shared) {
        shared_region_abort(&c->region);
    }
    drop_comm(c);
    pthread_mutex_unlock(&c->lock);
}

// What the communicator is in: an error that nobody asks for is never seen, and what has one does
// not end by itself.
static ncclResult_t async_state(struct collective_nccl *c) {
    ncclResult_t state = ncclInvalidUsage;
    pthread_mutex_lock(&c->lock);
    if (c->comm != NULL && ncclCommGetAsyncError(c->comm, &state) != ncclSuccess) {
        state = ncclInternalError;
    }
    pthread_mutex_unlock(&c->lock);
    return state;
}

static bool nccl_broken(const struct collective *collective) {
    struct collective_nccl *c = (struct collective_nccl *)(uintptr_t)collective;
    ncclResult_t state = async_state(c);
    return c->broken || (state != ncclSuccess && state != ncclInProgress) ||
           shared_region_aborted(&c->region);
}

// Nobody comes any more.
static bool is_hopeless(struct collective_nccl *c) {
    return is_aborted(c) || shared_region_aborted(&c->region) ||
           shared_region_peer_gone(&c->region) || clock_monotonic_us() >= c->deadline_us;
}

// Until the library has taken what it was told last. Without the lock: an abort must come through.
static bool settle(struct collective_nccl *c) {
    for (;;) {
        ncclResult_t state = async_state(c);
        if (state == ncclSuccess) {
            return true;
        }
        if (state != ncclInProgress || is_hopeless(c)) {
            log_warn("nccl", "the group broke because=\"%s\"", ncclGetErrorString(state));
            break_off(c);
            return false;
        }
        poll(NULL, 0, LOOK_MS);
    }
}

// `result` of a call that was made under the lock, which is released here.
static bool took(struct collective_nccl *c, ncclResult_t result) {
    pthread_mutex_unlock(&c->lock);
    if (result == ncclSuccess) {
        return true;
    }
    if (result == ncclInProgress) {
        return settle(c);
    }
    log_warn("nccl", "the group broke because=\"%s\"", ncclGetErrorString(result));
    break_off(c);
    return false;
}

// Takes the lock for one call; false, without it, when there is no communicator.
static bool speaks(struct collective_nccl *c) {
    pthread_mutex_lock(&c->lock);
    if (c->comm == NULL) {
        pthread_mutex_unlock(&c->lock);
        return false;
    }
    return true;
}

static cudaStream_t stream_of(const struct collective_nccl *c) {
    return (cudaStream_t)c->device->stream;
}

// ---- messages ----------------------------------------------------------------------------------

static void nccl_all_reduce_add(struct collective *collective, const float *part, float *y,
                                uint32_t rows, uint32_t cols) {
    struct collective_nccl *c = nccl_of(collective);
    size_t count = (size_t)rows * cols;
    INVARIANT(count * sizeof(float) <= c->device->arena_bytes);
    if (count > 0 && speaks(c) &&
        took(c, ncclAllReduce(part, c->device->arena, count, ncclFloat32, ncclSum, c->comm,
                              stream_of(c)))) {
        c->device->add(c->device->ctx, c->device->arena, y, count);
    }
}

static void nccl_reduce_scatter_add(struct collective *collective, const float *part, float *y,
                                    uint32_t rows, uint32_t cols) {
    struct collective_nccl *c = nccl_of(collective);
    struct collective_rows own = collective_share(rows, collective->rank, collective->world);
    size_t each = (size_t)collective_share(rows, 0, collective->world).count * cols;
    INVARIANT(each * sizeof(float) <= c->device->arena_bytes);
    if (each > 0 && speaks(c) &&
        took(c, ncclReduceScatter(part, c->device->arena, each, ncclFloat32, ncclSum, c->comm,
                                  stream_of(c)))) {
        c->device->add(c->device->ctx, c->device->arena, y, (size_t)own.count * cols);
    }
}

// Rank by rank in the arena, then side by side.
static void nccl_all_gather(struct collective *collective, const struct collective_gather *args) {
    struct collective_nccl *c = nccl_of(collective);
    size_t count = (size_t)args->row_count * args->x_cols;
    INVARIANT(count * collective->world * sizeof(float) <= c->device->arena_bytes);
    if (count == 0 || !speaks(c) ||
        !took(c, ncclAllGather(args->x, c->device->arena, count, ncclFloat32, c->comm,
                               stream_of(c)))) {
        return;
    }
    const float *arena = c->device->arena;
    for (uint32_t rank = 0; rank < collective->world; rank++) {
        size_t begin = (size_t)rank * args->x_cols;
        size_t left = begin < args->y_cols ? args->y_cols - begin : 0;
        size_t width = left < args->x_cols ? left : args->x_cols;
        if (width > 0 &&
            cudaMemcpy2DAsync(args->y + begin, args->y_cols * sizeof(float), arena + rank * count,
                              args->x_cols * sizeof(float), width * sizeof(float), args->row_count,
                              cudaMemcpyDeviceToDevice, stream_of(c)) != cudaSuccess) {
            break_off(c);
        }
    }
}

static void nccl_broadcast(struct collective *collective, uint32_t root, void *bytes,
                           size_t byte_count) {
    struct collective_nccl *c = nccl_of(collective);
    if (byte_count > 0 && speaks(c)) {
        (void)took(c, ncclBroadcast(bytes, bytes, byte_count, ncclUint8, (int)root, c->comm,
                                    stream_of(c)));
    }
}

static void nccl_send(struct collective *collective, uint32_t peer, const void *bytes,
                      size_t byte_count) {
    struct collective_nccl *c = nccl_of(collective);
    if (byte_count > 0 && speaks(c)) {
        (void)took(c, ncclSend(bytes, byte_count, ncclUint8, (int)peer, c->comm, stream_of(c)));
    }
}

static void nccl_receive(struct collective *collective, uint32_t peer, void *bytes,
                         size_t byte_count) {
    struct collective_nccl *c = nccl_of(collective);
    if (byte_count > 0 && speaks(c)) {
        (void)took(c, ncclRecv(bytes, byte_count, ncclUint8, (int)peer, c->comm, stream_of(c)));
    }
}

// ---- attaching ---------------------------------------------------------------------------------

// A letter from everybody to everybody: connects all pairs.
static bool exchange_letters(struct collective_nccl *c, const uint8_t *from, uint8_t *to,
                             size_t bytes) {
    if (!speaks(c)) {
        return false;
    }
    ncclResult_t result = ncclGroupStart();
    for (uint32_t rank = 0; rank < c->base.world; rank++) {
        if (rank != c->base.rank && (result == ncclSuccess || result == ncclInProgress)) {
            result = ncclSend(from, bytes, ncclUint8, (int)rank, c->comm, stream_of(c));
            if (result == ncclSuccess || result == ncclInProgress) {
                result = ncclRecv(to, bytes, ncclUint8, (int)rank, c->comm, stream_of(c));
            }
        }
    }
    ncclResult_t end = ncclGroupEnd();    // also after a failure: it closes the bracket
    return took(c, result == ncclSuccess || result == ncclInProgress ? end : result);
}

// Everything once with messages of `bytes`, from the lower half of the arena to the upper one.
static bool force_connections(struct collective_nccl *c, size_t bytes) {
    size_t world = c->base.world;
    size_t count = bytes / sizeof(float), each = count / world;
    float *from = c->device->arena;
    float *to = from + c->device->arena_bytes / 2 / sizeof(float);
    cudaStream_t stream = stream_of(c);
    bool ok =
        speaks(c) && took(c, ncclAllReduce(from, to, count, ncclFloat32, ncclSum, c->comm, stream));
    ok = ok && speaks(c) &&
         took(c, ncclReduceScatter(from, to, each, ncclFloat32, ncclSum, c->comm, stream));
    ok = ok && speaks(c) && took(c, ncclAllGather(from, to, each, ncclFloat32, c->comm, stream));
    ok = ok && speaks(c) &&
         took(c, ncclBroadcast(from, to, count * sizeof(float), ncclUint8, 0, c->comm, stream));
    return ok && exchange_letters(c, (const uint8_t *)from, (uint8_t *)to, each * sizeof(float));
}

// Looks instead of waiting, since a peer may go meanwhile.
static bool drain_stream(struct collective_nccl *c) {
    cudaError_t state;
    while ((state = cudaStreamQuery(stream_of(c))) == cudaErrorNotReady) {
        if (is_hopeless(c) || nccl_broken(&c->base)) {
            break_off(c);    // ends what runs; the stream is empty soon
            return false;
        }
        poll(NULL, 0, LOOK_MS);
    }
    return state == cudaSuccess;
}

static bool connect_all(struct collective_nccl *c) {
    static const size_t SIZES[] = {1u << 10, 32u << 10, 1u << 20, 16u << 20};
    size_t half = c->device->arena_bytes / 2;
    bool ok = true;
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0] && ok; i++) {
        ok = SIZES[i] > half || force_connections(c, SIZES[i]);
    }
    return ok && force_connections(c, half) && drain_stream(c);
}

static enum status make_comm(struct collective_nccl *c, struct error *err) {
    ncclUniqueId id;
    memcpy(&id, c->region.head->note, sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = CHANNELS;
    config.maxCTAs = CHANNELS;
    config.nvlsCTAs = CHANNELS;
    pthread_mutex_lock(&c->lock);
    c->broken = false;
    ncclResult_t result =
        ncclCommInitRankConfig(&c->comm, (int)c->base.world, id, (int)c->base.rank, &config);
    if (!took(c, result) || !settle(c) || !connect_all(c)) {
        if (is_aborted(c)) {
            return error_set(err, STATUS_CANCELLED, "the epoch was aborted");
        }
        return error_set(err, STATUS_DEVICE, "the communicator was not made: %.200s",
                         ncclGetLastError(NULL));
    }
    return STATUS_OK;
}

static enum status nccl_attach(struct collective *collective, const struct collective_epoch *epoch,
                               struct error *err) {
    struct collective_nccl *c = nccl_of(collective);
    ncclUniqueId id;
    if (collective->rank == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
        return error_set(err, STATUS_DEVICE, "nccl gives no id: %.200s", ncclGetLastError(NULL));
    }
    pthread_mutex_lock(&c->lock);
    c->epoch = epoch->epoch;
    c->deadline_us = clock_monotonic_us() + epoch->patience_us;
    pthread_mutex_unlock(&c->lock);
    struct shared_region_options options = {
        .id = epoch->comm_id,
        .rank = collective->rank,
        .world = collective->world,
        .body_bytes = BODY_BYTES,
        .note = collective->rank == 0 ? &id : NULL,
        .note_bytes = collective->rank == 0 ? sizeof id : 0,
        .deadline_us = c->deadline_us,
        .cancelled = is_aborted,
        .ctx = c,
    };
    struct shared_region region;
    TRY(shared_region_open(&region, &options, err));
    pthread_mutex_lock(&c->lock);
    c->region = region;
    c->shared = true;
    pthread_mutex_unlock(&c->lock);
    enum status status = shared_region_meet(&c->region, &options, err);
    if (status == STATUS_OK) {
        status = make_comm(c, err);
    }
    if (status != STATUS_OK) {
        shared_region_abort(&c->region);
        nccl_detach(collective);
        return status;
    }
    c->deadline_us = UINT64_MAX;
    return STATUS_OK;
}

// ---- the table ---------------------------------------------------------------------------------

const struct collective_table collective_nccl = {
    .name = "nccl",
    .create = nccl_create,
    .destroy = nccl_destroy,
    .attach = nccl_attach,
    .detach = nccl_detach,
    .abort = nccl_abort,
    .broken = nccl_broken,
    .all_reduce_add = nccl_all_reduce_add,
    .reduce_scatter_add = nccl_reduce_scatter_add,
    .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast,
    .send = nccl_send,
    .receive = nccl_receive,
};
