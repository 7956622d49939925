#!/usr/bin/env python3
"""Compares the worker's logits with the oracle's.

    compare.py RUN_MODEL MODEL [--limit 1e-5] [--tokens 96] [--isa auto] [--seed 1]

Prefill in one piece, in odd chunks, and token by token must all lie within `limit` of the oracle
(max |difference| / max |logit|), and must equal each other bit for bit.
"""
import argparse
import subprocess
import sys

import numpy as np

import oracle


def run(binary, model, ids, **settings):
    words = [binary, model, "logits"] + [f"{k}={v}" for k, v in settings.items()]
    text = subprocess.run(words, input=" ".join(map(str, ids)), capture_output=True, text=True, check=True).stdout
    rows = {}
    for line in text.splitlines():
        fields = line.split()
        words = np.array([int(w, 16) for w in fields[1:]], dtype=np.uint32)
        rows[int(fields[0])] = words.view(np.float32)
    return np.stack([rows[i] for i in range(len(ids))])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run_model")
    parser.add_argument("model")
    parser.add_argument("--limit", type=float, default=1e-5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = oracle.Model(args.model)
    rng = np.random.default_rng(args.seed)
    ids = rng.integers(3, model.embed.shape[0], args.tokens).tolist()
    want = model.logits(ids)
    whole = run(args.run_model, args.model, ids, chunk=64, isa=args.isa)
    odd = run(args.run_model, args.model, ids, chunk=7, isa=args.isa, threads=1)
    single = run(args.run_model, args.model, ids, chunk=1, isa=args.isa)
    error = np.abs(whole - want).max() / np.abs(want).max()
    same = np.array_equal(whole.view(np.uint32), odd.view(np.uint32)) and \
        np.array_equal(whole.view(np.uint32), single.view(np.uint32))
    print(f"{args.model}: error {error:.3g} (limit {args.limit:g}), same bits in every cut: {same}")
    sys.exit(0 if error <= args.limit and same else 1)


if __name__ == "__main__":
    main()
