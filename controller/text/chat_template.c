// SPDX-License-Identifier: Apache-2.0
#include "controller/text/chat_template.h"

#include "common/arena.h"
#include "common/bounds.h"
#include "common/memory.h"
#include "controller/text/chat_messages.h"
#include "controller/text/template_parse.h"
#include "controller/text/template_run.h"
#include "controller/text/unicode.h"
#include <string.h>

struct chat_template {
    struct arena arena;    // holds the tree
    struct template_ast ast;
    bool accepts_parts;      // content may stay a list of parts (found out by rendering one)
    bool knows_developer;    // the source mentions that role; else such messages become `system`
};

// ---- rendering ---------------------------------------------------------------------------------

// One variable of ours, if the template mentions it at all.
static enum status bind(struct template_run *run, const char *name, struct template_value value,
                        struct error *err) {
    for (uint32_t i = 0; i < run->ast->name_count; i++) {
        if (template_text_is(run->ast->names[i], name)) {
            return template_bind(run, run->scope, i, value, err);
        }
    }
    return STATUS_OK;
}

// Walks the template's names, whose number is bounded, and not the client's keys.
static enum status bind_kwargs(struct template_run *run, const struct json *kwargs,
                               struct error *err) {
    if (json_absent(kwargs)) {
        return STATUS_OK;
    }
    if (json_kind(kwargs) != JSON_KIND_OBJECT) {
        return error_set(err, STATUS_INVALID, "field 'chat_template_kwargs' must be an object");
    }
    for (uint32_t i = 0; i < run->ast->name_count; i++) {
        char name[128];
        struct template_text text = run->ast->names[i];
        if (text.byte_count >= sizeof name) {
            continue;
        }
        memcpy(name, text.bytes, text.byte_count);
        name[text.byte_count] = '\0';
        const struct json *json = json_get(kwargs, name);
        struct template_value value;
        if (json != NULL) {
            TRY(template_from_json(run->arena, json, &value, err));
            TRY(template_bind(run, run->scope, i, value, err));
        }
    }
    return STATUS_OK;
}

// The reference always passes tools and documents, as None when there are none; everything else
// that the caller does not give is undefined.
static enum status bind_all(struct template_run *run, const struct chat_template_input *input,
                            struct template_value messages, struct error *err) {
    if (input->bos_token != NULL) {
        TRY(bind(run, "bos_token", template_literal(input->bos_token), err));
    }
    if (input->eos_token != NULL) {
        TRY(bind(run, "eos_token", template_literal(input->eos_token), err));
    }
    TRY(bind_kwargs(run, input->kwargs, err));
    struct template_value tools = template_none();
    if (json_kind(input->tools) == JSON_KIND_ARRAY && json_count(input->tools) > 0) {
        TRY(template_from_json(run->arena, input->tools, &tools, err));
    } else if (!json_absent(input->tools) && json_kind(input->tools) != JSON_KIND_ARRAY) {
        return error_set(err, STATUS_INVALID, "field 'tools' must be an array");
    }
    TRY(bind(run, "messages", messages, err));
    TRY(bind(run, "tools", tools, err));
    TRY(bind(run, "documents", template_none(), err));
    bool prompt = input->add_generation_prompt && !input->continue_final_message;
    return bind(run, "add_generation_prompt", template_bool(prompt), err);
}

// Text content of the last message, or NULL.
static const struct template_value *final_content(const struct template_value *messages) {
    const struct template_list *list = messages->as.list;
    const struct template_value *content = NULL;
    if (list->count > 0) {
        content = template_dict_get_text(list->items[list->count - 1].as.dict,
                                         (struct template_text){"content", 7});
    }
    if (content != NULL && content->kind == TEMPLATE_LIST && content->as.list->count > 0) {
        const struct template_list *parts = content->as.list;
        content = template_dict_get_text(parts->items[parts->count - 1].as.dict,
                                         (struct template_text){"text", 4});
    }
    return content != NULL && content->kind == TEMPLATE_STRING ? content : NULL;
}

static char *reversed(struct arena *arena, const char *bytes, size_t byte_count) {
    char *copy = arena_alloc(arena, byte_count + 1);
    for (size_t i = 0; copy != NULL && i < byte_count; i++) {
        copy[i] = bytes[byte_count - 1 - i];
    }
    return copy;
}

// Where `text` last occurs in the prompt: the first place in both of them reversed, since a search
// from the front would meet every earlier place first.
static enum status find_last(struct arena *arena, struct template_text prompt,
                             struct template_text text, size_t *out, struct error *err) {
    char *haystack = reversed(arena, prompt.bytes, prompt.byte_count);
    char *needle = reversed(arena, text.bytes, text.byte_count);
    if (haystack == NULL || needle == NULL) {
        return template_full(err);
    }
    const char *found =
        text.byte_count == 0 ? NULL : memmem(haystack, prompt.byte_count, needle, text.byte_count);
    if (found == NULL) {
        return error_set(err, STATUS_INVALID,
                         "continue_final_message: the chat template does not "
                         "show the last message");
    }
    *out = prompt.byte_count - (size_t)(found - haystack) - text.byte_count;
    return STATUS_OK;
}

// Cuts what the template wrote after the last message, so that generation goes on inside it.
static enum status cut_after_final(struct arena *arena, const struct template_value *messages,
                                   struct buf *out, size_t start, struct error *err) {
    const struct template_value *content = final_content(messages);
    if (content == NULL) {
        return error_set(err, STATUS_INVALID,
                         "continue_final_message needs a last message with text content");
    }
    struct template_text prompt = {buf_cstr(out) + start, out->bytes_used - start};
    struct template_text whole = template_strip(content->as.string, NULL, true, false);
    struct template_text text = template_strip(whole, NULL, false, true);
    size_t at = 0;
    TRY(find_last(arena, prompt, text, &at, err));
    // Blanks at its end stay if the template kept them.
    bool kept = whole.byte_count <= prompt.byte_count - at &&
                memcmp(prompt.bytes + at, whole.bytes, whole.byte_count) == 0;
    out->bytes_used = start + at + (kept ? whole.byte_count : text.byte_count);
    return STATUS_OK;
}

static enum status render(const struct chat_template *tmpl, const struct chat_template_input *input,
                          struct arena *arena, struct buf *out, struct error *err) {
    struct template_scope root = {0};
    struct chat_messages messages = {0};
    struct template_run run = {
        .arena = arena,
        .ast = &tmpl->ast,
        .out = out,
        .scope = &root,
        .now_unix_s = input->now_unix_s,
        .utc_offset_s = input->utc_offset_s,
    };
    size_t start = out->bytes_used;
    enum status status = STATUS_OK;
    TRY_GOTO(chat_messages_init(&messages, arena, input->messages,
                                (struct chat_messages_options){
                                    .keep_parts = tmpl->accepts_parts,
                                    .keep_developer = tmpl->knows_developer,
                                },
                                err),
             out);
    TRY_GOTO(bind_all(&run, input, messages.value, err), out);
    TRY_GOTO(template_exec(&run, tmpl->ast.body, err), out);
    if (input->continue_final_message) {
        TRY_GOTO(cut_after_final(arena, &messages.value, out, start, err), out);
    }
out:
    chat_messages_deinit(&messages);
    return status;
}

enum status chat_template_render(const struct chat_template *tmpl,
                                 const struct chat_template_input *input, struct buf *out,
                                 struct error *err) {
    if (input->add_generation_prompt && input->continue_final_message) {
        return error_set(err, STATUS_INVALID,
                         "add_generation_prompt and continue_final_message exclude each other");
    }
    struct arena arena;
    arena_init(&arena, BOUND_TEMPLATE_MEMORY_BYTES);
    enum status status = render(tmpl, input, &arena, out, err);
    arena_deinit(&arena);
    return status;
}

// ---- compiling ---------------------------------------------------------------------------------

#define PROBE "part-probe-5b1e"

// Renders one user message whose content is a list: a template made for text either fails or
// prints the list as Python would, with its keys.
static bool probe_parts(const struct chat_template *tmpl) {
    static const char text[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" PROBE "\"}]}]";
    struct json_doc *doc = NULL;
    struct buf out;
    bool accepts = false;
    buf_init(&out, BOUND_TEMPLATE_OUTPUT_BYTES);
    if (json_parse(text, sizeof text - 1, &doc, NULL) == STATUS_OK) {
        struct chat_template_input input = {
            .messages = json_root(doc), .bos_token = "", .eos_token = ""};
        struct chat_template with_parts = *tmpl;
        with_parts.accepts_parts = true;
        accepts = chat_template_render(&with_parts, &input, &out, NULL) == STATUS_OK &&
                  strstr(buf_cstr(&out), PROBE) != NULL &&
                  strstr(buf_cstr(&out), "'type'") == NULL &&
                  strstr(buf_cstr(&out), "\"type\"") == NULL;
    }
    json_destroy(doc);
    buf_deinit(&out);
    return accepts;
}

static bool is_utf8(const char *source, size_t byte_count) {
    for (size_t at = 0; at < byte_count;) {
        uint32_t code = 0;
        at += unicode_decode((const uint8_t *)source + at, byte_count - at, &code);
        if (code == UNICODE_BROKEN) {
            return false;
        }
    }
    return true;
}

enum status chat_template_compile(const char *source, size_t byte_count, struct chat_template **out,
                                  struct error *err) {
    if (byte_count > BOUND_TEMPLATE_BYTES) {
        return error_set(err, STATUS_INVALID, "the chat template has %zu bytes; the limit is %u",
                         byte_count, BOUND_TEMPLATE_BYTES);
    }
    if (!is_utf8(source, byte_count)) {
        return error_set(err, STATUS_INVALID, "the chat template is not valid UTF-8");
    }
    struct chat_template *tmpl = memory_zalloc(sizeof *tmpl);
    if (tmpl == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a chat template");
    }
    arena_init(&tmpl->arena, BOUND_TEMPLATE_MEMORY_BYTES);
    enum status status = template_parse(&tmpl->arena, source, byte_count, &tmpl->ast, err);
    if (status != STATUS_OK) {
        chat_template_destroy(tmpl);
        return status;
    }
    tmpl->knows_developer = memmem(source, byte_count, "developer", 9) != NULL;
    tmpl->accepts_parts = probe_parts(tmpl);
    *out = tmpl;
    return STATUS_OK;
}

void chat_template_destroy(struct chat_template *tmpl) {
    if (tmpl != NULL) {
        arena_deinit(&tmpl->arena);
        memory_free(tmpl);
    }
}
