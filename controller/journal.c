// SPDX-License-Identifier: Apache-2.0
#include "controller/journal.h"

#include "common/crc32c.h"
#include "common/invariant.h"
#include "common/log.h"
#include "common/mapped_file.h"
#include "common/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// An entry's id is a serial number above the index of its place: unique for the file's life, found
// at once.
enum {
    PLACE_BITS = 20,
    PLACES_MAX = 1 << PLACE_BITS,
    // What waits is written once it would be longer than a record may be.
    PENDING_BYTES_MAX = 2 * JOURNAL_RECORD_BYTES_MAX + 4096,
    PENDING_BYTES_KEPT = 1024 * 1024,    // larger memory goes back to the heap
    REWRITE_BYTES_MIN = 1024 * 1024,     // smaller files are left alone
};
#define PLACE_NONE UINT32_MAX

const char JOURNAL_MAGIC[JOURNAL_HEAD_BYTES] = {'t', 'a', 'r', 'e', ' ', 'j', 'o',  'u',
                                                'r', 'n', 'a', 'l', ' ', '1', '\n', 0};

struct place {
    uint64_t entry;    // 0: free
    uint64_t bytes;    // of its records
    uint32_t lives;
    uint32_t next_free;
};

struct journal {
    char path[PATH_MAX];
    int fd;
    uint64_t file_bytes, live_bytes;
    uint64_t serial;
    struct place *places;    // [place_count]
    uint32_t place_count, place_free;
    uint32_t live_count;
    struct buf pending;    // whole records that are not in the file yet
    uint64_t refused;
    bool warned_of_room, warned_of_rewrite;
    bool failed;
};

// ---- the bytes ---------------------------------------------------------------------------------

// length of the payload, checksum of all that follows, kind, entry, payload
void journal_put(struct buf *out, const struct journal_record *record) {
    size_t start = out->bytes_used;
    uint32_t length = (uint32_t)record->payload_bytes;
    uint32_t checksum = 0;
    buf_append(out, &length, sizeof length);
    buf_append(out, &checksum, sizeof checksum);
    buf_append_byte(out, (uint8_t)record->kind);
    buf_append(out, &record->entry, sizeof record->entry);
    buf_append(out, record->payload, record->payload_bytes);
    if (buf_status(out) == STATUS_OK) {
        checksum = crc32c(out->data + start + 8, out->bytes_used - start - 8);
        memcpy(out->data + start + 4, &checksum, sizeof checksum);
    }
}

bool journal_next(const uint8_t *bytes, size_t size, size_t *at, struct journal_record *out) {
    uint32_t length = 0;
    uint32_t checksum = 0;
    if (*at > size || size - *at < JOURNAL_RECORD_HEAD_BYTES) {
        return false;
    }
    const uint8_t *head = bytes + *at;
    memcpy(&length, head, sizeof length);
    memcpy(&checksum, head + 4, sizeof checksum);
    if (length > JOURNAL_RECORD_BYTES_MAX || size - *at - JOURNAL_RECORD_HEAD_BYTES < length ||
        crc32c(head + 8, JOURNAL_RECORD_HEAD_BYTES - 8 + (size_t)length) != checksum ||
        head[8] < JOURNAL_KIND_BEGIN || head[8] > JOURNAL_KIND_LIFE) {
        return false;
    }
    *out = (struct journal_record){.kind = (enum journal_kind)head[8],
                                   .payload = head + JOURNAL_RECORD_HEAD_BYTES,
                                   .payload_bytes = length};
    memcpy(&out->entry, head + 9, sizeof out->entry);
    *at += JOURNAL_RECORD_HEAD_BYTES + (size_t)length;
    return true;
}

// ---- places ------------------------------------------------------------------------------------

static uint32_t place_index(uint64_t entry) {
    return (uint32_t)(entry & (PLACES_MAX - 1));
}

static struct place *place_of(const struct journal *journal, uint64_t entry) {
    uint32_t index = place_index(entry);
    bool found =
        entry != 0 && index < journal->place_count && journal->places[index].entry == entry;
    return found ? &journal->places[index] : NULL;
}

static bool places_grow(struct journal *journal, uint32_t count_min) {
    uint32_t count = journal->place_count == 0 ? 64 : journal->place_count;
    while (count < count_min) {
        count *= 2;
    }
    if (count > PLACES_MAX) {
        return false;
    }
    struct place *places = memory_realloc(journal->places, count * sizeof *places);
    if (places == NULL) {
        return false;
    }
    for (uint32_t i = journal->place_count; i < count; i++) {
        places[i] = (struct place){0};
    }
    journal->places = places;
    journal->place_count = count;
    return true;
}

static void link_free_places(struct journal *journal) {
    journal->place_free = PLACE_NONE;
    for (uint32_t i = journal->place_count; i-- > 0;) {
        if (journal->places[i].entry == 0) {
            journal->places[i].next_free = journal->place_free;
            journal->place_free = i;
        }
    }
}

static void place_give_back(struct journal *journal, struct place *place) {
    journal->live_bytes -= place->bytes;
    journal->live_count--;
    *place = (struct place){.next_free = journal->place_free};
    journal->place_free = (uint32_t)(place - journal->places);
}

// ---- failing -----------------------------------------------------------------------------------

// For good: a file with half of a response must not be found by a next controller.
static void fail(struct journal *journal, const char *why) {
    char text[LOG_VALUE_BYTES];
    log_warn("journal",
             "responses are no longer journalled: should this controller die, open streams are "
             "lost because=\"%s\" path=%s",
             log_value(why, text), journal->path);
    journal->failed = true;
    if (unlink(journal->path) != 0 && errno != ENOENT && ftruncate(journal->fd, 0) != 0) {
        log_warn("journal", "the journal cannot be removed: remove it by hand path=%s",
                 journal->path);
    }
    for (uint32_t i = 0; i < journal->place_count; i++) {
        journal->places[i] = (struct place){0};
    }
    link_free_places(journal);
    journal->live_count = 0;
    journal->live_bytes = 0;
    journal->file_bytes = 0;
    buf_deinit(&journal->pending);
    buf_init(&journal->pending, PENDING_BYTES_MAX);
}

// 0, or an error number.
static int write_all(int fd, const uint8_t *bytes, size_t size) {
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno != EINTR) {
            return errno;
        }
        if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
    return 0;
}

// ---- reading what an earlier controller left ---------------------------------------------------

// False: the record cannot be, and nothing behind it counts.
static bool take_record(struct journal *journal, const struct journal_record *record) {
    struct place *place = place_of(journal, record->entry);
    uint64_t bytes = JOURNAL_RECORD_HEAD_BYTES + record->payload_bytes;
    switch (record->kind) {
    case JOURNAL_KIND_BEGIN: {
        uint32_t index = place_index(record->entry);
        uint64_t serial = record->entry >> PLACE_BITS;
        if (serial == 0 || serial <= journal->serial ||
            (index >= journal->place_count && !places_grow(journal, index + 1)) ||
            journal->places[index].entry != 0) {
            return false;
        }
        journal->serial = serial;
        journal->places[index] = (struct place){.entry = record->entry, .bytes = bytes, .lives = 1};
        journal->live_bytes += bytes;
        journal->live_count++;
        return true;
    }
    case JOURNAL_KIND_END:
        if (place != NULL) {
            place_give_back(journal, place);
        }
        return true;
    case JOURNAL_KIND_LIFE:
    case JOURNAL_KIND_STEP:
        if (place != NULL) {
            place->bytes += bytes;
            place->lives += record->kind == JOURNAL_KIND_LIFE ? 1 : 0;
            journal->live_bytes += bytes;
        }
        return true;
    }
    return false;
}

// Bytes that count.
static size_t take_records(struct journal *journal, const uint8_t *bytes, size_t size) {
    struct journal_record record;
    size_t good = JOURNAL_HEAD_BYTES;
    size_t at = good;
    while (journal_next(bytes, size, &at, &record) && take_record(journal, &record)) {
        good = at;
    }
    return good;
}

// The records of one unfinished entry, gathered.
struct gathered {
    uint64_t entry;
    const uint8_t *begin;
    size_t begin_bytes;
    struct buf steps;
};

static int compare_gathered(const void *a, const void *b) {
    uint64_t left = ((const struct gathered *)a)->entry;
    uint64_t right = ((const struct gathered *)b)->entry;
    return (left > right) - (left < right);
}

static void gather(struct gathered *to, const struct journal_record *record) {
    uint32_t length = (uint32_t)record->payload_bytes;
    switch (record->kind) {
    case JOURNAL_KIND_BEGIN:
        to->begin = record->payload;
        to->begin_bytes = record->payload_bytes;
        break;
    case JOURNAL_KIND_STEP:
        buf_append(&to->steps, &length, sizeof length);
        buf_append(&to->steps, record->payload, length);
        break;
    default:
        break;
    }
}

static void give_up(struct journal *journal, uint64_t entry, const char *why) {
    char text[LOG_VALUE_BYTES];
    log_warn("journal", "a response is not continued entry=%llu because=\"%s\"",
             (unsigned long long)entry, log_value(why, text));
    journal_end(journal, entry);
}

static void tell_one(struct journal *journal, const struct gathered *one, journal_found_fn found,
                     void *ctx) {
    const struct place *place = place_of(journal, one->entry);
    const struct journal_unfinished unfinished = {.entry = one->entry,
                                                  .lives = place->lives,
                                                  .begin = one->begin,
                                                  .begin_bytes = one->begin_bytes,
                                                  .steps = one->steps.data,
                                                  .steps_bytes = one->steps.bytes_used};
    if (place->lives >= JOURNAL_LIVES_MAX) {
        give_up(journal, one->entry, "too many controllers have died since it began");
    } else if (buf_status(&one->steps) != STATUS_OK) {
        give_up(journal, one->entry, "no memory");
    } else {
        const struct journal_record life = {.kind = JOURNAL_KIND_LIFE, .entry = one->entry};
        journal_put(&journal->pending, &life);
        bool known = take_record(journal, &life);
        INVARIANT(known);
        if (!found(ctx, &unfinished)) {
            give_up(journal, one->entry, "its API key is gone, or another version began it");
        }
    }
}

static enum status tell_unfinished(struct journal *journal, const uint8_t *bytes, size_t size,
                                   journal_found_fn found, void *ctx, struct error *err) {
    if (journal->live_count == 0) {
        return STATUS_OK;
    }
    uint32_t count = journal->live_count;
    uint32_t *index = memory_array(journal->place_count, sizeof *index);
    struct gathered *all = memory_array(count, sizeof *all);
    if (index == NULL || all == NULL) {
        memory_free(index);
        memory_free(all);
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u unfinished responses", count);
    }
    uint32_t used = 0;
    for (uint32_t i = 0; i < journal->place_count; i++) {
        if (journal->places[i].entry != 0) {
            all[used].entry = journal->places[i].entry;
            buf_init(&all[used].steps, JOURNAL_BYTES_MAX);
            index[i] = used++;
        }
    }
    struct journal_record record;
    for (size_t at = JOURNAL_HEAD_BYTES; journal_next(bytes, size, &at, &record);) {
        if (place_of(journal, record.entry) != NULL) {
            gather(&all[index[place_index(record.entry)]], &record);
        }
    }
    qsort(all, count, sizeof *all, compare_gathered);
    for (uint32_t i = 0; i < count; i++) {
        tell_one(journal, &all[i], found, ctx);
        buf_deinit(&all[i].steps);
    }
    memory_free(index);
    memory_free(all);
    return STATUS_OK;
}

// The file as it is: unfinished entries are told of; `*keep` of its bytes count.
static enum status read_file(struct journal *journal, journal_found_fn found, void *ctx,
                             size_t *keep, struct error *err) {
    struct mapped_file file = {0};
    // Records are bounded, and so is a file of them: beyond that it is not ours.
    TRY(mapped_file_open(journal->path, 2ull * JOURNAL_BYTES_MAX, &file, err));
    size_t size = (size_t)file.byte_count;
    enum status status = STATUS_OK;
    *keep = 0;
    if (size >= JOURNAL_HEAD_BYTES && memcmp(file.bytes, JOURNAL_MAGIC, JOURNAL_HEAD_BYTES) == 0) {
        *keep = take_records(journal, file.bytes, size);
        link_free_places(journal);
        if (*keep < size) {
            log_warn("journal", "damaged behind byte %zu: what lies there is dropped bytes=%zu",
                     *keep, size - *keep);
        }
        journal->file_bytes = *keep;
        status = tell_unfinished(journal, file.bytes, *keep, found, ctx, err);
    } else if (size > 0) {
        log_warn("journal", "not a journal of this version: it is begun anew path=%s",
                 journal->path);
    }
    mapped_file_close(&file);
    return status;
}

// ---- life cycle --------------------------------------------------------------------------------

static enum status open_file(struct journal *journal, struct error *err) {
    journal->fd = open(journal->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (journal->fd < 0 || fchmod(journal->fd, 0600) != 0) {
        return error_set_os(err, errno == EACCES ? STATUS_PERMISSION : STATUS_IO, "journal '%s'",
                            journal->path);
    }
    return STATUS_OK;
}

static enum status begin_file(struct journal *journal, size_t keep, struct error *err) {
    int code = ftruncate(journal->fd, (off_t)keep) == 0 ? 0 : errno;
    if (code == 0 && keep == 0) {
        code = write_all(journal->fd, (const uint8_t *)JOURNAL_MAGIC, JOURNAL_HEAD_BYTES);
        journal->file_bytes = JOURNAL_HEAD_BYTES;
    }
    if (code != 0) {
        errno = code;
        return error_set_os(err, STATUS_IO, "journal '%s' cannot be written", journal->path);
    }
    return STATUS_OK;
}

enum status journal_open(const char *path, journal_found_fn found, void *ctx, struct journal **out,
                         struct error *err) {
    struct journal *journal = memory_zalloc(sizeof *journal);
    if (journal == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a journal");
    }
    snprintf(journal->path, sizeof journal->path, "%s", path);
    buf_init(&journal->pending, PENDING_BYTES_MAX);
    journal->place_free = PLACE_NONE;
    size_t keep = 0;
    enum status status = open_file(journal, err);
    if (status == STATUS_OK) {
        status = read_file(journal, found, ctx, &keep, err);
    }
    if (status == STATUS_OK) {
        status = begin_file(journal, keep, err);
    }
    if (status != STATUS_OK) {
        if (journal->fd >= 0) {
            close(journal->fd);
        }
        buf_deinit(&journal->pending);
        memory_free(journal->places);
        memory_free(journal);
        return status;
    }
    journal_flush(journal);
    *out = journal;
    return STATUS_OK;
}

void journal_close(struct journal *journal, bool erase) {
    if (journal == NULL) {
        return;
    }
    if (!erase) {
        journal_flush(journal);
    }
    if (!journal->failed && (erase || journal->live_count == 0)) {
        unlink(journal->path);
    }
    close(journal->fd);
    buf_deinit(&journal->pending);
    memory_free(journal->places);
    memory_free(journal);
}

// ---- rewriting ---------------------------------------------------------------------------------

// Copies what is unfinished into `fd`.
static int copy_live(const struct journal *journal, const struct mapped_file *file, int fd,
                     uint64_t *copied) {
    struct buf out;
    buf_init(&out, PENDING_BYTES_MAX);
    buf_append(&out, JOURNAL_MAGIC, JOURNAL_HEAD_BYTES);
    struct journal_record record;
    size_t at = JOURNAL_HEAD_BYTES;
    int code = 0;
    *copied = 0;
    while (code == 0 && journal_next(file->bytes, (size_t)file->byte_count, &at, &record)) {
        if (place_of(journal, record.entry) == NULL) {
            continue;
        }
        journal_put(&out, &record);
        if (out.bytes_used >= JOURNAL_RECORD_BYTES_MAX) {
            *copied += out.bytes_used;
            code = write_all(fd, out.data, out.bytes_used);
            out.bytes_used = 0;
        }
    }
    if (code == 0) {
        *copied += out.bytes_used;
        code = buf_status(&out) == STATUS_OK ? write_all(fd, out.data, out.bytes_used) : ENOMEM;
    }
    buf_deinit(&out);
    return code;
}

// Leaves the file as it is when anything goes wrong: it only stays larger than need be.
static void rewrite(struct journal *journal) {
    char path[PATH_MAX + 8];
    struct mapped_file file = {0};
    snprintf(path, sizeof path, "%s.new", journal->path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    uint64_t bytes = 0;
    int code = fd < 0 ? errno : 0;
    if (code == 0 &&
        mapped_file_open(journal->path, 2ull * JOURNAL_BYTES_MAX, &file, NULL) != STATUS_OK) {
        code = EIO;
    }
    if (code == 0) {
        code = copy_live(journal, &file, fd, &bytes);
    }
    mapped_file_close(&file);
    if (code == 0 && rename(path, journal->path) != 0) {
        code = errno;
    }
    if (code == 0) {
        close(journal->fd);
        journal->fd = fd;
        journal->file_bytes = bytes;
        return;
    }
    if (fd >= 0) {
        unlink(path);
        close(fd);
    }
    if (!journal->warned_of_rewrite) {
        journal->warned_of_rewrite = true;
        log_warn("journal", "it cannot be rewritten, and grows on because=\"%s\"", strerror(code));
    }
}

void journal_flush(struct journal *journal) {
    if (journal == NULL || journal->failed) {
        return;
    }
    struct buf *pending = &journal->pending;
    if (buf_status(pending) != STATUS_OK) {
        fail(journal, "no memory");
        return;
    }
    int code = 0;
    if (journal->live_count == 0) {
        // Nothing is unfinished: nothing of what was needs to be kept, nor written at all.
        if (journal->file_bytes > JOURNAL_HEAD_BYTES) {
            code = ftruncate(journal->fd, JOURNAL_HEAD_BYTES) == 0 ? 0 : errno;
            journal->file_bytes = JOURNAL_HEAD_BYTES;
        }
    } else if (pending->bytes_used > 0) {
        code = write_all(journal->fd, pending->data, pending->bytes_used);
        journal->file_bytes += pending->bytes_used;
    }
    if (code != 0) {
        fail(journal, strerror(code));
        return;
    }
    if (pending->bytes_allocated > PENDING_BYTES_KEPT) {
        buf_deinit(pending);
        buf_init(pending, PENDING_BYTES_MAX);
    }
    buf_reset(pending);
    if (journal->file_bytes > REWRITE_BYTES_MIN && journal->live_bytes < journal->file_bytes / 2) {
        rewrite(journal);
    }
}

// ---- entries -----------------------------------------------------------------------------------

static bool has_room(struct journal *journal, size_t size) {
    if (journal->pending.bytes_used + size > JOURNAL_RECORD_BYTES_MAX) {
        journal_flush(journal);
    }
    if (journal->failed) {
        return false;
    }
    uint64_t bytes = journal->file_bytes + journal->pending.bytes_used + size;
    if (size <= JOURNAL_RECORD_BYTES_MAX && bytes <= JOURNAL_BYTES_MAX) {
        return true;
    }
    journal->refused++;
    if (!journal->warned_of_room) {
        journal->warned_of_room = true;
        log_warn("journal", "full: some responses are not journalled bytes=%llu",
                 (unsigned long long)journal->file_bytes);
    }
    return false;
}

static void add_record(struct journal *journal, struct place *place,
                       const struct journal_record *record) {
    journal_put(&journal->pending, record);
    uint64_t bytes = JOURNAL_RECORD_HEAD_BYTES + record->payload_bytes;
    place->bytes += bytes;
    journal->live_bytes += bytes;
}

uint64_t journal_begin(struct journal *journal, const void *bytes, size_t size) {
    if (journal == NULL || !has_room(journal, size)) {
        return 0;
    }
    if (journal->place_free == PLACE_NONE) {
        if (!places_grow(journal, journal->place_count + 1)) {
            journal->refused++;
            return 0;
        }
        link_free_places(journal);
    }
    uint32_t index = journal->place_free;
    struct place *place = &journal->places[index];
    journal->place_free = place->next_free;
    *place = (struct place){.entry = ++journal->serial << PLACE_BITS | index, .lives = 1};
    journal->live_count++;
    const struct journal_record record = {JOURNAL_KIND_BEGIN, place->entry, bytes, size};
    add_record(journal, place, &record);
    return place->entry;
}

bool journal_step(struct journal *journal, uint64_t entry, const void *bytes, size_t size) {
    struct place *place = journal == NULL ? NULL : place_of(journal, entry);
    if (place == NULL) {
        return false;
    }
    if (!has_room(journal, size)) {
        journal_end(journal, entry);    // nothing, where writing has just failed
        return false;
    }
    const struct journal_record record = {JOURNAL_KIND_STEP, entry, bytes, size};
    add_record(journal, place, &record);
    return true;
}

void journal_end(struct journal *journal, uint64_t entry) {
    struct place *place = journal == NULL ? NULL : place_of(journal, entry);
    if (place == NULL) {
        return;
    }
    const struct journal_record record = {.kind = JOURNAL_KIND_END, .entry = entry};
    journal_put(&journal->pending, &record);
    place_give_back(journal, place);
}

void journal_count(const struct journal *journal, struct journal_counters *out) {
    *out = (struct journal_counters){0};
    if (journal != NULL) {
        *out = (struct journal_counters){.bytes = journal->file_bytes,
                                         .entries = journal->live_count,
                                         .refused = journal->refused,
                                         .failed = journal->failed};
    }
}
