// SPDX-License-Identifier: Apache-2.0
// Preloaded into the soak: counts the calls that take memory while a thread has asked for it.
// The heap's door counts what the project asks for; this sees what libraries do behind its back.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

// The soak finds these by name.
void interpose_watch(int on);
uint64_t interpose_count(void);

static _Thread_local int watching;
static _Thread_local uint64_t count;

void interpose_watch(int on) {
    watching = on;
}

uint64_t interpose_count(void) {
    return count;
}

static void seen(void) {
    count += watching ? 1 : 0;
}

// The C library's own names of what is replaced here.
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t number, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    seen();
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    seen();
    return __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes) {
    seen();
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    seen();
    return __libc_memalign(alignment, bytes);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off_t);
    seen();
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "mmap");
    }
    return next(address, bytes, protection, flags, fd, offset);
}

void *sbrk(intptr_t bytes) {
    static void *(*next)(intptr_t);
    seen();
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "sbrk");
    }
    return next(bytes);
}

int brk(void *end) {
    static int (*next)(void *);
    seen();
    if (next == NULL) {
        *(void **)&next = dlsym(RTLD_NEXT, "brk");
    }
    return next(end);
}
