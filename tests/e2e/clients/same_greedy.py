# SPDX-License-Identifier: Apache-2.0
"""Two files of ask_all.py: the same tokens as far as the first one's choice was clear.

Sums in another order may turn a choice whose margin is small; what follows such a token may differ.
usage: same_greedy.py FIRST SECOND MARGIN
"""
import json
import sys

first, second = (json.load(open(name))["answers"] for name in sys.argv[1:3])
margin, compared = float(sys.argv[3]), 0
for one, two in zip(first, second):
    a, b = one[0][1], two[0][1]
    for token, other, tops in zip(a["tokens"], b["tokens"], a["top_logprobs"]):
        best = sorted(tops.values())[::-1]
        if token != other:
            assert best[0] - best[1] < margin, (token, other, tops)
            break
        compared += 1
assert compared > 20, compared
print(f"{compared} tokens are the same")
