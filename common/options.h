// SPDX-License-Identifier: Apache-2.0
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

// The one table of options (see config.h), and the flags of other servers that people type.
//
//   Owns nothing.  Thread any.  Allocates never.  Fails never.

#define OPTION_ALL_ (OPTION_PROGRAM_SERVE | OPTION_PROGRAM_CONTROLLER | OPTION_PROGRAM_WORKER)
#define OPTION_SC_ (OPTION_PROGRAM_SERVE | OPTION_PROGRAM_CONTROLLER)
#define OPTION_SW_ (OPTION_PROGRAM_SERVE | OPTION_PROGRAM_WORKER)

// id, name, kind, default (NULL: none), programs, help group, min, max, choices, help
#define OPTION_TABLE(X)                                                                            \
    X(MODEL, "model", STRING, NULL, OPTION_ALL_, "model", 0, 0, NULL,                              \
      "GGUF file or Hugging Face directory (also the first word)")                                 \
    X(SERVED_MODEL_NAME, "served-model-name", LIST, NULL, OPTION_SC_, "model", 0, 0, NULL,         \
      "name or names clients use; the first appears in answers (default: from the file)")          \
    X(MAX_MODEL_LEN, "max-model-len", INT, "-1", OPTION_SW_, "model", -1, 1048576, NULL,           \
      "longest sequence in tokens; -1 takes the model's own limit")                                \
    X(SEED, "seed", INT, "0", OPTION_SC_, "model", 0, INT64_MAX, NULL,                             \
      "seed of requests that bring none; 0 draws one per request")                                 \
    X(CHAT_TEMPLATE, "chat-template", STRING, NULL, OPTION_SC_, "model", 0, 0, NULL,               \
      "file with a chat template that replaces the model's own")                                   \
    X(GENERATION_CONFIG, "generation-config", CHOICE, "auto", OPTION_SC_, "model", 0, 0,           \
      "auto vllm", "auto: sampling defaults from generation_config.json; vllm: neutral defaults")  \
    X(HOST, "host", STRING, "127.0.0.1", OPTION_SC_, "server", 0, 0, NULL, "address to listen on") \
    X(PORT, "port", INT, "8000", OPTION_SC_, "server", 0, 65535, NULL,                             \
      "port to listen on; 0 lets the system choose")                                               \
    X(UDS, "uds", STRING, NULL, OPTION_SC_, "server", 0, 0, NULL,                                  \
      "unix socket to listen on instead of --host and --port, mode 0600")                          \
    X(API_KEY, "api-key", LIST, NULL, OPTION_SC_, "server", 0, 0, NULL,                            \
      "keys clients must present; repeatable")                                                     \
    X(API_KEY_FILE, "api-key-file", STRING, NULL, OPTION_SC_, "server", 0, 0, NULL,                \
      "file with one key per line, '#' comments: [NAME:]KEY [class=C weight=X concurrency=N "      \
      "requests-per-minute=N tokens-per-minute=N]")                                                \
    X(REQUIRE_AUTH, "require-auth", BOOL, "false", OPTION_SC_, "server", 0, 0, NULL,               \
      "refuse to start without a key on a non-loopback address")                                   \
    X(METRICS_REQUIRE_KEY, "metrics-require-key", BOOL, "false", OPTION_SC_, "server", 0, 0, NULL, \
      "ask for the API key on /metrics too")                                                       \
    X(METRICS_COMPAT, "metrics-compat", BOOL, "true", OPTION_SC_, "server", 0, 0, NULL,            \
      "also export metrics under vLLM's names")                                                    \
    X(ALLOWED_ORIGINS, "allowed-origins", LIST, NULL, OPTION_SC_, "server", 0, 0, NULL,            \
      "origins that browsers may call from; '*' for any")                                          \
    X(ALLOW_CREDENTIALS, "allow-credentials", BOOL, "false", OPTION_SC_, "server", 0, 0, NULL,     \
      "answer Access-Control-Allow-Credentials: true")                                             \
    X(MAX_CONNECTIONS, "max-connections", INT, "4096", OPTION_SC_, "server", 1, 4096, NULL,        \
      "open client connections; more are answered 503")                                            \
    X(SSE_KEEPALIVE, "sse-keepalive", INT, "15", OPTION_SC_, "server", 0, 3600, NULL,              \
      "seconds of silence before an event stream gets two newlines; 0 = off")                      \
    X(MAX_LOGPROBS, "max-logprobs", INT, "20", OPTION_SC_, "server", 0, 20, NULL,                  \
      "most alternatives per position a request may ask for")                                      \
    X(STRICT_MAX_TOKENS, "strict-max-tokens", BOOL, "false", OPTION_SC_, "server", 0, 0, NULL,     \
      "refuse prompt + max_tokens above the context instead of lowering max_tokens")               \
    X(ANY_MODEL_NAME, "any-model-name", BOOL, "false", OPTION_SC_, "server", 0, 0, NULL,           \
      "answer requests for any model name")                                                        \
    X(SERVER_HEADER, "server-header", BOOL, "true", OPTION_SC_, "server", 0, 0, NULL,              \
      "send 'server: tare/VERSION'")                                                               \
    X(SHUTDOWN_TIMEOUT, "shutdown-timeout", INT, "30", OPTION_SC_, "server", 0, 86400, NULL,       \
      "seconds running requests get after SIGTERM before they are ended")                          \
    X(MAX_NUM_SEQS, "max-num-seqs", INT, "256", OPTION_ALL_, "scheduler", 1, 1024, NULL,           \
      "sequences that run at once")                                                                \
    X(MAX_NUM_QUEUED, "max-num-queued-reqs", INT, "1024", OPTION_SC_, "scheduler", 1, 4096, NULL,  \
      "sequences that wait; more are answered 429")                                                \
    X(MAX_NUM_QUEUED_TOKENS, "max-num-queued-tokens", INT, "auto", OPTION_SC_, "scheduler", -1,    \
      INT64_MAX, NULL,                                                                             \
      "prompt tokens that wait and are not cached; more are answered 429; 0: any number; auto: "   \
      "what is computed within the class's --ttft-target, any number without one")                 \
    X(TTFT_TARGET, "ttft-target", LIST, NULL, OPTION_SC_, "scheduler", 0, 0, NULL,                 \
      "time to the first token by class, beside twice that of the prompt alone, as in "            \
      "realtime=2s,standard=10s; a time alone is for all: who would miss it is answered 429, at "  \
      "once or while it waits (default: off)")                                                     \
    X(ITL_TARGET, "itl-target", STRING, "100ms", OPTION_SC_, "scheduler", 0, 0, NULL,              \
      "time between two tokens of a sequence: prompts take what decoding leaves of it")            \
    X(HOLD_TIME, "hold-time", STRING, "2s", OPTION_SC_, "scheduler", 0, 0, NULL,                   \
      "how long a request that lacks memory may be passed by smaller ones")                        \
    X(GUARD, "guard", LIST, NULL, OPTION_SC_, "scheduler", 0, 0, NULL,                             \
      "part of the free KV blocks that running sequences may be expected to fill when another is " \
      "admitted, by class; 0: no guard (default: realtime=0.8,standard=0.95,batch=0.95)")          \
    X(CLASS_SHARE, "class-share", LIST, NULL, OPTION_SC_, "scheduler", 0, 0, NULL,                 \
      "part of the work that a class gets although higher ones wait (default: "                    \
      "realtime=0,standard=0.1,batch=0.02)")                                                       \
    X(MAX_NUM_BATCHED_TOKENS, "max-num-batched-tokens", INT, "512", OPTION_ALL_, "scheduler", -1,  \
      65536, NULL,                                                                                 \
      "rows of one step: prompt tokens and decoding sequences together; auto: the most with "      \
      "which everything fits and the step's buffers stay within --workspace-budget (0: a 32nd "    \
      "of the device, at most 2 GiB)")                                                             \
    X(TENSOR_PARALLEL_SIZE, "tensor-parallel-size", INT, "1", OPTION_ALL_, "scheduler", 1, 8,      \
      NULL,                                                                                        \
      "ranks of a group: workers that share the model, each with its part of it (also --tp)")      \
    X(GROUPS, "groups", INT, "1", OPTION_SC_, "scheduler", 1, 1024, NULL,                          \
      "groups that serve the model, each with --tensor-parallel-size workers")                     \
    X(ROLE, "role", CHOICE, "mixed", OPTION_SW_, "scheduler", 0, 0, "mixed prefill decode",        \
      "what a group does: prefill captures no decode steps, decode takes prompts from others; "    \
      "others than mixed can be planned, not served yet")                                          \
    X(PIPELINE_DEPTH, "pipeline-depth", INT, "2", OPTION_SC_, "scheduler", 1, 3, NULL,             \
      "step plans that may be on their way to a worker at once")                                   \
    X(ENABLE_PREFIX_CACHING, "enable-prefix-caching", BOOL, "true", OPTION_SC_, "scheduler", 0, 0, \
      NULL, "reuse the KV of equal prompt beginnings")                                             \
    X(DEVICE, "device", STRING, "cpu", OPTION_SW_, "memory", 0, 0, NULL,                           \
      "cpu, or a simulated one without arithmetic: sim:h200, sim:rtx5090-laptop and others; a "    \
      "plan takes the name alone too")                                                             \
    X(DEVICE_MEMORY, "device-memory", INT, "0", OPTION_SW_, "memory", 0, INT64_MAX, NULL,          \
      "bytes the cpu device may use; 0: what the model needs plus 512 MiB of KV")                  \
    X(GPU_MEMORY_UTILIZATION, "gpu-memory-utilization", REAL, "0.92", OPTION_SW_, "memory", 0.01,  \
      1.0, NULL, "share of --device-memory that may be used; no effect without it")                \
    X(KV_CACHE_MEMORY_BYTES, "kv-cache-memory-bytes", INT, "0", OPTION_SW_, "memory", 0,           \
      INT64_MAX, NULL, "bytes of KV cache; overrides the share; 0: what is left")                  \
    X(WORKSPACE_BUDGET, "workspace-budget", INT, "0", OPTION_SW_, "memory", 0, INT64_MAX, NULL,    \
      "bytes that the buffers of one step may take: they work in tiles that fit; 0: as fast as "   \
      "can be, in at most a quarter of a given --device-memory")                                   \
    X(MEMORY_MARGIN, "memory-margin", INT, "0", OPTION_SW_, "memory", 0, INT64_MAX, NULL,          \
      "bytes of the device that stay free besides the share; counts inside what it leaves out")    \
    X(ENFORCE_EAGER, "enforce-eager", BOOL, "false", OPTION_SW_, "memory", 0, 0, NULL,             \
      "run every step eagerly: no decode steps are captured")                                      \
    X(SEAL_DIR, "seal-dir", STRING, NULL, OPTION_SW_, "memory", 0, 0, NULL,                        \
      "where sealed starts are remembered, so that an equal one need not rehearse; 'off': "        \
      "nowhere "                                                                                   \
      "(default: a directory of the user under /var/tmp)")                                         \
    X(KV_CACHE_DTYPE, "kv-cache-dtype", CHOICE, "auto", OPTION_SW_, "memory", 0, 0,                \
      "auto float16 float32", "element type of the KV cache; auto is float16")                     \
    X(BLOCK_SIZE, "block-size", INT, "32", OPTION_SW_, "memory", 16, 256, NULL,                    \
      "tokens per KV block: 16, 32, 64, 128 or 256")                                               \
    X(THREADS, "threads", INT, "0", OPTION_SW_, "memory", 0, 256, NULL,                            \
      "compute threads of the cpu device, shared out among the workers that serve starts; 0: one " \
      "per core")                                                                                  \
    X(CPU_ISA, "cpu-isa", CHOICE, "auto", OPTION_SW_, "memory", 0, 0, "auto scalar avx2 avx512",   \
      "instruction set of the cpu kernels; auto takes the best this machine has")                  \
    X(CONFIG, "config", STRING, NULL, OPTION_ALL_, "general", 0, 0, NULL,                          \
      "YAML file of long option names")                                                            \
    X(CHECK, "check", BOOL, "false", OPTION_ALL_, "general", 0, 0, NULL,                           \
      "validate flags and files, then exit")                                                       \
    X(PLAN, "plan", CHOICE, "off", OPTION_PROGRAM_WORKER, "general", 0, 0, "off text json",        \
      "print what a start would weigh, then exit; `tare plan` is this")                            \
    X(INPUT_LOG, "input-log", STRING, NULL, OPTION_SC_, "general", 0, 0, NULL,                     \
      "record everything that scheduling depends on, prompts included, in this file (mode 0600); " \
      "the one before becomes FILE.old")                                                           \
    X(INPUT_LOG_BYTES, "input-log-bytes", INT, "1G", OPTION_SC_, "general", 65536, INT64_MAX,      \
      NULL, "where the recording ends")                                                            \
    X(REPLAY, "replay", STRING, NULL, OPTION_PROGRAM_CONTROLLER, "general", 0, 0, NULL,            \
      "run the scheduler over such a file, compare its plans with the recorded ones, then exit")   \
    X(PRINT_CONFIG, "print-config", BOOL, "false", OPTION_ALL_, "general", 0, 0, NULL,             \
      "print every option, its value and where it came from, then exit")                           \
    X(LOG_LEVEL, "log-level", CHOICE, "info", OPTION_ALL_, "general", 0, 0,                        \
      "error warn info debug trace", "least severe lines that are written")                        \
    X(LOG_FORMAT, "log-format", CHOICE, "auto", OPTION_ALL_, "general", 0, 0,                      \
      "auto text logfmt json", "form of log lines; auto: text on a terminal, logfmt otherwise")    \
    X(ACCESS_LOG, "access-log", BOOL, "true", OPTION_SC_, "general", 0, 0, NULL,                   \
      "one line per request")                                                                      \
    X(QUIET, "quiet", BOOL, "false", OPTION_SC_, "general", 0, 0, NULL,                            \
      "print only the ready line")                                                                 \
    X(BANNER, "banner", BOOL, "false", OPTION_PROGRAM_CONTROLLER, "daemons", 0, 0, NULL,           \
      "print start-up text for people on standard error")                                          \
    X(RUN_DIR, "run-dir", STRING, NULL, OPTION_ALL_, "daemons", 0, 0, NULL,                        \
      "directory for sockets, mode 0700 (default: a fresh one under /tmp)")                        \
    X(JOURNAL, "journal", BOOL, "true", OPTION_SC_, "daemons", 0, 0, NULL,                         \
      "keep what streamed responses need to go on in the run directory (mode 0600, prompts "       \
      "included): after the death of the controller /v1/streams/ID?after=N continues them")        \
    X(JOURNAL_TTL, "journal-ttl", INT, "60", OPTION_SC_, "daemons", 1, 86400, NULL,                \
      "seconds for which a new controller keeps such a response until its client asks")            \
    X(WORKER_BIND, "worker-bind", LIST, NULL, OPTION_SC_, "daemons", 0, 0, NULL,                   \
      "tcp://HOST:PORT to await workers of other hosts on, besides the run directory: plans at "   \
      "PORT, control at PORT + 1; repeatable; needs --worker-key-file and "                        \
      "--worker-allow-file")                                                                       \
    X(WORKER_KEY_FILE, "worker-key-file", STRING, NULL, OPTION_SC_, "daemons", 0, 0, NULL,         \
      "the controller's own keys for --worker-bind, as `tare keygen` writes them")                 \
    X(WORKER_ALLOW_FILE, "worker-allow-file", STRING, NULL, OPTION_SC_, "daemons", 0, 0, NULL,     \
      "who may come by --worker-bind, one line each: NAME KEY role=worker ids=g0r0,g1r*")          \
    X(INSECURE_BIND, "insecure-bind", BOOL, "false", OPTION_SC_, "daemons", 0, 0, NULL,            \
      "allow --worker-bind on every network of the host (tcp://0.0.0.0, tcp://[::])")              \
    X(TIMER_SCALE, "timer-scale", REAL, "1", OPTION_ALL_, "daemons", 0.1, 1000, NULL,              \
      "stretches the times after which a silent peer counts as lost, for slow machines")           \
    X(CONTROLLER, "controller", STRING, NULL, OPTION_PROGRAM_WORKER, "daemons", 0, 0, NULL,        \
      "controller to join: ipc:///path/of/its/run-dir, or its --worker-bind address")              \
    X(CURVE_SECRET_FILE, "curve-secret-file", STRING, NULL, OPTION_PROGRAM_WORKER, "daemons", 0,   \
      0, NULL, "this worker's own keys, to join by tcp")                                           \
    X(CURVE_SERVER_KEY_FILE, "curve-server-key-file", STRING, NULL, OPTION_PROGRAM_WORKER,         \
      "daemons", 0, 0, NULL, "the controller's public key, to join by tcp")                        \
    X(GROUP, "group", INT, "0", OPTION_PROGRAM_WORKER, "daemons", 0, 1023, NULL,                   \
      "index of the group it is one of")                                                           \
    X(RANK, "rank", INT, "0", OPTION_PROGRAM_WORKER, "daemons", 0, 7, NULL,                        \
      "its place in the group, below --tensor-parallel-size")                                      \
    X(WORKER_ID, "worker-id", STRING, NULL, OPTION_PROGRAM_WORKER, "daemons", 0, 0, NULL,          \
      "name of this worker in logs and metrics (default: g<GROUP>r<RANK>)")

// Flags of vLLM, SGLang and llama.cpp that people type and that are not options here.
// name, takes a value, treatment: NOTE (accepted, no effect) or REFUSE or ALIAS (value: ours), text
#define FOREIGN_FLAG_TABLE(X)                                                                      \
    X("trust-remote-code", false, NOTE, "no remote code exists here")                              \
    X("enable-chunked-prefill", false, NOTE, "prompts are always cut into chunks")                 \
    X("no-enable-chunked-prefill", false, REFUSE, "prompts are always cut into chunks")            \
    X("async-scheduling", false, NOTE, "the scheduler never waits for clients")                    \
    X("enable-request-id-headers", false, NOTE, "x-request-id is always sent")                     \
    X("disable-log-requests", false, NOTE, "requests are logged without their text")               \
    X("disable-log-stats", false, NOTE, "there is no periodic line yet")                           \
    X("enable-auto-tool-choice", false, NOTE, "tool calls are not built yet")                      \
    X("tool-call-parser", true, NOTE, "tool calls are not built yet")                              \
    X("reasoning-parser", true, NOTE, "reasoning is returned as part of the text")                 \
    X("compilation-config", true, NOTE, "there is no compiler to configure")                       \
    X("attention-backend", true, NOTE, "kernels are chosen by the device")                         \
    X("load-format", true, NOTE, "the format is recognised from the file")                         \
    X("tokenizer-mode", true, NOTE, "there is one tokenizer")                                      \
    X("swap-space", true, NOTE, "nothing is swapped: accepted requests keep their KV")             \
    X("language-model-only", false, NOTE, "only language models are served")                       \
    X("enable-metrics", false, NOTE, "metrics are always on")                                      \
    X("jinja", false, NOTE, "chat templates are always interpreted")                               \
    X("ngl", true, NOTE, "there is no GPU offload on the cpu device")                              \
    X("gpu-layers", true, NOTE, "there is no GPU offload on the cpu device")                       \
    X("flash-attn", true, NOTE, "attention is always tiled")                                       \
    X("tp", true, ALIAS, "tensor-parallel-size")                                                   \
    X("tp-size", true, ALIAS, "tensor-parallel-size")                                              \
    X("pipeline-parallel-size", true, REFUSE, "not built: see --tensor-parallel-size")             \
    X("data-parallel-size", true, ALIAS, "groups")                                                 \
    X("enable-expert-parallel", false, NOTE, "ranks always share out whole experts")               \
    X("quantization", true, REFUSE, "the type is taken from the file: leave the flag out")         \
    X("dtype", true, REFUSE, "weights keep the type of the file: leave the flag out")              \
    X("speculative-config", true, REFUSE, "speculative decoding is not built")                     \
    X("enable-lora", false, REFUSE, "adapters are not built")                                      \
    X("lora-modules", true, REFUSE, "adapters are not built")                                      \
    X("kv-transfer-config", true, REFUSE, "roles of groups come with disaggregation")              \
    X("cpu-offload-gb", true, REFUSE, "not built: weights must fit the device")                    \
    X("ssl-keyfile", true, REFUSE, "put a TLS proxy in front")                                     \
    X("ssl-certfile", true, REFUSE, "put a TLS proxy in front")                                    \
    X("api-server-count", true, REFUSE, "one controller process serves all clients")               \
    X("hf-overrides", true, REFUSE, "edit config.json instead")                                    \
    X("tokenizer", true, REFUSE, "the tokenizer is taken from the model")                          \
    X("scheduling-policy", true, REFUSE, "classes come from API keys: see --api-key-file")         \
    X("mmap", false, NOTE, "files are always mapped, then released")                               \
    X("no-mmap", false, REFUSE, "files are always mapped, then released")                          \
    X("model-path", true, ALIAS, "model")                                                          \
    X("context-length", true, ALIAS, "max-model-len")                                              \
    X("ctx-size", true, ALIAS, "max-model-len")                                                    \
    X("max-running-requests", true, ALIAS, "max-num-seqs")                                         \
    X("parallel", true, ALIAS, "max-num-seqs")                                                     \
    X("chunked-prefill-size", true, ALIAS, "max-num-batched-tokens")                               \
    X("kv-cache-memory", true, ALIAS, "kv-cache-memory-bytes")                                     \
    X("alias", true, ALIAS, "served-model-name")                                                   \
    X("chat-template-file", true, ALIAS, "chat-template")                                          \
    X("cors-origins", true, ALIAS, "allowed-origins")                                              \
    X("mem-fraction-static", true, ALIAS, "gpu-memory-utilization")                                \
    X("disable-radix-cache", false, ALIAS, "no-enable-prefix-caching")                             \
    X("disable-uvicorn-access-log", false, ALIAS, "no-access-log")

#endif
