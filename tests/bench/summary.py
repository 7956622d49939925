#!/usr/bin/env python3
"""Medians and ratios of the lines that bench_cpu.sh collected."""
import json
import statistics
import sys

FIGURE = {"decode": "stream_tok_s", "prefill": "prefill_tok_s", "concurrent": "output_tok_s"}
lines = [json.loads(line) for line in open(sys.argv[1])]
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
    print(json.dumps(row))
