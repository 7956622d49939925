#!/bin/sh
# Tokens per second of a group of two ranks with one thread each against one worker with two threads: the same random
# model (76 million weights in F16), the same load, in the same run, in turn A B A B. One JSON line per measurement, then
# medians and their ratios.
#   ROUNDS=3 sh tests/bench/bench_ranks.sh
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
load=build/gcc-release/tests/bench/bench_load
make --no-print-directory -s "$load"
work=$(mktemp -d /tmp/tare-bench-XXXXXX)
cleanup() {
    [ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
"$(sh tests/e2e/clients/venv.sh)" tests/golden/make_tiny.py "$work/model" llama-wide 7
round=0
while [ $round -lt "${ROUNDS:-3}" ]; do
    round=$((round + 1))
    for ranks in 1 2; do
        start_server "$work/log" "$work/model" --no-access-log --threads 2 --tensor-parallel-size $ranks --kv-cache-memory-bytes 256M
        for part in "decode clients=1 requests=2 prompt=64 output=128" "prefill clients=1 requests=4 prompt=1024 output=2" \
            "concurrent clients=16 requests=32 prompt=64 output=64"; do
            # shellcheck disable=SC2086
            $load 127.0.0.1 "${URL##*:}" ${part#* } vocabulary=320 seed=$((round * 100)) |
                sed "s/^{/{\"ranks\":$ranks,\"part\":\"${part%% *}\",\"round\":$round,/" | tee -a "$work/lines"
        done
        stop_server
        SERVER=
    done
done
python3 - "$work/lines" <<'MEDIANS'
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
for part, key in (("decode", "stream_tok_s"), ("prefill", "prefill_tok_s"), ("concurrent", "output_tok_s")):
    median = {n: statistics.median(r[key] for r in rows if r["part"] == part and r["ranks"] == n) for n in (1, 2)}
    print(json.dumps(dict(bench="ranks", part=part, tokens_per_s_1=round(median[1], 1), tokens_per_s_2=round(median[2], 1),
                          ratio=round(median[2] / median[1], 3))))
MEDIANS
