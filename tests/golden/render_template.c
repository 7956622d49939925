// SPDX-License-Identifier: Apache-2.0
// Renders chat templates with our interpreter, for the comparison script beside this file.
//
// One case per input line, a JSON object:
//   {"template": text, "messages": [...], "tools": [...], "kwargs": {...}, "bos": text, "eos":
//   text,
//    "add_generation_prompt": bool, "continue_final_message": bool, "now": unix seconds}
// One JSON string per output line: the prompt, or "!" and the error's sentence.
#include "common/json.h"
#include "common/memory.h"
#include "controller/text/chat_template.h"

#include <stdio.h>
#include <string.h>

static enum status render_case(const struct json *row, struct buf *out, struct error *err) {
    size_t byte_count = 0;
    const char *source = json_text(json_get(row, "template"), &byte_count);
    struct chat_template *tmpl = NULL;
    if (source == NULL) {
        return error_set(err, STATUS_INVALID, "a case has no template");
    }
    TRY(chat_template_compile(source, byte_count, &tmpl, err));
    struct chat_template_input input = {
        .messages = json_get(row, "messages"),
        .tools = json_get(row, "tools"),
        .kwargs = json_get(row, "kwargs"),
        .bos_token = json_text(json_get(row, "bos"), NULL),
        .eos_token = json_text(json_get(row, "eos"), NULL),
        .add_generation_prompt = json_bool(json_get(row, "add_generation_prompt")),
        .continue_final_message = json_bool(json_get(row, "continue_final_message")),
        .now_unix_s = json_int(json_get(row, "now")),
    };
    enum status status = chat_template_render(tmpl, &input, out, err);
    chat_template_destroy(tmpl);
    return status;
}

int main(void) {
    char *line = NULL;
    size_t allocated = 0;
    for (;;) {
        ssize_t length = getline(&line, &allocated, stdin);
        if (length <= 0) {
            break;
        }
        struct json_doc *doc = NULL;
        struct error err = {0};
        struct buf out;
        struct buf quoted;
        buf_init(&out, 1 << 24);
        buf_init(&quoted, 1 << 26);
        enum status status = json_parse(line, (size_t)length, &doc, &err);
        if (status == STATUS_OK) {
            status = render_case(json_root(doc), &out, &err);
        }
        if (status != STATUS_OK) {
            buf_reset(&out);
            buf_printf(&out, "!%s", err.message);
        }
        json_write_string(&quoted, buf_cstr(&out), out.bytes_used);
        puts(buf_cstr(&quoted));
        buf_deinit(&out);
        buf_deinit(&quoted);
        json_destroy(doc);
    }
    memory_free(line);
    return 0;
}
