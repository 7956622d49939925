// SPDX-License-Identifier: Apache-2.0
#include "controller/keys.h"

#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

static enum status add_key(struct keys *keys, const char *text, bool may_be_named,
                           struct error *err) {
    if (keys->count == BOUND_API_KEYS) {
        return error_set(err, STATUS_INVALID, "more than %u API keys", BOUND_API_KEYS);
    }
    struct api_key *key = &keys->keys[keys->count];
    char *name = keys->names[keys->count];
    const char *colon = may_be_named ? strchr(text, ':') : NULL;
    name[0] = '\0';
    if (colon != NULL) {
        snprintf(name, sizeof keys->names[0], "%.*s", (int)(colon - text), text);
        text = colon + 1;
    }
    if (text[0] == '\0') {
        return error_set(err, STATUS_INVALID, "an API key is empty");
    }
    api_key_digest(text, strlen(text), key->digest);
    key->name = name;
    key->class_ = REQUEST_CLASS_STANDARD;
    keys->count++;
    return STATUS_OK;
}

static enum status load_file(const char *path, struct keys *keys, struct error *err) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return error_set_os(err, STATUS_NOT_FOUND, "API key file '%s' cannot be opened", path);
    }
    uint32_t given = keys->count;
    char line[LINE_BYTES];
    enum status status = STATUS_OK;
    for (int number = 1; status == STATUS_OK && fgets(line, sizeof line, file) != NULL; number++) {
        size_t length = strcspn(line, "\r\n");
        if (line[length] == '\0' && length == sizeof line - 1) {
            status = error_set(err, STATUS_INVALID, "API key file '%s' line %d is too long", path,
                               number);
            break;
        }
        line[length] = '\0';
        char *start = line + strspn(line, " \t");
        for (size_t end = strlen(start); end > 0 && strchr(" \t", start[end - 1]) != NULL; end--) {
            start[end - 1] = '\0';
        }
        if (start[0] == '\0' || start[0] == '#') {
            continue;
        }
        status = add_key(keys, start, true, err);
        if (status != STATUS_OK) {
            error_context(err, "API key file '%s' line %d", path, number);
        }
    }
    memset(line, 0, sizeof line);
    if (status == STATUS_OK && ferror(file)) {
        status = error_set(err, STATUS_INVALID, "API key file '%s' cannot be read", path);
    }
    fclose(file);
    // Somebody who names a file wants keys: without one the server would be open to everybody.
    if (status == STATUS_OK && keys->count == given) {
        error_hint(err, "write one key per line");
        status = error_set(err, STATUS_INVALID, "API key file '%s' has no keys", path);
    }
    return status;
}

enum status keys_load(const struct config *config, struct keys *out, struct error *err) {
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < config_list_count(config, OPTION_API_KEY); i++) {
        TRY(add_key(out, config_list_item(config, OPTION_API_KEY, i), false, err));
    }
    const char *path = config_string(config, OPTION_API_KEY_FILE);
    return path == NULL ? STATUS_OK : load_file(path, out, err);
}
