// SPDX-License-Identifier: Apache-2.0
#include "worker/device/sim_pages.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <sys/mman.h>

enum {
    RANGES_MAX = 64,
    HANDLES_MAX = BOUND_KV_CHUNKS + 4096,    // chunks of a KV pool, and a few for each other line
};

struct range {
    uint8_t *base;
    size_t bytes;
};

struct piece {
    uint8_t *at;     // NULL: not mapped
    size_t bytes;    // 0: free entry
};

struct sim_pages {
    uint64_t device_bytes;
    uint64_t used_bytes;
    struct range ranges[RANGES_MAX];
    uint32_t range_count;
    uint32_t piece_count;
    struct piece pieces[HANDLES_MAX];
};

enum status sim_pages_create(uint64_t device_bytes, struct sim_pages **out, struct error *err) {
    struct sim_pages *pages = memory_zalloc(sizeof *pages);
    if (pages == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a simulated device");
    }
    pages->device_bytes = device_bytes;
    *out = pages;
    return STATUS_OK;
}

void sim_pages_destroy(struct sim_pages *pages) {
    if (pages == NULL) {
        return;
    }
    for (uint32_t i = 0; i < pages->range_count; i++) {
        munmap(pages->ranges[i].base, pages->ranges[i].bytes);
    }
    memory_free(pages);
}

enum status sim_pages_reserve(struct sim_pages *pages, size_t bytes, uint8_t **out,
                              struct error *err) {
    INVARIANT(pages->range_count < RANGES_MAX);
    if (bytes == 0 || bytes % SIM_PAGES_GRANULE != 0) {
        return error_set(err, STATUS_INVALID, "a range of %zu bytes is no number of granules",
                         bytes);
    }
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return error_set_os(err, STATUS_EXHAUSTED, "%zu bytes of addresses", bytes);
    }
    // A page of this process may be written to; a large one would cost memory that nobody has.
    madvise(base, bytes, MADV_NOHUGEPAGE);
    pages->ranges[pages->range_count++] = (struct range){base, bytes};
    *out = base;
    return STATUS_OK;
}

enum status sim_pages_new(struct sim_pages *pages, size_t bytes, uint64_t free_bytes,
                          struct sim_handle *out, struct error *err) {
    if (bytes == 0 || bytes % SIM_PAGES_GRANULE != 0) {
        return error_set(err, STATUS_INVALID, "memory of %zu bytes is no number of granules",
                         bytes);
    }
    if (bytes > free_bytes || bytes > pages->device_bytes - pages->used_bytes) {
        return error_set(err, STATUS_EXHAUSTED, "%zu bytes wanted, %llu free on the device", bytes,
                         (unsigned long long)free_bytes);
    }
    uint32_t index = 0;
    // Pieces come and go at the end of the pool: the entry behind the last is nearly always free.
    if (pages->piece_count < HANDLES_MAX) {
        index = pages->piece_count++;
    } else {
        while (index < HANDLES_MAX && pages->pieces[index].bytes != 0) {
            index++;
        }
    }
    if (index == HANDLES_MAX) {
        return error_set(err, STATUS_EXHAUSTED, "more than %u pieces of device memory",
                         (unsigned)HANDLES_MAX);
    }
    pages->pieces[index] = (struct piece){.bytes = bytes};
    pages->used_bytes += bytes;
    *out = (struct sim_handle){index};
    return STATUS_OK;
}

static bool inside_a_range(const struct sim_pages *pages, const uint8_t *at, size_t bytes) {
    for (uint32_t i = 0; i < pages->range_count; i++) {
        const struct range *range = &pages->ranges[i];
        if (at >= range->base && at < range->base + range->bytes) {
            return bytes <= (size_t)(range->base + range->bytes - at);
        }
    }
    return false;
}

static bool overlaps(const struct piece *piece, const uint8_t *at, size_t bytes) {
    return piece->at != NULL && piece->at < at + bytes && at < piece->at + piece->bytes;
}

// Mapped bytes in [at, at + bytes), and whether a mapping reaches over an end.
static size_t mapped_inside(const struct sim_pages *pages, const uint8_t *at, size_t bytes,
                            bool *cuts) {
    size_t sum = 0;
    *cuts = false;
    for (uint32_t i = 0; i < pages->piece_count; i++) {
        const struct piece *piece = &pages->pieces[i];
        if (overlaps(piece, at, bytes)) {
            *cuts = *cuts || piece->at < at || piece->at + piece->bytes > at + bytes;
            sum += piece->bytes;
        }
    }
    return sum;
}

enum status sim_pages_map(struct sim_pages *pages, uint8_t *at, size_t bytes, size_t offset,
                          struct sim_handle handle, struct error *err) {
    struct piece *piece = &pages->pieces[handle.index];
    bool cuts;
    if (handle.index >= pages->piece_count || piece->bytes == 0 || piece->at != NULL) {
        return error_set(err, STATUS_INVALID, "no such memory, or mapped already");
    }
    if (offset != 0) {
        return error_set(err, STATUS_INVALID, "memory is mapped from its beginning, not from %zu",
                         offset);
    }
    if (bytes != piece->bytes) {
        return error_set(err, STATUS_INVALID, "memory of %zu bytes is mapped whole, not %zu",
                         piece->bytes, bytes);
    }
    if (!inside_a_range(pages, at, bytes)) {
        return error_set(err, STATUS_INVALID, "the addresses are not reserved");
    }
    if (mapped_inside(pages, at, bytes, &cuts) != 0) {
        return error_set(err, STATUS_INVALID, "memory lies at these addresses already");
    }
    piece->at = at;
    return STATUS_OK;
}

enum status sim_pages_set_access(struct sim_pages *pages, uint8_t *at, size_t bytes,
                                 struct error *err) {
    bool cuts;
    if (mapped_inside(pages, at, bytes, &cuts) != bytes || cuts) {
        return error_set(err, STATUS_INVALID, "access is set where memory is mapped, whole");
    }
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) {
        return error_set_os(err, STATUS_EXHAUSTED, "access to %zu bytes", bytes);
    }
    return STATUS_OK;
}

enum status sim_pages_unmap(struct sim_pages *pages, uint8_t *at, size_t bytes, struct error *err) {
    bool cuts;
    if (mapped_inside(pages, at, bytes, &cuts) != bytes || cuts) {
        return error_set(err, STATUS_INVALID,
                         "%zu bytes are no whole mappings: a part cannot be unmapped", bytes);
    }
    if (mprotect(at, bytes, PROT_NONE) != 0 || madvise(at, bytes, MADV_DONTNEED) != 0) {
        return error_set_os(err, STATUS_DEVICE, "%zu bytes cannot be unmapped", bytes);
    }
    for (uint32_t i = 0; i < pages->piece_count; i++) {
        if (overlaps(&pages->pieces[i], at, bytes)) {
            pages->used_bytes -= pages->pieces[i].bytes;
            pages->pieces[i] = (struct piece){0};
        }
    }
    while (pages->piece_count > 0 && pages->pieces[pages->piece_count - 1].bytes == 0) {
        pages->piece_count--;
    }
    return STATUS_OK;
}

uint64_t sim_pages_bytes(const struct sim_pages *pages) {
    return pages->used_bytes;
}
