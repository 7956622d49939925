// SPDX-License-Identifier: Apache-2.0
#include "controller/cli/words.h"

#include <stdio.h>
#include <string.h>

bool words_take(struct words *words, const char *name, const char **out) {
    const char *word = words->argv[words->at];
    size_t length = strlen(name);
    if (strncmp(word, name, length) != 0 || (word[length] != '\0' && word[length] != '=')) {
        return false;
    }
    if (word[length] == '=') {
        *out = word + length + 1;
    } else if (words->at + 1 < words->argc) {
        *out = words->argv[++words->at];
    } else {
        fprintf(stderr, "tare %s: %s needs a value\n", words->verb, name);
        words->wrong = true;
    }
    return true;
}

bool words_are(const struct words *words, const char *name, const char *other) {
    const char *word = words->argv[words->at];
    return strcmp(word, name) == 0 || strcmp(word, other) == 0;
}

bool words_take_json(struct words *words, const char *format) {
    if (format != NULL && strcmp(format, "json") != 0) {
        fprintf(stderr, "tare %s: -o %s: json is the only other form\n", words->verb, format);
        words->wrong = true;
    }
    return !words->wrong;
}

void words_unknown(struct words *words) {
    fprintf(stderr, "tare %s: '%s' is not known here\n", words->verb, words->argv[words->at]);
    words->wrong = true;
}
