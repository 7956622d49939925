#!/usr/bin/env python3
"""Writes small random checkpoints in the Hugging Face layout, for comparison with the oracle.

    make_tiny.py DIRECTORY KIND SEED     KIND: llama | llama3 | qwen3 | llama-sharded | llama-bf16 | llama-f16
                                               llama-eight | qwen3-moe | qwen3-moe-fused | qwen3-moe-shared

llama-eight and qwen3-moe can be cut in eight: groups of 1, 2, 4 and 8 ranks share them. qwen3-moe-fused has its
experts in one tensor, one dense layer between two with experts, and shares that do not sum to one; qwen3-moe-shared has an expert that every token goes to.
"""
import json
import os
import struct
import sys

import numpy as np

VOCABULARY = 320


def config_for(kind):
    base = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
                num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=512, rms_norm_eps=1e-5,
                rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu", model_type="llama",
                architectures=["LlamaForCausalLM"], eos_token_id=0, bos_token_id=1, attention_bias=False)
    if kind == "llama3":
        base.update(tie_word_embeddings=True, rope_theta=500000.0,
                    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=64))
    if kind == "qwen3":
        base.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=32, rms_norm_eps=1e-6,
                    rope_theta=1000000.0, use_sliding_window=False)
    if kind == "llama-eight":
        base.update(num_attention_heads=8, num_key_value_heads=4, hidden_size=128, intermediate_size=256)
    if kind == "llama-wide":    # large enough for its speed to mean something
        base.update(num_attention_heads=16, num_key_value_heads=8, hidden_size=1024, intermediate_size=2816,
                    num_hidden_layers=6, max_position_embeddings=4096)
    if kind == "llama-nine":
        base.update(num_attention_heads=9, num_key_value_heads=3, hidden_size=144, intermediate_size=192)
    if kind.startswith("qwen3-moe"):
        fused = kind == "qwen3-moe-fused"
        base.update(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], head_dim=32, rms_norm_eps=1e-6,
                    rope_theta=1000000.0, use_sliding_window=False, num_attention_heads=8, num_key_value_heads=4,
                    num_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, norm_topk_prob=not fused,
                    decoder_sparse_step=1, mlp_only_layers=[1] if fused else [])
    if kind == "qwen3-moe-shared":
        base.update(shared_expert_intermediate_size=80)
    return base


def has_experts(c, layer):
    return (c.get("num_experts", 0) > 0 and layer not in c.get("mlp_only_layers", [])
            and (layer + 1) % c.get("decoder_sparse_step", 1) == 0)


def expert_tensors(c, p, matrix, fused):
    e, i, h = c["num_experts"], c["moe_intermediate_size"], c["hidden_size"]
    stack = lambda rows, cols: np.stack([matrix(rows, cols) for _ in range(e)])
    gate, up, down = stack(i, h), stack(i, h), stack(h, i)
    out = {p + "mlp.gate.weight": matrix(e, h) * 2}
    shared = c.get("shared_expert_intermediate_size", 0)
    if shared > 0:
        out.update({p + "mlp.shared_expert_gate.weight": matrix(1, h),
                    p + "mlp.shared_expert.gate_proj.weight": matrix(shared, h),
                    p + "mlp.shared_expert.up_proj.weight": matrix(shared, h),
                    p + "mlp.shared_expert.down_proj.weight": matrix(h, shared)})
    if fused:
        out[p + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        out[p + "mlp.experts.down_proj"] = down
        return out
    for n in range(e):
        out.update({f"{p}mlp.experts.{n}.gate_proj.weight": gate[n], f"{p}mlp.experts.{n}.up_proj.weight": up[n],
                    f"{p}mlp.experts.{n}.down_proj.weight": down[n]})
    return out


def tensors_for(c, rng, fused=False):
    h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    d = c.get("head_dim", h // c["num_attention_heads"])
    nq, nkv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    matrix = lambda rows, cols: rng.standard_normal((rows, cols)).astype(np.float32) / np.float32(np.sqrt(cols))
    norm = lambda n: (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
    out = {"model.embed_tokens.weight": matrix(v, h) * 8, "model.norm.weight": norm(h)}
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = matrix(v, h)
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        out.update({p + "input_layernorm.weight": norm(h), p + "post_attention_layernorm.weight": norm(h),
                    p + "self_attn.q_proj.weight": matrix(nq, h), p + "self_attn.k_proj.weight": matrix(nkv, h),
                    p + "self_attn.v_proj.weight": matrix(nkv, h), p + "self_attn.o_proj.weight": matrix(h, nq)})
        if has_experts(c, n):
            out.update(expert_tensors(c, p, matrix, fused))
        else:
            out.update({p + "mlp.gate_proj.weight": matrix(i, h), p + "mlp.up_proj.weight": matrix(i, h),
                        p + "mlp.down_proj.weight": matrix(h, i)})
        if c["model_type"].startswith("qwen3"):
            out.update({p + "self_attn.q_norm.weight": norm(d), p + "self_attn.k_norm.weight": norm(d)})
    return out


def encode(array, kind):
    if kind == "F32":
        return array.astype("<f4").tobytes()
    if kind == "F16":
        return array.astype("<f2").tobytes()
    bits = array.astype("<f4").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, kind):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        raw = encode(array, kind)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def byte_alphabet():
    """Byte-level BPE spelling of each byte: printable ones stand for themselves."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for byte in range(256):
        table[byte] = chr(byte) if byte in keep else chr(256 + extra)
        extra += byte not in keep
    return table


def tokenizer():
    """Every byte is a token; ids 0..2 are special."""
    vocabulary = {"<|end|>": 0, "<|begin|>": 1, "<|user|>": 2}
    for byte, text in byte_alphabet().items():
        vocabulary[text] = 3 + byte
    special = lambda i, text: dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False,
                                   normalized=False, special=True)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [special(0, "<|end|>"), special(1, "<|begin|>"), special(2, "<|user|>")],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocabulary, "merges": []}}


TEMPLATE = ("{% for m in messages %}<|user|>{{ m['role'] + ': ' + m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}<|begin|>{% endif %}")


def main():
    directory, kind, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.makedirs(directory, exist_ok=True)
    c = config_for(kind)
    tensors = tensors_for(c, np.random.default_rng(seed), kind == "qwen3-moe-fused")
    dtype = {"llama-bf16": "BF16", "llama-f16": "F16", "llama-wide": "F16"}.get(kind, "F32")
    dump = lambda name, value: json.dump(value, open(os.path.join(directory, name), "w"), ensure_ascii=False)
    dump("config.json", c)
    dump("generation_config.json", {"eos_token_id": 0, "bos_token_id": 1, "temperature": 1.0})
    dump("tokenizer.json", tokenizer())
    dump("tokenizer_config.json", {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE})
    if kind == "llama-sharded":
        names = list(tensors)
        shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, members in shards.items():
            write_safetensors(os.path.join(directory, file), {n: tensors[n] for n in members}, dtype)
        dump("model.safetensors.index.json", {"metadata": {}, "weight_map": {n: f for f, ms in shards.items() for n in ms}})
    else:
        write_safetensors(os.path.join(directory, "model.safetensors"), tensors, dtype)


if __name__ == "__main__":
    main()
