// SPDX-License-Identifier: Apache-2.0
// Any bytes as a chat template, rendered over fixed messages, or over those that follow a NUL byte
// as JSON: refused with a sentence, or a prompt within its bound.
#include "common/bounds.h"
#include "common/invariant.h"
#include "controller/text/chat_template.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char talk[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi \\u00e9\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[{\"function\":"
    "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2.5, null]}\"}}]},"
    "{\"role\":\"tool\",\"content\":\"{}\"}]";
static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";

static void render(const struct chat_template *tmpl, const char *messages, size_t byte_count) {
    struct json_doc *doc = NULL;
    struct json_doc *tool_doc = NULL;
    struct buf out;
    struct error err = {0};
    buf_init(&out, BOUND_TEMPLATE_OUTPUT_BYTES);
    if (json_parse(messages, byte_count, &doc, NULL) == STATUS_OK &&
        json_parse(tools, sizeof tools - 1, &tool_doc, NULL) == STATUS_OK) {
        struct chat_template_input input = {
            .messages = json_root(doc),
            .tools = json_root(tool_doc),
            .bos_token = "<s>",
            .eos_token = "</s>",
            .add_generation_prompt = true,
            .now_unix_s = 1721993445,
        };
        enum status status = chat_template_render(tmpl, &input, &out, &err);
        INVARIANT(status == STATUS_OK || err.message[0] != '\0' || err.status == STATUS_INVALID);
    }
    json_destroy(doc);
    json_destroy(tool_doc);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *cut = size == 0 ? NULL : memchr(data, '\0', size);
    size_t source_bytes = cut == NULL ? size : (size_t)(cut - data);
    struct chat_template *tmpl = NULL;
    struct error err = {0};
    if (chat_template_compile((const char *)data, source_bytes, &tmpl, &err) != STATUS_OK) {
        INVARIANT(err.message[0] != '\0');
        return 0;
    }
    if (cut == NULL) {
        render(tmpl, talk, sizeof talk - 1);
    } else {
        render(tmpl, (const char *)cut + 1, size - source_bytes - 1);
    }
    chat_template_destroy(tmpl);
    return 0;
}
