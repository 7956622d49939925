# SPDX-License-Identifier: Apache-2.0
"""Every ledger line and the KV capacity of `tare plan --json` against /metrics of a server with the same flags.

usage: plan_equal.py PLAN_JSON METRICS_TEXT
"""
import json
import re
import sys

plan = json.load(open(sys.argv[1]))
measured, capacity = {}, None
for line in open(sys.argv[2]):
    pool = re.match(r'tare_mem_bytes\{.*pool="([^"]+)".*\} (\S+)', line)
    if pool:
        measured[pool.group(1)] = float(pool.group(2))
    if line.startswith("tare_kv_capacity_tokens{"):
        capacity = float(line.split()[-1])
planned = {row["line"]: row["bytes"] for row in plan["ledger"]}
assert plan["fits"], plan
assert measured == planned, (measured, planned)
assert capacity == plan["kv_capacity_tokens"], (capacity, plan["kv_capacity_tokens"])
assert sum(planned.values()) <= plan["budget_bytes"], (planned, plan["budget_bytes"])
print(json.dumps(dict(lines=len(planned), bytes=sum(planned.values()), kv_tokens=int(capacity))))
