// SPDX-License-Identifier: Apache-2.0
#include "controller/text/chat_messages.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

struct work {
    struct chat_messages *messages;
    struct arena *arena;
    struct chat_messages_options options;
    size_t index;    // of the message, for sentences
};

static enum status full(struct error *err) {
    return error_set(err, STATUS_INVALID, "the messages need more than %u MiB of memory",
                     BOUND_TEMPLATE_MEMORY_BYTES / (1024 * 1024));
}

// Appends without looking for the key: JSON has no duplicates, and a search per key would let a
// message with a million keys take hours. Dicts are created with room for all.
static void append(struct template_dict *dict, struct template_value key,
                   struct template_value value) {
    INVARIANT(dict->count < dict->allocated);
    dict->pairs[dict->count++] = (struct template_pair){.key = key, .value = value};
}

// ---- content -----------------------------------------------------------------------------------

// The text of one part: {"type": "text" | "input_text", "text": ...} or a bare string.
static enum status part_text(const struct work *work, const struct json *part, size_t part_index,
                             struct template_text *out, struct error *err) {
    if (json_kind(part) == JSON_KIND_STRING) {
        out->bytes = json_text(part, &out->byte_count);
        return STATUS_OK;
    }
    const char *type =
        json_kind(part) == JSON_KIND_OBJECT ? json_text(json_get(part, "type"), NULL) : NULL;
    if (type == NULL) {
        return error_set(err, STATUS_INVALID, "messages[%zu].content[%zu] is no part with a type",
                         work->index, part_index);
    }
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0) {
        return error_set(err, STATUS_INVALID,
                         "messages[%zu].content[%zu] is of type '%.40s'; only text is supported",
                         work->index, part_index, type);
    }
    out->bytes = json_text(json_get(part, "text"), &out->byte_count);
    if (out->bytes == NULL) {
        return error_set(err, STATUS_INVALID, "messages[%zu].content[%zu].text must be a string",
                         work->index, part_index);
    }
    return STATUS_OK;
}

static enum status join_parts(struct work *work, const struct json *parts,
                              struct template_value *out, struct error *err) {
    struct buf text;
    buf_init(&text, BOUND_HTTP_BODY_BYTES);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < json_count(parts) && status == STATUS_OK; i++) {
        struct template_text piece = {0};
        status = part_text(work, json_at(parts, i), i, &piece, err);
        if (status == STATUS_OK) {
            buf_append_str(&text, i > 0 ? "\n" : "");
            buf_append(&text, piece.bytes, piece.byte_count);
        }
    }
    if (status == STATUS_OK && buf_status(&text) != STATUS_OK) {
        status = full(err);
    }
    if (status == STATUS_OK) {
        status = template_string_copy(work->arena, text.data, text.bytes_used, out, err);
    }
    buf_deinit(&text);
    return status;
}

static enum status list_parts(struct work *work, const struct json *parts,
                              struct template_value *out, struct error *err) {
    struct template_list *list = template_list_create(work->arena, json_count(parts));
    if (list == NULL) {
        return full(err);
    }
    for (size_t i = 0; i < list->count; i++) {
        struct template_text piece = {0};
        struct template_dict *dict = template_dict_create(work->arena, 2);
        TRY(part_text(work, json_at(parts, i), i, &piece, err));
        if (dict == NULL) {
            return full(err);
        }
        append(dict, template_literal("type"), template_literal("text"));
        append(dict, template_literal("text"), template_string(piece.bytes, piece.byte_count));
        list->items[i] = (struct template_value){.kind = TEMPLATE_DICT, .as.dict = dict};
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

static enum status add_content(struct work *work, const struct json *content,
                               struct template_dict *message, struct error *err) {
    struct template_value value = template_literal("");
    if (json_kind(content) == JSON_KIND_ARRAY) {
        if (json_count(content) > BOUND_PARTS_PER_MESSAGE) {
            return error_set(err, STATUS_INVALID, "messages[%zu].content has more than %u parts",
                             work->index, BOUND_PARTS_PER_MESSAGE);
        }
        if (work->options.keep_parts) {
            TRY(list_parts(work, content, &value, err));
        } else {
            TRY(join_parts(work, content, &value, err));
        }
    } else if (!json_absent(content)) {
        TRY(template_from_json(work->arena, content, &value, err));
    }
    append(message, template_literal("content"), value);
    return STATUS_OK;
}

// ---- tool calls --------------------------------------------------------------------------------

static enum status keep_doc(struct chat_messages *messages, struct json_doc *doc,
                            struct error *err) {
    if (messages->doc_count == messages->docs_allocated) {
        size_t allocated = messages->docs_allocated * 2 + 8;
        struct json_doc **docs = memory_realloc(messages->docs, allocated * sizeof *docs);
        if (docs == NULL) {
            json_destroy(doc);
            return error_set(err, STATUS_EXHAUSTED, "no memory for tool calls");
        }
        messages->docs = docs;
        messages->docs_allocated = allocated;
    }
    messages->docs[messages->doc_count++] = doc;
    return STATUS_OK;
}

// A string that is no JSON object stays a string; the template may refuse it.
static enum status add_arguments(struct work *work, const struct json *arguments,
                                 struct template_value *out, struct error *err) {
    TRY(template_from_json(work->arena, arguments, out, err));
    size_t byte_count = 0;
    const char *text = json_text(arguments, &byte_count);
    struct json_doc *doc = NULL;
    if (text == NULL || json_parse(text, byte_count, &doc, NULL) != STATUS_OK) {
        return STATUS_OK;
    }
    if (json_kind(json_root(doc)) != JSON_KIND_OBJECT) {
        json_destroy(doc);
        return STATUS_OK;
    }
    TRY(keep_doc(work->messages, doc, err));
    return template_from_json(work->arena, json_root(doc), out, err);
}

// Copies an object without its nulls; the field `key` goes through `fn`.
typedef enum status (*field_fn)(struct work *work, const struct json *value,
                                struct template_value *out, struct error *err);

static enum status copy_object(struct work *work, const struct json *object, const char *key,
                               field_fn fn, struct template_value *out, struct error *err) {
    if (json_kind(object) != JSON_KIND_OBJECT) {
        return template_from_json(work->arena, object, out, err);
    }
    struct template_dict *dict = template_dict_create(work->arena, json_count(object));
    if (dict == NULL) {
        return full(err);
    }
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        size_t byte_count = 0;
        const char *name = json_iter_key(it, &byte_count);
        const struct json *value = json_iter_value(it);
        struct template_value copy;
        if (json_absent(value)) {
            continue;
        }
        if (strcmp(name, key) == 0) {
            TRY(fn(work, value, &copy, err));
        } else {
            TRY(template_from_json(work->arena, value, &copy, err));
        }
        append(dict, template_string(name, byte_count), copy);
    }
    *out = (struct template_value){.kind = TEMPLATE_DICT, .as.dict = dict};
    return STATUS_OK;
}

static enum status add_function(struct work *work, const struct json *function,
                                struct template_value *out, struct error *err) {
    return copy_object(work, function, "arguments", add_arguments, out, err);
}

static enum status add_tool_calls(struct work *work, const struct json *calls,
                                  struct template_value *out, struct error *err) {
    if (json_kind(calls) != JSON_KIND_ARRAY) {
        return error_set(err, STATUS_INVALID, "messages[%zu].tool_calls must be an array",
                         work->index);
    }
    struct template_list *list = template_list_create(work->arena, json_count(calls));
    if (list == NULL) {
        return full(err);
    }
    for (size_t i = 0; i < list->count; i++) {
        TRY(copy_object(work, json_at(calls, i), "function", add_function, &list->items[i], err));
    }
    *out = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

// ---- messages ----------------------------------------------------------------------------------

static enum status add_field(struct work *work, const char *key, size_t key_bytes,
                             const struct json *value, struct template_dict *message,
                             struct error *err) {
    struct template_value copy;
    if (strcmp(key, "content") == 0) {
        return add_content(work, value, message, err);
    }
    if (json_absent(value)) {
        return STATUS_OK;
    }
    if (strcmp(key, "tool_calls") == 0) {
        TRY(add_tool_calls(work, value, &copy, err));
    } else {
        TRY(template_from_json(work->arena, value, &copy, err));
    }
    bool developer = strcmp(key, "role") == 0 && copy.kind == TEMPLATE_STRING &&
                     template_text_is(copy.as.string, "developer");
    if (developer && !work->options.keep_developer) {
        copy = template_literal("system");
    }
    append(message, template_string(key, key_bytes), copy);
    return STATUS_OK;
}

static enum status add_message(struct work *work, const struct json *json,
                               struct template_value *out, struct error *err) {
    if (json_kind(json) != JSON_KIND_OBJECT ||
        json_kind(json_get(json, "role")) != JSON_KIND_STRING) {
        return error_set(err, STATUS_INVALID, "messages[%zu] must be an object with a role",
                         work->index);
    }
    struct template_dict *message = template_dict_create(work->arena, json_count(json) + 2);
    if (message == NULL) {
        return full(err);
    }
    for (void *it = json_iter(json); it != NULL; it = json_iter_next(json, it)) {
        size_t key_bytes = 0;
        const char *key = json_iter_key(it, &key_bytes);
        TRY(add_field(work, key, key_bytes, json_iter_value(it), message, err));
    }
    if (json_get(json, "content") == NULL) {
        TRY(add_content(work, NULL, message, err));
    }
    const struct json *reasoning = json_get(json, "reasoning");
    if (json_kind(reasoning) == JSON_KIND_STRING &&
        json_absent(json_get(json, "reasoning_content"))) {
        struct template_value text;
        TRY(template_from_json(work->arena, reasoning, &text, err));
        append(message, template_literal("reasoning_content"), text);
    }
    *out = (struct template_value){.kind = TEMPLATE_DICT, .as.dict = message};
    return STATUS_OK;
}

enum status chat_messages_init(struct chat_messages *messages, struct arena *arena,
                               const struct json *json, struct chat_messages_options options,
                               struct error *err) {
    memset(messages, 0, sizeof *messages);
    if (json_kind(json) != JSON_KIND_ARRAY) {
        return error_set(err, STATUS_INVALID, "field 'messages' must be an array");
    }
    if (json_count(json) > BOUND_MESSAGES_PER_REQUEST) {
        return error_set(err, STATUS_INVALID, "field 'messages' has more than %u entries",
                         BOUND_MESSAGES_PER_REQUEST);
    }
    struct template_list *list = template_list_create(arena, json_count(json));
    if (list == NULL) {
        return full(err);
    }
    struct work work = {.messages = messages, .arena = arena, .options = options};
    for (; work.index < list->count; work.index++) {
        TRY(add_message(&work, json_at(json, work.index), &list->items[work.index], err));
    }
    messages->value = (struct template_value){.kind = TEMPLATE_LIST, .as.list = list};
    return STATUS_OK;
}

void chat_messages_deinit(struct chat_messages *messages) {
    if (messages == NULL) {
        return;
    }
    for (size_t i = 0; i < messages->doc_count; i++) {
        json_destroy(messages->docs[i]);
    }
    memory_free(messages->docs);
    memset(messages, 0, sizeof *messages);
}
