#!/usr/bin/env python3
"""The step loop of vLLM's scheduler without a model: what bench_core is compared with.

usage: bench_core_peer.py WORK_DIR [OURS]      (OURS: the lines that bench_core printed)

A turn is schedule() and update_from_output() with one invented token per sequence, which is what its engine core
does around every forward pass; sockets, serialisation and the output process are not part of it, though ours
counts them. All sequences decode; none ends during the measurement. The engine's own treatment of the collector is
copied (its heap is frozen after start-up). One JSON line per size with keys running, turn_us_p50, turn_us_p99, then
one per size that both measured with the ratios.
"""
import gc
import json
import os
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["HF_HUB_OFFLINE"] = "1"    # nothing is fetched: the model is a configuration without weights
import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

SIZES = [256, 1024]
PROMPT_TOKENS, WARM_TURNS, TURNS = 128, 100, 1000
BLOCK_TOKENS, CONTEXT, VOCABULARY = 16, 8192, 32000
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}


def make_scheduler(directory, running):
    model = ModelConfig(model=directory, tokenizer=directory, skip_tokenizer_init=True, dtype="float16", seed=0,
                        max_model_len=CONTEXT)
    scheduler = SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=running * PROMPT_TOKENS,
                                max_model_len=CONTEXT, enable_chunked_prefill=True, is_encoder_decoder=False)
    cache = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True)
    config = VllmConfig(model_config=model, scheduler_config=scheduler, cache_config=cache)
    blocks = running * ((PROMPT_TOKENS + WARM_TURNS + TURNS) // BLOCK_TOKENS + 2)
    cache.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=4, head_size=16, dtype=torch.float16)
    kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(vllm_config=config, kv_cache_config=kv, block_size=BLOCK_TOKENS, log_stats=False,
                     structured_output_manager=StructuredOutputManager(config))


def turn(scheduler, token):
    """One turn; returns its nanoseconds and how many rows it had. The invented results are not timed."""
    begin = time.perf_counter_ns()
    plan = scheduler.schedule()
    middle = time.perf_counter_ns()
    ids = list(plan.num_scheduled_tokens)
    result = ModelRunnerOutput(req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
                               sampled_token_ids=[[token] for _ in ids])
    resume = time.perf_counter_ns()
    scheduler.update_from_output(plan, result)
    return middle - begin + time.perf_counter_ns() - resume, len(ids)


def measure(directory, running):
    scheduler = make_scheduler(directory, running)
    hash_function = get_hash_fn_by_name("sha256")    # its default, as is the prefix cache
    init_none_hash(hash_function)
    hasher = get_request_block_hasher(BLOCK_TOKENS, hash_function)
    params = SamplingParams(max_tokens=CONTEXT - PROMPT_TOKENS, ignore_eos=True)
    for i in range(running):
        prompt = [(i * 7919 + k) % VOCABULARY for k in range(PROMPT_TOKENS)]
        scheduler.add_request(Request(request_id=f"request-{i}", prompt_token_ids=prompt, sampling_params=params,
                                      pooling_params=None, block_hasher=hasher))
    for i in range(WARM_TURNS):
        turn(scheduler, 100 + i)
    gc.collect()
    gc.freeze()
    times = []
    for i in range(TURNS):
        nanoseconds, rows = turn(scheduler, 1000 + i)
        if rows != running:
            sys.exit(f"bench_core_peer: a turn had {rows} rows instead of {running}")
        times.append(nanoseconds / 1000)
    times.sort()
    return {"who": "vllm", "running": running, "turn_us_p50": round(times[TURNS // 2], 1),
            "turn_us_p99": round(times[TURNS * 99 // 100], 1)}


def main():
    directory = os.path.join(sys.argv[1], "model")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(MODEL, file)
    ours = {}
    if len(sys.argv) > 2:
        lines = [json.loads(text) for text in open(sys.argv[2]) if text.startswith("{")]
        ours = {line["running"]: line for line in lines if "turn_us_p50" in line}
    for running in SIZES:
        theirs = measure(directory, running)
        print(json.dumps(theirs), flush=True)
        if running in ours:
            mine = ours[running]
            print(json.dumps({"figure": "core_peer", "running": running, "ratio_goal": 100,
                              "ratio_p50": round(theirs["turn_us_p50"] / mine["turn_us_p50"], 1),
                              "ratio_p99": round(theirs["turn_us_p99"] / mine["turn_us_p99"], 1)}), flush=True)


if __name__ == "__main__":
    main()
