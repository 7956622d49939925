#!/usr/bin/env python3
"""Perplexity of the demo model through the worker's quantised kernels against the oracle's on the same
dequantised weights.

    perplexity.py RUN_MODEL MODEL [--record]

data/text_ids.txt holds the ids of a plain text (the Apache License 2.0, tokenised by the reference
tokenizer); data/perplexity.json the oracle's value for them, recorded with --record (float64, minutes).
The worker's value must lie within 1 %.
"""
import json
import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
IDS = os.path.join(HERE, "data", "text_ids.txt")
RECORD = os.path.join(HERE, "data", "perplexity.json")


def oracle_value(path, ids):
    import oracle
    model = oracle.Model(path)
    logits = model.logits(ids)
    top = logits.max(axis=1, keepdims=True)
    logsum = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
    scores = logits[np.arange(len(ids) - 1), ids[1:]] - logsum[:-1]
    return float(np.exp(-scores.mean()))


def main():
    binary, model = sys.argv[1], sys.argv[2]
    ids = [int(word) for word in open(IDS).read().split()]
    if "--record" in sys.argv:
        value = oracle_value(model, ids)
        json.dump({"model": os.path.basename(model), "ids": len(ids), "oracle": value}, open(RECORD, "w"))
        print(f"recorded {value:.6f} over {len(ids)} ids")
        return
    want = json.load(open(RECORD))["oracle"]
    text = subprocess.run([binary, model, "score", "kv=float16"], input=" ".join(map(str, ids)), capture_output=True,
                          text=True, check=True).stdout
    scores = [float(line.split()[1]) for line in text.splitlines()]
    assert len(scores) == len(ids) - 1 >= 2000, len(scores)
    have = float(np.exp(-np.mean(scores)))
    print(f"perplexity {have:.5f}, oracle {want:.5f}: {100 * (have / want - 1):+.3f} % (limit 1 %)")
    sys.exit(0 if abs(have / want - 1) <= 0.01 else 1)


if __name__ == "__main__":
    main()
