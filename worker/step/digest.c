// SPDX-License-Identifier: Apache-2.0
#include "worker/step/digest.h"

#include "common/hash.h"
#include <string.h>

uint64_t digest_mix(uint64_t digest, uint64_t value) {
    return hash_u64(digest ^ hash_u64(value));
}

uint64_t digest_block(uint32_t index, uint32_t block) {
    return hash_u64((uint64_t)index << 32 | block);
}

uint64_t digest_blocks(const uint32_t *blocks, uint32_t first, uint32_t count) {
    uint64_t sum = 0;
    for (uint32_t i = first; i < first + count; i++) {
        sum += digest_block(i, blocks[i]);
    }
    return sum;
}

static uint64_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint64_t digest_sampling(const struct sampling_params *sampling, const struct op_token_bias *bias) {
    const struct sampling_params *s = sampling;
    const uint64_t facts[] = {
        float_bits(s->temperature),
        float_bits(s->top_p),
        float_bits(s->min_p),
        s->top_k,
        float_bits(s->repetition_penalty),
        float_bits(s->presence_penalty),
        float_bits(s->frequency_penalty),
        s->seed,
        s->stream,
        (uint64_t)s->want_logprobs << 1 | (uint64_t)s->want_prompt_logprobs,
        s->top_logprobs,
        s->min_tokens,
        s->stop_token_count,
        s->bias_count,
    };
    uint64_t digest = 0;
    for (uint32_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        digest = digest_mix(digest, facts[i]);
    }
    for (uint32_t i = 0; i < s->stop_token_count; i++) {
        digest = digest_mix(digest, (uint32_t)s->stop_tokens[i]);
    }
    for (uint32_t i = 0; i < s->bias_count; i++) {
        digest =
            digest_mix(digest, (uint64_t)(uint32_t)bias[i].token << 32 | float_bits(bias[i].bias));
    }
    return digest;
}

uint64_t digest_rows(const struct result_row *rows, uint32_t count) {
    uint64_t digest = count;
    for (uint32_t i = 0; i < count; i++) {
        digest = digest_mix(digest, (uint64_t)rows[i].ref.slot << 32 | rows[i].ref.gen);
        digest = digest_mix(digest, (uint64_t)rows[i].position << 32 | (uint32_t)rows[i].token);
    }
    return digest;
}
