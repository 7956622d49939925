#!/usr/bin/env python3
"""An independent implementation of the decoder, dense or with experts, in float64, from the model notes.

Reads a GGUF file or a Hugging Face directory (safetensors), decodes every weight exactly and computes
logits for given token ids with NumPy. It shares no code with the server: it is what the server's numbers
are compared with.

    oracle.py MODEL < ids          prints nothing; use as a module, or see compare.py
"""
import json
import os
import struct
import sys

import numpy as np

F16 = np.dtype("<f2")

# ---- GGUF ---------------------------------------------------------------------------------------

SCALAR = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# type: elements per block, bytes per block
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


class Gguf:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 4
        assert self.data[:4] == b"GGUF"
        self.take("<I")
        tensors, keys = self.take("<Q"), self.take("<Q")
        self.meta = {}
        for _ in range(keys):
            name = self.string()
            self.meta[name] = self.value(self.take("<I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            shape = [self.take("<Q") for _ in range(self.take("<I"))]
            kind, offset = self.take("<I"), self.take("<Q")
            self.tensors[name] = (kind, shape[::-1], offset)
        align = self.meta.get("general.alignment", 32)
        self.base = (self.at + align - 1) // align * align

    def take(self, form):
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self):
        count = self.take("<Q")
        self.at += count
        return self.data[self.at - count:self.at].decode("utf-8", "surrogateescape")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            inner, count = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALAR[kind])

    def tensor(self, name):
        kind, shape, offset = self.tensors[name]
        count = int(np.prod(shape))
        elements, size = BLOCK[kind]
        raw = np.frombuffer(self.data, np.uint8, count // elements * size, self.base + offset)
        return decode(kind, raw.reshape(-1, size)).reshape(shape)


def half(columns):
    return np.ascontiguousarray(columns).view(F16).astype(np.float32)


def nibbles(qs):
    return np.concatenate([qs & 15, qs >> 4], axis=1).astype(np.float32)


def fifth_bits(qh):
    words = np.ascontiguousarray(qh).view("<u4")
    return ((words >> np.arange(32, dtype=np.uint32)) & 1).astype(np.float32) * 16


def k_scales(b):
    b = b.astype(np.int32)
    scale, low = np.zeros((len(b), 8)), np.zeros((len(b), 8))
    for j in range(8):
        if j < 4:
            scale[:, j], low[:, j] = b[:, j] & 63, b[:, j + 4] & 63
        else:
            scale[:, j] = (b[:, j + 4] & 15) | ((b[:, j - 4] >> 6) << 4)
            low[:, j] = (b[:, j + 4] >> 4) | ((b[:, j] >> 6) << 4)
    return scale.astype(np.float32), low.astype(np.float32)


def decode(kind, raw):
    """Blocks to float32, one row per block: the values that the file means."""
    if kind == 0:
        return np.ascontiguousarray(raw).view("<f4")
    if kind == 1:
        return half(raw)
    if kind == 30:
        words = np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16
        return words.view(np.float32)
    if kind == 2:
        return half(raw[:, :2]) * (nibbles(raw[:, 2:]) - 8)
    if kind == 3:
        return half(raw[:, :2]) * nibbles(raw[:, 4:]) + half(raw[:, 2:4])
    if kind == 6:
        return half(raw[:, :2]) * (nibbles(raw[:, 6:]) + fifth_bits(raw[:, 2:6]) - 16)
    if kind == 7:
        return half(raw[:, :2]) * (nibbles(raw[:, 8:]) + fifth_bits(raw[:, 4:8])) + half(raw[:, 2:4])
    if kind == 8:
        return half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32)
    if kind in (12, 13):
        d, dmin = half(raw[:, :2]), half(raw[:, 2:4])
        scale, low = k_scales(raw[:, 4:16])
        qs = raw[:, 16:] if kind == 12 else raw[:, 48:]
        out = np.zeros((len(raw), 8, 32), np.float32)
        for j in range(8):
            part = qs[:, 32 * (j // 2):32 * (j // 2) + 32]
            q = (part & 15 if j % 2 == 0 else part >> 4).astype(np.float32)
            if kind == 13:
                q = q + 16 * ((raw[:, 16:48] >> j) & 1)
            out[:, j] = d * scale[:, j:j + 1] * q - dmin * low[:, j:j + 1]
        return out.reshape(len(raw), 256)
    if kind == 14:
        d = half(raw[:, 208:210])
        scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
        out = np.zeros((len(raw), 256), np.float32)
        for n in range(2):
            low, high = raw[:, 64 * n:64 * n + 64], raw[:, 128 + 32 * n:160 + 32 * n]
            parts = [(low[:, :32] & 15) | ((high & 3) << 4), (low[:, 32:] & 15) | (((high >> 2) & 3) << 4),
                     (low[:, :32] >> 4) | (((high >> 4) & 3) << 4), (low[:, 32:] >> 4) | (((high >> 6) & 3) << 4)]
            for p, q in enumerate(parts):
                s = np.repeat(scales[:, 8 * n + 2 * p:8 * n + 2 * p + 2], 16, axis=1)
                out[:, 128 * n + 32 * p:128 * n + 32 * p + 32] = d * s * (q.astype(np.float32) - 32)
        return out
    raise ValueError(f"type {kind}")


# ---- safetensors --------------------------------------------------------------------------------

class Safetensors:
    def __init__(self, directory):
        index = os.path.join(directory, "model.safetensors.index.json")
        names = ["model.safetensors"]
        if os.path.exists(index):
            names = sorted(set(json.load(open(index))["weight_map"].values()))
        self.tensors = {}
        for name in names:
            data = open(os.path.join(directory, name), "rb").read()
            size = struct.unpack_from("<Q", data)[0]
            for key, entry in json.loads(data[8:8 + size]).items():
                if key != "__metadata__":
                    begin, end = entry["data_offsets"]
                    self.tensors[key] = (entry["dtype"], entry["shape"], data[8 + size + begin:8 + size + end])

    def tensor(self, name):
        kind, shape, data = self.tensors[name]
        code = {"F32": 0, "F16": 1, "BF16": 30}[kind]
        raw = np.frombuffer(data, np.uint8).reshape(-1, BLOCK[code][1])
        return decode(code, raw).reshape(shape)


# ---- the model ----------------------------------------------------------------------------------

def unpermute(w, heads):
    """GGUF llama rows 2i, 2i+1 of a head are rows i, i + d/2 of the original."""
    rows = w.shape[0] // heads
    return w.reshape(heads, rows // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


class Model:
    def __init__(self, path):
        if os.path.isdir(path):
            self.from_hf(path)
        else:
            self.from_gguf(path)

    def from_gguf(self, path):
        g = Gguf(path)
        arch = g.meta["general.architecture"]
        get = lambda key, default=None: g.meta.get(f"{arch}.{key}", default)
        self.hidden, self.layers = get("embedding_length"), get("block_count")
        self.nq = get("attention.head_count")
        self.nkv = get("attention.head_count_kv", self.nq)
        self.d = get("attention.key_length", self.hidden // self.nq)
        self.eps = get("attention.layer_norm_rms_epsilon")
        theta = get("rope.freq_base", 10000.0)
        self.freq = theta ** (-2.0 * np.arange(self.d // 2) / self.d)
        if "rope_freqs.weight" in g.tensors:
            self.freq = self.freq / g.tensor("rope_freqs.weight").astype(np.float64)
        self.embed = g.tensor("token_embd.weight")
        self.out = g.tensor("output.weight") if "output.weight" in g.tensors else self.embed
        self.norm = g.tensor("output_norm.weight").reshape(-1)
        self.used, self.normalise = get("expert_used_count", 0), get("expert_weights_norm", True)
        names = dict(n1="attn_norm", q="attn_q", k="attn_k", v="attn_v", o="attn_output", n2="ffn_norm",
                     gate="ffn_gate", up="ffn_up", down="ffn_down", qn="attn_q_norm", kn="attn_k_norm")
        self.w = []
        for i in range(self.layers):
            layer = {}
            for key, stem in names.items():
                name = f"blk.{i}.{stem}.weight"
                if name in g.tensors:
                    layer[key] = g.tensor(name)
            if f"blk.{i}.ffn_gate_inp.weight" in g.tensors:
                layer["router"] = g.tensor(f"blk.{i}.ffn_gate_inp.weight")
                layer["experts"] = [g.tensor(f"blk.{i}.ffn_{part}_exps.weight") for part in ("gate", "up", "down")]
            if arch == "llama":
                layer["q"], layer["k"] = unpermute(layer["q"], self.nq), unpermute(layer["k"], self.nkv)
            self.w.append(layer)

    def from_hf(self, path):
        c = json.load(open(os.path.join(path, "config.json")))
        s = Safetensors(path)
        self.hidden, self.layers = c["hidden_size"], c["num_hidden_layers"]
        self.nq = c["num_attention_heads"]
        self.nkv = c.get("num_key_value_heads", self.nq)
        self.d = c.get("head_dim") or self.hidden // self.nq
        self.eps = c["rms_norm_eps"]
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
        theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
        self.freq = theta ** (-2.0 * np.arange(self.d // 2) / self.d)
        if rope.get("rope_type", rope.get("type", "default")) == "llama3":
            self.freq = llama3(self.freq, rope)
        self.embed = s.tensor("model.embed_tokens.weight")
        self.out = self.embed if c.get("tie_word_embeddings") else s.tensor("lm_head.weight")
        self.norm = s.tensor("model.norm.weight")
        names = dict(n1="input_layernorm", q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj",
                     o="self_attn.o_proj", n2="post_attention_layernorm", gate="mlp.gate_proj", up="mlp.up_proj",
                     down="mlp.down_proj", qn="self_attn.q_norm", kn="self_attn.k_norm")
        self.w = [{key: s.tensor(f"model.layers.{i}.{stem}.weight") for key, stem in names.items()
                   if f"model.layers.{i}.{stem}.weight" in s.tensors} for i in range(self.layers)]
        self.used, self.normalise = c.get("num_experts_per_tok", 0), c.get("norm_topk_prob", False)
        for i, layer in enumerate(self.w):
            if f"model.layers.{i}.mlp.gate.weight" in s.tensors:
                layer["router"] = s.tensor(f"model.layers.{i}.mlp.gate.weight")
                layer["experts"] = hf_experts(s, f"model.layers.{i}.mlp.experts.", c["num_experts"])
            if f"model.layers.{i}.mlp.shared_expert_gate.weight" in s.tensors:
                layer["shared"] = [s.tensor(f"model.layers.{i}.mlp.shared_expert{part}.weight")
                                   for part in ("_gate", ".gate_proj", ".up_proj", ".down_proj")]

    def logits(self, ids, rows=None):
        """float64 logits [len(rows), vocabulary] of a whole sequence; rows defaults to all."""
        p = np.arange(len(ids))
        angle = p[:, None] * self.freq[None, :]
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        x = self.embed[ids].astype(np.float64)
        mask = np.where(p[None, :] > p[:, None], -np.inf, 0.0)
        for w in self.w:
            h = rms(x, w["n1"], self.eps)
            q = (h @ w["q"].T.astype(np.float64)).reshape(len(ids), self.nq, self.d)
            k = (h @ w["k"].T.astype(np.float64)).reshape(len(ids), self.nkv, self.d)
            v = (h @ w["v"].T.astype(np.float64)).reshape(len(ids), self.nkv, self.d)
            if "qn" in w:
                q, k = rms(q, w["qn"].reshape(-1), self.eps), rms(k, w["kn"].reshape(-1), self.eps)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            group = self.nq // self.nkv
            a = np.zeros((len(ids), self.nq, self.d))
            for head in range(self.nq):
                s = q[:, head] @ k[:, head // group].T / np.sqrt(self.d) + mask
                s = np.exp(s - s.max(axis=1, keepdims=True))
                a[:, head] = (s / s.sum(axis=1, keepdims=True)) @ v[:, head // group]
            x = x + a.reshape(len(ids), -1) @ w["o"].T.astype(np.float64)
            h = rms(x, w["n2"], self.eps)
            if "router" in w:
                x = x + self.mixture(h, w["router"].astype(np.float64), *w["experts"])
                if "shared" in w:
                    switch, *shared = w["shared"]
                    x = x + swiglu(h, *shared) / (1 + np.exp(-(h @ switch.reshape(-1, 1).astype(np.float64))))
            else:
                x = x + swiglu(h, w["gate"], w["up"], w["down"])
        x = rms(x if rows is None else x[rows], self.norm, self.eps)
        return x @ self.out.T.astype(np.float64)


    def mixture(self, h, router, gate, up, down):
        """Each row's most likely experts, ties to the smaller id, weighted by their share."""
        scores = h @ router.T
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        out = np.zeros_like(h)
        for row in range(len(h)):
            chosen = np.argsort(-p[row], kind="stable")[:self.used]
            share = p[row][chosen]
            share = share / share.sum() if self.normalise else share
            for expert, weight in zip(chosen, share):
                out[row] += weight * swiglu(h[row], gate[expert], up[expert], down[expert])
        return out


def swiglu(h, gate, up, down):
    g = h @ gate.T.astype(np.float64)
    return (g / (1 + np.exp(-g)) * (h @ up.T.astype(np.float64))) @ down.T.astype(np.float64)


def hf_experts(s, prefix, count):
    """gate, up, down as [experts, out, in], from one tensor for each expert or from fused ones."""
    if prefix + "gate_up_proj" in s.tensors:
        both = s.tensor(prefix + "gate_up_proj")
        inner = both.shape[1] // 2
        return [both[:, :inner], both[:, inner:], s.tensor(prefix + "down_proj")]
    return [np.stack([s.tensor(f"{prefix}{n}.{part}_proj.weight") for n in range(count)])
            for part in ("gate", "up", "down")]


def llama3(freq, rope):
    wave = 2 * np.pi / freq
    old, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (old / wave - low) / (high - low)
    blended = (1 - smooth) * freq / rope["factor"] + smooth * freq
    return np.where(wave < old / high, freq, np.where(wave > old / low, freq / rope["factor"], blended))


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight.reshape(-1).astype(np.float64)


def rotate(x, cos, sin):
    a, b = x[..., :x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


if __name__ == "__main__":
    model = Model(sys.argv[1])
    ids = [int(word) for word in sys.stdin.read().split()]
    out = model.logits(ids)
    print(out.shape, out[-1].argmax())
