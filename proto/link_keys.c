// SPDX-License-Identifier: Apache-2.0
#include "proto/link_keys.h"

#include "common/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { KEY_FILE_BYTES = 4096, ALLOW_FILE_BYTES = 4 * 1024 * 1024 };

enum status link_key_pair_create(struct link_key_pair *out, struct error *err) {
    if (zmq_curve_keypair(out->public_key, out->secret_key) != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "no keys can be made: %s", zmq_strerror(errno));
    }
    return STATUS_OK;
}

static bool is_key(const char *text) {
    uint8_t bytes[LINK_KEY_CHARS / 5 * 4];
    return strlen(text) == LINK_KEY_CHARS && zmq_z85_decode(bytes, text) != NULL;
}

// ---- files -------------------------------------------------------------------------------------

// The whole file with a NUL behind it; the caller frees it.
static enum status read_text(const char *path, bool secret, size_t bytes_max, char **out,
                             struct error *err) {
    // Without O_NONBLOCK a named pipe would hold us until somebody writes into it.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_hint(err, "`tare keygen NAME` makes keys");
        return error_set_os(err, errno == EACCES ? STATUS_PERMISSION : STATUS_NOT_FOUND,
                            "key file '%s'", path);
    }
    struct stat info;
    enum status status = STATUS_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || (size_t)info.st_size > bytes_max) {
        status =
            error_set(err, STATUS_CORRUPT, "'%s' is no file of at most %zu bytes", path, bytes_max);
    } else if (secret && ((info.st_mode & 077) != 0 || info.st_uid != geteuid())) {
        error_hint(err, "chown it to the user of this process and chmod 600 it; if others may have "
                        "read it, make new keys");
        status = error_set(err, STATUS_PERMISSION,
                           "secret key file '%s' must be ours and closed to others", path);
    }
    char *text = status == STATUS_OK ? memory_zalloc((size_t)info.st_size + 1) : NULL;
    if (status == STATUS_OK && text == NULL) {
        status = error_set(err, STATUS_EXHAUSTED, "no memory for '%s'", path);
    }
    if (status == STATUS_OK && read(fd, text, (size_t)info.st_size) != info.st_size) {
        status = error_set_os(err, STATUS_IO, "'%s' cannot be read", path);
    }
    close(fd);
    if (status != STATUS_OK) {
        memory_free(text);
        return status;
    }
    *out = text;
    return STATUS_OK;
}

// The next line that says something, without its end; NULL when there is none.
static char *next_line(char **rest, uint32_t *line_number) {
    while (*rest != NULL && **rest != '\0') {
        char *line = strsep(rest, "\n");
        (*line_number)++;
        line += strspn(line, " \t\r");
        if (*line != '\0' && *line != '#') {
            return line;
        }
    }
    return NULL;
}

static char *next_word(char **line) {
    *line += strspn(*line, " \t\r");
    if (**line == '\0') {
        return NULL;
    }
    char *word = *line;
    *line += strcspn(*line, " \t\r");
    if (**line != '\0') {
        *(*line)++ = '\0';
    }
    return word;
}

static enum status parse_key_file(const char *path, char *text, struct link_key_pair *out,
                                  struct error *err) {
    uint32_t number = 0;
    char *line;
    while ((line = next_line(&text, &number)) != NULL) {
        const char *what = next_word(&line);
        const char *key = next_word(&line);
        char *place = strcmp(what, "public") == 0   ? out->public_key
                      : strcmp(what, "secret") == 0 ? out->secret_key
                                                    : NULL;
        if (place == NULL || key == NULL || !is_key(key) || next_word(&line) != NULL) {
            return error_set(err, STATUS_CORRUPT,
                             "'%s' line %u: expected 'public KEY' or 'secret KEY' with a key of %d "
                             "characters",
                             path, number, LINK_KEY_CHARS);
        }
        memcpy(place, key, LINK_KEY_CHARS + 1);
    }
    return STATUS_OK;
}

static enum status check_pair(const char *path, bool secret, const struct link_key_pair *pair,
                              struct error *err) {
    if (pair->public_key[0] == '\0' || (secret && pair->secret_key[0] == '\0')) {
        return error_set(err, STATUS_CORRUPT, "'%s' has no %s key", path,
                         secret ? "secret" : "public");
    }
    char derived[LINK_KEY_CHARS + 1];
    if (secret && (zmq_curve_public(derived, pair->secret_key) != 0 ||
                   strcmp(derived, pair->public_key) != 0)) {
        return error_set(err, STATUS_CORRUPT, "'%s': its two keys do not belong together", path);
    }
    return STATUS_OK;
}

enum status link_key_file_read(const char *path, bool secret, struct link_key_pair *out,
                               struct error *err) {
    char *text = NULL;
    memset(out, 0, sizeof *out);
    TRY(read_text(path, secret, KEY_FILE_BYTES, &text, err));
    enum status status = parse_key_file(path, text, out, err);
    explicit_bzero(text, strlen(text));
    memory_free(text);
    return status == STATUS_OK ? check_pair(path, secret, out, err) : status;
}

// ---- the allow-list ----------------------------------------------------------------------------

bool link_name_ok(const char *name) {
    size_t length = strlen(name);
    return length > 0 && length < LINK_NAME_BYTES && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               length;
}

// "12" or "*", up to `end`.
static bool parse_place(const char **at, char letter, uint32_t below, bool *any, uint32_t *out) {
    if (**at != letter) {
        return false;
    }
    (*at)++;
    if (**at == '*') {
        (*at)++;
        *any = true;
        return true;
    }
    if (**at < '0' || **at > '9') {
        return false;
    }
    char *end = NULL;
    unsigned long value = strtoul(*at, &end, 10);
    *at = end;
    *out = (uint32_t)value;
    return value < below;
}

enum status link_ids_parse(const char *text, struct link_entry *entry, struct error *err) {
    entry->id_count = 0;
    if (strcmp(text, "*") == 0) {
        entry->ids[entry->id_count++] = (struct link_ids){.any_group = true, .any_rank = true};
        return STATUS_OK;
    }
    const char *at = text;
    do {
        struct link_ids ids = {0};
        at += *at == ',' ? 1 : 0;
        bool ok = parse_place(&at, 'g', BOUND_GROUPS, &ids.any_group, &ids.group) &&
                  parse_place(&at, 'r', BOUND_RANKS, &ids.any_rank, &ids.rank) &&
                  (*at == ',' || *at == '\0');
        if (!ok || entry->id_count == LINK_IDS_MAX) {
            return error_set(err, STATUS_CORRUPT,
                             "ids '%.200s': expected up to %d like g0r0, g1r* or g*r2, with commas "
                             "between, or *",
                             text, LINK_IDS_MAX);
        }
        entry->ids[entry->id_count++] = ids;
    } while (*at == ',');
    return STATUS_OK;
}

static enum status parse_field(const char *word, struct link_entry *entry, struct error *err) {
    if (strcmp(word, "role=worker") == 0 || strcmp(word, "role=admin") == 0) {
        entry->role = word[5] == 'w' ? LINK_ROLE_WORKER : LINK_ROLE_ADMIN;
        return STATUS_OK;
    }
    if (strncmp(word, "ids=", 4) == 0) {
        return link_ids_parse(word + 4, entry, err);
    }
    return error_set(err, STATUS_CORRUPT, "'%.200s' is neither role=worker|admin nor ids=...",
                     word);
}

static enum status parse_entry(char *line, struct link_entry *entry, struct error *err) {
    const char *name = next_word(&line);
    const char *key = next_word(&line);
    if (!link_name_ok(name)) {
        return error_set(err, STATUS_CORRUPT, "'%.200s' is no name: letters, digits, . _ -", name);
    }
    if (key == NULL || !is_key(key)) {
        return error_set(err, STATUS_CORRUPT, "'%s' has no key of %d characters behind it", name,
                         LINK_KEY_CHARS);
    }
    snprintf(entry->name, sizeof entry->name, "%s", name);
    memcpy(entry->public_key, key, LINK_KEY_CHARS + 1);
    const char *word;
    while ((word = next_word(&line)) != NULL) {
        TRY(parse_field(word, entry, err));
    }
    if (entry->role == LINK_ROLE_WORKER && entry->id_count == 0) {
        return error_set(err, STATUS_CORRUPT, "worker '%s' has no ids=, so it may take no place",
                         name);
    }
    return STATUS_OK;
}

static uint32_t count_lines(const char *text) {
    uint32_t count = 1;
    for (; *text != '\0'; text++) {
        count += *text == '\n' ? 1 : 0;
    }
    return count;
}

static enum status parse_entries(const char *name, char *text, struct link_allow *allow,
                                 struct error *err) {
    uint32_t number = 0;
    char *line;
    while ((line = next_line(&text, &number)) != NULL) {
        struct link_entry *entry = &allow->entries[allow->count];
        struct error problem = {0};
        if (parse_entry(line, entry, &problem) != STATUS_OK) {
            return error_set(err, STATUS_CORRUPT, "'%s' line %u: %.600s", name, number,
                             problem.message);
        }
        if (link_allow_find(allow, entry->public_key) != NULL ||
            link_allow_named(allow, entry->name) != NULL) {
            return error_set(err, STATUS_CORRUPT, "'%s' line %u: name or key of '%s' a second time",
                             name, number, entry->name);
        }
        allow->count++;
    }
    if (allow->count == 0) {
        return error_set(err, STATUS_CORRUPT, "'%s' allows nobody", name);
    }
    return STATUS_OK;
}

enum status link_allow_parse(const char *name, char *text, struct link_allow **out,
                             struct error *err) {
    struct link_allow *allow =
        memory_zalloc(sizeof *allow + (size_t)count_lines(text) * sizeof allow->entries[0]);
    if (allow == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for '%s'", name);
    }
    enum status status = parse_entries(name, text, allow, err);
    if (status != STATUS_OK) {
        link_allow_destroy(allow);
        return status;
    }
    *out = allow;
    return STATUS_OK;
}

enum status link_allow_load(const char *path, struct link_allow **out, struct error *err) {
    char *text = NULL;
    TRY(read_text(path, false, ALLOW_FILE_BYTES, &text, err));
    enum status status = link_allow_parse(path, text, out, err);
    memory_free(text);
    return status;
}

void link_allow_destroy(struct link_allow *allow) {
    memory_free(allow);
}

const struct link_entry *link_allow_find(const struct link_allow *allow, const char *public_key) {
    for (uint32_t i = 0; i < allow->count; i++) {
        if (strcmp(allow->entries[i].public_key, public_key) == 0) {
            return &allow->entries[i];
        }
    }
    return NULL;
}

const struct link_entry *link_allow_named(const struct link_allow *allow, const char *name) {
    for (uint32_t i = 0; i < allow->count; i++) {
        if (strcmp(allow->entries[i].name, name) == 0) {
            return &allow->entries[i];
        }
    }
    return NULL;
}

bool link_entry_permits(const struct link_entry *entry, uint32_t group, uint32_t rank) {
    if (entry->role != LINK_ROLE_WORKER) {
        return false;
    }
    for (uint32_t i = 0; i < entry->id_count; i++) {
        const struct link_ids *ids = &entry->ids[i];
        if ((ids->any_group || ids->group == group) && (ids->any_rank || ids->rank == rank)) {
            return true;
        }
    }
    return false;
}
