// SPDX-License-Identifier: Apache-2.0
#include "worker/device/thread_pool.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// How long a thread spins before it sleeps, in pause instructions (about 15 ns each on Zen 3, 45 ns
// on newer Intel). A step has a gap of a few microseconds between operations; a wake-up through the
// kernel costs 5 to 50.
enum { SPIN_WORKER_PAUSES = 2000, SPIN_CALLER_PAUSES = 2000 };

enum { CACHE_LINE_BYTES = 64 };

struct worker_thread {
    struct thread_pool *pool;
    pthread_t thread;
    uint32_t index;
};

// `open_count` counts down the tasks nobody has taken. Whoever lowers it from n owns task
// task_count - n and may read the job's fields: they stay until `unfinished_count` reaches zero,
// which cannot happen before the owner reports its task. So a thread that slept through any number
// of jobs still takes only tasks of the job that is current when it takes them.
struct thread_pool {
    _Alignas(CACHE_LINE_BYTES) atomic_uint open_count;
    op_task_fn fn;
    void *arg;
    uint32_t task_count;
    _Alignas(CACHE_LINE_BYTES) atomic_uint unfinished_count;    // the caller sleeps on it
    atomic_bool caller_sleeps;
    _Alignas(CACHE_LINE_BYTES) atomic_uint sleeper_count;
    atomic_uint wake_count;    // the workers sleep on it; changes with each wake-up
    atomic_bool stop;
    uint32_t thread_count;
    struct worker_thread workers[];    // thread_count - 1
};

// ---- the operating system's part ---------------------------------------------------------------

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Sleeps while *word == expected; may return early, so callers look again.
static void futex_wait(atomic_uint *word, unsigned expected) {
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
    INVARIANT(rc == 0 || errno == EAGAIN || errno == EINTR);
}

static void futex_wake(atomic_uint *word, uint32_t count) {
    long rc = syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
    INVARIANT(rc >= 0);
}

// ---- tasks -------------------------------------------------------------------------------------

// Takes tasks until none is open, then reports how many it finished: one shared write per thread
// and job instead of one per task.
static void work(struct thread_pool *pool, uint32_t thread_index) {
    uint32_t finished = 0;
    unsigned open = atomic_load_explicit(&pool->open_count, memory_order_relaxed);
    while (open > 0) {
        if (!atomic_compare_exchange_weak_explicit(&pool->open_count, &open, open - 1,
                                                   memory_order_acquire, memory_order_relaxed)) {
            continue;
        }
        pool->fn(pool->arg, pool->task_count - open, thread_index);
        finished++;
        open = atomic_load_explicit(&pool->open_count, memory_order_relaxed);
    }
    if (finished == 0) {
        return;
    }
    unsigned before =
        atomic_fetch_sub_explicit(&pool->unfinished_count, finished, memory_order_seq_cst);
    INVARIANT(before >= finished);
    // The caller announces its sleep before it looks at the count a last time, so one of the two
    // sees the other.
    if (before == finished && thread_index != 0 &&
        atomic_load_explicit(&pool->caller_sleeps, memory_order_seq_cst)) {
        futex_wake(&pool->unfinished_count, 1);
    }
}

static bool something_to_do(struct thread_pool *pool) {
    return atomic_load_explicit(&pool->open_count, memory_order_seq_cst) > 0 ||
           atomic_load_explicit(&pool->stop, memory_order_seq_cst);
}

static void worker_wait(struct thread_pool *pool) {
    for (int i = 0; i < SPIN_WORKER_PAUSES; i++) {
        if (something_to_do(pool)) {
            return;
        }
        relax();
    }
    // Announce, look again, sleep. The caller opens tasks first and reads the announcement second.
    unsigned wake = atomic_load_explicit(&pool->wake_count, memory_order_acquire);
    atomic_fetch_add_explicit(&pool->sleeper_count, 1, memory_order_seq_cst);
    while (!something_to_do(pool) &&
           atomic_load_explicit(&pool->wake_count, memory_order_acquire) == wake) {
        futex_wait(&pool->wake_count, wake);
    }
    atomic_fetch_sub_explicit(&pool->sleeper_count, 1, memory_order_seq_cst);
}

static void *worker_main(void *arg) {
    struct worker_thread *worker = arg;
    struct thread_pool *pool = worker->pool;
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        work(pool, worker->index);
        worker_wait(pool);
    }
    return NULL;
}

static void wake_workers(struct thread_pool *pool, uint32_t count) {
    if (atomic_load_explicit(&pool->sleeper_count, memory_order_seq_cst) > 0) {
        atomic_fetch_add_explicit(&pool->wake_count, 1, memory_order_release);
        futex_wake(&pool->wake_count, count);
    }
}

static void caller_wait(struct thread_pool *pool) {
    for (int i = 0; i < SPIN_CALLER_PAUSES; i++) {
        if (atomic_load_explicit(&pool->unfinished_count, memory_order_acquire) == 0) {
            return;
        }
        relax();
    }
    // Whoever holds the last task has most likely been taken off its core. Sleeping frees this core
    // for it; spinning on would keep it waiting for its old one.
    atomic_store_explicit(&pool->caller_sleeps, true, memory_order_seq_cst);
    unsigned left;
    while ((left = atomic_load_explicit(&pool->unfinished_count, memory_order_seq_cst)) != 0) {
        futex_wait(&pool->unfinished_count, left);
    }
    atomic_store_explicit(&pool->caller_sleeps, false, memory_order_relaxed);
}

void thread_pool_run(void *opaque, uint32_t task_count, op_task_fn fn, void *arg) {
    struct thread_pool *pool = opaque;
    if (task_count <= 1 || pool->thread_count == 1) {
        for (uint32_t i = 0; i < task_count; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    INVARIANT(atomic_load_explicit(&pool->unfinished_count, memory_order_relaxed) == 0);
    pool->fn = fn;
    pool->arg = arg;
    pool->task_count = task_count;
    atomic_store_explicit(&pool->unfinished_count, task_count, memory_order_relaxed);
    atomic_store_explicit(&pool->open_count, task_count, memory_order_seq_cst);
    wake_workers(pool, task_count - 1);
    work(pool, 0);
    caller_wait(pool);
}

uint32_t thread_pool_thread_count(const struct thread_pool *pool) {
    return pool->thread_count;
}

// ---- life cycle --------------------------------------------------------------------------------

// Signals belong to the threads that asked for them, so the compute threads block all.
static enum status start_workers(struct thread_pool *pool, struct error *err) {
    enum status status = STATUS_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uint32_t wanted = pool->thread_count;
    pool->thread_count = 1;
    while (pool->thread_count < wanted) {
        struct worker_thread *worker = &pool->workers[pool->thread_count - 1];
        worker->pool = pool;
        worker->index = pool->thread_count;
        int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (rc != 0) {
            status = error_set(err, STATUS_EXHAUSTED, "cannot start compute thread %u of %u: %s",
                               worker->index + 1, wanted, strerror(rc));
            error_hint(err, "lower the number of threads, or raise the limit on processes");
            break;
        }
        (void)pthread_setname_np(worker->thread, "tare-compute");
        pool->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

enum status thread_pool_create(uint32_t thread_count, struct thread_pool **out, struct error *err) {
    *out = NULL;
    if (thread_count == 0 || thread_count > BOUND_WORKER_THREADS) {
        return error_set(err, STATUS_INVALID, "%u compute threads asked for, 1 to %u are possible",
                         thread_count, BOUND_WORKER_THREADS);
    }
    size_t bytes = sizeof(struct thread_pool) + (thread_count - 1) * sizeof(struct worker_thread);
    struct thread_pool *pool = memory_aligned(CACHE_LINE_BYTES, bytes);
    if (pool == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u compute threads", thread_count);
    }
    memset(pool, 0, bytes);
    pool->thread_count = thread_count;
    enum status status = start_workers(pool, err);
    if (status != STATUS_OK) {
        thread_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return STATUS_OK;
}

void thread_pool_destroy(struct thread_pool *pool) {
    if (pool == NULL) {
        return;
    }
    atomic_store_explicit(&pool->stop, true, memory_order_seq_cst);
    atomic_fetch_add_explicit(&pool->wake_count, 1, memory_order_seq_cst);
    futex_wake(&pool->wake_count, BOUND_WORKER_THREADS);
    for (uint32_t i = 0; i + 1 < pool->thread_count; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    memory_free(pool);
}
