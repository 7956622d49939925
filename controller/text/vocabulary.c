// SPDX-License-Identifier: Apache-2.0
#include "controller/text/vocabulary.h"

#include "common/bounds.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/text/unicode.h"
#include <string.h>

_Static_assert(BOUND_TOKEN_BYTES <= UINT16_MAX, "struct token holds lengths in 16 bits");
_Static_assert((uint64_t)BOUND_VOCABULARY_TOKENS *BOUND_TOKEN_BYTES <= (uint64_t)UINT32_MAX + 1,
               "struct token holds offsets in 32 bits");

// ---- byte alphabet -----------------------------------------------------------------------------

static bool is_printed_as_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

// The 68 others in rising order: 0x00..0x20, 0x7F..0xA0, 0xAD.
static bool nth_other(uint32_t nth, uint8_t *byte) {
    uint32_t value = nth <= 0x20 ? nth : nth - 0x21 + 0x7F;
    if (nth == 67) {
        value = 0xAD;
    }
    *byte = (uint8_t)value;
    return nth < 68;
}

bool byte_alphabet_decode(const char *text, size_t byte_count, uint8_t *out, size_t *out_count) {
    const uint8_t *bytes = (const uint8_t *)text;
    size_t count = 0;
    for (size_t at = 0; at < byte_count;) {
        uint32_t code = 0;
        at += unicode_decode(bytes + at, byte_count - at, &code);
        if (code >= 0x100 && code < 0x100 + 68) {
            nth_other(code - 0x100, &out[count]);
        } else if (code <= 0xFF && is_printed_as_itself(code)) {
            out[count] = (uint8_t)code;
        } else {
            return false;
        }
        count++;
    }
    *out_count = count;
    return true;
}

uint32_t byte_alphabet_encode(uint8_t byte, uint8_t out[2]) {
    uint32_t code = byte;
    if (!is_printed_as_itself(byte)) {
        uint32_t nth = byte <= 0x20 ? byte : byte == 0xAD ? 67u : byte - 0x7Fu + 0x21u;
        code = 0x100 + nth;
    }
    uint8_t utf8[4];
    uint32_t length = unicode_encode(code, utf8);
    INVARIANT(length <= 2);
    memcpy(out, utf8, length);
    return length;
}

// ---- tokens ------------------------------------------------------------------------------------

void vocabulary_init(struct vocabulary *vocabulary) {
    memset(vocabulary, 0, sizeof *vocabulary);
    buf_init(&vocabulary->bytes, UINT32_MAX);
}

void vocabulary_deinit(struct vocabulary *vocabulary) {
    if (vocabulary == NULL) {
        return;
    }
    memory_free(vocabulary->tokens);
    memory_free(vocabulary->slots);
    buf_deinit(&vocabulary->bytes);
    memset(vocabulary, 0, sizeof *vocabulary);
}

static enum status reserve(struct vocabulary *vocabulary, uint32_t count, struct error *err) {
    if (count <= vocabulary->allocated) {
        return STATUS_OK;
    }
    uint32_t allocated = vocabulary->allocated < 256 ? 256 : vocabulary->allocated;
    while (allocated < count) {
        allocated *= 2;
    }
    struct token *tokens = memory_realloc(vocabulary->tokens, allocated * sizeof *tokens);
    if (tokens == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %u tokens", allocated);
    }
    memset(tokens + vocabulary->allocated, 0, (allocated - vocabulary->allocated) * sizeof *tokens);
    vocabulary->tokens = tokens;
    vocabulary->allocated = allocated;
    return STATUS_OK;
}

enum status vocabulary_extend(struct vocabulary *vocabulary, uint32_t count, struct error *err) {
    if (count > BOUND_VOCABULARY_TOKENS) {
        return error_set(err, STATUS_CORRUPT, "the vocabulary has %u tokens; the limit is %u",
                         count, BOUND_VOCABULARY_TOKENS);
    }
    TRY(reserve(vocabulary, count, err));
    if (count > vocabulary->token_count) {
        vocabulary->token_count = count;
    }
    return STATUS_OK;
}

enum status vocabulary_set(struct vocabulary *vocabulary, uint32_t id, const uint8_t *bytes,
                           size_t byte_count, uint8_t flags, struct error *err) {
    if (id >= BOUND_VOCABULARY_TOKENS) {
        return error_set(err, STATUS_CORRUPT, "token id %u is out of range; the limit is %u", id,
                         BOUND_VOCABULARY_TOKENS);
    }
    if (byte_count > BOUND_TOKEN_BYTES) {
        return error_set(err, STATUS_CORRUPT, "token %u has %zu bytes; the limit is %u", id,
                         byte_count, BOUND_TOKEN_BYTES);
    }
    TRY(vocabulary_extend(vocabulary, id + 1, err));
    struct token *token = &vocabulary->tokens[id];
    token->offset = (uint32_t)vocabulary->bytes.bytes_used;
    token->byte_count = (uint16_t)byte_count;
    token->flags = (uint8_t)(flags | TOKEN_USED);
    buf_append(&vocabulary->bytes, bytes, byte_count);
    if (buf_status(&vocabulary->bytes) != STATUS_OK) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for the bytes of token %u", id);
    }
    return STATUS_OK;
}

enum status vocabulary_set_spelled(struct vocabulary *vocabulary, uint32_t id, const char *text,
                                   size_t byte_count, uint8_t flags, struct error *err) {
    uint8_t raw[BOUND_TOKEN_BYTES];
    size_t raw_count = 0;
    // The spelling is at most twice as long as the bytes; a longer one is refused below.
    if (byte_count <= sizeof raw && byte_alphabet_decode(text, byte_count, raw, &raw_count)) {
        return vocabulary_set(vocabulary, id, raw, raw_count, (uint8_t)(flags | TOKEN_CODED), err);
    }
    return vocabulary_set(vocabulary, id, (const uint8_t *)text, byte_count, flags, err);
}

// ---- bytes to id -------------------------------------------------------------------------------

static struct vocabulary_slot *slot_of(const struct vocabulary *vocabulary, const uint8_t *bytes,
                                       size_t byte_count, uint32_t hash) {
    uint32_t i = hash & vocabulary->slot_mask;
    for (;; i = (i + 1) & vocabulary->slot_mask) {
        struct vocabulary_slot *slot = &vocabulary->slots[i];
        if (slot->id_plus_one == 0) {
            return slot;
        }
        if (slot->hash != hash) {
            continue;
        }
        const struct token *token = &vocabulary->tokens[slot->id_plus_one - 1];
        if (token->byte_count == byte_count &&
            memcmp(vocabulary->bytes.data + token->offset, bytes, byte_count) == 0) {
            return slot;
        }
    }
}

enum status vocabulary_seal(struct vocabulary *vocabulary, struct error *err) {
    uint32_t size = 256;
    while (size < 2 * vocabulary->token_count) {
        size *= 2;
    }
    memory_free(vocabulary->slots);
    vocabulary->slots = memory_array(size, sizeof *vocabulary->slots);
    vocabulary->slot_mask = size - 1;
    if (vocabulary->slots == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a table of %u tokens", size);
    }
    for (uint32_t id = 0; id < vocabulary->token_count; id++) {
        const struct token *token = &vocabulary->tokens[id];
        if ((token->flags & TOKEN_CODED) == 0 || token->byte_count == 0) {
            continue;
        }
        const uint8_t *bytes = vocabulary->bytes.data + token->offset;
        uint32_t hash = (uint32_t)hash_bytes(bytes, token->byte_count);
        struct vocabulary_slot *slot = slot_of(vocabulary, bytes, token->byte_count, hash);
        *slot = (struct vocabulary_slot){.hash = hash, .id_plus_one = id + 1};
    }
    return STATUS_OK;
}

bool vocabulary_find(const struct vocabulary *vocabulary, const uint8_t *bytes, size_t byte_count,
                     uint32_t *id) {
    uint32_t hash = (uint32_t)hash_bytes(bytes, byte_count);
    const struct vocabulary_slot *slot = slot_of(vocabulary, bytes, byte_count, hash);
    if (slot->id_plus_one == 0) {
        return false;
    }
    *id = slot->id_plus_one - 1;
    return true;
}

const uint8_t *vocabulary_bytes(const struct vocabulary *vocabulary, uint32_t id,
                                size_t *byte_count) {
    if (!vocabulary_has(vocabulary, id, TOKEN_USED)) {
        *byte_count = 0;
        return NULL;
    }
    const struct token *token = &vocabulary->tokens[id];
    *byte_count = token->byte_count;
    return token->byte_count == 0 ? (const uint8_t *)"" : vocabulary->bytes.data + token->offset;
}

bool vocabulary_has(const struct vocabulary *vocabulary, uint32_t id, uint8_t flag) {
    return id < vocabulary->token_count && (vocabulary->tokens[id].flags & flag) != 0;
}
