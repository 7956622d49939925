#!/usr/bin/env python3
"""Writes the two small invented traces of this folder, with the columns and roughly the shape of the public ones.

    python3 tests/simulation/make_traces.py

conv.csv has the columns of the Azure LLM inference trace 2023, conversation.jsonl those of the Mooncake traces. The
numbers come from a generator with a fixed seed; nothing is taken from the recorded traces but mean lengths and rates.
"""
import json
import math
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(20260101)


def length(mean, sigma, most):
    return max(1, min(most, int(mean * math.exp(rng.gauss(0, sigma) - sigma * sigma / 2))))


with open(os.path.join(HERE, "azure2023_conv.csv"), "w") as out:
    out.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    at = 18 * 3600.0
    for _ in range(800):
        at += rng.expovariate(5.5)
        second = at % 60
        out.write(
            f"2026-01-01 {int(at // 3600):02d}:{int(at // 60) % 60:02d}:{second:010.7f},"
            f"{length(1155, 0.9, 14000)},{length(211, 0.8, 1000)}\n"
        )

# Conversations: each turn begins with all pieces of the one before it; half of them begin with one of three
# system prompts.
next_id = 0


def fresh(count):
    global next_id
    next_id += count
    return list(range(next_id - count, next_id))


systems = [fresh(2), fresh(6), fresh(12)]
talks = []
with open(os.path.join(HERE, "mooncake_conversation.jsonl"), "w") as out:
    at = 0.0
    for _ in range(240):
        at += rng.expovariate(3.4)
        if talks and rng.random() < 0.5:
            talk = rng.choice(talks[-40:])
            pieces = talk[:-1] + fresh(1 + length(4, 0.8, 40))
        else:
            pieces = (rng.choice(systems) if rng.random() < 0.5 else []) + fresh(length(16, 1.0, 200))
        talks.append(pieces)
        tokens = 512 * len(pieces) - rng.randrange(512)
        row = {"timestamp": int(at * 1000), "input_length": tokens, "output_length": length(343, 0.8, 2000)}
        row["hash_ids"] = pieces
        out.write(json.dumps(row) + "\n")
