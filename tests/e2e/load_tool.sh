#!/bin/sh
# A public load tool, unmodified, against the tiny random model: chat streams, four at a time. It installs about
# 600 MB of Python packages into build/, which is why `make check` runs it and `make test` does not.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
work=$PWD/build/load-tool
venv=build/load-tool-venv
mkdir -p "$work"
python=$(sh tests/e2e/clients/venv.sh)
"$python" tests/golden/make_tiny.py "$work/tiny" llama 7
if [ ! -e "$venv/made" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check aiperf==0.13.0
    touch "$venv/made"
fi
cleanup() { [ -z "${SERVER:-}" ] || kill -KILL "$SERVER" 2>/dev/null || true; }
trap cleanup EXIT
start_server "$work/server.log" "$work/tiny" --no-access-log --max-model-len 512
rm -rf "$work/out"
"$venv/bin/aiperf" profile --model tiny --url "$URL" --endpoint-type chat --streaming --concurrency 4 --request-count 48 \
    --synthetic-input-tokens-mean 64 --output-tokens-mean 32 --extra-inputs ignore_eos:true --use-server-token-count \
    --tokenizer "$work/tiny" --artifact-dir "$work/out" --ui none >"$work/tool.log" 2>&1 || { tail -n 40 "$work/tool.log"; exit 1; }
stop_server
"$python" - "$work/out/profile_export_aiperf.json" <<'CLAIMS'
import json
import sys

report = json.load(open(sys.argv[1]))
count = report["request_count"]["avg"]
errors = (report.get("error_request_count") or {"avg": 0})["avg"]
length = report["output_sequence_length"]
print(json.dumps(dict(requests=count, errors=errors, output_tokens=length["avg"],
                      ttft_ms_p50=report["time_to_first_token"]["p50"], inter_token_ms_p50=report["inter_token_latency"]["p50"])))
assert count == 48 and errors == 0, "every request is answered"
assert length["min"] == length["max"] == 32, "ignore_eos gives exactly the tokens that were asked for"
CLAIMS
