// SPDX-License-Identifier: Apache-2.0
// Encodes texts with our tokenizer, for the comparison scripts beside this file.
//
//   tokenize FILE [parse_special=0|1] [add_special=0|1] < texts > ids
//
// FILE is a GGUF file or a tokenizer.json. The input is a run of records: u32 length, bytes. The
// output has one record per text: u32 count, u32 ids. Decoding the ids must give the text back
// whenever the model does not normalise; the program checks that and says so on standard error,
// with the speed.
#include "common/gguf.h"
#include "common/json.h"
#include "common/memory.h"
#include "controller/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Processor time: the speed of one core, however busy the machine is.
static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *read_all(FILE *file, size_t *byte_count) {
    struct buf all;
    buf_init(&all, (size_t)1 << 31);
    uint8_t chunk[65536];
    for (size_t n = fread(chunk, 1, sizeof chunk, file); n > 0;
         n = fread(chunk, 1, sizeof chunk, file)) {
        buf_append(&all, chunk, n);
    }
    *byte_count = all.bytes_used;
    return all.data;
}

static enum status load(const char *path, struct tokenizer **out, struct error *err) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return error_set_os(err, STATUS_IO, "cannot open %s", path);
    }
    size_t byte_count = 0;
    void *bytes = read_all(file, &byte_count);
    fclose(file);
    enum status status;
    if (gguf_is_magic(bytes, byte_count)) {
        struct gguf *gguf = NULL;
        status = gguf_parse(bytes, byte_count, &gguf, err);
        if (status == STATUS_OK) {
            status = tokenizer_from_gguf(gguf, out, err);
        }
        gguf_destroy(gguf);
    } else {
        struct json_doc *doc = NULL;
        status = json_parse(bytes, byte_count, &doc, err);
        if (status == STATUS_OK) {
            status = tokenizer_from_json(json_root(doc), out, err);
        }
        json_destroy(doc);
    }
    memory_free(bytes);
    return status;
}

static bool decodes_back(const struct tokenizer *tokenizer, const struct token_list *list,
                         const uint8_t *text, size_t byte_count) {
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        size_t n = 0;
        const uint8_t *bytes = tokenizer_token_bytes(tokenizer, list->ids[i], &n);
        if (bytes == NULL || n > byte_count - at || memcmp(bytes, text + at, n) != 0) {
            return false;
        }
        at += n;
    }
    return at == byte_count;
}

int main(int argc, char **argv) {
    struct error err = {0};
    struct tokenizer *tokenizer = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: tokenize FILE [parse_special] [add_special]\n");
        return 2;
    }
    double start = now_s();
    if (load(argv[1], &tokenizer, &err) != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    double loaded = now_s();
    struct tokenizer_options options = {
        .parse_special = argc > 2 && strcmp(argv[2], "1") == 0,
        .add_special = argc > 3 && strcmp(argv[3], "1") == 0,
    };
    size_t byte_count = 0;
    uint8_t *input = read_all(stdin, &byte_count);
    size_t texts = 0;
    size_t text_bytes = 0;
    size_t tokens = 0;
    size_t lossy = 0;
    double seconds = 0;
    struct token_list list;
    token_list_init(&list, SIZE_MAX);
    for (size_t at = 0; at + 4 <= byte_count;) {
        uint32_t length = 0;
        memcpy(&length, input + at, 4);
        at += 4;
        if (length > byte_count - at) {
            fprintf(stderr, "a record is cut short\n");
            return 1;
        }
        list.count = 0;
        double before = now_s();
        if (tokenizer_encode(tokenizer, (const char *)input + at, length, options, &list, &err) !=
            STATUS_OK) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        seconds += now_s() - before;
        lossy += decodes_back(tokenizer, &list, input + at, length) ? 0 : 1;
        uint32_t count = (uint32_t)list.count;
        fwrite(&count, 4, 1, stdout);
        fwrite(list.ids, 4, list.count, stdout);
        at += length;
        texts++;
        text_bytes += length;
        tokens += list.count;
    }
    fprintf(stderr, "load %.0f ms, %zu texts, %zu bytes, %zu tokens, %zu lossy, %.1f MB/s\n",
            (loaded - start) * 1e3, texts, text_bytes, tokens, lossy,
            (double)text_bytes / 1e6 / (seconds > 0 ? seconds : 1e-9));
    token_list_deinit(&list);
    tokenizer_destroy(tokenizer);
    memory_free(input);
    return 0;
}
