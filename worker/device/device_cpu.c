// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "worker/device/launch_list.h"
#include "worker/device/thread_pool.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANGES_MAX = 32, HUGE_PAGE_BYTES = 2 * 1024 * 1024, SMALLEST_PAGE_BYTES = 4096 };

struct reservation {
    void *base;
    size_t bytes;
};

struct device_graph {
    struct launch_list *list;
};

struct device {
    struct thread_pool *pool;
    const struct ops *ops;
    struct op_ctx ctx;
    struct memory_ledger *ledger;
    struct reservation reservations[RANGES_MAX];
    uint32_t reservation_count;
    uint64_t mapped_bytes;
    // The capture that is going on, and what it made.
    struct ops capture_ops;
    struct op_ctx capture_ctx;
    struct device_graph graphs[LEDGER_GRAPHS];
    uint32_t graph_count;
};

static uint64_t cpu_memory_bytes(const char *name) {
    if (strcmp(name, "cpu") != 0) {
        return 0;    // there is one kind
    }
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
}

static uint32_t usable_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 0 ? (uint32_t)count : 1;
}

static void cpu_close(struct device *device) {
    if (device == NULL) {
        return;
    }
    for (uint32_t i = 0; i < device->reservation_count; i++) {
        munmap(device->reservations[i].base, device->reservations[i].bytes);
    }
    thread_pool_destroy(device->pool);
    memory_free(device);
}

static enum status cpu_open(const struct device_options *options, struct device **out,
                            struct error *err) {
    const char *isa = strcmp(options->isa, "auto") == 0 ? NULL : options->isa;
    const struct ops *ops = ops_cpu(isa);
    if (ops == NULL) {
        return error_set(err, STATUS_UNSUPPORTED, "this processor cannot run '%s' kernels",
                         isa == NULL ? "any" : isa);
    }
    struct device *device = memory_zalloc(sizeof *device);
    if (device == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a device");
    }
    uint32_t threads = options->thread_count == 0 ? usable_cores() : options->thread_count;
    enum status status = thread_pool_create(threads, &device->pool, err);
    if (status != STATUS_OK) {
        cpu_close(device);
        return status;
    }
    device->ops = ops;
    device->ledger = options->ledger;
    device->ctx =
        (struct op_ctx){.parallel = thread_pool_run, .pool = device->pool, .thread_count = threads};
    *out = device;
    return STATUS_OK;
}

// ---- what the machine has left -----------------------------------------------------------------

// The number behind `key` in a file of "key number ..." lines; with an empty key, the file's only
// number. False when there is none ("max", say).
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    char line[256];
    size_t key_bytes = strlen(key);
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        unsigned long long number = 0;
        found =
            strncmp(line, key, key_bytes) == 0 && sscanf(line + key_bytes, " %llu", &number) == 1;
        *out = found ? number : *out;
    }
    fclose(file);
    return found;
}

// What this process could still take: of the machine without swapping, and of its control group
// (version 2, as a container sees its own), whose cached file pages can be given back.
static uint64_t available_bytes(void) {
    uint64_t kib = 0, limit = 0, used = 0, cached = 0;
    uint64_t machine =
        read_number("/proc/meminfo", "MemAvailable:", &kib) ? kib * 1024 : UINT64_MAX;
    if (!read_number("/sys/fs/cgroup/memory.max", "", &limit) ||
        !read_number("/sys/fs/cgroup/memory.current", "", &used)) {
        return machine;
    }
    read_number("/sys/fs/cgroup/memory.stat", "inactive_file ", &cached);
    used = used > cached ? used - cached : 0;
    uint64_t group = limit > used ? limit - used : 0;
    return group < machine ? group : machine;
}

static uint64_t cpu_free_bytes(const struct device *device) {
    const struct memory_ledger *ledger = device->ledger;
    uint64_t left = ledger->device_bytes > device->mapped_bytes
                        ? ledger->device_bytes - device->mapped_bytes
                        : 0;
    uint64_t available = available_bytes();
    return available < left ? available : left;
}

static uint64_t cpu_own_bytes(const struct device *device) {
    return device->mapped_bytes;
}

static size_t cpu_page_bytes(const struct device *device) {
    (void)device;
    return (size_t)sysconf(_SC_PAGE_SIZE);
}

// ---- ranges ------------------------------------------------------------------------------------

static enum status cpu_reserve(struct device *device, enum ledger_id line, size_t bytes, int fd,
                               struct device_range *out, struct error *err) {
    INVARIANT(device->reservation_count < RANGES_MAX);
    size_t page = cpu_page_bytes(device);
    bytes = (bytes + page - 1) / page * page;
    struct stat info;
    if (fd >= 0 && (fstat(fd, &info) != 0 ||
                    ((uint64_t)info.st_size < bytes && ftruncate(fd, (off_t)bytes) != 0))) {
        error_hint(err, "raise the limit on file sizes (ulimit -f): it counts for memory files");
        return error_set_os(err, STATUS_IO, "memory of '%s' cannot grow to %zu bytes",
                            memory_ledger_name(line), bytes);
    }
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *base = mmap(NULL, bytes, PROT_NONE, flags, fd, 0);
    if (base == MAP_FAILED) {
        error_hint(err, "raise the limit on address space (ulimit -v)");
        return error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of addresses for '%s'", bytes,
                            memory_ledger_name(line));
    }
    // Large pages where they help; a refusal changes nothing but speed.
    if (bytes >= HUGE_PAGE_BYTES && (line == LEDGER_WEIGHTS || line == LEDGER_WORKSPACE)) {
        madvise(base, bytes, MADV_HUGEPAGE);
    }
    device->reservations[device->reservation_count++] = (struct reservation){base, bytes};
    *out = (struct device_range){line, base, bytes, 0, fd};
    return STATUS_OK;
}

// Pages of a memory file that a process before us filled exist already.
static bool exists_already(const struct device_range *range, size_t bytes) {
    struct stat info;
    return range->fd >= 0 && fstat(range->fd, &info) == 0 &&
           (uint64_t)info.st_blocks * 512 >= range->mapped_bytes + bytes;
}

static enum status populate(const struct device_range *range, uint8_t *memory, size_t bytes,
                            struct error *err) {
    if (exists_already(range, bytes)) {
        return STATUS_OK;
    }
    // Asked before, since a machine that runs out on the way ends some process without a word.
    uint64_t available = available_bytes();
    if (bytes > available) {
        error_hint(err, "end other programs, or lower --kv-cache-memory-bytes");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line '%s' needs %.1f MiB, this machine or its control group has "
                         "%.1f MiB left",
                         memory_ledger_name(range->line), (double)bytes / 1048576.0,
                         (double)available / 1048576.0);
    }
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) {
        return STATUS_OK;
    }
    if (errno != EINVAL) {
        return error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of '%s' cannot be populated", bytes,
                            memory_ledger_name(range->line));
    }
    // Before Linux 5.14 a page exists once it is written to; what it holds stays.
    volatile uint8_t *at = memory;
    for (size_t i = 0; i < bytes; i += SMALLEST_PAGE_BYTES) {
        at[i] = at[i];
    }
    return STATUS_OK;
}

// Pages become inaccessible and go back to the machine.
static void take_back(const struct device_range *range, uint8_t *memory, size_t bytes) {
    INVARIANT(mprotect(memory, bytes, PROT_NONE) == 0);
    if (range->fd >= 0) {
        fallocate(range->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, memory - range->base,
                  (off_t)bytes);
    } else {
        madvise(memory, bytes, MADV_DONTNEED);
    }
}

static enum status cpu_map(struct device *device, struct device_range *range, size_t bytes,
                           struct error *err) {
    size_t page = cpu_page_bytes(device);
    bytes = (bytes + page - 1) / page * page;
    INVARIANT(bytes <= range->reserved_bytes - range->mapped_bytes);
    TRY(memory_ledger_charge(device->ledger, range->line, bytes, err));
    uint8_t *memory = range->base + range->mapped_bytes;
    enum status status = STATUS_OK;
    if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) {
        status = error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of '%s' cannot be mapped", bytes,
                              memory_ledger_name(range->line));
    } else {
        status = populate(range, memory, bytes, err);
    }
    if (status != STATUS_OK) {
        take_back(range, memory, bytes);
        memory_ledger_release(device->ledger, range->line, bytes);
        return status;
    }
    range->mapped_bytes += bytes;
    device->mapped_bytes += bytes;
    return STATUS_OK;
}

static void cpu_unmap(struct device *device, struct device_range *range, size_t bytes) {
    INVARIANT(bytes <= range->mapped_bytes);
    INVARIANT(bytes % cpu_page_bytes(device) == 0);
    range->mapped_bytes -= bytes;
    device->mapped_bytes -= bytes;
    take_back(range, range->base + range->mapped_bytes, bytes);
    memory_ledger_release(device->ledger, range->line, bytes);
}

// ---- graphs ------------------------------------------------------------------------------------

static uint64_t cpu_graph_bytes(const struct device *device, uint32_t launch_count) {
    size_t page = cpu_page_bytes(device);
    return (launch_list_bytes(launch_count) + page - 1) / page * page;
}

// No library takes device memory here.
static uint64_t cpu_found_bytes(const struct device *device, enum ledger_id line, uint32_t world) {
    (void)device;
    (void)line;
    (void)world;
    return 0;
}

static enum status cpu_capture_begin(struct device *device, enum ledger_id line,
                                     uint32_t launch_count, struct device_capture *out,
                                     struct error *err) {
    INVARIANT(device->graph_count < LEDGER_GRAPHS);
    struct device_range range;
    size_t bytes = launch_list_bytes(launch_count);
    TRY(cpu_reserve(device, line, bytes, -1, &range, err));
    TRY(cpu_map(device, &range, bytes, err));
    struct launch_list *list = launch_list_init(range.base, launch_count);
    device->graphs[device->graph_count] = (struct device_graph){list};
    launch_list_record(list, device->ops, &device->ctx, &device->capture_ops, &device->capture_ctx);
    *out = (struct device_capture){&device->capture_ops, &device->capture_ctx};
    return STATUS_OK;
}

static struct device_graph *cpu_capture_end(struct device *device) {
    return &device->graphs[device->graph_count++];
}

static void cpu_replay(struct device *device, const struct device_graph *graph) {
    launch_list_replay(graph->list, device->ops, &device->ctx);
}

// ---- the table ---------------------------------------------------------------------------------

static const struct ops *cpu_ops(const struct device *device) {
    return device->ops;
}

static const struct op_ctx *cpu_ctx(const struct device *device) {
    return &device->ctx;
}

const struct device_table device_cpu = {
    .name = "cpu",
    .memory_bytes = cpu_memory_bytes,
    .kv_bytes_default = 512 * 1024 * 1024,
    .computes = true,
    .open = cpu_open,
    .close = cpu_close,
    .page_bytes = cpu_page_bytes,
    .reserve = cpu_reserve,
    .map = cpu_map,
    .unmap = cpu_unmap,
    .own_bytes = cpu_own_bytes,
    .free_bytes = cpu_free_bytes,
    .graph_bytes = cpu_graph_bytes,
    .found_bytes = cpu_found_bytes,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .replay = cpu_replay,
    .ops = cpu_ops,
    .ctx = cpu_ctx,
};
