// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_BOUNDS_H
#define COMMON_BOUNDS_H

#include <stdint.h>

// Every limit of the system, in one place.
//
// The idea: each loop, queue and buffer has a bound with a unit, a reason and a policy when it is
// hit. Configuration may lower a bound, never raise it. Tests stand at the bound and one past it.
//
// Columns: value, then why this value, then what happens when it is hit.

// ---- text and JSON -----------------------------------------------------------------------------
// Real requests nest below 20; deeper ones are attacks on the parser's stack. Refuse (400).
#define BOUND_JSON_DEPTH 128u
// A model's vocabulary; the largest public one has 262,144. Refuse the model.
#define BOUND_VOCABULARY_TOKENS 1048576u
// One token's bytes. Refuse the model.
#define BOUND_TOKEN_BYTES 4096u
// One JSON file of a model directory; the largest public tokenizer.json has 33 MB. Refuse the
// model.
#define BOUND_MODEL_JSON_BYTES (256u * 1024 * 1024)
// Merges of a byte-level BPE; the largest public list has 446,189. Refuse the model.
#define BOUND_MERGES 4194304u
// Ids that encoding puts before or after a text (BOS and the like). Refuse the model.
#define BOUND_AFFIX_TOKENS 8u
// Stages of a pre-tokenizer; real ones have 1 to 4. Refuse the model.
#define BOUND_PRETOKENIZER_STAGES 8u
// A pre-tokenizer's regular expression; the longest public one has 700 bytes. Refuse the model.
#define BOUND_REGEX_BYTES 16384u
// Work and memory of one match of such an expression. Refuse the text (400).
#define BOUND_REGEX_STEPS 10000000u
#define BOUND_REGEX_HEAP_KIB 65536u
// One text to encode: offsets inside the merge loop are 32 bits wide. Refuse (400).
#define BOUND_ENCODE_BYTES (1024u * 1024 * 1024)
// A rendered prompt. Refuse (400).
#define BOUND_TEMPLATE_OUTPUT_BYTES (8u * 1024 * 1024)
// Steps of the template interpreter; a long agent history takes about 200,000. Refuse (400).
#define BOUND_TEMPLATE_STEPS 20000000u
// Memory for the values of one rendering. Refuse (400).
#define BOUND_TEMPLATE_MEMORY_BYTES (256u * 1024 * 1024)
// Nesting of values that a template builds; requests nest at most BOUND_JSON_DEPTH. Refuse (400).
#define BOUND_TEMPLATE_VALUE_DEPTH 256u
// Nesting of expressions and statements in a template's source. Refuse the model.
#define BOUND_TEMPLATE_NESTING 200u
// Nested evaluations while rendering, macros calling macros included. Refuse (400).
#define BOUND_TEMPLATE_CALLS 2000u
// Different names in one template; the largest public one has 150. Refuse the model.
#define BOUND_TEMPLATE_NAMES 4096u
// Elements of one range(); the sandbox of the reference has the same. Refuse (400).
#define BOUND_TEMPLATE_RANGE 100000u
// Source of one chat template; the longest public one is 20 KiB. Refuse the model.
#define BOUND_TEMPLATE_BYTES (1024u * 1024)

// ---- HTTP --------------------------------------------------------------------------------------
// Open client connections. Accept, answer 503, close.
#define BOUND_HTTP_CONNECTIONS 4096u
// Requests read in one turn of the loop, so that it ends soon. The rest waits for the next one.
#define BOUND_HTTP_TURN_REQUESTS 256u
// A turn that takes longer is slow: counted. One that takes longer yet, often: sockets are not
// read until it is better.
#define BOUND_TURN_SLOW_US 2000u
#define BOUND_TURN_OVERLOAD_US 5000u
// Request line and header fields. 431.
#define BOUND_HTTP_HEAD_BYTES (64u * 1024)
#define BOUND_HTTP_HEADER_FIELDS 128u
// Request body; a 1 M-token prompt is about 4 MiB. 413.
#define BOUND_HTTP_BODY_BYTES (32u * 1024 * 1024)
// One answer that the client has not taken yet; the largest are logprobs of long texts. Break it.
#define BOUND_HTTP_RESPONSE_BYTES (256u * 1024 * 1024)
// Request bodies of all connections together, while they are being received. 503.
#define BOUND_HTTP_BODIES_BYTES (512u * 1024 * 1024)
// Bytes read ahead while an answer is open (pipelining). Close.
#define BOUND_HTTP_READAHEAD_BYTES (64u * 1024)
// Unsent event-stream bytes of one connection for BOUND_HTTP_SLOW_CLIENT_US. Abort the request.
#define BOUND_HTTP_UNSENT_BYTES (1024u * 1024)
#define BOUND_HTTP_SLOW_CLIENT_US (10u * 1000 * 1000)
// Idle keep-alive; longer than common client pools keep a connection. Close.
#define BOUND_HTTP_IDLE_US (75u * 1000 * 1000)
// API keys, and names or origins given in one option. Refuse to start.
#define BOUND_API_KEYS 1024u
// Tenants that one core tells apart: keys, as many whose requests outlive them, and nobody's.
#define BOUND_TENANTS (2u * BOUND_API_KEYS + 1)
// A file of API keys, which is read as a whole. Refuse to start.
#define BOUND_API_KEY_FILE_BYTES (2u * 1024 * 1024)
#define BOUND_NAMES 16u
// Chunk extensions and trailers of one body, which nobody needs. 431.
#define BOUND_HTTP_CHUNK_OVERHEAD_BYTES (16u * 1024)
// After our side is shut, while bytes of the client are still discarded. Close.
#define BOUND_HTTP_LINGER_US (2u * 1000 * 1000)
// Whole head, and progress of a body. 408.
#define BOUND_HTTP_HEAD_US (10u * 1000 * 1000)
#define BOUND_HTTP_BODY_US (30u * 1000 * 1000)
// Bodies above this are read by a helper thread: a megabyte takes 20 to 80 ms to parse and encode,
// and a turn of the loop should end within 2.
#define BOUND_HTTP_INLINE_BODY_BYTES (32u * 1024)
// Jobs of helper threads: at once (the cores belong to the worker), and in line. 429.
#define BOUND_BACKGROUND_RUNNING 2u
#define BOUND_BACKGROUND_WAITING 64u

// ---- requests ----------------------------------------------------------------------------------
#define BOUND_MESSAGES_PER_REQUEST 4096u    // 400
#define BOUND_PARTS_PER_MESSAGE 1024u       // 400
#define BOUND_PROMPTS_PER_REQUEST 1024u     // 400
#define BOUND_CHOICES 64u                   // n; 400
#define BOUND_STOP_STRINGS 16u              // 400
#define BOUND_STOP_STRING_BYTES 256u        // 400
#define BOUND_EOS_TOKENS 8u                 // a model's own stop ids. Refuse the model
#define BOUND_STOP_TOKENS 16u               // ids per request incl. the model's own EOS set; 400
#define BOUND_LOGIT_BIAS 1024u              // entries per request; 400
#define BOUND_LOGPROBS 20u                  // top alternatives per position; 400
// Prompts x n of one request, as many as may wait. 400.
#define BOUND_SEQUENCES_PER_REQUEST 4096u
// Prompt tokens of all requests that are not over, 4 bytes each. 429.
#define BOUND_PROMPT_TOKENS_HELD (64ull * 1024 * 1024)
// Tokens past the context that are still counted to tell how long a prompt is.
#define BOUND_ENCODE_SLACK_TOKENS 65536u

// ---- metrics -----------------------------------------------------------------------------------
// Series of one process; a scrape must stay cheap. Refuse to start.
#define BOUND_METRIC_SERIES 5000u
#define BOUND_METRIC_LABEL_BYTES 4096u

// ---- scheduling --------------------------------------------------------------------------------
// Groups that one controller drives. Refuse to start.
#define BOUND_GROUPS 1024u
// Sequences running in one group (slots). Configuration lowers it; the rest waits.
#define BOUND_SEQS 8192u
// Ranks of one group: one node. Refuse.
#define BOUND_RANKS 8u
// Sequences waiting in one group. 429.
#define BOUND_WAITING 4096u
// Tokens computed in one step of one group. Prompts are cut into chunks.
#define BOUND_STEP_TOKENS 65536u
// Rows of one result: as many as a step has.
#define BOUND_RESULT_ROWS (BOUND_STEP_TOKENS + BOUND_SEQS)
// Tokens of one sequence. Refuse (400) or stop with "length".
#define BOUND_SEQ_TOKENS 1048576u
// KV blocks of one group.
#define BOUND_BLOCKS 4194304u
#define BOUND_BLOCK_TOKENS 256u
// KV blocks that one plan moves, so that a shrinking pool never holds up a step for long. The rest
// moves with the next plans.
#define BOUND_KV_COPIES 64u
// Sequences told of it: each slot may hold the same block.
#define BOUND_KV_MOVES BOUND_SEQS
// Chunks of memory behind the KV pool: 64 MiB each on a device of any size. Refuse to grow.
#define BOUND_KV_CHUNKS 65536u
// Seals in a directory, under 1 KiB each: some builds times some sets of options. Drop the oldest.
#define BOUND_SEALS 64u
// Block ids of one sequence: blocks hold at least 16 tokens. Refuse the worker.
#define BOUND_BLOCKS_PER_SEQ (BOUND_SEQ_TOKENS / 16u)

// Prompt tokens of one step while others decode: bounds the gap between their tokens.
#define BOUND_PREFILL_CONTENDED_TOKENS 128u
// Losses of its group at the same point of a request that it survives. Then it fails.
#define BOUND_RESUMES 3u
// A group without a worker. Then its requests fail.
#define BOUND_RECOVERY_US (60u * 1000 * 1000)
// All groups without a worker, so long that new requests are refused (503) and not queued.
#define BOUND_AWAY_US (2u * 1000 * 1000)
// Predicted time of a step behind which another plan may wait. Longer: plans go one by one.
#define BOUND_PIPELINED_STEP_US (50u * 1000)
// The deadline of a step is six times its predicted time, and never earlier; of a group's first
// one, where other groups have answered theirs; of the first of all, which nothing predicts.
#define BOUND_STEP_DEADLINE_US (500u * 1000)
#define BOUND_STEP_DEADLINE_NEW_US (3u * 1000 * 1000)
#define BOUND_STEP_DEADLINE_FIRST_US (30u * 1000 * 1000)
// A step past its deadline by so much has no result coming: a new epoch. After every such loss
// without a step in between both are doubled, up to BOUND_STEP_LOST_DOUBLINGS times.
#define BOUND_STEP_LOST_US (1000u * 1000)
#define BOUND_STEP_LOST_DOUBLINGS 4u
// A group whose ranks diverged twice within this time is doubted until it has passed since the
// first of them: placing a request there costs so much more, as if it began later.
#define BOUND_DOUBT_US (3600ull * 1000 * 1000)
#define BOUND_DOUBTED_COST_US (2u * 1000 * 1000)
// A lost group's requests keep their KV so long while another group could take them over.
#define BOUND_KV_AWAY_US (3u * 1000 * 1000)
// Mapping or unmapping of KV memory by a worker, which holds up its steps. Then the step is
// overdue.
#define BOUND_RESIZE_US (600u * 1000 * 1000)
// Predicted wait told to a client that is refused, before it is scattered by a fifth.
#define BOUND_RETRY_AFTER_MS 60000u

// ---- messages ----------------------------------------------------------------------------------
#define BOUND_PLAN_BYTES (1024u * 1024)    // one plan or result; disconnect
// Of a plan, what its admissions may take: the longest sequence's blocks, and as many others as are
// left. With the tokens of a step, and a change for each sequence, it stays below BOUND_PLAN_BYTES.
#define BOUND_PLAN_ADMIT_BYTES (4u * BOUND_BLOCKS_PER_SEQ + 16u * 1024)
#define BOUND_CONTROL_BYTES (64u * 1024)
#define BOUND_LEDGER_LINES 256u    // of one capacity report; disconnect

// ---- models ------------------------------------------------------------------------------------
#define BOUND_LAYERS 512u
#define BOUND_TENSORS 1048576u
// Files that hold a model's tensors; the largest public model has 200. Refuse the model.
#define BOUND_WEIGHT_FILES 1024u
// Header of a safetensors file: the format's own limit. Refuse the model.
#define BOUND_SAFETENSORS_HEADER_BYTES 100000000u
// Metadata of a GGUF file; real files have 20 to 60 keys. Refuse the model.
#define BOUND_GGUF_KEYS 65536u
#define BOUND_GGUF_KEY_BYTES 1024u
#define BOUND_GGUF_ALIGNMENT_BYTES 65536u
#define BOUND_HIDDEN 65536u
// Columns of a matrix; the inner size of the widest public MLP is 65,536. Refuse the model.
#define BOUND_MATRIX_COLS 262144u
#define BOUND_HEADS 1024u
// Experts of a layer, and how many of them one token may go to. Refuse the model.
#define BOUND_EXPERTS 1024u
#define BOUND_EXPERTS_USED 64u
#define BOUND_HEAD_DIM 1024u
#define BOUND_WORKER_THREADS 256u

_Static_assert(BOUND_STEP_TOKENS <= BOUND_SEQ_TOKENS, "a step never exceeds the longest sequence");

#endif
