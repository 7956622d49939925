// SPDX-License-Identifier: Apache-2.0
#include "common/config_internal.h"

#include "common/invariant.h"
#include "common/memory.h"
#include "common/version.h"
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

// Short forms people know from other servers.
static const struct {
    const char *short_form;
    const char *name;
} short_rows[] = {{"-m", "--model"},        {"-c", "--ctx-size"},
                  {"-np", "--parallel"},    {"-ngl", "--ngl"},
                  {"-fa", "--flash-attn"},  {"-a", "--alias"},
                  {"-t", "--threads"},      {"-tp", "--tensor-parallel-size"},
                  {"-q", "--quantization"}, {"-h", "--help"}};

// ---- values ------------------------------------------------------------------------------------

bool config_human_int(const char *text, int64_t *out) {
    char *end = NULL;
    errno = 0;
    double number = strtod(text, &end);
    if (end == text || errno != 0 || !isfinite(number)) {
        return false;
    }
    double unit = 1;
    if (*end != '\0') {
        static const struct {
            char letter;
            double unit;
        } units[] = {{'k', 1e3}, {'K', 1024.0},       {'m', 1e6},  {'M', 1048576.0},
                     {'g', 1e9}, {'G', 1073741824.0}, {'t', 1e12}, {'T', 1099511627776.0}};
        unit = 0;
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (*end == units[i].letter) {
                unit = units[i].unit;
            }
        }
        if (unit == 0.0 || end[1] != '\0') {
            return false;
        }
    } else if (strpbrk(text, ".eExX") == NULL) {
        // Plain digits keep all 63 bits.
        errno = 0;
        long long exact = strtoll(text, &end, 10);
        *out = exact;
        return errno == 0 && *end == '\0';
    }
    double scaled = number * unit;
    if (fabs(scaled) > 9e18 || floor(scaled) != scaled) {
        return false;
    }
    *out = (int64_t)scaled;
    return true;
}

bool config_human_us(const char *text, int64_t *out) {
    static const struct {
        const char *name;
        double us;
    } units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {"h", 3600e6}, {"d", 86400e6}};
    char *end = NULL;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number) || number < 0) {
        return false;
    }
    *out = 0;
    if (*end == '\0') {
        return number == 0;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].name) == 0 && number * units[i].us <= 9e18) {
            *out = (int64_t)(number * units[i].us);
            return true;
        }
    }
    return false;
}

static bool is_choice(const char *choices, const char *text) {
    size_t length = strlen(text);
    for (const char *at = choices; *at != '\0';) {
        size_t word = strcspn(at, " ");
        if (word == length && strncmp(at, text, word) == 0) {
            return true;
        }
        at += word + (at[word] == ' ' ? 1 : 0);
    }
    return false;
}

static void drop_items(struct value *value) {
    for (uint32_t i = 0; i < value->item_count; i++) {
        memory_free(value->items[i]);
    }
    value->item_count = 0;
}

static enum status no_memory(struct error *err) {
    return error_set(err, STATUS_EXHAUSTED, "no memory for the options");
}

// A list value, added to what the same source gave before: "a,b", or with brackets and quotes as in
// ["a", "b"]. Outside of that form they are ordinary characters: a key may hold a quote, an origin
// has brackets around an IPv6 address.
static enum status list_append(struct value *value, const char *name, const char *text,
                               struct error *err) {
    const char *separators = text[0] == '[' ? ",[]\"' " : ",";
    const char *at = text;
    while (*at != '\0') {
        at += strspn(at, " ");
        size_t word = strcspn(at, separators);
        const char *next = at + word;
        while (word > 0 && at[word - 1] == ' ') {
            word--;
        }
        if (word > 0) {
            if (value->item_count == LIST_ITEMS_MAX) {
                return error_set(err, STATUS_INVALID, "--%s has more than %d entries", name,
                                 LIST_ITEMS_MAX);
            }
            char *item = memory_strndup(at, word);
            if (item == NULL) {
                return no_memory(err);
            }
            value->items[value->item_count++] = item;
        }
        at = next + (*next == '\0' ? 0 : 1);
    }
    return STATUS_OK;
}

static enum status set_number(const struct option_row *row, struct value *value, const char *text,
                              const char *source, struct error *err) {
    if (row->kind == OPTION_KIND_INT) {
        if (strcmp(text, "auto") == 0 && row->min < 0) {
            text = "-1";
        }
        if (!config_human_int(text, &value->integer)) {
            return error_set(err, STATUS_INVALID,
                             "--%s is '%s' (%s); it takes an integer such as 8192, 8k or 8K",
                             row->name, text, source);
        }
        value->real = (double)value->integer;
    } else {
        char *end = NULL;
        value->real = strtod(text, &end);
        if (end == text || *end != '\0' || !isfinite(value->real)) {
            return error_set(err, STATUS_INVALID, "--%s is '%s' (%s); it takes a number", row->name,
                             text, source);
        }
    }
    if (value->real < row->min || value->real > row->max) {
        return error_set(err, STATUS_INVALID, "--%s is %s (%s); it must lie in %.10g..%.10g",
                         row->name, text, source, row->min, row->max);
    }
    return STATUS_OK;
}

// Sets one option from text. A stronger source that was there first wins.
static enum status set_value(struct config *config, enum option_id id, const char *text,
                             enum source_rank rank, const char *source, struct error *err) {
    const struct option_row *row = &config_option_rows[id];
    struct value *value = &config->values[id];
    if (rank < value->rank) {
        return STATUS_OK;
    }
    if (strpbrk(text, "\r\n") != NULL) {
        return error_set(err, STATUS_INVALID, "--%s holds a line break (%s)", row->name, source);
    }
    if (rank > value->rank) {
        drop_items(value);
    }
    value->rank = rank;
    snprintf(value->source, sizeof value->source, "%s", source);
    switch (row->kind) {
    case OPTION_KIND_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
            return error_set(err, STATUS_INVALID,
                             "--%s is '%s' (%s); it takes true or false (or --%s, --no-%s)",
                             row->name, text, source, row->name, row->name);
        }
        value->flag = strcmp(text, "true") == 0;
        return STATUS_OK;
    case OPTION_KIND_INT:
    case OPTION_KIND_REAL:
        return set_number(row, value, text, source, err);
    case OPTION_KIND_LIST:
        TRY(list_append(value, row->name, text, err));
        // An empty variable is one that was not set; an empty flag is a mistake, and with keys a
        // dangerous one.
        return value->item_count > 0 || rank == SOURCE_ENVIRONMENT
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID, "--%s is empty (%s)", row->name, source);
    case OPTION_KIND_CHOICE:
        if (!is_choice(row->choices, text)) {
            return error_set(err, STATUS_INVALID, "--%s is '%s' (%s); it takes one of: %s",
                             row->name, text, source, row->choices);
        }
        break;
    case OPTION_KIND_STRING:
        break;
    }
    memory_free(value->text);
    value->text = memory_strdup(text);
    return value->text == NULL ? no_memory(err) : STATUS_OK;
}

static bool find_option(const char *name, enum option_program program, enum option_id *out) {
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        if ((config_option_rows[i].programs & program) != 0 &&
            strcmp(config_option_rows[i].name, name) == 0) {
            *out = (enum option_id)i;
            return true;
        }
    }
    return false;
}

static const struct foreign_row *find_foreign(const char *name) {
    for (size_t i = 0; i < FOREIGN_COUNT; i++) {
        if (strcmp(config_foreign_rows[i].name, name) == 0) {
            return &config_foreign_rows[i];
        }
    }
    return NULL;
}

static enum status add_note(struct config *config, const char *name, const char *text,
                            struct error *err) {
    if (config->note_count == NOTES_MAX) {
        return STATUS_OK;
    }
    struct buf note;
    buf_init(&note, 512);
    buf_printf(&note, "--%s has no effect: %s", name, text);
    char *copy = memory_strdup(buf_cstr(&note));
    buf_deinit(&note);
    if (copy == NULL) {
        return no_memory(err);
    }
    config->notes[config->note_count++] = copy;
    return STATUS_OK;
}

// One name and value from any source, after normalising: ours, foreign, or unknown.
static enum status set_named(struct config *config, enum option_program program, const char *name,
                             const char *text, enum source_rank rank, const char *source,
                             struct error *err) {
    const struct foreign_row *foreign = find_foreign(name);
    if (foreign != NULL && foreign->treatment == FOREIGN_NOTE) {
        return add_note(config, name, foreign->text, err);
    }
    if (foreign != NULL && foreign->treatment == FOREIGN_REFUSE) {
        return error_set(err, STATUS_UNSUPPORTED, "--%s is not available (%s): %s", name, source,
                         foreign->text);
    }
    if (foreign != NULL) {
        name = foreign->text;
    }
    enum option_id id;
    if (find_option(name, program, &id)) {
        bool flag_alone = config_option_rows[id].kind == OPTION_KIND_BOOL && text == NULL;
        return set_value(config, id, flag_alone ? "true" : text, rank, source, err);
    }
    if (strncmp(name, "no-", 3) == 0 && find_option(name + 3, program, &id) &&
        config_option_rows[id].kind == OPTION_KIND_BOOL) {
        bool inverted = text == NULL || strcmp(text, "true") == 0;
        return set_value(config, id, inverted ? "false" : "true", rank, source, err);
    }
    return config_unknown_name(name, source, program, err);
}

// ---- command line ------------------------------------------------------------------------------

// "--max_model_len=8k" -> "--max-model-len=8k"; short forms become long ones.
static char *normalise_word(const char *word) {
    for (size_t i = 0; i < sizeof short_rows / sizeof short_rows[0]; i++) {
        if (strcmp(word, short_rows[i].short_form) == 0) {
            return memory_strdup(short_rows[i].name);
        }
    }
    char *copy = memory_strdup(word);
    if (copy != NULL && strncmp(copy, "--", 2) == 0) {
        for (char *at = copy + 2; *at != '\0' && *at != '='; at++) {
            *at = *at == '_' ? '-' : *at;
        }
    }
    return copy;
}

struct long_options {
    struct option rows[LONG_OPTIONS_MAX];
    char negated[OPTION_COUNT][NAME_BYTES_MAX];
    size_t count;
};

static void long_option_add(struct long_options *list, const char *name, int has_arg) {
    INVARIANT(list->count + 1 < LONG_OPTIONS_MAX);
    list->rows[list->count++] = (struct option){name, has_arg, NULL, 0};
}

static void long_options_build(struct long_options *list, enum option_program program) {
    list->count = 0;
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &config_option_rows[i];
        if ((row->programs & program) == 0) {
            continue;
        }
        bool flag = row->kind == OPTION_KIND_BOOL;
        long_option_add(list, row->name, flag ? optional_argument : required_argument);
        if (flag) {
            snprintf(list->negated[i], sizeof list->negated[i], "no-%s", row->name);
            long_option_add(list, list->negated[i], no_argument);
        }
    }
    for (size_t i = 0; i < FOREIGN_COUNT; i++) {
        long_option_add(list, config_foreign_rows[i].name,
                        config_foreign_rows[i].takes_value ? required_argument : optional_argument);
    }
    long_option_add(list, "help", optional_argument);
    long_option_add(list, "version", no_argument);
    list->rows[list->count] = (struct option){NULL, 0, NULL, 0};
}

struct asked {
    bool help, version;
    const char *topic;    // points into the normalised words
};

static enum status handle_option(struct config *config, const struct config_input *input,
                                 const char *name, const char *text, struct asked *asked,
                                 struct error *err) {
    if (strcmp(name, "help") == 0) {
        asked->help = true;
        asked->topic = text;
        return STATUS_OK;
    }
    if (strcmp(name, "version") == 0) {
        asked->version = true;
        return STATUS_OK;
    }
    return set_named(config, input->program, name, text, SOURCE_FLAG, "command line", err);
}

static enum status parse_words(struct config *config, const struct config_input *input,
                               char **words, int count, struct long_options *list,
                               struct asked *asked, struct error *err) {
    optind = 0;    // getopt's own reset
    opterr = 0;
    int index = 0;
    int found;
    while ((found = getopt_long(count, words, ":", list->rows, &index)) != -1) {
        if (found == 0) {
            TRY(handle_option(config, input, list->rows[index].name, optarg, asked, err));
            continue;
        }
        const char *word = optind > 0 && optind <= count ? words[optind - 1] : "?";
        while (*word == '-') {
            word++;
        }
        if (found == ':') {
            return error_set(err, STATUS_INVALID, "--%s needs a value", word);
        }
        char name[NAME_BYTES_MAX];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
        return config_unknown_name(name, "command line", input->program, err);
    }
    for (int i = optind; i < count; i++) {
        if (config->values[OPTION_MODEL].rank == SOURCE_FLAG) {
            return error_set(err, STATUS_INVALID, "'%s' is one word too many: the model is '%s'",
                             words[i], config->values[OPTION_MODEL].text);
        }
        TRY(set_value(config, OPTION_MODEL, words[i], SOURCE_FLAG, "command line", err));
    }
    return STATUS_OK;
}

// ---- environment and file ----------------------------------------------------------------------

static enum status parse_environment(struct config *config, const struct config_input *input,
                                     struct error *err) {
    for (char **at = input->environment; at != NULL && *at != NULL; at++) {
        const char *entry = *at;
        const char *equals = strchr(entry, '=');
        if (equals == NULL) {
            continue;
        }
        char name[NAME_BYTES_MAX];
        char source[SOURCE_BYTES];
        bool ours = strncmp(entry, "TARE_", 5) == 0;
        bool borrowed = strncmp(entry, "VLLM_API_KEY=", 13) == 0 ||
                        strncmp(entry, "VLLM_LOGGING_LEVEL=", 19) == 0;
        if (!ours && !borrowed) {
            continue;
        }
        size_t length = (size_t)(equals - entry) - 5;
        if (length >= sizeof name) {
            continue;
        }
        for (size_t i = 0; i < length; i++) {
            int c = entry[5 + i];
            name[i] = c == '_' ? '-' : (char)tolower(c);
        }
        name[length] = '\0';
        snprintf(source, sizeof source, "%.*s", (int)(equals - entry), entry);
        char lowered[NAME_BYTES_MAX];
        const char *text = equals + 1;
        if (strcmp(name, "logging-level") == 0) {
            snprintf(name, sizeof name, "log-level");
            for (size_t i = 0; i < sizeof lowered - 1; i++) {
                lowered[i] = (char)tolower(text[i]);
                if (text[i] == '\0') {
                    break;
                }
            }
            lowered[sizeof lowered - 1] = '\0';
            text = strcmp(lowered, "warning") == 0 ? "warn" : lowered;
        }
        enum option_id id;
        // Unknown TARE_ names are left alone: the environment is shared with other versions.
        if (find_option(name, input->program, &id)) {
            TRY(set_value(config, id, text, SOURCE_ENVIRONMENT, source, err));
        }
    }
    return STATUS_OK;
}

// The YAML subset: one flat map of scalars and lists of scalars.
struct yaml_walk {
    const char *path;
    char key[NAME_BYTES_MAX];
    bool have_key;
    int list_depth;
};

static enum status yaml_scalar(struct config *config, enum option_program program,
                               struct yaml_walk *walk, const yaml_event_t *event,
                               struct error *err) {
    const char *text = (const char *)event->data.scalar.value;
    if (!walk->have_key) {
        snprintf(walk->key, sizeof walk->key, "%s", text);
        for (char *at = walk->key; *at != '\0'; at++) {
            *at = *at == '_' ? '-' : *at;
        }
        walk->have_key = true;
        return STATUS_OK;
    }
    char source[SOURCE_BYTES];
    snprintf(source, sizeof source, "%.64s line %zu", walk->path, event->start_mark.line + 1);
    walk->have_key = walk->list_depth > 0;
    if (strcmp(walk->key, "config") == 0) {
        return error_set(err, STATUS_INVALID, "'config' inside a configuration file (%s)", source);
    }
    return set_named(config, program, walk->key, text, SOURCE_FILE, source, err);
}

static enum status yaml_event(struct config *config, enum option_program program,
                              struct yaml_walk *walk, const yaml_event_t *event, int *map_depth,
                              struct error *err) {
    size_t line = event->start_mark.line + 1;
    switch (event->type) {
    case YAML_MAPPING_START_EVENT:
        if (++*map_depth > 1) {
            return error_set(err, STATUS_INVALID, "line %zu: maps inside the map are not options",
                             line);
        }
        return STATUS_OK;
    case YAML_MAPPING_END_EVENT:
        --*map_depth;
        return STATUS_OK;
    case YAML_SEQUENCE_START_EVENT:
        if (!walk->have_key || ++walk->list_depth > 1) {
            return error_set(err, STATUS_INVALID, "line %zu: a list only as an option's value",
                             line);
        }
        return STATUS_OK;
    case YAML_SEQUENCE_END_EVENT:
        walk->list_depth--;
        walk->have_key = false;
        return STATUS_OK;
    case YAML_ALIAS_EVENT:
        return error_set(err, STATUS_INVALID, "line %zu: anchors and aliases are not read", line);
    case YAML_SCALAR_EVENT:
        if (*map_depth == 0) {
            return error_set(err, STATUS_INVALID, "line %zu: expected 'option: value' lines", line);
        }
        return yaml_scalar(config, program, walk, event, err);
    default:
        return STATUS_OK;
    }
}

static enum status parse_yaml(struct config *config, enum option_program program, FILE *file,
                              const char *path, struct error *err) {
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        return no_memory(err);
    }
    yaml_parser_set_input_file(&parser, file);
    struct yaml_walk walk = {.path = path};
    enum status status = STATUS_OK;
    int map_depth = 0;
    bool done = false;
    while (status == STATUS_OK && !done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = error_set(err, STATUS_INVALID, "line %zu: %s", parser.problem_mark.line + 1,
                               parser.problem == NULL ? "not YAML" : parser.problem);
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        status = yaml_event(config, program, &walk, &event, &map_depth, err);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

static enum status parse_file(struct config *config, enum option_program program,
                              struct error *err) {
    const char *path = config_string(config, OPTION_CONFIG);
    if (path == NULL) {
        return STATUS_OK;
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return error_set_os(err, STATUS_NOT_FOUND, "configuration file '%s' cannot be opened",
                            path);
    }
    enum status status = parse_yaml(config, program, file, path, err);
    fclose(file);
    if (status != STATUS_OK) {
        error_context(err, "configuration file '%s'", path);
    }
    // Told apart from a wrong word on the command line.
    bool refused = status != STATUS_OK && status != STATUS_EXHAUSTED;
    return refused ? STATUS_CORRUPT : status;
}

// ---- life cycle --------------------------------------------------------------------------------

static enum status set_defaults(struct config *config, struct error *err) {
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        snprintf(config->values[i].source, sizeof config->values[i].source, "default");
        if (config_option_rows[i].fallback != NULL) {
            TRY(set_value(config, (enum option_id)i, config_option_rows[i].fallback, SOURCE_DEFAULT,
                          "default", err));
        }
    }
    return STATUS_OK;
}

static enum status parse_all(struct config *config, const struct config_input *input, char **words,
                             int count, struct asked *asked, struct error *err) {
    struct long_options *list = memory_zalloc(sizeof *list);
    if (list == NULL) {
        return no_memory(err);
    }
    long_options_build(list, input->program);
    enum status status = set_defaults(config, err);
    if (status == STATUS_OK) {
        status = parse_words(config, input, words, count, list, asked, err);
    }
    memory_free(list);
    if (status == STATUS_OK && !asked->help && !asked->version) {
        status = parse_environment(config, input, err);
        if (status == STATUS_OK) {
            status = parse_file(config, input->program, err);
        }
    }
    return status;
}

enum status config_parse(const struct config_input *input, struct config **out, struct buf *text,
                         struct error *err) {
    *out = NULL;
    struct config *config = memory_zalloc(sizeof *config);
    char **words = memory_array((size_t)input->argc + 1, sizeof *words);
    enum status status = config == NULL || words == NULL ? no_memory(err) : STATUS_OK;
    for (int i = 0; status == STATUS_OK && i < input->argc; i++) {
        words[i] = normalise_word(input->argv[i]);
        status = words[i] == NULL ? no_memory(err) : STATUS_OK;
    }
    struct asked asked = {0};
    if (status == STATUS_OK) {
        // getopt permutes its argument: the originals stay in `owned`.
        char **owned = memory_array((size_t)input->argc + 1, sizeof *owned);
        if (owned == NULL) {
            status = no_memory(err);
        } else {
            memcpy(owned, words, (size_t)input->argc * sizeof *owned);
            status = parse_all(config, input, words, input->argc, &asked, err);
        }
        if (status == STATUS_OK && asked.help) {
            if (!config_write_help(input, asked.topic, text)) {
                error_hint(err, "--help alone lists them");
                status = error_set(err, STATUS_INVALID, "--help: no option or group '%.200s'",
                                   asked.topic);
            }
        }
        for (int i = 0; owned != NULL && i < input->argc; i++) {
            memory_free(owned[i]);
        }
        memory_free(owned);
    } else {
        for (int i = 0; words != NULL && i < input->argc; i++) {
            memory_free(words[i]);
        }
    }
    memory_free(words);
    bool print = status == STATUS_OK && config_bool(config, OPTION_PRINT_CONFIG);
    if (status == STATUS_OK && asked.version) {
        buf_printf(text, "tare %s (%s)\n", VERSION_NUMBER, VERSION_COMMIT);
    } else if (print && !asked.help) {
        config_write_all(config, input->program, text);
    }
    if (status != STATUS_OK || asked.help || asked.version || print) {
        config_destroy(config);
        return status;
    }
    *out = config;
    return STATUS_OK;
}

enum exit_code config_exit_code(enum status status) {
    switch (status) {
    case STATUS_CORRUPT:
    case STATUS_NOT_FOUND:
        return EXIT_CODE_CONFIG;
    case STATUS_OK:
    case STATUS_EXHAUSTED:
        return exit_code_for(status);
    default:
        return EXIT_CODE_USAGE;    // UNSUPPORTED too: a flag that is refused
    }
}

void config_destroy(struct config *config) {
    if (config == NULL) {
        return;
    }
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        drop_items(&config->values[i]);
        memory_free(config->values[i].text);
    }
    for (uint32_t i = 0; i < config->note_count; i++) {
        memory_free(config->notes[i]);
    }
    memory_free(config);
}

// ---- queries -----------------------------------------------------------------------------------

bool config_bool(const struct config *config, enum option_id id) {
    INVARIANT(config_option_rows[id].kind == OPTION_KIND_BOOL);
    return config->values[id].flag;
}

int64_t config_int(const struct config *config, enum option_id id) {
    INVARIANT(config_option_rows[id].kind == OPTION_KIND_INT);
    return config->values[id].integer;
}

double config_real(const struct config *config, enum option_id id) {
    INVARIANT(config_option_rows[id].kind == OPTION_KIND_REAL);
    return config->values[id].real;
}

const char *config_string(const struct config *config, enum option_id id) {
    INVARIANT(config_option_rows[id].kind == OPTION_KIND_STRING ||
              config_option_rows[id].kind == OPTION_KIND_CHOICE);
    return config->values[id].text;
}

uint32_t config_list_count(const struct config *config, enum option_id id) {
    INVARIANT(config_option_rows[id].kind == OPTION_KIND_LIST);
    return config->values[id].item_count;
}

const char *config_list_item(const struct config *config, enum option_id id, uint32_t index) {
    INVARIANT(index < config_list_count(config, id));
    return config->values[id].items[index];
}

const char *config_source(const struct config *config, enum option_id id) {
    return config->values[id].source;
}

uint32_t config_note_count(const struct config *config) {
    return config->note_count;
}

const char *config_note(const struct config *config, uint32_t index) {
    INVARIANT(index < config->note_count);
    return config->notes[index];
}

const char *config_name(enum option_id id) {
    return config_option_rows[id].name;
}

void config_forward(const struct config *config, enum option_program program, struct buf *out) {
    for (unsigned i = 0; i < OPTION_COUNT; i++) {
        bool never = i == OPTION_CONFIG || i == OPTION_PRINT_CONFIG || i == OPTION_API_KEY;
        bool forwarded = (config_option_rows[i].programs & program) != 0 &&
                         config->values[i].rank > SOURCE_DEFAULT && !never;
        if (!forwarded) {
            continue;
        }
        buf_printf(out, "--%s=", config_option_rows[i].name);
        config_write_value(config, (enum option_id)i, out);
        buf_append_byte(out, '\0');
    }
}

void config_hide_secrets(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (strncmp(word, "--api-key=", 10) == 0 || strncmp(word, "--api_key=", 10) == 0) {
            memset(word + 10, 'x', strlen(word + 10));
        } else if (i + 1 < argc &&
                   (strcmp(word, "--api-key") == 0 || strcmp(word, "--api_key") == 0)) {
            memset(argv[i + 1], 'x', strlen(argv[i + 1]));
        }
    }
}
