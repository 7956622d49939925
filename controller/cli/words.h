// SPDX-License-Identifier: Apache-2.0
#ifndef CONTROLLER_CLI_WORDS_H
#define CONTROLLER_CLI_WORDS_H

#include <stdbool.h>

// The words of a command, one after the other, for verbs with a few flags of their own.
//
//   Owns nothing.  Thread the main thread.  Allocates never.
//   Fails after saying on stderr which word is wrong: `wrong` is set then.

struct words {
    const char *verb;    // for messages: "resize"
    int argc;
    char **argv;
    int at;    // the word that is looked at; 1 is the first
    bool wrong;
};

// True when the word is `name VALUE` or `name=VALUE`, and when a value is missing, which is wrong.
bool words_take(struct words *words, const char *name, const char **out);
bool words_are(const struct words *words, const char *name, const char *other);
// `-o FORMAT`: true for json, and wrong for others. NULL is a value that was missing.
bool words_take_json(struct words *words, const char *format);
// The word is nothing that the verb knows.
void words_unknown(struct words *words);

#endif
