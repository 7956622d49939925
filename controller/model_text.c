// SPDX-License-Identifier: Apache-2.0
#include "controller/model_text.h"

#include "common/bounds.h"
#include "common/buf.h"
#include "common/gguf.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/memory.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct model_text {
    struct tokenizer *tokenizer;
    struct chat_template *tmpl;
    char *template_source;
    struct model_text_sampling sampling;
    uint32_t context_tokens;
    uint32_t logit_rows;
    char *name;
    char *architecture;
    char *bos_token;
    char *eos_token;
};

// ---- files -------------------------------------------------------------------------------------

static enum status copy_text(const char *bytes, size_t byte_count, char **out, struct error *err) {
    char *copy = memory_strndup(bytes, byte_count);
    if (copy == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a text of %zu bytes", byte_count);
    }
    memory_free(*out);
    *out = copy;
    return STATUS_OK;
}

// "DIR/NAME"; false when that is too long for a path.
static bool join_path(const char *folder, const char *name, char *out, size_t out_bytes) {
    int length = snprintf(out, out_bytes, "%s/%s", folder, name);
    return length > 0 && (size_t)length < out_bytes;
}

// ---- the chat template -------------------------------------------------------------------------

static enum status set_template(struct model_text *text, const char *source, size_t byte_count,
                                struct error *err) {
    TRY(copy_text(source, byte_count, &text->template_source, err));
    chat_template_destroy(text->tmpl);
    text->tmpl = NULL;
    return chat_template_compile(source, byte_count, &text->tmpl, err);
}

static enum status template_from_file(struct model_text *text, const char *path,
                                      struct error *err) {
    struct mapped_file file;
    TRY(mapped_file_open(path, BOUND_TEMPLATE_BYTES, &file, err));
    enum status status = set_template(text, (const char *)file.bytes, file.byte_count, err);
    mapped_file_close(&file);
    if (status != STATUS_OK) {
        error_context(err, "%s", path);
    }
    return status;
}

// The flag's value is a path if such a file exists; a template has brackets, a path hardly.
static enum status template_from_option(struct model_text *text, const char *value,
                                        struct error *err) {
    bool is_text = strstr(value, "{{") != NULL || strstr(value, "{%") != NULL;
    enum status status = is_text ? set_template(text, value, strlen(value), err)
                                 : template_from_file(text, value, err);
    if (status != STATUS_OK) {
        error_hint(err, "give --chat-template a readable file or the template's text");
    }
    return status;
}

static enum status bad_template(enum status status, struct error *err) {
    error_hint(err, "give another template with --chat-template FILE");
    return status;
}

// ---- GGUF --------------------------------------------------------------------------------------

static enum status gguf_text_field(const struct gguf *gguf, const char *key, char **out,
                                   struct error *err) {
    struct gguf_text value;
    bool found = false;
    TRY(gguf_get_string(gguf, key, &value, &found, err));
    return found ? copy_text(value.bytes, value.byte_count, out, err) : STATUS_OK;
}

// ARCH.SUFFIX as an integer; absent leaves *out alone.
static enum status gguf_arch_u32(const struct gguf *gguf, const char *architecture,
                                 const char *suffix, uint32_t *out, struct error *err) {
    char key[128];
    bool found = false;
    snprintf(key, sizeof key, "%.64s.%s", architecture, suffix);
    return gguf_get_u32(gguf, key, out, &found, err);
}

static enum status gguf_sampling_field(const struct gguf *gguf, const char *key,
                                       struct json_range_real range, double *out,
                                       struct error *err) {
    bool found = false;
    double value = *out;
    TRY(gguf_get_f64(gguf, key, &value, &found, err));
    if (!(value >= range.min && value <= range.max)) {
        return error_set(err, STATUS_CORRUPT, "GGUF key '%s' is %g; it must lie in %g..%g", key,
                         value, range.min, range.max);
    }
    *out = value;
    return STATUS_OK;
}

// As read from either kind of model, before it is narrowed.
struct sampling {
    double temperature, top_p, min_p, repetition_penalty, top_k;
};

static const struct sampling neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
static const struct json_range_real temperatures = {0, 100};
static const struct json_range_real top_ps = {1e-6, 1};
static const struct json_range_real min_ps = {0, 1};
static const struct json_range_real penalties = {1e-6, 10};
static const struct json_range_real top_ks = {-1, INT32_MAX};

static struct model_text_sampling narrow(const struct sampling *s) {
    return (struct model_text_sampling){
        .temperature = (float)s->temperature,
        .top_p = (float)s->top_p,
        .min_p = (float)s->min_p,
        .repetition_penalty = (float)s->repetition_penalty,
        .top_k = s->top_k > 0 ? (uint32_t)s->top_k : 0,
    };
}

static enum status gguf_sampling(const struct gguf *gguf, struct model_text_sampling *out,
                                 struct error *err) {
    struct sampling s = neutral;
    TRY(gguf_sampling_field(gguf, "general.sampling.temp", temperatures, &s.temperature, err));
    TRY(gguf_sampling_field(gguf, "general.sampling.top_p", top_ps, &s.top_p, err));
    TRY(gguf_sampling_field(gguf, "general.sampling.min_p", min_ps, &s.min_p, err));
    TRY(gguf_sampling_field(gguf, "general.sampling.penalty_repeat", penalties,
                            &s.repetition_penalty, err));
    TRY(gguf_sampling_field(gguf, "general.sampling.top_k", top_ks, &s.top_k, err));
    *out = narrow(&s);
    return STATUS_OK;
}

// The text of a token, for templates.
static enum status token_text(const struct tokenizer *tokenizer, uint32_t id, char **out,
                              struct error *err) {
    size_t byte_count = 0;
    const uint8_t *bytes = tokenizer_token_bytes(tokenizer, id, &byte_count);
    return bytes == NULL ? STATUS_OK : copy_text((const char *)bytes, byte_count, out, err);
}

static enum status read_gguf(struct model_text *text, const struct gguf *gguf,
                             const char *chat_template, struct error *err) {
    TRY(gguf_text_field(gguf, "general.architecture", &text->architecture, err));
    TRY(tokenizer_from_gguf(gguf, &text->tokenizer, err));
    text->logit_rows = tokenizer_vocabulary_tokens(text->tokenizer);
    TRY(gguf_arch_u32(gguf, text->architecture, "context_length", &text->context_tokens, err));
    TRY(gguf_arch_u32(gguf, text->architecture, "vocab_size", &text->logit_rows, err));
    const struct gguf_tensor *embedding = gguf_tensor_find(gguf, "token_embd.weight");
    if (embedding != NULL && embedding->ne[1] <= BOUND_VOCABULARY_TOKENS) {
        text->logit_rows = (uint32_t)embedding->ne[1];
    }
    uint32_t id = 0;
    if (tokenizer_bos(text->tokenizer, &id)) {
        TRY(token_text(text->tokenizer, id, &text->bos_token, err));
    }
    uint32_t eos_count = 0;
    const uint32_t *eos = tokenizer_eos(text->tokenizer, &eos_count);
    if (eos_count > 0) {
        TRY(token_text(text->tokenizer, eos[0], &text->eos_token, err));
    }
    TRY(gguf_sampling(gguf, &text->sampling, err));
    struct gguf_text source;
    bool found = false;
    TRY(gguf_get_string(gguf, "tokenizer.chat_template", &source, &found, err));
    if (found && chat_template == NULL) {
        enum status status = set_template(text, source.bytes, source.byte_count, err);
        return status == STATUS_OK ? status : bad_template(status, err);
    }
    return STATUS_OK;
}

static enum status open_gguf(struct model_text *text, const char *path, const char *chat_template,
                             struct error *err) {
    struct mapped_file file;
    struct gguf *gguf = NULL;
    TRY(mapped_file_open(path, UINT64_MAX, &file, err));
    enum status status = gguf_parse(file.bytes, file.byte_count, &gguf, err);
    if (status == STATUS_OK) {
        status = read_gguf(text, gguf, chat_template, err);
    }
    gguf_destroy(gguf);
    mapped_file_close(&file);
    if (status != STATUS_OK) {
        error_context(err, "%s", path);
        error_hint(err, "give a GGUF file, or a directory with tokenizer.json and config.json");
    }
    return status;
}

// ---- Hugging Face directory --------------------------------------------------------------------

// Parses DIR/NAME; a missing file gives *out = NULL and is OK when it is optional.
static enum status read_json(const char *folder, const char *name, bool optional,
                             struct json_doc **out, struct error *err) {
    char path[4096];
    struct mapped_file file;
    *out = NULL;
    if (!join_path(folder, name, path, sizeof path)) {
        return error_set(err, STATUS_INVALID, "the path %.200s... is too long", folder);
    }
    if (optional && access(path, F_OK) != 0) {
        return STATUS_OK;
    }
    TRY(mapped_file_open(path, BOUND_MODEL_JSON_BYTES, &file, err));
    enum status status = json_parse((const char *)file.bytes, file.byte_count, out, err);
    mapped_file_close(&file);
    if (status == STATUS_OK && json_kind(json_root(*out)) != JSON_KIND_OBJECT) {
        status = error_set(err, STATUS_CORRUPT, "the file holds no JSON object");
    }
    if (status != STATUS_OK) {
        json_destroy(*out);
        *out = NULL;
        error_context(err, "%s", path);
        error_hint(err, "the file is damaged: fetch it again");
    }
    return status;
}

struct folder {
    struct json_doc *tokenizer;
    struct json_doc *tokenizer_config;
    struct json_doc *generation_config;
    struct json_doc *config;
};

static const struct json *root_of(const struct json_doc *doc) {
    return doc == NULL ? NULL : json_root(doc);
}

// Multimodal wrappers keep the decoder's settings in `text_config`.
static const struct json *decoder_of(const struct json *config) {
    const struct json *inner = json_get(config, "text_config");
    return json_kind(inner) == JSON_KIND_OBJECT ? inner : config;
}

// bos_token and the like are a text or {"content": text, ...}.
static const char *token_name(const struct json *config, const char *key) {
    const struct json *value = json_get(config, key);
    if (json_kind(value) == JSON_KIND_OBJECT) {
        value = json_get(value, "content");
    }
    return json_text(value, NULL);
}

static enum status add_eos_ids(struct model_text *text, const struct json *value,
                               struct error *err) {
    size_t count = json_kind(value) == JSON_KIND_ARRAY ? json_count(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const struct json *item = json_kind(value) == JSON_KIND_ARRAY ? json_at(value, i) : value;
        int64_t id = json_kind(item) == JSON_KIND_INT ? json_int(item) : -1;
        if (id < 0 || id > UINT32_MAX) {
            return error_set(err, STATUS_CORRUPT, "eos_token_id must be an id or a list of ids");
        }
        TRY(tokenizer_add_eos(text->tokenizer, (uint32_t)id, err));
    }
    return STATUS_OK;
}

static enum status read_special(struct model_text *text, const struct folder *files,
                                struct error *err) {
    const struct json *settings = root_of(files->tokenizer_config);
    const struct json *config = root_of(files->config);
    const char *bos = token_name(settings, "bos_token");
    const char *eos = token_name(settings, "eos_token");
    uint32_t id = 0;
    if (bos != NULL) {
        TRY(copy_text(bos, strlen(bos), &text->bos_token, err));
        if (tokenizer_find(text->tokenizer, bos, strlen(bos), &id)) {
            TRY(tokenizer_set_bos(text->tokenizer, id, err));
        }
    }
    if (json_bool(json_get(settings, "add_bos_token"))) {
        TRY(tokenizer_prefix_bos(text->tokenizer, err));
    }
    // The tokenizer's own comes first: it is the one that templates print.
    if (eos != NULL) {
        TRY(copy_text(eos, strlen(eos), &text->eos_token, err));
        if (tokenizer_find(text->tokenizer, eos, strlen(eos), &id)) {
            TRY(tokenizer_add_eos(text->tokenizer, id, err));
        }
    }
    const struct json *ids = json_get(root_of(files->generation_config), "eos_token_id");
    ids = json_absent(ids) ? json_get(config, "eos_token_id") : ids;
    ids = json_absent(ids) ? json_get(decoder_of(config), "eos_token_id") : ids;
    if (!json_absent(ids)) {
        TRY(add_eos_ids(text, ids, err));
    }
    return STATUS_OK;
}

static enum status read_sampling(struct model_text *text, const struct json *config,
                                 struct error *err) {
    struct sampling s = neutral;
    bool found = false;
    if (config == NULL) {
        return STATUS_OK;
    }
    TRY(json_field_real(config, "temperature", temperatures, &s.temperature, &found, err));
    TRY(json_field_real(config, "top_p", top_ps, &s.top_p, &found, err));
    TRY(json_field_real(config, "min_p", min_ps, &s.min_p, &found, err));
    TRY(json_field_real(config, "repetition_penalty", penalties, &s.repetition_penalty, &found,
                        err));
    TRY(json_field_real(config, "top_k", top_ks, &s.top_k, &found, err));
    text->sampling = narrow(&s);
    return STATUS_OK;
}

static enum status read_config(struct model_text *text, const struct json *config,
                               struct error *err) {
    const struct json *decoder = decoder_of(config);
    int64_t context = 0;
    int64_t rows = tokenizer_vocabulary_tokens(text->tokenizer);
    bool found = false;
    struct json_range_int any_context = {.min = 1, .max = INT32_MAX};
    struct json_range_int any_rows = {.min = 1, .max = BOUND_VOCABULARY_TOKENS};
    TRY(json_field_int(decoder, "max_position_embeddings", any_context, &context, &found, err));
    TRY(json_field_int(decoder, "vocab_size", any_rows, &rows, &found, err));
    text->context_tokens = (uint32_t)context;
    text->logit_rows = (uint32_t)rows;
    const char *type = json_text(json_get(decoder, "model_type"), NULL);
    return type == NULL ? STATUS_OK : copy_text(type, strlen(type), &text->architecture, err);
}

// `chat_template` is a text, or a list of {"name", "template"} of which "default" is meant.
static enum status template_from_config(struct model_text *text, const struct json *settings,
                                        struct error *err) {
    const struct json *value = json_get(settings, "chat_template");
    if (json_kind(value) == JSON_KIND_ARRAY) {
        const struct json *list = value;
        value = NULL;
        for (size_t i = 0; i < json_count(list); i++) {
            const struct json *entry = json_at(list, i);
            const char *name = json_kind(entry) == JSON_KIND_OBJECT
                                   ? json_text(json_get(entry, "name"), NULL)
                                   : NULL;
            if (name != NULL && strcmp(name, "default") == 0) {
                value = json_get(entry, "template");
            }
        }
    }
    size_t byte_count = 0;
    const char *source = json_text(value, &byte_count);
    return source == NULL ? STATUS_OK : set_template(text, source, byte_count, err);
}

static enum status read_template(struct model_text *text, const char *folder,
                                 const struct json *settings, struct error *err) {
    char path[4096];
    enum status status;
    if (join_path(folder, "chat_template.jinja", path, sizeof path) && access(path, F_OK) == 0) {
        status = template_from_file(text, path, err);
    } else {
        status = template_from_config(text, settings, err);
    }
    return status == STATUS_OK ? status : bad_template(status, err);
}

static enum status load_folder(const char *path, struct folder *files, struct error *err) {
    enum status status = read_json(path, "tokenizer.json", false, &files->tokenizer, err);
    if (status == STATUS_NOT_FOUND) {
        error_hint(err, "save the tokenizer into the directory with the tool that made the model "
                        "(transformers: AutoTokenizer ... save_pretrained), or serve a GGUF file");
    }
    if (status != STATUS_OK) {
        return status;
    }
    TRY(read_json(path, "tokenizer_config.json", true, &files->tokenizer_config, err));
    TRY(read_json(path, "generation_config.json", true, &files->generation_config, err));
    status = read_json(path, "config.json", false, &files->config, err);
    if (status == STATUS_NOT_FOUND) {
        error_hint(err, "a model directory needs config.json beside its weights");
    }
    return status;
}

static enum status read_folder(struct model_text *text, const char *path,
                               const struct folder *files, const char *chat_template,
                               struct error *err) {
    enum status status = tokenizer_from_json(json_root(files->tokenizer), &text->tokenizer, err);
    if (status != STATUS_OK) {
        error_context(err, "%s/tokenizer.json", path);
        return status;
    }
    status = read_config(text, root_of(files->config), err);
    if (status != STATUS_OK) {
        error_context(err, "%s/config.json", path);
        return status;
    }
    status = read_sampling(text, root_of(files->generation_config), err);
    if (status != STATUS_OK) {
        error_context(err, "%s/generation_config.json", path);
        return status;
    }
    status = read_special(text, files, err);
    if (status != STATUS_OK) {
        error_context(err, "%s", path);
        return status;
    }
    return chat_template != NULL ? STATUS_OK
                                 : read_template(text, path, root_of(files->tokenizer_config), err);
}

static enum status open_folder(struct model_text *text, const char *path, const char *chat_template,
                               struct error *err) {
    struct folder files = {0};
    enum status status = load_folder(path, &files, err);
    if (status == STATUS_OK) {
        status = read_folder(text, path, &files, chat_template, err);
    }
    json_destroy(files.tokenizer);
    json_destroy(files.tokenizer_config);
    json_destroy(files.generation_config);
    json_destroy(files.config);
    return status;
}

// ---- both --------------------------------------------------------------------------------------

// The last part of the path, without slashes at the end and without ".gguf".
static enum status set_name(struct model_text *text, const char *path, struct error *err) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    bool is_gguf = end - start > 5 && memcmp(path + end - 5, ".gguf", 5) == 0;
    return copy_text(path + start, end - start - (is_gguf ? 5 : 0), &text->name, err);
}

static enum status check(const struct model_text *text, const char *path, struct error *err) {
    uint32_t eos_count = 0;
    tokenizer_eos(text->tokenizer, &eos_count);
    if (text->context_tokens == 0) {
        return error_set(err, STATUS_CORRUPT,
                         "%s does not say how long its context is "
                         "(context_length, max_position_embeddings)",
                         path);
    }
    if (eos_count == 0) {
        error_set(err, STATUS_CORRUPT, "%s names no token that ends a text", path);
        error_hint(err, "put eos_token_id into the model's generation_config.json, or "
                        "tokenizer.ggml.eos_token_id into its GGUF file");
        return STATUS_CORRUPT;
    }
    if (text->logit_rows < tokenizer_vocabulary_tokens(text->tokenizer)) {
        return error_set(err, STATUS_CORRUPT,
                         "%s has %u tokens in its vocabulary but %u rows in its output matrix",
                         path, tokenizer_vocabulary_tokens(text->tokenizer), text->logit_rows);
    }
    return STATUS_OK;
}

static enum status open_model(struct model_text *text, const char *path, const char *chat_template,
                              struct error *err) {
    struct stat info;
    if (stat(path, &info) != 0) {
        enum status status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO;
        error_set_os(err, status, "cannot open the model %s", path);
        error_hint(err, "MODEL is a GGUF file or a directory with config.json and tokenizer.json");
        return status;
    }
    TRY(set_name(text, path, err));
    if (S_ISDIR(info.st_mode)) {
        TRY(open_folder(text, path, chat_template, err));
    } else {
        TRY(open_gguf(text, path, chat_template, err));
    }
    if (chat_template != NULL) {
        TRY(template_from_option(text, chat_template, err));
    }
    return check(text, path, err);
}

enum status model_text_open(const char *path, const char *chat_template, struct model_text **out,
                            struct error *err) {
    struct model_text *text = memory_zalloc(sizeof *text);
    if (text == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a model's texts");
    }
    text->sampling = narrow(&neutral);
    char **const texts[] = {&text->architecture, &text->bos_token, &text->eos_token};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && status == STATUS_OK; i++) {
        status = copy_text("", 0, texts[i], err);
    }
    if (status == STATUS_OK) {
        status = open_model(text, path, chat_template, err);
    }
    if (status != STATUS_OK) {
        model_text_close(text);
        // What the model's files say is their fault; a template may also come from a flag.
        return status == STATUS_INVALID && chat_template == NULL ? STATUS_CORRUPT : status;
    }
    *out = text;
    return STATUS_OK;
}

void model_text_close(struct model_text *text) {
    if (text == NULL) {
        return;
    }
    tokenizer_destroy(text->tokenizer);
    chat_template_destroy(text->tmpl);
    memory_free(text->template_source);
    memory_free(text->name);
    memory_free(text->architecture);
    memory_free(text->bos_token);
    memory_free(text->eos_token);
    memory_free(text);
}

const struct tokenizer *model_text_tokenizer(const struct model_text *text) {
    return text->tokenizer;
}

const struct chat_template *model_text_template(const struct model_text *text) {
    return text->tmpl;
}

const char *model_text_template_source(const struct model_text *text) {
    return text->template_source;
}

struct model_text_sampling model_text_sampling(const struct model_text *text) {
    return text->sampling;
}

uint32_t model_text_context_tokens(const struct model_text *text) {
    return text->context_tokens;
}

uint32_t model_text_logit_rows(const struct model_text *text) {
    return text->logit_rows;
}

const char *model_text_name(const struct model_text *text) {
    return text->name;
}

const char *model_text_architecture(const struct model_text *text) {
    return text->architecture;
}

const char *model_text_bos_token(const struct model_text *text) {
    return text->bos_token;
}

const char *model_text_eos_token(const struct model_text *text) {
    return text->eos_token;
}
