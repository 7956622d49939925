// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H

#include "common/buf.h"
#include "common/exit_code.h"
#include "common/status.h"
#include <stdbool.h>
#include <stdint.h>

// Options: one table gives command-line flags, environment names, file keys, help and defaults.
//
// The idea: every option of every program is one row of OPTION_TABLE (options.h). A program parses
// its command line once, and the result is frozen: later modules ask by id and get a validated
// value. Order: command line > environment (TARE_NAME) > --config file > default. `_` equals `-`;
// --no-x for every boolean; human integers (8k = 8000, 8K = 8192, 1.5G). Flags of other servers
// that we do not have are known by name: some are noted and ignored, some refused with ours named.
//
//   Owns       its strings.
//   Thread     parse on one; reads from any.
//   Allocates  while parsing.
//   Fails      INVALID or UNSUPPORTED naming the flag, its source (flag, variable, file:line) and
//              the remedy; CORRUPT the same in a configuration file, NOT_FOUND without that file.

enum option_program {
    OPTION_PROGRAM_SERVE = 1,
    OPTION_PROGRAM_CONTROLLER = 2,
    OPTION_PROGRAM_WORKER = 4,
};

enum option_kind {
    OPTION_KIND_BOOL,
    OPTION_KIND_INT,    // human integers
    OPTION_KIND_REAL,
    OPTION_KIND_STRING,
    OPTION_KIND_LIST,      // repeatable, commas separate
    OPTION_KIND_CHOICE,    // one of the words in `choices`
};

#include "common/options.h"

enum option_id {
#define X(id, name, kind, fallback, programs, group, min, max, choices, help) OPTION_##id,
    OPTION_TABLE(X)
#undef X
        OPTION_COUNT
};

struct config;

// Parses argv[1..]. The first word that is no flag is the model where the program takes one.
// `out` is NULL and STATUS_OK is returned when --help, --version or --print-config was asked and
// written to `text`.
struct config_input {
    enum option_program program;
    const char *program_name;
    int argc;
    char **argv;
    char **environment;    // NULL-terminated "NAME=value"; NULL reads none
};
enum status config_parse(const struct config_input *input, struct config **out, struct buf *text,
                         struct error *err) MUST_USE;
enum exit_code config_exit_code(enum status status);    // for a config_parse that failed
void config_destroy(struct config *config);

bool config_bool(const struct config *config, enum option_id id);
int64_t config_int(const struct config *config, enum option_id id);
double config_real(const struct config *config, enum option_id id);
// NULL when neither given nor defaulted.
const char *config_string(const struct config *config, enum option_id id);
uint32_t config_list_count(const struct config *config, enum option_id id);
const char *config_list_item(const struct config *config, enum option_id id, uint32_t index);
const char *config_source(const struct config *config,
                          enum option_id id);    // "flag", "TARE_PORT", ...

// One line each: flags of other servers that have no effect here, and why.
uint32_t config_note_count(const struct config *config);
const char *config_note(const struct config *config, uint32_t index);

const char *config_name(enum option_id id);    // "max-model-len"
// Flags as one would type them to give another program the same values: "--port=8000", each ended
// by a NUL, which no value can hold. For every given option of `program` but secrets, which
// have no place on a command line; the caller owns the buffer.
void config_forward(const struct config *config, enum option_program program, struct buf *out);

// Overwrites secrets in the words of the command line, so that the process list does not show them.
void config_hide_secrets(int argc, char **argv);

// "8k" -> 8000, "8K" -> 8192, "25.6k", "2M", "1g", "-1"; false when it is no integer.
bool config_human_int(const char *text, int64_t *out);
// "250us", "20ms", "1.5s", "2m", "1h", "1d", "0", in microseconds; false when it is no time, or a
// number without a unit.
bool config_human_us(const char *text, int64_t *out);

#endif
