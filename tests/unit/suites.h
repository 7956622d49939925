// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_UNIT_SUITES_H
#define TESTS_UNIT_SUITES_H

#include <check.h>

// The explicit list of suites: one line per module, in the order of the layers. A suite file
// exports one function; tests/unit/main.c runs them all or those whose names are given.
//
// Owns nothing.  Thread one.  Allocates through check.  Fails by check's own assertions.

// suite name, function
#define SUITE_TABLE(X)                                                                             \
    X("common/status", suite_status)                                                               \
    X("common/buf", suite_buf)                                                                     \
    X("common/wire", suite_wire)                                                                   \
    X("common/arena", suite_arena)                                                                 \
    X("common/json", suite_json)                                                                   \
    X("common/utf8", suite_utf8)                                                                   \
    X("common/dtype", suite_dtype)                                                                 \
    X("common/rng", suite_rng)                                                                     \
    X("common/mapped_file", suite_mapped_file)                                                     \
    X("common/config", suite_config)                                                               \
    X("common/gguf", suite_gguf)                                                                   \
    X("common/hash", suite_hash)                                                                   \
    X("common/metrics", suite_metrics)                                                             \
    X("common/log", suite_log)                                                                     \
    X("proto/transport", suite_transport)                                                          \
    X("proto/link_keys", suite_link_keys)                                                          \
    X("worker/model/model_config", suite_model_config)                                             \
    X("proto/codec", suite_codec)                                                                  \
    X("proto/messages", suite_messages)                                                            \
    X("kernels/pack", suite_kernels_pack)                                                          \
    X("kernels/matmul", suite_kernels_matmul)                                                      \
    X("kernels/attention", suite_kernels_attention)                                                \
    X("controller/core/cost_model", suite_cost_model)                                              \
    X("controller/core/prefix_index", suite_prefix_index)                                          \
    X("controller/core/waiting_line", suite_waiting_line)                                          \
    X("controller/core", suite_core)                                                               \
    X("controller/core/refusals", suite_core_refusals)                                             \
    X("controller/core/pool", suite_core_pool)                                                     \
    X("controller/core/overload", suite_core_overload)                                             \
    X("controller/core/sharing", suite_core_sharing)                                               \
    X("controller/core/groups", suite_core_groups)                                                 \
    X("controller/core/recovery", suite_core_recovery)                                             \
    X("kernels/sample", suite_kernels_sample)                                                      \
    X("worker/device/thread_pool", suite_thread_pool)                                              \
    X("worker/device/device_cpu", suite_device_cpu)                                                \
    X("worker/comm/collective", suite_collective)                                                  \
    X("worker/comm/collective_faults", suite_collective_faults)                                    \
    X("worker/step/executor", suite_executor)                                                      \
    X("worker/seal", suite_seal)                                                                   \
    X("worker/engine_start", suite_engine_start)                                                   \
    X("worker/engine", suite_engine)                                                               \
    X("worker/worker_group", suite_worker_group)                                                   \
    X("worker/worker", suite_worker)                                                               \
    X("worker/kv/kv_stamp", suite_kv_stamp)                                                        \
    X("worker/plan_report", suite_plan_report)                                                     \
    X("controller/net/registry", suite_registry)                                                   \
    X("controller/net/worker_link", suite_worker_link)                                             \
    X("controller/net/epoch_file", suite_epoch_file)                                               \
    X("controller/journal", suite_journal)                                                         \
    X("controller/http/api_streams", suite_api_streams)                                            \
    X("controller/http/api_journal", suite_api_journal)                                            \
    X("controller/http/api_replay", suite_api_replay)                                              \
    X("controller/resume", suite_resume)                                                           \
    X("controller/run_dir", suite_run_dir)                                                         \
    X("controller/cli/keygen", suite_keygen)                                                       \
    X("controller/cli/words", suite_cli_words)                                                     \
    X("controller/http/http_parse", suite_http_parse)                                              \
    X("controller/http/http_exchange", suite_http_exchange)                                        \
    X("controller/http/http_server", suite_http_server)                                            \
    X("controller/http/http_limits", suite_http_limits)                                            \
    X("controller/text/unicode", suite_unicode)                                                    \
    X("controller/text/pretokenize", suite_pretokenize)                                            \
    X("controller/text/bpe", suite_bpe)                                                            \
    X("controller/text/added_tokens", suite_added_tokens)                                          \
    X("controller/model_text", suite_model_text)                                                   \
    X("controller/text/tokenizer", suite_tokenizer)                                                \
    X("controller/startup_text", suite_startup_text)                                               \
    X("controller/input_log", suite_input_log)                                                     \
    X("controller/stats", suite_stats)                                                             \
    X("controller/status_json", suite_status_json)                                                 \
    X("controller/http/admin", suite_admin)                                                        \
    X("controller/policy", suite_policy)                                                           \
    X("controller/turn_watch", suite_turn_watch)                                                   \
    X("controller/keys", suite_keys)                                                               \
    X("controller/text/detokenizer", suite_detokenizer)                                            \
    X("controller/http/background", suite_background)                                              \
    X("controller/http/api_reading", suite_api_reading)                                            \
    X("controller/http/api_account", suite_api_account)                                            \
    X("controller/http/api_gate", suite_api_gate)                                                  \
    X("controller/http/api_params", suite_api_params)                                              \
    X("controller/http/api_routes", suite_api_routes)                                              \
    X("controller/http/api_completions", suite_api_completions)                                    \
    X("controller/http/api_scores", suite_api_scores)                                              \
    X("controller/http/api_stream", suite_api_stream)                                              \
    X("worker/net/controller_link", suite_controller_link)                                         \
    X("worker/step/hostile", suite_hostile)                                                        \
    X("worker/step/moves", suite_moves)                                                            \
    X("worker/step/batch", suite_batch)                                                            \
    X("worker/step/tiles", suite_tiles)                                                            \
    X("worker/memory_cases", suite_memory_cases)                                                   \
    X("worker/step/rehearsal", suite_rehearsal)                                                    \
    X("worker/weights/safetensors", suite_safetensors)                                             \
    X("worker/weights/model_path", suite_model_path)                                               \
    X("kernels/ops_sim", suite_ops_sim)                                                            \
    X("worker/device/device_sim", suite_device_sim)                                                \
    X("worker/device/sim_pages", suite_sim_pages)                                                  \
    X("worker/device/sim_specs", suite_sim_specs)                                                  \
    X("worker/engine_group", suite_engine_group)                                                   \
    X("kernels/experts", suite_kernels_experts)                                                    \
    X("worker/model/shards", suite_shards)                                                         \
    X("worker/model/model", suite_model)                                                           \
    X("controller/text/chat_template", suite_chat_template)

#define X(name, function) Suite *function(void);
SUITE_TABLE(X)
#undef X

#endif
