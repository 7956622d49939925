// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a controller left: as records of a journal, as what an entry began with, and as
// the items of its steps. What is read lies inside the bytes, and what is written is read again.
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/http/api_journal.h"
#include "controller/journal.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool inside(const void *at, size_t byte_count, const uint8_t *data, size_t size) {
    const uint8_t *from = at;
    return byte_count == 0 ||
           (from >= data && from <= data + size && byte_count <= size - (size_t)(from - data));
}

static void read_entry(const uint8_t *data, size_t size) {
    struct api_begin begin;
    if (api_begin_decode(data, size, &begin)) {
        INVARIANT(inside(begin.body.text, begin.body.byte_count, data, size));
        INVARIANT(inside(begin.chunk_head.text, begin.chunk_head.byte_count, data, size));
        INVARIANT(inside(begin.output_max, begin.choice_count * sizeof(uint32_t), data, size));
        INVARIANT(begin.kind <= API_CALL_KIND_CHAT && begin.class_ < REQUEST_CLASS_COUNT);
        for (uint32_t i = 0; i < begin.choice_count; i++) {
            (void)api_begin_output_max(&begin, i);
        }
    }
    struct api_item item;
    for (size_t at = 0; api_item_next(data, size, &at, &item);) {
        INVARIANT(at <= size);
        INVARIANT(item.kind >= API_ITEM_KIND_TOKEN && item.kind <= API_ITEM_KIND_CACHED);
        INVARIANT(item.row.top_count <= BOUND_LOGPROBS);
    }
}

// Records with right checksums, of kinds and payloads that the bytes choose.
static void write_and_read(const uint8_t *data, size_t size) {
    struct buf out;
    buf_init(&out, 1u << 24);
    uint32_t written = 0;
    for (size_t at = 0; at + 2 <= size;) {
        size_t length = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;
        const struct journal_record record = {(enum journal_kind)(data[at] % 4 + 1), data[at],
                                              data + at + 2, length};
        journal_put(&out, &record);
        written++;
        at += 2 + length;
    }
    struct journal_record record;
    uint32_t found = 0;
    for (size_t at = 0; journal_next(out.data, out.bytes_used, &at, &record); found++) {
        INVARIANT(inside(record.payload, record.payload_bytes, out.data, out.bytes_used));
        read_entry(record.payload, record.payload_bytes);
    }
    INVARIANT(found == written);
    buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = memory_alloc(size + 1);    // exact bounds for the sanitizer
    memcpy(copy, data, size);
    struct journal_record record;
    for (size_t at = 0; journal_next(copy, size, &at, &record);) {
        INVARIANT(inside(record.payload, record.payload_bytes, copy, size));
    }
    read_entry(copy, size);
    write_and_read(copy, size);
    memory_free(copy);
    return 0;
}
