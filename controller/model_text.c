// SPDX-License-Identifier: Apache-2.0
#include "controller/model_text.h"

#include "common/bounds.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/memory.h"
#include "controller/text/chat_template.h"
#include "controller/text/tokenizer.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NAME_BYTES = 256, TEXT_FILE_BYTES_MAX = 256 * 1024 * 1024 };

struct model_text {
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct model_text_sampling sampling;
    char name[NAME_BYTES];
};

// ---- files -------------------------------------------------------------------------------------

struct file_view {
    const char *bytes;    // "" for an empty file
    size_t byte_count;
    void *mapping;    // NULL for an empty file
};

static enum status view_open(const char *path, struct file_view *out, struct error *err) {
    *out = (struct file_view){.bytes = ""};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set_os(err, STATUS_NOT_FOUND, "'%s' cannot be opened", path);
    }
    struct stat info;
    enum status status = STATUS_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = error_set(err, STATUS_NOT_FOUND, "'%s' is not a regular file", path);
    } else if (info.st_size > 0) {
        void *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapping == MAP_FAILED) {
            status = error_set_os(err, STATUS_IO, "'%s' cannot be mapped", path);
        } else {
            *out = (struct file_view){mapping, (size_t)info.st_size, mapping};
        }
    }
    close(fd);
    return status;
}

static void view_close(struct file_view *view) {
    if (view->mapping != NULL) {
        munmap(view->mapping, view->byte_count);
    }
}

// A JSON file of the directory. `*out` stays NULL when an optional file is absent.
static enum status read_json(const char *directory, const char *name, bool required,
                             struct json_doc **out, struct error *err) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.3900s/%s", directory, name);
    *out = NULL;
    if (!required && access(path, F_OK) != 0) {
        return STATUS_OK;
    }
    struct file_view view;
    TRY(view_open(path, &view, err));
    enum status status;
    if (view.byte_count > TEXT_FILE_BYTES_MAX) {
        status = error_set(err, STATUS_CORRUPT, "'%s' has %zu bytes; the limit is %d", path,
                           view.byte_count, TEXT_FILE_BYTES_MAX);
    } else {
        status = json_parse(view.bytes, view.byte_count, out, err);
        if (status != STATUS_OK) {
            error_context(err, "'%s'", path);
        }
    }
    view_close(&view);
    return status;
}

static void set_name(struct model_text *text, const char *path) {
    char copy[PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", path);
    size_t length = strlen(copy);
    while (length > 1 && copy[length - 1] == '/') {
        copy[--length] = '\0';
    }
    const char *slash = strrchr(copy, '/');
    snprintf(text->name, sizeof text->name, "%.200s", slash == NULL ? copy : slash + 1);
    char *dot = strrchr(text->name, '.');
    if (dot != NULL && strcmp(dot, ".gguf") == 0) {
        *dot = '\0';
    }
}

// ---- templates ---------------------------------------------------------------------------------

static enum status compile(struct model_text *text, const char *source, size_t byte_count,
                           const char *where, struct error *err) {
    if (byte_count > BOUND_TEMPLATE_BYTES) {
        return error_set(err, STATUS_CORRUPT, "chat template in %s has %zu bytes; the limit is %u",
                         where, byte_count, BOUND_TEMPLATE_BYTES);
    }
    enum status status = chat_template_compile(source, byte_count, &text->chat_template, err);
    if (status != STATUS_OK) {
        error_context(err, "chat template in %s", where);
        error_hint(err, "give another one with --chat-template FILE");
    }
    return status;
}

static enum status compile_file(struct model_text *text, const char *path, struct error *err) {
    struct file_view view;
    TRY(view_open(path, &view, err));
    enum status status = compile(text, view.bytes, view.byte_count, path, err);
    view_close(&view);
    return status;
}

// ---- GGUF --------------------------------------------------------------------------------------

static enum status open_gguf(struct model_text *text, const char *path, bool own_template,
                             struct error *err) {
    struct file_view view;
    struct gguf *gguf = NULL;
    TRY(view_open(path, &view, err));
    enum status status = gguf_parse(view.bytes, view.byte_count, &gguf, err);
    if (status == STATUS_OK) {
        status = tokenizer_from_gguf(gguf, &text->tokenizer, err);
    }
    struct gguf_text source = {0};
    bool found = false;
    if (status == STATUS_OK && own_template) {
        status = gguf_get_string(gguf, "tokenizer.chat_template", &source, &found, err);
    }
    if (status == STATUS_OK && found) {
        status = compile(text, source.bytes, source.byte_count, "the file's metadata", err);
    }
    if (status != STATUS_OK) {
        error_context(err, "'%s'", path);
    }
    gguf_destroy(gguf);
    view_close(&view);
    return status;
}

// ---- Hugging Face directory --------------------------------------------------------------------

struct hf_files {
    struct json_doc *tokenizer, *tokenizer_config, *generation, *config;
};

static const struct json *root_of(const struct json_doc *doc) {
    return doc == NULL ? NULL : json_root(doc);
}

static enum status read_files(const char *path, struct hf_files *files, struct error *err) {
    TRY(read_json(path, "tokenizer.json", true, &files->tokenizer, err));
    TRY(read_json(path, "tokenizer_config.json", false, &files->tokenizer_config, err));
    TRY(read_json(path, "generation_config.json", false, &files->generation, err));
    return read_json(path, "config.json", true, &files->config, err);
}

static enum status add_eos(struct tokenizer *tokenizer, const struct json *value,
                           struct error *err) {
    int64_t id = json_int(value);
    if (json_kind(value) != JSON_KIND_INT || id < 0 || id > UINT32_MAX) {
        return error_set(err, STATUS_CORRUPT, "an eos_token_id is no token id");
    }
    return tokenizer_add_eos(tokenizer, (uint32_t)id, err);
}

// The stop set: generation_config.json over config.json (models.md 1.2). A number or a list.
static enum status set_eos(struct tokenizer *tokenizer, const struct hf_files *files,
                           struct error *err) {
    const struct json *value = json_get(root_of(files->generation), "eos_token_id");
    if (json_absent(value)) {
        value = json_get(root_of(files->config), "eos_token_id");
    }
    if (json_absent(value)) {
        return STATUS_OK;
    }
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return add_eos(tokenizer, value, err);
    }
    for (size_t i = 0; i < json_count(value); i++) {
        TRY(add_eos(tokenizer, json_at(value, i), err));
    }
    return STATUS_OK;
}

// "<s>" or {"content": "<s>", ...}.
static const char *token_text(const struct json *config, const char *key, size_t *byte_count) {
    const struct json *value = json_get(config, key);
    if (json_kind(value) == JSON_KIND_OBJECT) {
        value = json_get(value, "content");
    }
    return json_text(value, byte_count);
}

static enum status set_named_tokens(struct tokenizer *tokenizer, const struct hf_files *files,
                                    struct error *err) {
    const struct json *config = root_of(files->tokenizer_config);
    size_t byte_count = 0;
    uint32_t id = 0;
    const char *bos = token_text(config, "bos_token", &byte_count);
    if (bos != NULL && tokenizer_find(tokenizer, bos, byte_count, &id)) {
        TRY(tokenizer_set_bos(tokenizer, id, err));
    }
    const char *eos = token_text(config, "eos_token", &byte_count);
    if (eos != NULL && tokenizer_find(tokenizer, eos, byte_count, &id) &&
        !tokenizer_is_eos(tokenizer, id)) {
        TRY(tokenizer_add_eos(tokenizer, id, err));
    }
    return STATUS_OK;
}

// A string, or a list of {"name", "template"} of which "default" is the one for chats.
static const struct json *template_value(const struct json *config) {
    const struct json *value = json_get(config, "chat_template");
    if (json_kind(value) != JSON_KIND_ARRAY) {
        return value;
    }
    for (size_t i = 0; i < json_count(value); i++) {
        const struct json *entry = json_at(value, i);
        const char *name = json_text(json_get(entry, "name"), NULL);
        if (name != NULL && strcmp(name, "default") == 0) {
            return json_get(entry, "template");
        }
    }
    return NULL;
}

static enum status find_template(struct model_text *text, const char *path,
                                 const struct hf_files *files, struct error *err) {
    char file[PATH_BYTES];
    snprintf(file, sizeof file, "%.3900s/chat_template.jinja", path);
    if (access(file, F_OK) == 0) {
        return compile_file(text, file, err);
    }
    size_t byte_count = 0;
    const char *source = json_text(template_value(root_of(files->tokenizer_config)), &byte_count);
    return source == NULL ? STATUS_OK
                          : compile(text, source, byte_count, "tokenizer_config.json", err);
}

static enum status read_real(const struct json *object, const char *key,
                             struct json_range_real range, float *out, struct error *err) {
    double value = (double)*out;
    bool found = false;
    TRY(json_field_real(object, key, range, &value, &found, err));
    *out = (float)value;
    return STATUS_OK;
}

static enum status read_sampling(struct model_text *text, const struct json *generation,
                                 struct error *err) {
    struct model_text_sampling *s = &text->sampling;
    int64_t top_k = 0;
    bool found = false;
    TRY(read_real(generation, "temperature", (struct json_range_real){0, 100}, &s->temperature,
                  err));
    TRY(read_real(generation, "top_p", (struct json_range_real){1e-6, 1}, &s->top_p, err));
    TRY(read_real(generation, "min_p", (struct json_range_real){0, 1}, &s->min_p, err));
    TRY(read_real(generation, "repetition_penalty", (struct json_range_real){1e-6, 10},
                  &s->repetition_penalty, err));
    TRY(json_field_int(generation, "top_k", (struct json_range_int){-1, INT32_MAX}, &top_k, &found,
                       err));
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    return STATUS_OK;
}

static enum status build_hf(struct model_text *text, const char *path, bool own_template,
                            const struct hf_files *files, struct error *err) {
    TRY(tokenizer_from_json(root_of(files->tokenizer), &text->tokenizer, err));
    TRY(set_eos(text->tokenizer, files, err));
    TRY(set_named_tokens(text->tokenizer, files, err));
    if (own_template) {
        TRY(find_template(text, path, files, err));
    }
    return files->generation == NULL ? STATUS_OK
                                     : read_sampling(text, root_of(files->generation), err);
}

static enum status open_hf(struct model_text *text, const char *path, bool own_template,
                           struct error *err) {
    struct hf_files files = {0};
    enum status status = read_files(path, &files, err);
    if (status == STATUS_OK) {
        status = build_hf(text, path, own_template, &files, err);
        if (status != STATUS_OK) {
            error_context(err, "'%s'", path);
        }
    }
    json_destroy(files.tokenizer);
    json_destroy(files.tokenizer_config);
    json_destroy(files.generation);
    json_destroy(files.config);
    return status;
}

// ---- life cycle --------------------------------------------------------------------------------

enum status model_text_open(const char *path, const char *template_path, struct model_text **out,
                            struct error *err) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return error_set_os(err, STATUS_NOT_FOUND, "model '%s' cannot be opened", path);
    }
    struct model_text *text = memory_zalloc(sizeof *text);
    if (text == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a tokenizer");
    }
    text->sampling = (struct model_text_sampling){
        .temperature = 1.0f, .top_p = 1.0f, .min_p = 0.0f, .repetition_penalty = 1.0f};
    set_name(text, path);
    bool own_template = template_path == NULL;
    enum status status = S_ISDIR(info.st_mode) ? open_hf(text, path, own_template, err)
                                               : open_gguf(text, path, own_template, err);
    if (status == STATUS_OK && template_path != NULL) {
        status = compile_file(text, template_path, err);
    }
    if (status != STATUS_OK) {
        model_text_close(text);
        return status;
    }
    *out = text;
    return STATUS_OK;
}

void model_text_close(struct model_text *text) {
    if (text == NULL) {
        return;
    }
    chat_template_destroy(text->chat_template);
    tokenizer_destroy(text->tokenizer);
    memory_free(text);
}

const struct tokenizer *model_text_tokenizer(const struct model_text *text) {
    return text->tokenizer;
}

const struct chat_template *model_text_template(const struct model_text *text) {
    return text->chat_template;
}

struct model_text_sampling model_text_sampling(const struct model_text *text) {
    return text->sampling;
}

const char *model_text_name(const struct model_text *text) {
    return text->name;
}
