// SPDX-License-Identifier: Apache-2.0
// Preloaded into the soak: counts, call by call, whatever takes, gives back or changes memory while
// the soak says so, on every thread. The heap's door counts what the project asks for; this sees
// what libraries do behind its back.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define CALL_TABLE(X)                                                                              \
    X(malloc)                                                                                      \
    X(calloc)                                                                                      \
    X(realloc)                                                                                     \
    X(aligned_alloc)                                                                               \
    X(posix_memalign)                                                                              \
    X(mmap)                                                                                        \
    X(mremap)                                                                                      \
    X(munmap)                                                                                      \
    X(mprotect)                                                                                    \
    X(madvise)                                                                                     \
    X(brk)                                                                                         \
    X(sbrk)                                                                                        \
    X(memfd_create)                                                                                \
    X(ftruncate)                                                                                   \
    X(fallocate)

enum call {
#define X(name) CALL_##name,
    CALL_TABLE(X)
#undef X
        CALL_COUNT
};

// The soak finds these by name.
void interpose_watch(int on);
uint64_t interpose_count(const char *call);    // NULL: of all calls
const char *interpose_name(unsigned index);    // NULL behind the last

static const char *const names[CALL_COUNT] = {
#define X(name) #name,
    CALL_TABLE(X)
#undef X
};
static _Atomic int watching;
static _Atomic uint64_t counts[CALL_COUNT];

void interpose_watch(int on) {
    watching = on;
}

uint64_t interpose_count(const char *call) {
    uint64_t sum = 0;
    for (int i = 0; i < CALL_COUNT; i++) {
        sum += call == NULL || strcmp(call, names[i]) == 0 ? counts[i] : 0;
    }
    return sum;
}

const char *interpose_name(unsigned index) {
    return index < CALL_COUNT ? names[index] : NULL;
}

static void seen(enum call call) {
    if (watching) {
        counts[call]++;
    }
}

// The next definition of a function after this library's. Looked up at each call: none is on a path
// whose speed is measured, and a table filled at start would miss calls before it.
static void *next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

// ---- the heap: the C library's own names of what is replaced here -------------------------------

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t number, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes) {
    seen(CALL_malloc);
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    seen(CALL_calloc);
    return __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes) {
    seen(CALL_realloc);
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    seen(CALL_aligned_alloc);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    seen(CALL_posix_memalign);
    void *memory = __libc_memalign(alignment, bytes);
    if (memory == NULL) {
        return ENOMEM;
    }
    *out = memory;
    return 0;
}

// ---- the system --------------------------------------------------------------------------------

// Calls `name` of the C library; its type is that of the function it stands in.
#define FORWARD(name, ...)                                                                         \
    do {                                                                                           \
        __typeof__(&name) call_;                                                                   \
        seen(CALL_##name);                                                                         \
        *(void **)&call_ = next(#name);                                                            \
        return call_(__VA_ARGS__);                                                                 \
    } while (0)

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    FORWARD(mmap, address, bytes, protection, flags, fd, offset);
}

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...) {
    va_list list;
    va_start(list, flags);
    void *fixed = (flags & MREMAP_FIXED) != 0 ? va_arg(list, void *) : NULL;
    va_end(list);
    FORWARD(mremap, old, old_bytes, bytes, flags, fixed);
}

int munmap(void *address, size_t bytes) {
    FORWARD(munmap, address, bytes);
}

int mprotect(void *address, size_t bytes, int protection) {
    FORWARD(mprotect, address, bytes, protection);
}

int madvise(void *address, size_t bytes, int advice) {
    FORWARD(madvise, address, bytes, advice);
}

void *sbrk(intptr_t bytes) {
    FORWARD(sbrk, bytes);
}

int brk(void *end) {
    FORWARD(brk, end);
}

int memfd_create(const char *name, unsigned flags) {
    FORWARD(memfd_create, name, flags);
}

int ftruncate(int fd, off_t bytes) {
    FORWARD(ftruncate, fd, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    FORWARD(fallocate, fd, mode, offset, bytes);
}
