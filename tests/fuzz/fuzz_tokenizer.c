// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json, or as a GGUF vocabulary if they start like one; a tokenizer that
// was accepted encodes the bytes themselves, and what it says of its ids holds.
#include "common/gguf.h"
#include "common/invariant.h"
#include "common/json.h"
#include "controller/text/detokenizer.h"
#include "controller/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status load(const uint8_t *data, size_t size, struct tokenizer **out) {
    struct error err = {0};
    enum status status;
    if (gguf_is_magic(data, size)) {
        struct gguf *gguf = NULL;
        status = gguf_parse(data, size, &gguf, &err);
        if (status == STATUS_OK) {
            status = tokenizer_from_gguf(gguf, out, &err);
        }
        gguf_destroy(gguf);
    } else {
        struct json_doc *doc = NULL;
        status = json_parse((const char *)data, size, &doc, &err);
        if (status == STATUS_OK) {
            status = tokenizer_from_json(json_root(doc), out, &err);
        }
        json_destroy(doc);
    }
    INVARIANT(status == STATUS_OK || err.message[0] != '\0');
    return status;
}

static void encode(const struct tokenizer *tokenizer, const uint8_t *text, size_t byte_count,
                   struct tokenizer_options options) {
    struct token_list list;
    struct buf back;
    token_list_init(&list, 1 << 20);
    buf_init(&back, 1 << 26);
    if (tokenizer_encode(tokenizer, (const char *)text, byte_count, options, &list, NULL) ==
        STATUS_OK) {
        for (size_t i = 0; i < list.count; i++) {
            INVARIANT(tokenizer_has(tokenizer, list.ids[i]));
            INVARIANT(list.ids[i] < tokenizer_vocabulary_tokens(tokenizer));
        }
        if (detokenize(tokenizer, list.ids, list.count, false, &back, NULL) == STATUS_OK) {
            INVARIANT(list.count > 0 || back.bytes_used == 0);
        }
    }
    buf_deinit(&back);
    token_list_deinit(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello, we'LL try 12345 \xC3\xA9 e\xCC\x81 \xFF<|im_end|>\n\n  x ";
    struct tokenizer *tokenizer = NULL;
    if (load(data, size, &tokenizer) != STATUS_OK) {
        return 0;
    }
    encode(tokenizer, (const uint8_t *)text, sizeof text - 1,
           (struct tokenizer_options){.add_special = true, .parse_special = true});
    encode(tokenizer, data, size, (struct tokenizer_options){0});
    tokenizer_destroy(tokenizer);
    return 0;
}
