// SPDX-License-Identifier: Apache-2.0
// Goal: what is encoded is decoded equal; what is broken is refused and never read past its end.
// Method: round trips of full messages; every truncation and thousands of random damages of them.
#include "common/crc32c.h"
#include "common/rng.h"
#include "proto/codec.h"
#include "tests/unit/suites.h"

#include <string.h>

struct parts {
    struct arena arena;
    struct buf out;
};

static void parts_init(struct parts *p) {
    arena_init(&p->arena, 1 << 20);
    buf_init(&p->out, 1 << 20);
}

static void parts_deinit(struct parts *p) {
    arena_deinit(&p->arena);
    buf_deinit(&p->out);
}

static const struct token_bias bias[2] = {{5, -1.5f}, {7, 100.0f}};
static const uint32_t block_ids[3] = {9, 1, 4};
static const int32_t prompt_tokens[4] = {3, 1, 4, 1};
static const struct plan_move moves[2] = {{{2, 77}, 1, 0}, {{1, 5}, 0, 2}};

static struct plan full_plan(struct plan_admit *admit, struct plan_update *update,
                             struct plan_retire *retire, struct plan_prefill *prefill) {
    *admit = (struct plan_admit){.ref = {2, 77},
                                 .prompt_tokens = 4,
                                 .len_max = 20,
                                 .block_count = 3,
                                 .blocks = block_ids,
                                 .sampling = {.temperature = 0.7f,
                                              .top_p = 0.9f,
                                              .min_p = 0.1f,
                                              .top_k = 40,
                                              .repetition_penalty = 1.1f,
                                              .presence_penalty = -0.5f,
                                              .frequency_penalty = 0.25f,
                                              .seed = UINT64_MAX,
                                              .stream = 3,
                                              .want_logprobs = true,
                                              .want_prompt_logprobs = true,
                                              .top_logprobs = 20,
                                              .min_tokens = 2,
                                              .stop_token_count = 2,
                                              .stop_tokens = {2, 0},
                                              .bias_count = 2,
                                              .bias = bias}};
    *update = (struct plan_update){{1, 5}, 1, block_ids, true, false};
    *retire = (struct plan_retire){{0, 4}};
    *prefill = (struct plan_prefill){{2, 77}, 0, 4, prompt_tokens, 8, false};
    return (struct plan){.group = 1,
                         .epoch = 1234567890123u,
                         .seq = 42,
                         .decode_rows = 3,
                         .admit_count = 1,
                         .update_count = 1,
                         .retire_count = 1,
                         .prefill_count = 1,
                         .admits = admit,
                         .updates = update,
                         .retires = retire,
                         .prefills = prefill,
                         .move_count = 2,
                         .moves = moves,
                         .kv_blocks = 12};
}

static void encode_full_plan(struct parts *p) {
    struct plan_admit admit;
    struct plan_update update;
    struct plan_retire retire;
    struct plan_prefill prefill;
    struct plan plan = full_plan(&admit, &update, &retire, &prefill);
    ck_assert_int_eq(codec_plan_encode(&plan, &p->arena, &p->out, NULL), STATUS_OK);
}

START_TEST(a_plan_survives_the_wire) {
    struct parts p;
    parts_init(&p);
    encode_full_plan(&p);
    struct message_header header;
    const uint8_t *body = NULL;
    struct plan plan;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_OK);
    ck_assert_int_eq(codec_plan_decode(&header, body, &p.arena, &plan, NULL), STATUS_OK);
    ck_assert_uint_eq(plan.epoch, 1234567890123u);
    ck_assert_uint_eq(plan.seq, 42);
    const struct plan_admit *admit = &plan.admits[0];
    ck_assert_uint_eq(admit->ref.gen, 77);
    ck_assert_mem_eq(admit->blocks, block_ids, sizeof block_ids);
    ck_assert(admit->sampling.temperature == 0.7f && admit->sampling.presence_penalty == -0.5f);
    ck_assert_uint_eq(admit->sampling.seed, UINT64_MAX);
    ck_assert_int_eq(admit->sampling.stop_tokens[0], 2);
    ck_assert_uint_eq(admit->sampling.bias_count, 2);
    ck_assert(admit->sampling.bias[1].bias == 100.0f && admit->sampling.bias[1].token == 7);
    ck_assert(plan.updates[0].pause && !plan.updates[0].resume);
    ck_assert_uint_eq(plan.retires[0].ref.gen, 4);
    ck_assert_mem_eq(plan.prefills[0].tokens, prompt_tokens, sizeof prompt_tokens);
    ck_assert_int_eq(plan.prefills[0].next_token, 8);
    ck_assert_uint_eq(plan.move_count, 2);
    ck_assert_mem_eq(plan.moves, moves, sizeof moves);
    ck_assert_uint_eq(plan.kv_blocks, 12);
    parts_deinit(&p);
}
END_TEST

START_TEST(a_result_survives_the_wire) {
    struct parts p;
    parts_init(&p);
    const int32_t top_tokens[2] = {8, 9};
    const float top_logprobs[2] = {-0.5f, -1.5f};
    struct result_row rows[3] = {
        {.ref = {1, 2},
         .position = 10,
         .token = 8,
         .has_logprob = true,
         .logprob = -0.5f,
         .rank = 1,
         .top_count = 2,
         .top_tokens = top_tokens,
         .top_logprobs = top_logprobs},
        {.ref = {2, 3}, .position = 11, .token = 4},
        {.ref = {3, 4},
         .position = 1,
         .token = 9,
         .is_prompt = true,
         .has_logprob = true,
         .logprob = -1.5f,
         .rank = 2,
         .top_count = 1,
         .top_tokens = top_tokens,
         .top_logprobs = top_logprobs},
    };
    struct step_result in = {.group = 1,
                             .epoch = 7,
                             .seq = 9,
                             .status = RESULT_STATUS_OK,
                             .applied_seq = 9,
                             .step_us = 1234,
                             .row_count = 3,
                             .rows = rows,
                             .message = "",
                             .digest = UINT64_MAX - 1};
    ck_assert_int_eq(codec_result_encode(&in, &p.arena, &p.out, NULL), STATUS_OK);
    struct message_header header;
    const uint8_t *body = NULL;
    struct step_result out;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_OK);
    ck_assert_int_eq(codec_result_decode(&header, body, &p.arena, &out, NULL), STATUS_OK);
    ck_assert_uint_eq(out.row_count, 3);
    ck_assert_int_eq(out.rows[0].top_tokens[1], 9);
    ck_assert_uint_eq(out.rows[1].top_count, 0);
    ck_assert(out.rows[2].is_prompt && out.rows[2].top_logprobs[0] == -0.5f);
    ck_assert_uint_eq(out.step_us, 1234);
    ck_assert_uint_eq(out.digest, UINT64_MAX - 1);
    parts_deinit(&p);
}
END_TEST

START_TEST(a_capacity_report_survives_the_wire) {
    struct parts p;
    parts_init(&p);
    const struct ledger_line lines[2] = {{"weights", 1000, true}, {"context", 5, false}};
    struct control_message in = {
        .kind = MESSAGE_KIND_CAPACITY,
        .address = {.epoch = 3},
        .capacity = {.envelope = {512, 64, 8192, 512, 512, 256, 300, 0, 8000, 500000},
                     .kv_note = "64 bytes are missing",
                     .device_bytes = 9000000000,
                     .budget_bytes = 8000000000,
                     .foreign_bytes = 70000,
                     .kv_stamp = 0x0123456789abcdef,
                     .block_tokens = 32,
                     .kv_blocks = 700,
                     .kv_bytes_per_token = 23040,
                     .vocabulary = 49152,
                     .parameters = 134515008,
                     .kv_dtype = "float16",
                     .threads = 2,
                     .tiles = {64, 512, 256, 24},
                     .line_count = 2,
                     .lines = lines},
    };
    ck_assert_int_eq(codec_control_encode(&in, &p.arena, &p.out, NULL), STATUS_OK);
    struct message_header header;
    const uint8_t *body = NULL;
    struct control_message out;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_OK);
    ck_assert_int_eq(codec_control_decode(&header, body, &p.arena, &out, NULL), STATUS_OK);
    ck_assert_int_eq(out.kind, MESSAGE_KIND_CAPACITY);
    ck_assert_uint_eq(out.capacity.envelope.blocks_per_seq, 256);
    ck_assert_uint_eq(out.capacity.envelope.logprob_rows, 300);
    ck_assert_uint_eq(out.capacity.envelope.attended_tokens_max, 8000);
    ck_assert_uint_eq(out.capacity.envelope.attended_tokens, 500000);
    ck_assert_uint_eq(out.capacity.tiles.logit_rows, 64);
    ck_assert_uint_eq(out.capacity.tiles.mlp_rows, 512);
    ck_assert_uint_eq(out.capacity.tiles.matmul_rows, 256);
    ck_assert_uint_eq(out.capacity.tiles.attention_parts, 24);
    ck_assert_str_eq(out.capacity.kv_note, "64 bytes are missing");
    ck_assert_uint_eq(out.capacity.device_bytes, 9000000000);
    ck_assert_uint_eq(out.capacity.budget_bytes, 8000000000);
    ck_assert_uint_eq(out.capacity.foreign_bytes, 70000);
    ck_assert_uint_eq(out.capacity.kv_stamp, 0x0123456789abcdef);
    ck_assert_str_eq(out.capacity.lines[0].name, "weights");
    ck_assert_uint_eq(out.capacity.lines[0].bytes, 1000);
    ck_assert_int_eq(capacity_validate(&out.capacity, NULL), STATUS_OK);
    parts_deinit(&p);
}
END_TEST

// Encodes and decodes; the decoded strings lie in the parts' arena.
static enum status pass(struct parts *p, const struct control_message *in,
                        struct control_message *out, struct error *err) {
    buf_reset(&p->out);
    struct message_header header;
    const uint8_t *body = NULL;
    ck_assert_int_eq(codec_control_encode(in, &p->arena, &p->out, NULL), STATUS_OK);
    ck_assert_int_eq(codec_header_decode(p->out.data, p->out.bytes_used, &header, &body, NULL),
                     STATUS_OK);
    return codec_control_decode(&header, body, &p->arena, out, err);
}

#define COMM_ID "0123456789abcdef0123456789abcdef"

START_TEST(joining_a_group_survives_the_wire) {
    struct parts p;
    parts_init(&p);
    struct control_message out;
    const struct control_message hello = {.kind = MESSAGE_KIND_HELLO,
                                          .address = {.epoch = 41},
                                          .hello = {.worker_id = "g3r5",
                                                    .build = "b",
                                                    .device = "cpu",
                                                    .model_name = "m",
                                                    .model_digest = "aa",
                                                    .config_digest = "bb",
                                                    .pid = 77,
                                                    .group = 3,
                                                    .rank = 5,
                                                    .world = 8}};
    ck_assert_int_eq(pass(&p, &hello, &out, NULL), STATUS_OK);
    ck_assert_uint_eq(out.address.epoch, 41);
    ck_assert_str_eq(out.hello.model_digest, "aa");
    ck_assert_str_eq(out.hello.config_digest, "bb");
    ck_assert_uint_eq(out.hello.group, 3);
    ck_assert_uint_eq(out.hello.rank, 5);
    ck_assert_uint_eq(out.hello.world, 8);
    const struct control_message welcome = {.kind = MESSAGE_KIND_WELCOME,
                                            .welcome = {.epoch = UINT64_MAX,
                                                        .group = 3,
                                                        .rank = 5,
                                                        .world = 8,
                                                        .lease_ms = 1000,
                                                        .comm_id = COMM_ID}};
    ck_assert_int_eq(pass(&p, &welcome, &out, NULL), STATUS_OK);
    ck_assert_uint_eq(out.welcome.epoch, UINT64_MAX);
    ck_assert_uint_eq(out.welcome.group, 3);
    ck_assert_uint_eq(out.welcome.rank, 5);
    ck_assert_uint_eq(out.welcome.world, 8);
    ck_assert_str_eq(out.welcome.comm_id, COMM_ID);
    const struct control_message abort = {.kind = MESSAGE_KIND_ABORT,
                                          .abort = {.epoch = 9, .reason = "rank 3 is lost"}};
    ck_assert_int_eq(pass(&p, &abort, &out, NULL), STATUS_OK);
    ck_assert_uint_eq(out.abort.epoch, 9);
    ck_assert_str_eq(out.abort.reason, "rank 3 is lost");
    parts_deinit(&p);
}
END_TEST

// The id becomes part of a file's name, and the rank an index.
START_TEST(impossible_welcomes_are_refused) {
    static const struct message_welcome welcomes[] = {
        {.world = 1, .comm_id = "0123456789abcdef0123456789abcde"},
        {.world = 1, .comm_id = COMM_ID "0"},
        {.world = 1, .comm_id = "../../../../../../../../../etc/x"},
        {.world = 1, .comm_id = "0123456789ABCDEF0123456789ABCDEF"},
        {.world = 1, .comm_id = NULL},
        {.world = 0, .comm_id = COMM_ID},
        {.world = BOUND_RANKS + 1, .comm_id = COMM_ID},
        {.world = 2, .rank = 2, .comm_id = COMM_ID},
        {.world = 1, .group = BOUND_GROUPS, .comm_id = COMM_ID},
    };
    struct parts p;
    parts_init(&p);
    for (size_t i = 0; i < sizeof welcomes / sizeof welcomes[0]; i++) {
        const struct control_message in = {.kind = MESSAGE_KIND_WELCOME, .welcome = welcomes[i]};
        struct control_message out;
        struct error err = {0};
        ck_assert_int_eq(pass(&p, &in, &out, &err), STATUS_CORRUPT);
        ck_assert_ptr_nonnull(strstr(err.message, "a welcome"));
    }
    parts_deinit(&p);
}
END_TEST

START_TEST(every_truncation_is_refused) {
    struct parts p;
    parts_init(&p);
    encode_full_plan(&p);
    for (size_t length = 0; length < p.out.bytes_used; length++) {
        struct message_header header;
        const uint8_t *body = NULL;
        ck_assert_int_eq(codec_header_decode(p.out.data, length, &header, &body, NULL),
                         STATUS_CORRUPT);
    }
    parts_deinit(&p);
}
END_TEST

START_TEST(another_version_and_an_unknown_kind_are_refused) {
    struct parts p;
    parts_init(&p);
    encode_full_plan(&p);
    struct message_header header;
    const uint8_t *body = NULL;
    p.out.data[0] = MESSAGE_VERSION + 1;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_VERSION);
    p.out.data[0] = MESSAGE_VERSION;
    p.out.data[4] = MESSAGE_KIND_COUNT;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_CORRUPT);
    parts_deinit(&p);
}
END_TEST

// A damaged body with a checksum that fits it must decode to something the validators can judge, or
// be refused; the sanitizers watch.
START_TEST(damaged_bodies_never_break_the_reader) {
    struct parts p;
    parts_init(&p);
    encode_full_plan(&p);
    struct plan_limits limits = {{64, 8, 64, 64, 64, 4, 64, 0, 64, 512}, 16, 16, 100};
    struct rng rng;
    rng_init(&rng, 5);
    uint8_t copy[2048];
    ck_assert_uint_le(p.out.bytes_used, sizeof copy);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, p.out.data, p.out.bytes_used);
        size_t body_bytes = p.out.bytes_used - MESSAGE_HEADER_BYTES;
        for (uint64_t i = 1 + rng_below(&rng, 4); i > 0; i--) {
            copy[MESSAGE_HEADER_BYTES + rng_below(&rng, body_bytes)] = (uint8_t)rng_u64(&rng);
        }
        uint32_t crc = crc32c(copy + MESSAGE_HEADER_BYTES, body_bytes);
        memcpy(copy + 36, &crc, sizeof crc);
        struct message_header header;
        const uint8_t *body = NULL;
        struct plan plan;
        arena_reset(&p.arena);
        ck_assert_int_eq(codec_header_decode(copy, p.out.bytes_used, &header, &body, NULL),
                         STATUS_OK);
        if (codec_plan_decode(&header, body, &p.arena, &plan, NULL) == STATUS_OK) {
            enum status judged = plan_validate(&plan, &limits, NULL);
            ck_assert(judged == STATUS_OK || judged == STATUS_INVALID);
        }
    }
    parts_deinit(&p);
}
END_TEST

START_TEST(damaged_control_messages_never_break_the_reader) {
    const struct control_message messages[] = {
        {.kind = MESSAGE_KIND_HELLO,
         .hello = {.worker_id = "g0r1",
                   .build = "b",
                   .device = "cpu",
                   .model_name = "m",
                   .model_digest = "aa",
                   .config_digest = "bb",
                   .group = 1,
                   .rank = 1,
                   .world = 2}},
        {.kind = MESSAGE_KIND_WELCOME,
         .welcome = {.epoch = 3, .group = 1, .rank = 1, .world = 2, .comm_id = COMM_ID}},
        {.kind = MESSAGE_KIND_ABORT, .abort = {.epoch = 3, .reason = "rank 0 is lost"}},
    };
    struct parts p;
    parts_init(&p);
    struct rng rng;
    rng_init(&rng, 6);
    for (int round = 0; round < 15000; round++) {
        const struct control_message *in = &messages[round % 3];
        buf_reset(&p.out);
        arena_reset(&p.arena);
        ck_assert_int_eq(codec_control_encode(in, &p.arena, &p.out, NULL), STATUS_OK);
        size_t body_bytes = p.out.bytes_used - MESSAGE_HEADER_BYTES;
        for (uint64_t i = 1 + rng_below(&rng, 4); i > 0; i--) {
            p.out.data[MESSAGE_HEADER_BYTES + rng_below(&rng, body_bytes)] = (uint8_t)rng_u64(&rng);
        }
        uint32_t crc = crc32c(p.out.data + MESSAGE_HEADER_BYTES, body_bytes);
        memcpy(p.out.data + 36, &crc, sizeof crc);
        struct message_header header;
        const uint8_t *body = NULL;
        struct control_message out;
        ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                         STATUS_OK);
        enum status status = codec_control_decode(&header, body, &p.arena, &out, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_CORRUPT);
        if (status == STATUS_OK && out.kind == MESSAGE_KIND_WELCOME) {
            ck_assert_uint_lt(out.welcome.rank, out.welcome.world);
            ck_assert_uint_eq(strlen(out.welcome.comm_id), MESSAGE_COMM_ID_DIGITS);
        }
        if (status == STATUS_OK && out.kind == MESSAGE_KIND_HELLO) {
            enum status judged = hello_validate(&out.hello, NULL);
            ck_assert(judged == STATUS_OK || judged == STATUS_INVALID);
        }
    }
    parts_deinit(&p);
}
END_TEST

START_TEST(a_full_arena_is_an_answer) {
    struct parts p;
    parts_init(&p);
    encode_full_plan(&p);
    struct message_header header;
    const uint8_t *body = NULL;
    ck_assert_int_eq(codec_header_decode(p.out.data, p.out.bytes_used, &header, &body, NULL),
                     STATUS_OK);
    for (size_t cap = 0; cap < 2000; cap += 16) {
        struct arena small;
        struct plan plan;
        arena_init(&small, cap);
        enum status status = codec_plan_decode(&header, body, &small, &plan, NULL);
        ck_assert(status == STATUS_OK || status == STATUS_EXHAUSTED || status == STATUS_CORRUPT);
        arena_deinit(&small);
    }
    parts_deinit(&p);
}
END_TEST

START_TEST(crc_matches_the_published_value) {
    // RFC 3720 B.4: 32 bytes of zeroes give aa 36 91 8a, in this byte order.
    uint8_t zeroes[32] = {0};
    ck_assert_uint_eq(crc32c(zeroes, sizeof zeroes), 0x8A9136AAu);
    ck_assert_uint_eq(crc32c("123456789", 9), 0xE3069283u);
}
END_TEST

START_TEST(crc_is_the_same_with_and_without_the_instruction) {
    uint8_t bytes[67];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 37 + 11);
    }
    for (size_t start = 0; start < 8; start++) {
        for (size_t count = 0; count + start <= sizeof bytes; count++) {
            ck_assert_uint_eq(crc32c(bytes + start, count), crc32c_plain(bytes + start, count));
        }
    }
}
END_TEST

Suite *suite_codec(void) {
    Suite *suite = suite_create("proto/codec");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_plan_survives_the_wire);
    tcase_add_test(tc, a_result_survives_the_wire);
    tcase_add_test(tc, a_capacity_report_survives_the_wire);
    tcase_add_test(tc, joining_a_group_survives_the_wire);
    tcase_add_test(tc, impossible_welcomes_are_refused);
    tcase_add_test(tc, every_truncation_is_refused);
    tcase_add_test(tc, damaged_control_messages_never_break_the_reader);
    tcase_add_test(tc, another_version_and_an_unknown_kind_are_refused);
    tcase_add_test(tc, damaged_bodies_never_break_the_reader);
    tcase_add_test(tc, a_full_arena_is_an_answer);
    tcase_add_test(tc, crc_matches_the_published_value);
    tcase_add_test(tc, crc_is_the_same_with_and_without_the_instruction);
    suite_add_tcase(suite, tc);
    return suite;
}
