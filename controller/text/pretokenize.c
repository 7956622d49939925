// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "controller/text/pretokenize.h"

#include "common/bounds.h"
#include "common/invariant.h"
#include "common/memory.h"
#include "controller/text/unicode.h"
#include <pcre2.h>
#include <string.h>

enum stage_kind { STAGE_RULE, STAGE_REGEX, STAGE_PREFIX_SPACE };

struct stage {
    enum stage_kind kind;
    enum pretokenize_rule rule;
    bool matches_only;
    pcre2_code *code;
};

struct pretokenizer {
    struct stage stages[BOUND_PRETOKENIZER_STAGES];
    uint32_t stage_count;
};

// One run over one text: the caller's function, and what pcre2 needs per thread.
struct job {
    const struct pretokenizer *pre;
    pretoken_fn fn;
    void *context;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char *pretokenize_pattern(enum pretokenize_rule rule) {
    switch (rule) {
    case PRETOKENIZE_GPT2:
        return CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    case PRETOKENIZE_LLAMA3:
        return "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
               "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
    case PRETOKENIZE_QWEN2:
        return "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
               "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
    case PRETOKENIZE_QWEN35:
        return "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
               "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
    case PRETOKENIZE_DIGIT:
        return "\\p{N}";
    case PRETOKENIZE_DIGITS:
        return "\\p{N}+";
    case PRETOKENIZE_RULE_COUNT:
        break;
    }
    return NULL;
}

// ---- life cycle --------------------------------------------------------------------------------

struct pretokenizer *pretokenizer_create(void) {
    return memory_zalloc(sizeof(struct pretokenizer));
}

void pretokenizer_destroy(struct pretokenizer *pre) {
    if (pre == NULL) {
        return;
    }
    for (uint32_t i = 0; i < pre->stage_count; i++) {
        pcre2_code_free(pre->stages[i].code);
    }
    memory_free(pre);
}

static enum status add_stage(struct pretokenizer *pre, const struct stage *stage,
                             struct error *err) {
    if (pre->stage_count == BOUND_PRETOKENIZER_STAGES) {
        return error_set(err, STATUS_UNSUPPORTED, "the pre-tokenizer has more than %u stages",
                         BOUND_PRETOKENIZER_STAGES);
    }
    pre->stages[pre->stage_count++] = *stage;
    return STATUS_OK;
}

enum status pretokenizer_add_rule(struct pretokenizer *pre, enum pretokenize_rule rule,
                                  struct error *err) {
    return add_stage(pre, &(struct stage){.kind = STAGE_RULE, .rule = rule}, err);
}

enum status pretokenizer_add_prefix_space(struct pretokenizer *pre, struct error *err) {
    return add_stage(pre, &(struct stage){.kind = STAGE_PREFIX_SPACE}, err);
}

static bool known_rule(const char *pattern, size_t byte_count, enum pretokenize_rule *out) {
    for (int i = 0; i < PRETOKENIZE_RULE_COUNT; i++) {
        const char *known = pretokenize_pattern((enum pretokenize_rule)i);
        if (strlen(known) == byte_count && memcmp(known, pattern, byte_count) == 0) {
            *out = (enum pretokenize_rule)i;
            return true;
        }
    }
    return false;
}

enum status pretokenizer_add_regex(struct pretokenizer *pre, const char *pattern, size_t byte_count,
                                   bool matches_only, struct error *err) {
    if (byte_count > BOUND_REGEX_BYTES) {
        return error_set(err, STATUS_UNSUPPORTED,
                         "a pre-tokenizer pattern has %zu bytes; the limit is %u", byte_count,
                         BOUND_REGEX_BYTES);
    }
    enum pretokenize_rule rule;
    if (!matches_only && known_rule(pattern, byte_count, &rule)) {
        return pretokenizer_add_rule(pre, rule, err);
    }
    int code = 0;
    PCRE2_SIZE offset = 0;
    // \C would let a match end inside a character.
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, byte_count,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (compiled == NULL) {
        PCRE2_UCHAR text[128] = {0};
        pcre2_get_error_message(code, text, sizeof text);
        return error_set(err, STATUS_UNSUPPORTED,
                         "a pre-tokenizer pattern does not compile at byte %zu: %s", (size_t)offset,
                         (const char *)text);
    }
    // Without the just-in-time compiler the interpreter does the same, only slower.
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    struct stage stage = {.kind = STAGE_REGEX, .matches_only = matches_only, .code = compiled};
    enum status status = add_stage(pre, &stage, err);
    if (status != STATUS_OK) {
        pcre2_code_free(compiled);
    }
    return status;
}

// ---- running -----------------------------------------------------------------------------------

static enum status run_stage(struct job *job, uint32_t index, const uint8_t *bytes,
                             size_t byte_count, struct error *err);

static enum status run_rule(struct job *job, uint32_t index, const uint8_t *bytes,
                            size_t byte_count, struct error *err) {
    enum pretokenize_rule rule = job->pre->stages[index].rule;
    for (size_t at = 0; at < byte_count;) {
        size_t end = pretokenize_scan(rule, bytes, byte_count, at);
        INVARIANT(end > at);
        TRY(run_stage(job, index + 1, bytes + at, end - at, err));
        at = end;
    }
    return STATUS_OK;
}

static enum status run_prefix_space(struct job *job, uint32_t index, const uint8_t *bytes,
                                    size_t byte_count, struct error *err) {
    if (byte_count == 0 || bytes[0] == ' ') {
        return run_stage(job, index + 1, bytes, byte_count, err);
    }
    uint8_t *copy = memory_alloc(byte_count + 1);
    if (copy == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for %zu bytes of text", byte_count);
    }
    copy[0] = ' ';
    memcpy(copy + 1, bytes, byte_count);
    enum status status = run_stage(job, index + 1, copy, byte_count + 1, err);
    memory_free(copy);
    return status;
}

static enum status match_at(struct job *job, const struct stage *stage, const uint8_t *bytes,
                            size_t byte_count, size_t at, bool *found, struct error *err) {
    // The caller has checked the UTF-8 once; checking it in every call would be quadratic.
    int rc = pcre2_match(stage->code, bytes, byte_count, at, PCRE2_NO_UTF_CHECK, job->match,
                         job->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(stage->code, bytes, byte_count, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         job->match, job->limits);
    }
    *found = rc >= 0;
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
        return error_set(err, STATUS_INVALID,
                         "the model's pre-tokenizer pattern gave up on this text (pcre2 error %d)",
                         rc);
    }
    return STATUS_OK;
}

// `bytes` is valid UTF-8.
static enum status run_valid(struct job *job, uint32_t index, const uint8_t *bytes,
                             size_t byte_count, struct error *err) {
    const struct stage *stage = &job->pre->stages[index];
    size_t done = 0;
    size_t from = 0;
    while (from < byte_count) {
        bool found = false;
        TRY(match_at(job, stage, bytes, byte_count, from, &found, err));
        if (!found) {
            break;
        }
        // A later stage may use the match data, so both ends are read before it runs.
        size_t start = pcre2_get_ovector_pointer(job->match)[0];
        size_t end = pcre2_get_ovector_pointer(job->match)[1];
        if (end <= start || start < from) {    // an empty match: step over one character
            uint32_t code = 0;
            from += unicode_decode(bytes + from, byte_count - from, &code);
            continue;
        }
        if (start > done && !stage->matches_only) {
            TRY(run_stage(job, index + 1, bytes + done, start - done, err));
        }
        TRY(run_stage(job, index + 1, bytes + start, end - start, err));
        done = end;
        from = end;
    }
    if (done < byte_count && !stage->matches_only) {
        TRY(run_stage(job, index + 1, bytes + done, byte_count - done, err));
    }
    return STATUS_OK;
}

static enum status job_prepare(struct job *job, struct error *err) {
    if (job->match != NULL) {
        return STATUS_OK;
    }
    job->match = pcre2_match_data_create(1, NULL);
    job->limits = pcre2_match_context_create(NULL);
    if (job->match == NULL || job->limits == NULL) {
        return error_set(err, STATUS_EXHAUSTED, "no memory for a pattern match");
    }
    pcre2_set_match_limit(job->limits, BOUND_REGEX_STEPS);
    pcre2_set_heap_limit(job->limits, BOUND_REGEX_HEAP_KIB);
    return STATUS_OK;
}

static enum status run_regex(struct job *job, uint32_t index, const uint8_t *bytes,
                             size_t byte_count, struct error *err) {
    TRY(job_prepare(job, err));
    for (size_t at = 0; at < byte_count;) {
        size_t start = at;
        uint32_t code = 0;
        size_t length = unicode_decode(bytes + at, byte_count - at, &code);
        bool broken = code == UNICODE_BROKEN;
        while (at < byte_count && (code == UNICODE_BROKEN) == broken) {
            at += length;
            if (at < byte_count) {
                length = unicode_decode(bytes + at, byte_count - at, &code);
            }
        }
        if (broken) {
            TRY(run_stage(job, index + 1, bytes + start, at - start, err));
        } else {
            TRY(run_valid(job, index, bytes + start, at - start, err));
        }
    }
    return STATUS_OK;
}

// Recursion is bounded by BOUND_PRETOKENIZER_STAGES.
static enum status run_stage(struct job *job, uint32_t index, const uint8_t *bytes,
                             size_t byte_count, struct error *err) {
    if (byte_count == 0) {
        return STATUS_OK;
    }
    if (index == job->pre->stage_count) {
        return job->fn(job->context, bytes, byte_count, err);
    }
    switch (job->pre->stages[index].kind) {
    case STAGE_RULE:
        return run_rule(job, index, bytes, byte_count, err);
    case STAGE_REGEX:
        return run_regex(job, index, bytes, byte_count, err);
    case STAGE_PREFIX_SPACE:
        return run_prefix_space(job, index, bytes, byte_count, err);
    }
    UNREACHABLE();
}

enum status pretokenize_run(const struct pretokenizer *pre, const uint8_t *bytes, size_t byte_count,
                            pretoken_fn fn, void *context, struct error *err) {
    struct job job = {.pre = pre, .fn = fn, .context = context};
    enum status status = run_stage(&job, 0, bytes, byte_count, err);
    pcre2_match_data_free(job.match);
    pcre2_match_context_free(job.limits);
    return status;
}
