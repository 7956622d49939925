// SPDX-License-Identifier: Apache-2.0
#include "common/config_internal.h"
#include <stdio.h>
#include <string.h>

// ---- tables ------------------------------------------------------------------------------------

const struct option_row config_option_rows[OPTION_COUNT] = {
#define X(id, name, kind, fallback, programs, group, min, max, choices, help)                      \
    {name,          OPTION_KIND_##kind, fallback, programs, group,                                 \
     (double)(min), (double)(max),      choices,  help},
    OPTION_TABLE(X)
#undef X
};

const struct foreign_row config_foreign_rows[FOREIGN_COUNT] = {
#define X(name, takes_value, treatment, text) {name, takes_value, FOREIGN_##treatment, text},
    FOREIGN_FLAG_TABLE(X)
#undef X
};
// ---- unknown names -----------------------------------------------------------------------------

// Edit distance with insertions, deletions and substitutions (Wagner and Fischer, 1974).
static size_t distance(const char *a, const char *b) {
    size_t columns = strlen(b);
    size_t row[NAME_BYTES_MAX + 1];
    if (columns > NAME_BYTES_MAX) {
        return SIZE_MAX;
    }
    for (size_t k = 0; k <= columns; k++) {
        row[k] = k;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= columns; k++) {
            size_t replaced = diagonal + (a[i - 1] == b[k - 1] ? 0 : 1);
            size_t other = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            diagonal = row[k];
            row[k] = replaced < other ? replaced : other;
        }
    }
    return row[columns];
}

enum status config_unknown_name(const char *name, const char *source, enum option_program program,
                                struct error *err) {
    enum { NEAREST = 3 };
    const char *best[NEAREST] = {NULL, NULL, NULL};
    size_t best_distance[NEAREST] = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if ((config_option_rows[i].programs & program) == 0) {
            continue;
        }
        size_t d = distance(name, config_option_rows[i].name);
        for (int k = 0; k < NEAREST; k++) {
            if (d < best_distance[k]) {
                for (int j = NEAREST - 1; j > k; j--) {
                    best[j] = best[j - 1];
                    best_distance[j] = best_distance[j - 1];
                }
                best[k] = config_option_rows[i].name;
                best_distance[k] = d;
                break;
            }
        }
    }
    error_hint(err, "nearest: --%s, --%s, --%s; --help lists all", best[0], best[1], best[2]);
    return error_set(err, STATUS_INVALID, "unknown option '--%s' (%s)", name, source);
}

// ---- help and printing -------------------------------------------------------------------------

static const char *kind_word(const struct option_row *row) {
    switch (row->kind) {
    case OPTION_KIND_BOOL:
        return "";
    case OPTION_KIND_INT:
        return " N";
    case OPTION_KIND_REAL:
        return " X";
    case OPTION_KIND_LIST:
        return " A[,B]";
    case OPTION_KIND_STRING:
    case OPTION_KIND_CHOICE:
        return " TEXT";
    }
    return "";
}

static void write_help_row(const struct option_row *row, struct buf *out) {
    char left[NAME_BYTES_MAX];
    snprintf(left, sizeof left, "--%s%s", row->name, kind_word(row));
    buf_printf(out, "  %-32s %s", left, row->help);
    if (row->choices != NULL) {
        buf_printf(out, " [%s]", row->choices);
    }
    if (row->fallback != NULL) {
        buf_printf(out, " (%s)", row->fallback);
    }
    buf_append_byte(out, '\n');
}

static void write_foreign_row(const struct foreign_row *row, struct buf *out) {
    static const char *const words[] = {"no effect", "refused", "means"};
    buf_printf(out, "  --%-30s %s: %s%s\n", row->name, words[row->treatment],
               row->treatment == FOREIGN_ALIAS ? "--" : "", row->text);
}

bool config_write_help(const struct config_input *input, const char *topic, struct buf *out) {
    static const char *const groups[] = {"model",  "server",  "scheduler",
                                         "memory", "general", "daemons"};
    bool all = topic != NULL && strcmp(topic, "all") == 0;
    bool found = topic == NULL || all;
    buf_printf(out, "usage: %s MODEL [options]\n", input->program_name);
    buf_append_str(out,
                   "  MODEL is a GGUF file or a Hugging Face directory. '_' equals '-'; --no-x "
                   "for every switch;\n  numbers may be 8k = 8000, 8K = 8192, 1G; every option "
                   "also as TARE_NAME and in --config.\n");
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        bool titled = false;
        for (unsigned i = 0; i < OPTION_COUNT; i++) {
            const struct option_row *row = &config_option_rows[i];
            bool shown = (row->programs & input->program) != 0 &&
                         strcmp(row->group, groups[g]) == 0 &&
                         (topic == NULL || all || strcmp(topic, row->group) == 0 ||
                          strcmp(topic, row->name) == 0);
            if (shown && !titled) {
                buf_printf(out, "\n%s\n", groups[g]);
                titled = true;
            }
            if (shown) {
                found = true;
                write_help_row(row, out);
            }
        }
    }
    buf_append_str(out, "\n  --help[=TOPIC]                   this page, one group, or one option\n"
                        "  --version                        version and commit\n");
    bool titled = false;
    for (size_t i = 0; i < FOREIGN_COUNT; i++) {
        const struct foreign_row *row = &config_foreign_rows[i];
        if (!all && (topic == NULL || strcmp(topic, row->name) != 0)) {
            continue;
        }
        if (!titled) {
            buf_append_str(out, "\nknown flags of other servers\n");
            titled = true;
        }
        found = true;
        write_foreign_row(row, out);
    }
    return found;
}

void config_write_value(const struct config *config, enum option_id id, struct buf *out) {
    const struct value *value = &config->values[id];
    switch (config_option_rows[id].kind) {
    case OPTION_KIND_BOOL:
        buf_append_str(out, value->flag ? "true" : "false");
        break;
    case OPTION_KIND_INT:
        buf_printf(out, "%lld", (long long)value->integer);
        break;
    case OPTION_KIND_REAL:
        buf_printf(out, "%g", value->real);
        break;
    case OPTION_KIND_LIST:
        for (uint32_t i = 0; i < value->item_count; i++) {
            buf_printf(out, "%s%s", i > 0 ? "," : "", value->items[i]);
        }
        break;
    case OPTION_KIND_STRING:
    case OPTION_KIND_CHOICE:
        buf_append_str(out, value->text == NULL ? "" : value->text);
        break;
    }
}

void config_write_all(const struct config *config, enum option_program program, struct buf *out) {
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &config_option_rows[i];
        if ((row->programs & program) == 0 || i == OPTION_PRINT_CONFIG) {
            continue;
        }
        buf_printf(out, "%s: ", row->name);
        if (i == OPTION_API_KEY && config->values[i].item_count > 0) {
            buf_append_str(out, "(hidden)");
        } else {
            config_write_value(config, (enum option_id)i, out);
        }
        buf_printf(out, "    # %s\n", config->values[i].source);
    }
}
