// SPDX-License-Identifier: Apache-2.0
#include "common/status.h"

#include "common/invariant.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

struct status_row {
    const char *name;
    const char *text;
};

static const struct status_row status_rows[STATUS_COUNT] = {
#define X(name, text) {#name, text},
    STATUS_TABLE(X)
#undef X
};

const char *status_name(enum status status) {
    INVARIANT((unsigned)status < STATUS_COUNT);
    return status_rows[status].name;
}

const char *status_text(enum status status) {
    INVARIANT((unsigned)status < STATUS_COUNT);
    return status_rows[status].text;
}

int error_errno(void) {
    return errno;
}

enum status error_set_at(const char *file, int line, struct error *err, enum status status,
                         int os_code, const char *format, ...) {
    INVARIANT(status != STATUS_OK);
    if (err == NULL || err->status != STATUS_OK) {
        return status;
    }
    err->status = status;
    err->os_code = os_code;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (os_code != 0 && length >= 0 && (size_t)length < sizeof err->message) {
        snprintf(err->message + length, sizeof err->message - (size_t)length, ": %s",
                 strerror(os_code));
    }
    error_hop(err, file, line);
    return status;
}

void error_context(struct error *err, const char *format, ...) {
    if (err == NULL || err->status == STATUS_OK) {
        return;
    }
    char joined[ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(joined, sizeof joined, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof joined) {
        return;
    }
    // A message that no longer fits is cut at its end: the context is what was missing.
    size_t room = sizeof joined - (size_t)length;
    if (room > 3) {
        joined[length] = ':';
        joined[length + 1] = ' ';
        size_t keep = strnlen(err->message, room - 3);
        memcpy(joined + length + 2, err->message, keep);
        joined[(size_t)length + 2 + keep] = '\0';
    }
    memcpy(err->message, joined, sizeof joined);
}

void error_hint(struct error *err, const char *format, ...) {
    if (err == NULL || err->hint[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(err->hint, sizeof err->hint, format, args);
    va_end(args);
}

void error_hop(struct error *err, const char *file, int line) {
    if (err == NULL || err->hop_count >= ERROR_HOPS_MAX) {
        return;
    }
    err->hops[err->hop_count].file = file;
    err->hops[err->hop_count].line = line;
    err->hop_count++;
}

void error_reset(struct error *err) {
    if (err == NULL) {
        return;
    }
    err->status = STATUS_OK;
    err->os_code = 0;
    err->hop_count = 0;
    err->message[0] = '\0';
    err->hint[0] = '\0';
}

void error_print(const char *program, const struct error *err) {
    fprintf(stderr, "%s: %s%s%s\n", program, err->message, err->hint[0] == '\0' ? "" : "; ",
            err->hint);
}
