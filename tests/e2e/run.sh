#!/bin/sh
# Real clients against real processes, on the demo model and on a tiny random one.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
demo=models/smollm2-135m-instruct-q4_1.gguf
work=build/e2e
mkdir -p "$work"
python=$(sh tests/e2e/clients/venv.sh)
"$python" tests/golden/make_tiny.py "$work/tiny" llama 7
passed=0
part() { passed=$((passed + 1)); echo "e2e: $*"; }
cleanup() { for one in ${SERVER:-} ${COLD:-}; do kill -KILL "$one" 2>/dev/null || true; done; }
trap cleanup EXIT

part "the line that is printed works when pasted"
start_server "$work/demo.log" "$demo" --input-log "$work/inputs"
try=$(sed -n 's/^try *//p' "$work/demo.log")
sh -c "$try" 2>/dev/null | grep -q 'answer is 4' || { echo "no 4 in the answer to: $try"; exit 1; }

part "the operator's view"
directory=$(run_dir)
bin/tare status --run-dir "$directory" --json >"$work/status.json"
"$python" - "$work/status.json" <<'CLAIMS'
import json
import sys

status = json.load(open(sys.argv[1]))
assert status["state"] == "ready" and status["kv"]["blocks"] == status["kv"]["blocks_free"] > 0, status
assert status["worker"]["allocations_after_seal"] == 0 and len(status["worker"]["ledger"]) > 3, status
CLAIMS
bin/tare status --run-dir "$directory" >"$work/status"
grep -q '^state  *ready' "$work/status" || { cat "$work/status"; exit 1; }
[ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/admin/v1/status")" = 404 ]

part "openai-python"
"$python" tests/e2e/clients/openai_client.py "$URL"
part "every line of every stream"
"$python" tests/e2e/clients/stream_lint.py "$URL"
part "hostile clients"
"$python" tests/e2e/clients/hostile.py "$URL"

part "a child that is killed costs a pause and no token"
"$python" tests/e2e/clients/kill_worker.py "$URL" "$(worker_child)"
stop_server

part "what was scheduled is scheduled again, plan by plan"
bin/tare-controller --replay "$work/inputs"

part "the KV pool changes its size under running streams"
# Every stream computes its own blocks: shared ones would stay where they were computed first.
start_server "$work/resize.log" "$demo" --kv-cache-memory-bytes 64M --max-num-seqs 8 --max-model-len 2500 \
    --no-enable-prefix-caching
"$python" tests/e2e/clients/resize_kv.py "$URL" "$(run_dir)" "$(worker_child)"
stop_server

part "a hit of the prefix cache changes nothing but the time"
start_server "$work/cold.log" "$demo" --no-enable-prefix-caching --kv-cache-memory-bytes 128M --max-model-len 4000
COLD=$SERVER
COLD_URL=$URL
start_server "$work/warm.log" "$demo" --kv-cache-memory-bytes 128M --max-model-len 4000
"$python" tests/e2e/clients/prefix_cache.py "$URL" "$COLD_URL"
stop_server
SERVER=$COLD
stop_server

part "two groups in networks of their own, by tcp with keys"
sh tests/e2e/network.sh "$work/tiny" "$python"
part "groups on one host, deaths and restarts"
sh tests/e2e/groups.sh "$work/tiny" "$python"

part "ranks of a group give the bits of one"
sh tests/e2e/ranks.sh "$demo" "$python"

part "ranks that die, stop, hang and lie under streams"
sh tests/e2e/faults.sh "$python"

part "streams outlive their controller"
"$python" tests/e2e/clients/resume_stream.py "$work/tiny"

part "overload is answered and retried"
start_server "$work/small.log" "$work/tiny" --max-num-seqs 2 --max-num-queued-reqs 2
"$python" tests/e2e/clients/openai_client.py "$URL" --overload
stop_server

part "clients that leave, in every phase, give back what they had"
start_server "$work/leave.log" "$demo" --max-num-seqs 2 --max-num-queued-reqs 64 --max-model-len 4000 --kv-cache-memory-bytes 256M
"$python" tests/e2e/clients/leave.py "$URL"
stop_server

part "deadlines and quotas are answered with the time that a retry is worth"
printf 'alice:sk-a class=realtime\nbob:sk-b requests-per-minute=2\n' >"$work/entries"
start_server "$work/quota.log" "$demo" --api-key-file "$work/entries" --ttft-target realtime=100ms --max-num-seqs 2
"$python" tests/e2e/clients/quota.py "$URL" sk-a sk-b
stop_server

part "keys"
TARE_API_KEY=sesame start_server "$work/key.log" "$work/tiny"
[ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/models")" = 401 ]
[ "$(curl -s -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer sesame' "$URL/v1/models")" = 200 ]
[ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/health")" = 200 ]
stop_server

part "a unix socket in place of a port, for its owner only"
start_server "$work/uds.log" "$work/tiny" --uds "$work/x.sock"
[ "$(stat -c %a "$work/x.sock")" = 600 ]
try=$(sed -n 's/^try *//p' "$work/uds.log")
sh -c "$try" 2>/dev/null | grep -q '"choices"' || { echo "no answer to: $try"; exit 1; }
stop_server
[ ! -e "$work/x.sock" ]

part "keys are read again on SIGHUP, and a bad file changes nothing"
code_with() { curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $1" "$URL/v1/models"; }
wait_log() { tries=0; until grep -q "$1" "$log"; do tries=$((tries + 1)); [ $tries -lt 600 ]; sleep 0.1; done; }
echo first >"$work/keys"
start_server "$work/hup.log" "$work/tiny" --api-key-file "$work/keys"
[ "$(code_with first)" = 200 ]
echo second >"$work/keys"
kill -HUP "$SERVER"
wait_log 'keys read again'
[ "$(code_with first)" = 401 ] && [ "$(code_with second)" = 200 ]
: >"$work/keys"
kill -HUP "$SERVER"
wait_log 'keys stay'
[ "$(code_with second)" = 200 ]
stop_server

part "a worker that somebody ends comes back, whichever half of it and however"
start_server "$work/back.log" "$work/tiny"
holder() { pgrep -P "$SERVER" -x tare-worker; }
for victim in holder worker_child; do
    for signal in KILL TERM; do
        kill -$signal "$($victim)"
        # Refused or answered while it is away; answered in the end.
        tries=0
        until curl -sf -o /dev/null "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}'; do
            tries=$((tries + 1))
            [ $tries -lt 100 ]
            sleep 0.1
        done
    done
done
stop_server

part "the two halves of a worker end together, with the right code"
sh tests/e2e/holder.sh "$work/tiny"

part "a controller that is killed is followed by another, up to five times a minute; then nothing stays"
start_server "$work/killed.log" "$work/tiny"
directory=$(run_dir)
[ -S "$directory/plan.sock" ] && [ -S "$directory/admin.sock" ]
controller=
for n in 1 2 3 4 5 6; do
    until next=$(pgrep -P "$SERVER" -x tare-controller) && [ "$next" != "$controller" ]; do sleep 0.05; done
    controller=$next
    kill -KILL "$controller"
done
code=0
wait "$SERVER" || code=$?
[ $code = 70 ]
[ ! -e "$directory" ]

part "a stop ends in order and in time, whatever dies or stands still meanwhile"
"$python" tests/e2e/clients/shutdown.py "$demo" "$work/tiny"

part "metrics are valid"
# The linter objects to the colons of vLLM's names, which are the point of that block.
start_server "$work/metrics.log" "$work/tiny" --no-metrics-compat
curl -s "$URL/metrics" | promtool check metrics
stop_server

part "a plan is what a start then reports, to the byte"
same_as_plan() { # model, flags
    bin/tare plan "$@" --json >"$work/plan.json"
    start_server "$work/plan.log" "$@"
    curl -s "$URL/metrics" >"$work/plan.metrics"
    stop_server
    "$python" tests/e2e/clients/plan_equal.py "$work/plan.json" "$work/plan.metrics"
}
same_as_plan "$demo"
same_as_plan "$demo" --device-memory 500M --gpu-memory-utilization 0.9 --max-num-seqs 12 --max-num-batched-tokens 200 --workspace-budget 3M
same_as_plan "$demo" --device sim:h200 --gpu-memory-utilization 0.8
same_as_plan "$work/tiny" --kv-cache-dtype float32 --kv-cache-memory-bytes 3M --block-size 16 --max-model-len 100

part "a stop while starting is a clean end"
log=$work/early.log
: >"$log"
bin/tare serve "$demo" --port 0 2>"$log" &
SERVER=$!
until [ -s "$log" ] || ! kill -0 "$SERVER"; do sleep 0.01; done
stop_server

part "what cannot work ends with its exit code"
expect() { want=$1; shift; code=0; "$@" >"$work/out" 2>&1 || code=$?; [ $code = "$want" ] || { echo "$*: code $code, not $want"; cat "$work/out"; exit 1; }; }
expect 64 bin/tare serve "$demo" --no-such-flag
expect 64 bin/tare serve "$demo" --port 99999
expect 66 bin/tare serve /no/such/model
echo 'prot: 1' >"$work/bad.yaml"
expect 78 bin/tare serve "$demo" --config "$work/bad.yaml"
head -c 1000000 "$demo" >"$work/cut.gguf"
expect 65 bin/tare serve "$work/cut.gguf"
expect 69 bin/tare serve "$demo" --device-memory 100M
expect 0 bin/tare serve "$demo" --check
expect 66 bin/tare serve "$demo" --check --api-key-file /no/such/keys
expect 66 bin/tare serve "$demo" --check --chat-template /no/such/template
expect 0 bin/tare plan "$demo"
expect 64 bin/tare plan
expect 65 bin/tare plan "$work/cut.gguf"
expect 69 bin/tare plan "$demo" --device-memory 100M --json
grep -q '"fits":false' "$work/out" || { cat "$work/out"; exit 1; }
expect 0 bin/tare plan Llama-3.1-70B --device h200 --tp 8 --json
grep -q '"tensor_parallel_size":8' "$work/out" || { cat "$work/out"; exit 1; }
expect 69 bin/tare plan meta-llama/Llama-3.1-70B-Instruct --device h100
expect 65 bin/tare plan SmolLM2-135M --device h100 --tp 2
expect 65 bin/tare plan Qwen3-8B --device h201
expect 66 bin/tare plan Qwen3-8B-of-nobody --device h100
expect 65 bin/tare serve "$demo" --tp 2
expect 65 bin/tare serve "$demo" --tp 2 --check
expect 65 bin/tare serve "$demo" --role decode
expect 65 bin/tare serve deploy/models/Qwen3-8B
grep -q 'no weights, only shapes' "$work/out" || { cat "$work/out"; exit 1; }

part "tare plan --json answers with one object, whatever the end"
object() {
    want=$1; shift; code=0
    bin/tare plan "$@" --json >"$work/plan.json" 2>/dev/null || code=$?
    [ $code = "$want" ] || { echo "plan $*: code $code, not $want"; exit 1; }
    "$python" - "$work/plan.json" <<'CLAIMS'
import json, sys
answer = json.load(open(sys.argv[1]))
assert answer["fits"] is False and answer["reason"] and answer["code"], answer
CLAIMS
}
object 64
object 64 "$demo" --no-such-flag
object 64 "$demo" --block-size 48
object 65 "$demo" --device h201
object 65 "$work/cut.gguf"
object 66 Qwen3-8B-of-nobody
object 69 "$demo" --device-memory 1
object 78 "$demo" --config "$work/bad.yaml"

part "a limit on file sizes is named, and kills nobody"
(ulimit -f 1024; exec bin/tare serve "$demo" --port 0 --seal-dir off) 2>&1 | cat >"$work/out"
grep -q "memory of 'weights.*ulimit -f" "$work/out" || { cat "$work/out"; exit 1; }
echo "e2e: $passed parts passed"
