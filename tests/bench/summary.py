#!/usr/bin/env python3
"""Medians, ratios and shares of the machine's limits, from the lines and the limits that bench_cpu.sh collected.

usage: summary.py LINES [KERNELS]
"""
import json
import statistics
import sys

# The demo model: bytes of weights that a decoded token reads, integer operations of a prompt token.
WEIGHT_GB, PROMPT_GOP = 0.09658, 0.2123
FIGURE = {"decode": "stream_tok_s", "prefill": "prefill_tok_s", "concurrent": "output_tok_s"}
lines = [json.loads(line) for line in open(sys.argv[1])]
limits = json.loads(open(sys.argv[2]).readline()) if len(sys.argv) > 2 else None
for line in lines:
    if line["failed"]:
        sys.exit(f"summary: {line['who']} failed {line['failed']} of {line['requests']} requests in part {line['part']}: "
                 "no ratio is formed from such a run")
for part, figure in FIGURE.items():
    medians = {}
    for who in sorted({line["who"] for line in lines}):
        values = [line[figure] for line in lines if line["who"] == who and line["part"] == part]
        if values:
            medians[who] = statistics.median(values)
    row = {"part": part, "figure": figure, **{who: round(value, 1) for who, value in medians.items()}}
    for who, value in medians.items():
        if who != "tare" and value > 0:
            row[f"ratio_to_{who}"] = round(medians["tare"] / value, 2)
    if part == "decode" and limits:
        row["share_of_read_limit"] = round(medians["tare"] * WEIGHT_GB / limits["read_gb_s"], 2)
    if part == "prefill" and limits:
        row["share_of_byte_product_limit"] = round(medians["tare"] * PROMPT_GOP / limits["byte_gops"], 2)
    print(json.dumps(row))
