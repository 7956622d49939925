// SPDX-License-Identifier: Apache-2.0
#include "controller/text/bpe.h"

#include "common/bounds.h"
#include "common/hash.h"
#include "common/invariant.h"
#include "common/memory.h"
#include <string.h>

#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX

enum { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

// ---- token lists -------------------------------------------------------------------------------

void token_list_init(struct token_list *list, size_t count_max) {
    *list = (struct token_list){.count_max = count_max};
}

void token_list_deinit(struct token_list *list) {
    if (list != NULL) {
        memory_free(list->ids);
        *list = (struct token_list){0};
    }
}

static enum status token_list_grow(struct token_list *list, struct error *err) {
    if (list->count >= list->count_max) {
        return error_set(err, STATUS_INVALID, "the text has more than %zu tokens", list->count_max);
    }
    size_t allocated = list->allocated < 64 ? 64 : list->allocated * 2;
    if (allocated > list->count_max) {
        allocated = list->count_max;
    }
    uint32_t *ids = memory_realloc(list->ids, allocated * sizeof *ids);
    if (ids == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %zu tokens", allocated);
    }
    list->ids = ids;
    list->allocated = allocated;
    return STATUS_OK;
}

enum status token_list_push(struct token_list *list, uint32_t id, struct error *err) {
    if (list->count == list->allocated) {
        TRY(token_list_grow(list, err));
    }
    list->ids[list->count++] = id;
    return STATUS_OK;
}

// ---- the merge table ---------------------------------------------------------------------------

enum status bpe_init(struct bpe *bpe, const struct vocabulary *vocabulary, size_t merge_count,
                     struct error *err) {
    memset(bpe, 0, sizeof *bpe);
    if (merge_count > BOUND_MERGES) {
        return error_set(err, STATUS_CORRUPT, "the tokenizer has %zu merges; the limit is %u",
                         merge_count, BOUND_MERGES);
    }
    uint32_t size = 256;
    while (size < 2 * merge_count) {
        size *= 2;
    }
    bpe->vocabulary = vocabulary;
    bpe->slot_mask = size - 1;
    bpe->symbols_max = 1;
    bpe->unknown = BPE_NO_TOKEN;
    bpe->slots = memory_alloc(size * sizeof *bpe->slots);
    bpe->whole = memory_array(vocabulary->token_count, sizeof *bpe->whole);
    if (bpe->slots == NULL || bpe->whole == NULL) {
        bpe_deinit(bpe);
        return error_set(err, STATUS_EXHAUSTED, "no memory for %zu merges", merge_count);
    }
    for (uint32_t i = 0; i < size; i++) {
        bpe->slots[i] = (struct bpe_slot){.rank = NO_RANK};
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint8_t raw = (uint8_t)byte;
        bpe->byte_token[byte] = BPE_NO_TOKEN;
        (void)vocabulary_find(vocabulary, &raw, 1, &bpe->byte_token[byte]);
    }
    return STATUS_OK;
}

void bpe_deinit(struct bpe *bpe) {
    if (bpe == NULL) {
        return;
    }
    memory_free(bpe->slots);
    memory_free(bpe->whole);
    memset(bpe, 0, sizeof *bpe);
}

static struct bpe_slot *slot_of(const struct bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = (uint32_t)hash_u64(pair) & bpe->slot_mask;
    while (bpe->slots[i].rank != NO_RANK && bpe->slots[i].pair != pair) {
        i = (i + 1) & bpe->slot_mask;
    }
    return &bpe->slots[i];
}

// Finds the token of one half of a merge, and appends its bytes to `raw`.
static bool half(const struct bpe *bpe, const char *text, size_t byte_count, uint8_t *raw,
                 size_t *raw_count, uint32_t *id) {
    size_t count = 0;
    if (byte_count > BOUND_TOKEN_BYTES ||
        !byte_alphabet_decode(text, byte_count, raw + *raw_count, &count)) {
        return false;
    }
    bool found = vocabulary_find(bpe->vocabulary, raw + *raw_count, count, id);
    *raw_count += count;
    return found;
}

enum status bpe_add_merge(struct bpe *bpe, uint32_t rank, const char *left, size_t left_bytes,
                          const char *right, size_t right_bytes, struct error *err) {
    INVARIANT(rank < BOUND_MERGES);
    uint8_t raw[2 * BOUND_TOKEN_BYTES];
    size_t raw_count = 0;
    uint32_t left_id = 0;
    uint32_t right_id = 0;
    uint32_t merged = 0;
    if (!half(bpe, left, left_bytes, raw, &raw_count, &left_id) ||
        !half(bpe, right, right_bytes, raw, &raw_count, &right_id) ||
        !vocabulary_find(bpe->vocabulary, raw, raw_count, &merged)) {
        return error_set(err, STATUS_CORRUPT,
                         "merge %u joins '%.*s' and '%.*s', which are not tokens, or whose "
                         "joint is none",
                         rank, (int)(left_bytes > 64 ? 64 : left_bytes), left,
                         (int)(right_bytes > 64 ? 64 : right_bytes), right);
    }
    if (raw_count > bpe->symbols_max) {
        bpe->symbols_max = (uint32_t)raw_count;
    }
    struct bpe_slot *slot = slot_of(bpe, left_id, right_id);
    *slot = (struct bpe_slot){
        .pair = (uint64_t)left_id << 32 | right_id, .rank = rank, .merged = merged};
    return STATUS_OK;
}

// ---- short words -------------------------------------------------------------------------------

struct short_symbol {
    uint32_t id;
    uint32_t rank;      // of the pair (this, next one)
    uint32_t merged;    // what that pair becomes
};

struct short_word {
    struct short_symbol symbols[BPE_SHORT];
    uint32_t count;
};

static void short_pair(const struct bpe *bpe, struct short_word *word, uint32_t i) {
    struct short_symbol *s = &word->symbols[i];
    s->rank = NO_RANK;
    if (i + 1 < word->count) {
        const struct bpe_slot *slot = slot_of(bpe, s->id, s[1].id);
        s->rank = slot->rank;
        s->merged = slot->merged;
    }
}

// Merges in place; symbols[0 .. count) are the tokens afterwards.
static void short_merge(const struct bpe *bpe, struct short_word *word) {
    struct short_symbol *symbols = word->symbols;
    for (uint32_t i = 0; i < word->count; i++) {
        short_pair(bpe, word, i);
    }
    while (word->count > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < word->count; i++) {
            if (symbols[i].rank < symbols[best].rank) {
                best = i;
            }
        }
        if (symbols[best].rank == NO_RANK) {
            break;
        }
        symbols[best].id = symbols[best].merged;
        memmove(&symbols[best + 1], &symbols[best + 2], (word->count - best - 2) * sizeof *symbols);
        word->count--;
        short_pair(bpe, word, best);
        if (best > 0) {
            short_pair(bpe, word, best - 1);
        }
    }
}

// ---- long words --------------------------------------------------------------------------------

struct symbol {
    uint32_t id;
    uint32_t prev;    // index, or NONE
    uint32_t next;    // index, or NONE
    uint32_t rank;    // of the pair (this, next); NO_RANK when there is none or it was merged away
    uint32_t merged;
};

// Heap keys are rank << 32 | position: the smallest is the pair to merge, leftmost among equals. A
// key is stale when the symbol at its position no longer has that rank.
struct long_word {
    struct symbol *symbols;
    uint64_t *heap;
    size_t heap_count;
};

static void heap_down(uint64_t *heap, size_t count, size_t i) {
    uint64_t key = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= key) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
}

static void heap_push(struct long_word *word, uint64_t key) {
    size_t i = word->heap_count++;
    while (i > 0 && word->heap[(i - 1) / 2] > key) {
        word->heap[i] = word->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    word->heap[i] = key;
}

static uint64_t heap_pop(struct long_word *word) {
    uint64_t top = word->heap[0];
    word->heap_count--;
    if (word->heap_count > 0) {
        word->heap[0] = word->heap[word->heap_count];
        heap_down(word->heap, word->heap_count, 0);
    }
    return top;
}

// Looks the pair at `i` up; true when it can be merged.
static bool long_pair(const struct bpe *bpe, struct symbol *symbols, uint32_t i) {
    struct symbol *s = &symbols[i];
    s->rank = NO_RANK;
    if (s->next != NONE) {
        const struct bpe_slot *slot = slot_of(bpe, s->id, symbols[s->next].id);
        s->rank = slot->rank;
        s->merged = slot->merged;
    }
    return s->rank != NO_RANK;
}

static void long_merge(const struct bpe *bpe, struct long_word *word, uint32_t count) {
    struct symbol *symbols = word->symbols;
    for (uint32_t i = 0; i < count; i++) {
        if (long_pair(bpe, symbols, i)) {
            word->heap[word->heap_count++] = (uint64_t)symbols[i].rank << 32 | i;
        }
    }
    for (size_t i = word->heap_count / 2; i-- > 0;) {
        heap_down(word->heap, word->heap_count, i);
    }
    while (word->heap_count > 0) {
        uint64_t key = heap_pop(word);
        uint32_t at = (uint32_t)key;
        struct symbol *s = &symbols[at];
        if (s->rank != (uint32_t)(key >> 32)) {
            continue;
        }
        uint32_t gone = s->next;
        s->id = s->merged;
        s->next = symbols[gone].next;
        symbols[gone].rank = NO_RANK;
        if (s->next != NONE) {
            symbols[s->next].prev = at;
        }
        if (long_pair(bpe, symbols, at)) {
            heap_push(word, (uint64_t)s->rank << 32 | at);
        }
        if (s->prev != NONE && long_pair(bpe, symbols, s->prev)) {
            heap_push(word, (uint64_t)symbols[s->prev].rank << 32 | s->prev);
        }
    }
}

static enum status long_encode(const struct bpe *bpe, struct long_word *word, uint32_t count,
                               struct token_list *out, struct error *err) {
    for (uint32_t i = 0; i < count; i++) {
        word->symbols[i].prev = i == 0 ? NONE : i - 1;
        word->symbols[i].next = i + 1 == count ? NONE : i + 1;
    }
    long_merge(bpe, word, count);
    for (uint32_t i = 0; i != NONE; i = word->symbols[i].next) {
        TRY(token_list_push(out, word->symbols[i].id, err));
    }
    return STATUS_OK;
}

// ---- one word ----------------------------------------------------------------------------------

// The first symbols of a word, one per byte; bytes without a token become `unknown` or vanish.
static uint32_t symbol_of(const struct bpe *bpe, uint8_t byte, bool *previous_unknown) {
    uint32_t id = bpe->byte_token[byte];
    bool unknown = id == BPE_NO_TOKEN;
    if (unknown && !(bpe->fuse_unknown && *previous_unknown)) {
        id = bpe->unknown;
    }
    *previous_unknown = unknown;
    return id;
}

static void short_encode(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count,
                         struct short_word *word) {
    bool unknown = false;
    word->count = 0;
    for (size_t i = 0; i < byte_count; i++) {
        uint32_t id = symbol_of(bpe, bytes[i], &unknown);
        if (id != BPE_NO_TOKEN) {
            word->symbols[word->count++].id = id;
        }
    }
    short_merge(bpe, word);
}

static size_t count_symbols(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count) {
    size_t count = 0;
    bool unknown = false;
    for (size_t i = 0; i < byte_count; i++) {
        count += symbol_of(bpe, bytes[i], &unknown) != BPE_NO_TOKEN ? 1 : 0;
    }
    return count;
}

static enum status merge_long(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count,
                              struct token_list *out, struct error *err) {
    if (byte_count > BOUND_ENCODE_BYTES) {
        return error_set(err, STATUS_INVALID, "a word of %zu bytes is longer than %u", byte_count,
                         BOUND_ENCODE_BYTES);
    }
    // Megabytes without a break would be merged for seconds only to find that they do not fit.
    size_t room = out->count_max - out->count;
    if (byte_count / bpe->symbols_max > room &&
        count_symbols(bpe, bytes, byte_count) / bpe->symbols_max > room) {
        return error_set(err, STATUS_INVALID, "the text has more than %zu tokens", out->count_max);
    }
    // A merge takes one key out and puts at most two in, and there are fewer merges than symbols.
    struct long_word word = {.symbols = memory_array(byte_count, sizeof *word.symbols),
                             .heap = memory_array(byte_count, 2 * sizeof *word.heap)};
    enum status status = STATUS_OK;
    if (word.symbols == NULL || word.heap == NULL) {
        status =
            error_set(err, STATUS_EXHAUSTED, "no memory to encode a word of %zu bytes", byte_count);
        goto out;
    }
    uint32_t count = 0;
    bool unknown = false;
    for (size_t i = 0; i < byte_count; i++) {
        uint32_t id = symbol_of(bpe, bytes[i], &unknown);
        if (id != BPE_NO_TOKEN) {
            word.symbols[count++].id = id;
        }
    }
    if (count > 0) {
        status = long_encode(bpe, &word, count, out, err);
    }
out:
    memory_free(word.symbols);
    memory_free(word.heap);
    return status;
}

// Does the token's own spelling merge back into it? Most do, so a word that is a token can skip the
// merging; the few that do not were cut by hand or come from another vocabulary.
static bool merges_whole(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count,
                         uint32_t id) {
    unsigned char known = atomic_load_explicit(&bpe->whole[id], memory_order_relaxed);
    if (known == WHOLE_UNKNOWN) {
        struct short_word word;
        short_encode(bpe, bytes, byte_count, &word);
        known = word.count == 1 && word.symbols[0].id == id ? WHOLE_YES : WHOLE_NO;
        atomic_store_explicit(&bpe->whole[id], known, memory_order_relaxed);
    }
    return known == WHOLE_YES;
}

enum status bpe_word(const struct bpe *bpe, const uint8_t *bytes, size_t byte_count,
                     struct token_list *out, struct error *err) {
    uint32_t id = 0;
    if (byte_count <= BOUND_TOKEN_BYTES &&
        vocabulary_find(bpe->vocabulary, bytes, byte_count, &id)) {
        // A control token is never made out of text, not even where merges are ignored.
        if (bpe->ignore_merges && !vocabulary_has(bpe->vocabulary, id, TOKEN_SPECIAL)) {
            return token_list_push(out, id, err);
        }
        if (byte_count <= BPE_SHORT && merges_whole(bpe, bytes, byte_count, id)) {
            return token_list_push(out, id, err);
        }
    }
    if (byte_count > BPE_SHORT) {
        return merge_long(bpe, bytes, byte_count, out, err);
    }
    struct short_word word;
    short_encode(bpe, bytes, byte_count, &word);
    for (uint32_t i = 0; i < word.count; i++) {
        TRY(token_list_push(out, word.symbols[i].id, err));
    }
    return STATUS_OK;
}
