// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_CONFIG_INTERNAL_H
#define COMMON_CONFIG_INTERNAL_H

#include "common/config.h"

// What config.c (parsing) and config_text.c (tables, help, messages) share. For these two only.
//
// Owns, Thread, Allocates, Fails: as config.h says.

enum {
    LIST_ITEMS_MAX = 256,
    NOTES_MAX = 64,
    NAME_BYTES_MAX = 128,
    LONG_OPTIONS_MAX = 400,
    SOURCE_BYTES = 96,
};

struct option_row {
    const char *name;
    enum option_kind kind;
    const char *fallback;
    unsigned programs;
    const char *group;
    double min, max;
    const char *choices;    // space-separated
    const char *help;
};

extern const struct option_row config_option_rows[OPTION_COUNT];

enum foreign_treatment { FOREIGN_NOTE, FOREIGN_REFUSE, FOREIGN_ALIAS };

struct foreign_row {
    const char *name;
    bool takes_value;
    enum foreign_treatment treatment;
    const char *text;
};

enum {
    FOREIGN_COUNT = 0
#define X(name, takes_value, treatment, text) +1
    FOREIGN_FLAG_TABLE(X)
#undef X
};
extern const struct foreign_row config_foreign_rows[FOREIGN_COUNT];

// Where a value came from, weakest first: a weaker source never overrides a stronger one.
enum source_rank { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct value {
    enum source_rank rank;
    char source[SOURCE_BYTES];
    bool flag;
    int64_t integer;
    double real;
    char *text;
    char *items[LIST_ITEMS_MAX];
    uint32_t item_count;
};

struct config {
    struct value values[OPTION_COUNT];
    char *notes[NOTES_MAX];
    uint32_t note_count;
};

// INVALID, with the three nearest names as the hint.
enum status config_unknown_name(const char *name, const char *source, enum option_program program,
                                struct error *err);
// False when `topic` (NULL for the page) is no group and no option.
bool config_write_help(const struct config_input *input, const char *topic, struct buf *out);
void config_write_value(const struct config *config, enum option_id id, struct buf *out);
void config_write_all(const struct config *config, enum option_program program, struct buf *out);

#endif
