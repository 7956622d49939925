// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "worker/device/thread_pool.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPPINGS_MAX = 16, HUGE_PAGE_BYTES = 2 * 1024 * 1024, SMALLEST_PAGE_BYTES = 4096 };

struct mapping {
    void *memory;
    size_t bytes;
};

struct device {
    struct thread_pool *pool;
    const struct ops *ops;
    struct op_ctx ctx;
    struct memory_ledger *ledger;
    struct mapping mappings[MAPPINGS_MAX];
    uint32_t mapping_count;
};

static uint64_t cpu_memory_bytes(void) {
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
    for (uint32_t i = 0; i < device->mapping_count; i++) {
        munmap(device->mappings[i].memory, device->mappings[i].bytes);
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

static enum status cpu_map(struct device *device, enum ledger_id line, size_t bytes, int fd,
                           void **out, struct error *err) {
    INVARIANT(device->mapping_count < MAPPINGS_MAX);
    TRY(memory_ledger_charge(device->ledger, line, bytes, err));
    if (fd >= 0) {
        struct stat info;
        if (fstat(fd, &info) != 0 ||
            ((uint64_t)info.st_size < bytes && ftruncate(fd, (off_t)bytes) != 0)) {
            return error_set_os(err, STATUS_IO, "memory of '%s' cannot grow to %zu bytes",
                                memory_ledger_name(line), bytes);
        }
    }
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) {
        return error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of '%s' cannot be mapped", bytes,
                            memory_ledger_name(line));
    }
    // Large pages where they help; a refusal changes nothing but speed.
    if (bytes >= HUGE_PAGE_BYTES && (line == LEDGER_WEIGHTS || line == LEDGER_WORKSPACE)) {
        madvise(memory, bytes, MADV_HUGEPAGE);
    }
    device->mappings[device->mapping_count++] = (struct mapping){memory, bytes};
    *out = memory;
    return STATUS_OK;
}

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

static enum status cpu_populate(struct device *device, enum ledger_id line, void *memory,
                                size_t bytes, struct error *err) {
    (void)device;
    // Asked before, since a machine that runs out on the way ends some process without a word.
    uint64_t available = available_bytes();
    if (bytes > available) {
        error_hint(err, "end other programs, or lower --kv-cache-memory-bytes");
        return error_set(err, STATUS_EXHAUSTED,
                         "ledger line '%s' needs %.1f MiB, this machine or its control group has "
                         "%.1f MiB left",
                         memory_ledger_name(line), (double)bytes / 1048576.0,
                         (double)available / 1048576.0);
    }
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) {
        return STATUS_OK;
    }
    if (errno != EINVAL) {
        return error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of '%s' cannot be populated", bytes,
                            memory_ledger_name(line));
    }
    // Before Linux 5.14 a page exists once it is written to; what it holds stays.
    volatile uint8_t *at = memory;
    for (size_t i = 0; i < bytes; i += SMALLEST_PAGE_BYTES) {
        at[i] = at[i];
    }
    return STATUS_OK;
}

static const struct ops *cpu_ops(const struct device *device) {
    return device->ops;
}

static const struct op_ctx *cpu_ctx(const struct device *device) {
    return &device->ctx;
}

const struct device_table device_cpu = {
    .name = "cpu",
    .memory_bytes = cpu_memory_bytes,
    .open = cpu_open,
    .close = cpu_close,
    .map = cpu_map,
    .populate = cpu_populate,
    .ops = cpu_ops,
    .ctx = cpu_ctx,
};
