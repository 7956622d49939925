// SPDX-License-Identifier: Apache-2.0
#include "worker/seal.h"

#include "common/bounds.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512, SEAL_FILE_BYTES_MAX = 64 * 1024 };

bool seal_covers(const struct seal *before, const struct seal *now) {
    if (strcmp(before->digest, now->digest) != 0) {
        return false;
    }
    struct memory_ledger none = {0};
    struct ledger_line lines[LEDGER_COUNT];
    memory_ledger_lines(&none, lines);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        bool same = now->bytes[i] == before->bytes[i];
        bool fits = now->bytes[i] <= before->bytes[i];
        if (lines[i].planned ? !same : !fits) {
            return false;
        }
    }
    return true;
}

bool seal_default_dir(char *out, size_t out_bytes) {
    int written = snprintf(out, out_bytes, "/var/tmp/tare-%u", (unsigned)geteuid());
    if (written < 0 || (size_t)written >= out_bytes || (mkdir(out, 0700) != 0 && errno != EEXIST)) {
        return false;
    }
    // Somebody else may have made it first.
    struct stat info;
    return lstat(out, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
           (info.st_mode & 022) == 0;
}

static bool path_of(const char *dir, const char *digest, const char *suffix, char *out) {
    int written = snprintf(out, PATH_BYTES, "%s/seal-%s.json%s", dir, digest, suffix);
    return written > 0 && written < PATH_BYTES;
}

static bool read_lines(const struct json *root, struct seal *out) {
    const struct json *lines = json_get(root, "lines");
    bool whole = json_count(lines) == LEDGER_COUNT;
    for (unsigned i = 0; whole && i < LEDGER_COUNT; i++) {
        const struct json *bytes = json_get(lines, memory_ledger_name((enum ledger_id)i));
        whole = json_kind(bytes) == JSON_KIND_INT && json_int(bytes) >= 0;
        out->bytes[i] = (uint64_t)json_int(bytes);
    }
    return whole;
}

bool seal_read(const char *dir, const char *digest, struct seal *out) {
    char path[PATH_BYTES];
    struct mapped_file file = {0};
    struct json_doc *doc = NULL;
    memset(out, 0, sizeof *out);
    if (!path_of(dir, digest, "", path) ||
        mapped_file_open(path, SEAL_FILE_BYTES_MAX, &file, NULL) != STATUS_OK) {
        return false;
    }
    bool good = json_parse((const char *)file.bytes, file.byte_count, &doc, NULL) == STATUS_OK;
    if (good) {
        const struct json *root = json_root(doc);
        size_t text_bytes = 0;
        const char *text = json_text(json_get(root, "digest"), &text_bytes);
        good = text != NULL && strcmp(text, digest) == 0 && read_lines(root, out);
        snprintf(out->digest, sizeof out->digest, "%s", digest);
    }
    json_destroy(doc);
    mapped_file_close(&file);
    return good;
}

// The file that will take the seal's place, open for writing; its name replaces the X of `path`.
static FILE *create_fresh(const char *dir, char *path) {
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return NULL;
    }
    // A name that nobody else has: two starts may write the same seal at once, and where others may
    // write too, a name known before could be a link to another file of ours.
    int fd = mkstemp(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && file == NULL) {
        close(fd);
        unlink(path);
    }
    return file;
}

// Keeps the newest of a directory's seals: every build and every set of options leaves one.
static void drop_oldest(const char *dir) {
    for (;;) {
        DIR *files = opendir(dir);
        char oldest[PATH_BYTES] = "";
        struct timespec since = {0};
        unsigned count = 0;
        for (struct dirent *f = files == NULL ? NULL : readdir(files); f != NULL;
             f = readdir(files)) {
            struct stat info;
            if (strncmp(f->d_name, "seal-", 5) != 0 ||
                fstatat(dirfd(files), f->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
                continue;
            }
            bool older =
                info.st_mtim.tv_sec < since.tv_sec ||
                (info.st_mtim.tv_sec == since.tv_sec && info.st_mtim.tv_nsec < since.tv_nsec);
            if (count++ == 0 || older) {
                since = info.st_mtim;
                snprintf(oldest, sizeof oldest, "%s/%s", dir, f->d_name);
            }
        }
        if (files != NULL) {
            closedir(files);
        }
        if (count <= BOUND_SEALS || unlink(oldest) != 0) {
            return;
        }
    }
}

enum status seal_write(const char *dir, const struct seal *seal, struct error *err) {
    char path[PATH_BYTES], fresh[PATH_BYTES];
    if (!path_of(dir, seal->digest, "", path) || !path_of(dir, seal->digest, ".XXXXXX", fresh)) {
        return error_set(err, STATUS_INVALID, "the seal directory's name is too long");
    }
    FILE *file = create_fresh(dir, fresh);
    if (file == NULL) {
        return error_set_os(err, STATUS_IO, "seal '%s' cannot be written", path);
    }
    fprintf(file, "{\"digest\":\"%s\",\"lines\":{", seal->digest);
    for (unsigned i = 0; i < LEDGER_COUNT; i++) {
        fprintf(file, "%s\"%s\":%llu", i == 0 ? "" : ",", memory_ledger_name((enum ledger_id)i),
                (unsigned long long)seal->bytes[i]);
    }
    fputs("}}\n", file);
    bool written = ferror(file) == 0;
    written = fclose(file) == 0 && written;
    if (!written || rename(fresh, path) != 0) {
        enum status status = error_set_os(err, STATUS_IO, "seal '%s' cannot be written", path);
        unlink(fresh);
        return status;
    }
    drop_oldest(dir);
    return STATUS_OK;
}
