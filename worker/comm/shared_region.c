// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/shared_region.h"

#include "common/clock.h"
#include "common/invariant.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 16 * 1024,
    NAME_LOOK_MS = 1,    // between looks for a name that is not there yet
    SPINS_MAX = 256,     // some microseconds: less than going to sleep and waking up takes
    SPINS_MIN = 16,
    ABORTED = 1,
};

static const char DIRECTORY[] = "/dev/shm";
static const char PREFIX[] = "tare-group-";
static const char MAGIC[16] = "tare group 1";
_Static_assert(sizeof(struct shared_region_head) <= HEAD_BYTES, "the head fits its pages");

// ---- locks -------------------------------------------------------------------------------------

// One byte for each rank, past the end of any region: locks need no bytes under them.
static struct flock lock_of(short type, uint32_t rank, uint32_t count) {
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)1 << 48 | (off_t)rank,
                          .l_len = (off_t)count};
}

// Of the descriptor, not of the process: the kernel drops it with the last copy of the descriptor.
static bool take_lock(int fd, uint32_t rank) {
    struct flock lock = lock_of(F_WRLCK, rank, 1);
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// Whether somebody else holds one of the ranks' locks.
static bool is_locked(int fd, uint32_t rank, uint32_t count) {
    struct flock lock = lock_of(F_WRLCK, rank, count);
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool shared_region_peer_gone(const struct shared_region *region) {
    for (uint32_t rank = 0; rank < region->world; rank++) {
        if (rank != region->rank && !is_locked(region->fd, rank, 1)) {
            return true;
        }
    }
    return false;
}

// ---- counting and waiting ----------------------------------------------------------------------

static void futex_wait(struct shared_word *word, uint32_t seen) {
    struct timespec limit = {.tv_nsec = SHARED_REGION_LOOK_MS * 1000L * 1000L};
    syscall(SYS_futex, &word->value, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void futex_wake(struct shared_word *word) {
    syscall(SYS_futex, &word->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

// The lowest bit does not count.
static bool reached(uint32_t value, uint32_t goal) {
    return (int32_t)((value & ~(uint32_t)ABORTED) - goal) >= 0;
}

void shared_region_arrive(struct shared_region *region, struct shared_word *word, uint32_t goal) {
    (void)region;
    uint32_t value = atomic_fetch_add(&word->value, 2) + 2;
    if (reached(value, goal) && atomic_load(&word->sleepers) > 0) {
        futex_wake(word);
    }
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// True when the word got there, or was aborted, while we spun. What spinning was good for the last
// time decides how long it is tried the next time, so that it ends soon on a machine that is busy.
static bool spin(struct shared_region *region, struct shared_word *word, uint32_t goal) {
    for (uint32_t i = 0; i < region->spins; i++) {
        uint32_t value = atomic_load_explicit(&word->value, memory_order_acquire);
        if (reached(value, goal) || (value & ABORTED) != 0) {
            uint32_t more = region->spins * 2;
            region->spins = more < region->spins_max ? more : region->spins_max;
            return true;
        }
        relax();
    }
    uint32_t less = region->spins / 2;
    region->spins = less < SPINS_MIN && region->spins_max > 0 ? SPINS_MIN : less;
    return false;
}

bool shared_region_wait(struct shared_region *region, struct shared_word *word, uint32_t goal) {
    uint32_t value = atomic_load(&word->value);
    if (!reached(value, goal) && (value & ABORTED) == 0) {
        spin(region, word, goal);
    }
    uint64_t look_us = 0;
    for (;;) {
        value = atomic_load(&word->value);
        if ((value & ABORTED) != 0) {
            return false;
        }
        if (reached(value, goal)) {
            return true;
        }
        uint64_t now_us = clock_monotonic_us();
        if (look_us == 0) {
            look_us = now_us + SHARED_REGION_LOOK_MS * 1000ull;
        } else if (now_us >= look_us) {
            look_us = now_us + SHARED_REGION_LOOK_MS * 1000ull;
            if (shared_region_peer_gone(region)) {
                shared_region_abort(region);
                return false;
            }
        }
        atomic_fetch_add(&word->sleepers, 1);
        futex_wait(word, value);
        atomic_fetch_sub(&word->sleepers, 1);
    }
}

// The bit changes the word, so whoever is about to sleep on it does not.
static void abort_word(struct shared_word *word) {
    atomic_fetch_or(&word->value, ABORTED);
    futex_wake(word);
}

void shared_region_abort(struct shared_region *region) {
    struct shared_region_head *head = region->head;
    abort_word(&head->attached);
    for (uint32_t i = 0; i < SHARED_REGION_WORDS; i++) {
        abort_word(&head->word[i]);
    }
    for (uint32_t from = 0; from < region->world; from++) {
        for (uint32_t to = 0; to < region->world; to++) {
            abort_word(&head->sent[from][to]);
            abort_word(&head->taken[from][to]);
        }
    }
}

bool shared_region_aborted(const struct shared_region *region) {
    return (atomic_load(&region->head->attached.value) & ABORTED) != 0;
}

// ---- opening -----------------------------------------------------------------------------------

static uint32_t usable_cores(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static enum status map(struct shared_region *region, struct error *err) {
    void *base =
        mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, region->fd, 0);
    if (base == MAP_FAILED) {
        return error_set_os(err, STATUS_EXHAUSTED, "%llu bytes shared between ranks",
                            (unsigned long long)region->bytes);
    }
    region->head = base;
    region->body = (uint8_t *)base + HEAD_BYTES;
    return STATUS_OK;
}

static enum status give_name(struct shared_region *region, struct error *err) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", region->fd);
    if (linkat(AT_FDCWD, path, AT_FDCWD, region->name, AT_SYMLINK_FOLLOW) != 0) {
        region->name[0] = '\0';    // whatever has that name is not ours to remove
        return error_set_os(err, STATUS_IO, "a region of this epoch exists already");
    }
    return STATUS_OK;
}

// Its name is given last, and only if nothing has it (as with O_EXCL).
static enum status make(struct shared_region *region, const struct shared_region_options *options,
                        struct error *err) {
    shared_region_sweep();
    region->fd = open(DIRECTORY, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (region->fd < 0) {
        return error_set_os(err, STATUS_IO, "no memory to share with other ranks in %s", DIRECTORY);
    }
    int failure = posix_fallocate(region->fd, 0, (off_t)region->bytes);
    if (failure != 0) {
        errno = failure;
        error_hint(err, "make %s larger", DIRECTORY);
        return error_set_os(err, STATUS_EXHAUSTED, "%llu bytes to share between ranks in %s",
                            (unsigned long long)region->bytes, DIRECTORY);
    }
    TRY(map(region, err));
    struct shared_region_head *head = region->head;
    memcpy(head->magic, MAGIC, sizeof head->magic);
    head->world = options->world;
    head->head_bytes = HEAD_BYTES;
    head->body_bytes = options->body_bytes;
    INVARIANT(options->note_bytes <= sizeof head->note);
    if (options->note != NULL) {
        memcpy(head->note, options->note, options->note_bytes);
    }
    INVARIANT(take_lock(region->fd, region->rank));
    return give_name(region, err);
}

static enum status await_name(struct shared_region *region,
                              const struct shared_region_options *options, struct error *err) {
    for (;;) {
        region->fd = open(region->name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (region->fd >= 0) {
            return STATUS_OK;
        }
        if (errno != ENOENT) {
            return error_set_os(err, STATUS_IO, "memory shared by the group '%s'", region->name);
        }
        if (options->cancelled(options->ctx)) {
            return error_set(err, STATUS_CANCELLED, "the epoch was aborted");
        }
        if (clock_monotonic_us() >= options->deadline_us) {
            return error_set(err, STATUS_TIMEOUT,
                             "rank 0 did not make the group's shared memory in time");
        }
        poll(NULL, 0, NAME_LOOK_MS);
    }
}

// What stands under the name may be anything.
static enum status check(struct shared_region *region, const struct shared_region_options *options,
                         struct error *err) {
    struct stat info;
    if (fstat(region->fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 077) != 0) {
        return error_set(err, STATUS_PERMISSION,
                         "the group's shared memory '%s' must be a file of ours with mode 0600",
                         region->name);
    }
    if ((uint64_t)info.st_size != region->bytes) {
        error_hint(err, "start all ranks with the same program and options");
        return error_set(err, STATUS_CORRUPT,
                         "the group's shared memory has %lld bytes, this rank needs %llu",
                         (long long)info.st_size, (unsigned long long)region->bytes);
    }
    TRY(map(region, err));
    const struct shared_region_head *head = region->head;
    if (memcmp(head->magic, MAGIC, sizeof head->magic) != 0 || head->head_bytes != HEAD_BYTES ||
        head->body_bytes != options->body_bytes) {
        return error_set(err, STATUS_CORRUPT,
                         "'%s' is not the shared memory of a group of this program", region->name);
    }
    if (head->world != options->world) {
        error_hint(err, "give all ranks the same --tensor-parallel-size");
        return error_set(err, STATUS_CORRUPT, "the group has %u ranks, this rank was told %u",
                         head->world, options->world);
    }
    if (!take_lock(region->fd, region->rank)) {
        error_hint(err, "give each worker of a group a --rank of its own");
        return error_set(err, STATUS_BUSY, "another process is rank %u of the group already",
                         region->rank);
    }
    return STATUS_OK;
}

enum status shared_region_open(struct shared_region *region,
                               const struct shared_region_options *options, struct error *err) {
    *region = (struct shared_region){
        .fd = -1,
        .rank = options->rank,
        .world = options->world,
        .bytes = HEAD_BYTES + options->body_bytes,
        .spins_max = usable_cores() >= options->world ? SPINS_MAX : 0,
    };
    region->spins = region->spins_max;
    int length =
        snprintf(region->name, sizeof region->name, "%s/%s%s", DIRECTORY, PREFIX, options->id);
    INVARIANT(length > 0 && (size_t)length < sizeof region->name);
    enum status status;
    if (options->rank == 0) {
        status = make(region, options, err);
    } else {
        status = await_name(region, options, err);
        if (status == STATUS_OK) {
            status = check(region, options, err);
        }
    }
    if (status != STATUS_OK) {
        region->name[0] = '\0';
        shared_region_close(region);
    }
    return status;
}

enum status shared_region_meet(struct shared_region *region,
                               const struct shared_region_options *options, struct error *err) {
    struct shared_word *word = &region->head->attached;
    uint32_t goal = 2 * region->world;
    shared_region_arrive(region, word, goal);
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        uint32_t value = atomic_load(&word->value);
        if (options->cancelled(options->ctx)) {
            status = error_set(err, STATUS_CANCELLED, "the epoch was aborted");
        } else if (reached(value, goal)) {
            break;    // also when the region was aborted since: others went on, and met a fault
        } else if ((value & ABORTED) != 0) {
            status = error_set(err, STATUS_PEER_LOST, "another rank left while the group met");
        } else if (clock_monotonic_us() >= options->deadline_us) {
            status = error_set(err, STATUS_TIMEOUT, "%u of %u ranks of the group came in time",
                               value / 2, region->world);
        } else {
            atomic_fetch_add(&word->sleepers, 1);
            futex_wait(word, value);
            atomic_fetch_sub(&word->sleepers, 1);
        }
    }
    if (status != STATUS_OK) {
        shared_region_abort(region);
    }
    // Everybody has it open, or nobody should open it any more. The first one to come here does it.
    unlink(region->name);
    region->name[0] = '\0';
    return status;
}

void shared_region_close(struct shared_region *region) {
    if (region->fd < 0) {
        return;
    }
    if (region->name[0] != '\0') {
        unlink(region->name);
    }
    if (region->head != NULL) {
        munmap(region->head, region->bytes);
    }
    close(region->fd);
    *region = (struct shared_region){.fd = -1};
}

// ---- what others left --------------------------------------------------------------------------

// A region has its locks before it has its name, so one without locks is nobody's.
static bool remove_if_dead(int directory, const char *name) {
    int fd = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return false;
    }
    struct stat info;
    bool dead = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                !is_locked(fd, 0, BOUND_RANKS) && unlinkat(directory, name, 0) == 0;
    close(fd);
    return dead;
}

uint32_t shared_region_sweep(void) {
    DIR *directory = opendir(DIRECTORY);
    if (directory == NULL) {
        return 0;
    }
    uint32_t removed = 0;
    const struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0 &&
            remove_if_dead(dirfd(directory), entry->d_name)) {
            removed++;
        }
    }
    closedir(directory);
    return removed;
}
