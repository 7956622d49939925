// SPDX-License-Identifier: Apache-2.0
#include "controller/keys.h"

#include "common/memory.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };
static const double WEIGHT_MIN = 0.01, WEIGHT_MAX = CORE_WEIGHT_MAX;

// ---- one entry ---------------------------------------------------------------------------------

static enum status parse_positive(const char *name, const char *text, int64_t most, int64_t *out,
                                  struct error *err) {
    if (!config_human_int(text, out) || *out < 1 || *out > most) {
        return error_set(err, STATUS_INVALID, "%s is '%s'; it takes a number from 1, such as 60",
                         name, text);
    }
    return STATUS_OK;
}

static enum status parse_weight(const char *text, float *out, struct error *err) {
    char *end = NULL;
    double weight = strtod(text, &end);
    if (end == text || *end != '\0' || !(weight >= WEIGHT_MIN && weight <= WEIGHT_MAX)) {
        return error_set(err, STATUS_INVALID, "weight is '%s'; it takes a number from %g to %g",
                         text, WEIGHT_MIN, WEIGHT_MAX);
    }
    *out = (float)weight;
    return STATUS_OK;
}

static enum status parse_attribute(const char *name, const char *text, struct keys_entry *out,
                                   struct error *err) {
    const int64_t tokens_most = (int64_t)1 << 50;
    int64_t number = 0;
    if (strcmp(name, "class") == 0) {
        return core_class_parse(text, strlen(text), &out->class_)
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID,
                               "class is '%s'; it is realtime, standard or batch", text);
    }
    if (strcmp(name, "weight") == 0) {
        return parse_weight(text, &out->weight, err);
    }
    if (strcmp(name, "concurrency") == 0) {
        TRY(parse_positive(name, text, UINT32_MAX, &number, err));
        out->limits.concurrency = (uint32_t)number;
    } else if (strcmp(name, "requests-per-minute") == 0) {
        TRY(parse_positive(name, text, tokens_most, &number, err));
        out->limits.requests_per_minute = (double)number;
    } else if (strcmp(name, "tokens-per-minute") == 0) {
        TRY(parse_positive(name, text, tokens_most, &number, err));
        out->limits.tokens_per_minute = (double)number;
    } else {
        error_hint(err, "attributes are class, weight, concurrency, requests-per-minute and "
                        "tokens-per-minute");
        return error_set(err, STATUS_INVALID, "there is no attribute '%.64s' of a key", name);
    }
    return STATUS_OK;
}

// Cuts the next word off; NULL at the end.
static char *next_word(char **at) {
    char *word = *at + strspn(*at, " \t");
    size_t bytes = strcspn(word, " \t");
    *at = word + bytes + (word[bytes] == '\0' ? 0 : 1);
    word[bytes] = '\0';
    return bytes == 0 ? NULL : word;
}

static enum status add_entry(struct keys *keys, const char *key, const struct keys_entry *entry,
                             struct error *err) {
    if (keys->entry_count == BOUND_API_KEYS) {
        return error_set(err, STATUS_INVALID, "more than %u API keys", BOUND_API_KEYS);
    }
    if (key[0] == '\0') {
        return error_set(err, STATUS_INVALID, "an API key is empty");
    }
    struct keys_entry *place = &keys->entries[keys->entry_count++];
    *place = *entry;
    api_key_digest(key, strlen(key), place->digest);
    return STATUS_OK;
}

// Names stand in logs and metrics.
static enum status take_name(const char *name, size_t byte_count, struct keys_entry *out,
                             struct error *err) {
    bool plain = byte_count < sizeof out->name;
    for (size_t i = 0; plain && i < byte_count; i++) {
        plain = (unsigned char)name[i] > 0x20 && name[i] != 0x7f;
    }
    if (!plain) {
        return error_set(err, STATUS_INVALID,
                         "the name before ':' has more than %zu bytes or control characters",
                         sizeof out->name - 1);
    }
    memcpy(out->name, name, byte_count);
    return STATUS_OK;
}

// "[NAME:]KEY [ATTRIBUTE=VALUE ...]"
static enum status parse_line(struct keys *keys, char *line, struct error *err) {
    struct keys_entry entry = {.class_ = REQUEST_CLASS_STANDARD, .weight = 1};
    char *at = line;
    char *key = next_word(&at);
    char *colon = strchr(key, ':');
    if (colon != NULL) {
        TRY(take_name(key, (size_t)(colon - key), &entry, err));
        key = colon + 1;
    }
    for (char *word = next_word(&at); word != NULL; word = next_word(&at)) {
        char *equals = strchr(word, '=');
        if (equals == NULL) {
            return error_set(err, STATUS_INVALID,
                             "behind a key there are attributes such as class=batch");
        }
        *equals = '\0';
        TRY(parse_attribute(word, equals + 1, &entry, err));
    }
    return add_entry(keys, key, &entry, err);
}

enum status keys_parse(const char *name, char *text, size_t text_bytes, struct keys *keys,
                       struct error *err) {
    if (memchr(text, '\0', text_bytes) != NULL) {
        return error_set(err, STATUS_INVALID, "API key file '%s' has bytes that are no text", name);
    }
    uint32_t given = keys->entry_count;
    char *rest = text;
    for (int number = 1; rest != NULL; number++) {
        char *line = strsep(&rest, "\n");
        line[strcspn(line, "\r")] = '\0';
        line += strspn(line, " \t");
        if (line[0] == '\0' || line[0] == '#') {
            continue;
        }
        enum status status = strlen(line) < LINE_BYTES
                                 ? parse_line(keys, line, err)
                                 : error_set(err, STATUS_INVALID, "the line is too long");
        if (status != STATUS_OK) {
            error_context(err, "API key file '%s' line %d", name, number);
            return status;
        }
    }
    // Somebody who names a file wants keys: without one the server would be open to everybody.
    if (keys->entry_count == given) {
        error_hint(err, "write one key per line");
        return error_set(err, STATUS_INVALID, "API key file '%s' has no keys", name);
    }
    return STATUS_OK;
}

// A pipe gives its keys once, and would hold the loop when it is asked again.
static enum status check_file(const char *path, FILE *file, bool again, struct error *err) {
    struct stat info;
    if (fstat(fileno(file), &info) != 0 || S_ISDIR(info.st_mode)) {
        return error_set(err, STATUS_INVALID, "API key file '%s' is a directory", path);
    }
    if (again && !S_ISREG(info.st_mode)) {
        return error_set(err, STATUS_INVALID,
                         "API key file '%s' is not a regular file: it is read at start only", path);
    }
    return STATUS_OK;
}

static enum status load_file(const char *path, struct keys *keys, struct error *err) {
    bool again = keys->loads > 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | (again ? O_NONBLOCK : 0));
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (file == NULL) {
        enum status status =
            error_set_os(err, STATUS_NOT_FOUND, "API key file '%s' cannot be opened", path);
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    char *text = memory_zalloc(BOUND_API_KEY_FILE_BYTES + 1);
    enum status status = text == NULL ? error_set(err, STATUS_EXHAUSTED, "no memory for API keys")
                                      : check_file(path, file, again, err);
    if (status == STATUS_OK) {
        size_t text_bytes = fread(text, 1, BOUND_API_KEY_FILE_BYTES + 1, file);
        if (ferror(file)) {
            status = error_set_os(err, STATUS_INVALID, "API key file '%s' cannot be read", path);
        } else if (text_bytes > BOUND_API_KEY_FILE_BYTES) {
            status = error_set(err, STATUS_INVALID, "API key file '%s' has more than %u bytes",
                               path, BOUND_API_KEY_FILE_BYTES);
        } else {
            status = keys_parse(path, text, text_bytes, keys, err);
        }
        explicit_bzero(text, BOUND_API_KEY_FILE_BYTES + 1);
    }
    memory_free(text);
    fclose(file);
    return status;
}

// ---- accounts ----------------------------------------------------------------------------------

// UINT32_MAX: it has none.
static uint32_t find_account(const struct keys *keys, const uint8_t *digest) {
    for (uint32_t i = 0; i < KEYS_ACCOUNTS; i++) {
        if (keys->listed[i] != 0 && memcmp(keys->digests[i], digest, HASH_SHA256_BYTES) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

// Of those without an open call, the one that was never taken or whose key is gone longest.
static uint32_t free_account(const struct keys *keys) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < KEYS_ACCOUNTS; i++) {
        bool free = keys->accounts[i].open == 0 && keys->listed[i] < keys->loads;
        if (free && (best == UINT32_MAX || keys->listed[i] < keys->listed[best])) {
            best = i;
        }
    }
    return best;
}

static void list_account(struct keys *keys, uint32_t at, const struct keys_entry *entry) {
    struct api_account *account = &keys->accounts[at];
    keys->listed[at] = keys->loads;
    memcpy(keys->digests[at], entry->digest, HASH_SHA256_BYTES);
    memcpy(account->name, entry->name, sizeof account->name);
    account->tenant = at + 1;
    account->class_ = entry->class_;
    account->weight = entry->weight;
    const struct api_limits *old = &account->limits, *new = &entry->limits;
    // Another limit begins with a full bucket: what was used of the old one says nothing.
    if (old->requests_per_minute != new->requests_per_minute ||
        old->tokens_per_minute != new->tokens_per_minute) {
        account->filled_us = 0;
    }
    account->limits = *new;
}

// What was read becomes what holds. Known keys first, so that no new one takes their place.
static enum status list_all(struct keys *keys, struct error *err) {
    uint32_t missing = 0, free = 0;
    keys->loads++;
    for (uint32_t i = 0; i < keys->entry_count; i++) {
        missing += find_account(keys, keys->entries[i].digest) == UINT32_MAX ? 1 : 0;
    }
    for (uint32_t i = 0; i < KEYS_ACCOUNTS; i++) {
        bool known = false;
        for (uint32_t k = 0; keys->listed[i] != 0 && k < keys->entry_count && !known; k++) {
            known = memcmp(keys->digests[i], keys->entries[k].digest, HASH_SHA256_BYTES) == 0;
        }
        free += !known && keys->accounts[i].open == 0 ? 1 : 0;
    }
    if (missing > free) {
        return error_set(err, STATUS_BUSY, "too many keys that are gone have open requests");
    }
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < keys->entry_count; i++) {
            const struct keys_entry *entry = &keys->entries[i];
            uint32_t at = find_account(keys, entry->digest);
            if (at == UINT32_MAX && pass == 1) {
                at = free_account(keys);
                keys->accounts[at] = (struct api_account){0};
            }
            if (at != UINT32_MAX) {
                list_account(keys, at, entry);
                memcpy(keys->keys[i].digest, entry->digest, HASH_SHA256_BYTES);
                keys->keys[i].account = &keys->accounts[at];
            }
        }
    }
    keys->count = keys->entry_count;
    return STATUS_OK;
}

enum status keys_load(const struct config *config, struct keys *keys, struct error *err) {
    const struct keys_entry plain = {.class_ = REQUEST_CLASS_STANDARD, .weight = 1};
    keys->entry_count = 0;
    for (uint32_t i = 0; i < config_list_count(config, OPTION_API_KEY); i++) {
        TRY(add_entry(keys, config_list_item(config, OPTION_API_KEY, i), &plain, err));
    }
    const char *path = config_string(config, OPTION_API_KEY_FILE);
    if (path != NULL) {
        TRY(load_file(path, keys, err));
    }
    return list_all(keys, err);
}
