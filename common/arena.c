// SPDX-License-Identifier: Apache-2.0
#include "common/arena.h"

#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

enum { ARENA_ALIGNMENT = 16, ARENA_PAGE_BYTES = 64 * 1024 };

struct arena_page {
    struct arena_page *next;
    size_t bytes_size;
    size_t bytes_used;
    size_t padding_;    // keeps `data` 16-byte aligned
    uint8_t data[];
};

_Static_assert(sizeof(struct arena_page) % ARENA_ALIGNMENT == 0, "page data must stay aligned");

void arena_init(struct arena *arena, size_t bytes_max) {
    memset(arena, 0, sizeof *arena);
    arena->bytes_max = bytes_max;
    arena->page_bytes = ARENA_PAGE_BYTES;
}

static void free_pages(struct arena_page *page) {
    while (page != NULL) {
        struct arena_page *next = page->next;
        memory_free(page);
        page = next;
    }
}

void arena_deinit(struct arena *arena) {
    if (arena == NULL) {
        return;
    }
    free_pages(arena->first);
    memset(arena, 0, sizeof *arena);
}

void arena_reset(struct arena *arena) {
    if (arena->first != NULL) {
        free_pages(arena->first->next);
        arena->first->next = NULL;
        arena->first->bytes_used = 0;
    }
    arena->current = arena->first;
    arena->bytes_used = 0;
}

void *arena_alloc_raw(struct arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - ARENA_ALIGNMENT) {
        return NULL;
    }
    size_t rounded = (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
    if (rounded == 0) {
        rounded = ARENA_ALIGNMENT;
    }
    if (rounded > arena->bytes_max || arena->bytes_used > arena->bytes_max - rounded) {
        return NULL;
    }
    struct arena_page *page = arena->current;
    if (page == NULL || page->bytes_size - page->bytes_used < rounded) {
        size_t page_bytes = rounded > arena->page_bytes ? rounded : arena->page_bytes;
        page = memory_alloc(sizeof *page + page_bytes);
        if (page == NULL) {
            return NULL;
        }
        page->next = NULL;
        page->bytes_size = page_bytes;
        page->bytes_used = 0;
        if (arena->current != NULL) {
            arena->current->next = page;
        } else {
            arena->first = page;
        }
        arena->current = page;
    }
    void *memory = page->data + page->bytes_used;
    page->bytes_used += rounded;
    arena->bytes_used += rounded;
    return memory;
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    void *memory = arena_alloc_raw(arena, bytes);
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

void *arena_array(struct arena *arena, size_t count, size_t element_bytes) {
    size_t bytes = 0;
    return memory_mul(count, element_bytes, &bytes) ? arena_alloc(arena, bytes) : NULL;
}

void *arena_array_raw(struct arena *arena, size_t count, size_t element_bytes) {
    size_t bytes = 0;
    return memory_mul(count, element_bytes, &bytes) ? arena_alloc_raw(arena, bytes) : NULL;
}

char *arena_strndup(struct arena *arena, const char *text, size_t byte_count) {
    if (byte_count == SIZE_MAX) {
        return NULL;
    }
    char *copy = arena_alloc(arena, byte_count + 1);
    if (copy != NULL) {
        memcpy(copy, text, byte_count);
        copy[byte_count] = '\0';
    }
    return copy;
}
