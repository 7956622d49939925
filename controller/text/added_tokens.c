// SPDX-License-Identifier: Apache-2.0
#include "controller/text/added_tokens.h"

#include "common/memory.h"
#include "controller/text/unicode.h"
#include <string.h>

void added_tokens_init(struct added_tokens *added) {
    memset(added, 0, sizeof *added);
}

void added_tokens_deinit(struct added_tokens *added) {
    if (added == NULL) {
        return;
    }
    memory_free(added->nodes);
    memory_free(added->tokens);
    memset(added, 0, sizeof *added);
}

// ---- building ----------------------------------------------------------------------------------

// Makes room for `count` more elements in a doubling array.
static enum status grow(void **array, size_t *allocated, size_t used, size_t count,
                        size_t element_bytes, struct error *err) {
    if (used + count <= *allocated) {
        return STATUS_OK;
    }
    size_t wanted = *allocated * 2 + count + 64;
    void *grown = memory_realloc(*array, wanted * element_bytes);
    if (grown == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %zu added tokens", wanted);
    }
    *array = grown;
    *allocated = wanted;
    return STATUS_OK;
}

static uint32_t child_of(const struct added_tokens *added, uint32_t node, uint8_t byte) {
    uint32_t child = node == 0 ? added->first[byte] : added->nodes[node].child;
    while (child != 0 && added->nodes[child].byte != byte) {
        child = added->nodes[child].next;
    }
    return child;
}

static uint32_t add_child(struct added_tokens *added, uint32_t node, uint8_t byte) {
    uint32_t child = (uint32_t)added->node_count++;
    added->nodes[child] = (struct added_node){.byte = byte};
    if (node == 0) {
        added->first[byte] = child;
    } else {
        added->nodes[child].next = added->nodes[node].child;
        added->nodes[node].child = child;
    }
    return child;
}

enum status added_tokens_add(struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                             const struct added_token *token, struct error *err) {
    if (byte_count == 0) {
        return error_set(err, STATUS_CORRUPT, "added token %u is empty", token->id);
    }
    void *nodes = added->nodes;
    void *tokens = added->tokens;
    TRY(grow(&nodes, &added->nodes_allocated, added->node_count, byte_count + 1,
             sizeof *added->nodes, err));
    added->nodes = nodes;
    TRY(grow(&tokens, &added->tokens_allocated, added->token_count, 1, sizeof *added->tokens, err));
    added->tokens = tokens;
    if (added->node_count == 0) {
        added->nodes[0] = (struct added_node){0};
        added->node_count = 1;
    }
    uint32_t node = 0;
    for (size_t i = 0; i < byte_count; i++) {
        uint32_t child = child_of(added, node, bytes[i]);
        node = child != 0 ? child : add_child(added, node, bytes[i]);
    }
    added->tokens[added->token_count++] = *token;
    added->nodes[node].token = (uint32_t)added->token_count;
    return STATUS_OK;
}

// ---- matching ----------------------------------------------------------------------------------

// The longest token that starts at bytes[at]; NULL when none does.
static const struct added_token *longest_at(const struct added_tokens *added, const uint8_t *bytes,
                                            size_t byte_count, size_t at, size_t *end) {
    const struct added_token *best = NULL;
    uint32_t node = 0;
    for (size_t i = at; i < byte_count; i++) {
        node = child_of(added, node, bytes[i]);
        if (node == 0) {
            break;
        }
        if (added->nodes[node].token != 0) {
            best = &added->tokens[added->nodes[node].token - 1];
            *end = i + 1;
        }
    }
    return best;
}

static bool stands_alone(const uint8_t *bytes, size_t byte_count, size_t start, size_t end) {
    uint32_t code = 0;
    if (start > 0) {
        unicode_before(bytes, start, &code);
        if (unicode_is_word(code)) {
            return false;
        }
    }
    if (end < byte_count) {
        unicode_decode(bytes + end, byte_count - end, &code);
        if (unicode_is_word(code)) {
            return false;
        }
    }
    return true;
}

static void strip(const uint8_t *bytes, size_t byte_count, size_t from, struct added_match *match) {
    uint32_t code = 0;
    while (match->token->lstrip && match->start > from) {
        size_t before = unicode_before(bytes, match->start, &code);
        if (unicode_class(code) != UNICODE_SPACE || before < from) {
            break;
        }
        match->start = before;
    }
    while (match->token->rstrip && match->end < byte_count) {
        size_t length = unicode_decode(bytes + match->end, byte_count - match->end, &code);
        if (unicode_class(code) != UNICODE_SPACE) {
            break;
        }
        match->end += length;
    }
}

bool added_tokens_find(const struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                       size_t from, bool parse_special, struct added_match *match) {
    for (size_t at = from; at < byte_count; at++) {
        if (added->first[bytes[at]] == 0) {
            continue;
        }
        size_t end = 0;
        const struct added_token *token = longest_at(added, bytes, byte_count, at, &end);
        if (token == NULL) {
            continue;
        }
        bool wanted = (parse_special || !token->special) &&
                      (!token->single_word || stands_alone(bytes, byte_count, at, end));
        if (!wanted) {
            at = end - 1;
            continue;
        }
        *match = (struct added_match){.start = at, .end = end, .token = token};
        strip(bytes, byte_count, from, match);
        return true;
    }
    return false;
}

bool added_tokens_exact(const struct added_tokens *added, const uint8_t *bytes, size_t byte_count,
                        uint32_t *id) {
    size_t end = 0;
    const struct added_token *token = longest_at(added, bytes, byte_count, 0, &end);
    if (token == NULL || end != byte_count) {
        return false;
    }
    *id = token->id;
    return true;
}
