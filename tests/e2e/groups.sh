#!/bin/sh
# Groups of workers on one host: one dies under load and nobody's text changes; a controller that is killed is
# followed by another one in the same run directory, to which the workers come back by themselves.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
model=${1:?usage: groups.sh MODEL PYTHON}
python=${2:?usage: groups.sh MODEL PYTHON}
work=$(mktemp -d /tmp/tare-groups-XXXXXX)
pids=
cleanup() {
    for pid in ${SERVER:-} $pids; do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "groups: $*"
    tail -n 15 "$work"/*.log
    exit 1
}
# until_true WHAT COMMAND...: the pause only spaces the looks.
until_true() {
    what=$1
    shift
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || fail "never: $what"
        sleep 0.1
    done
}
# ready_above DIR EPOCH: both groups are ready, in epochs above this one.
ready_above() {
    bin/tare status --run-dir "$1" --json 2>/dev/null | "$python" -c '
import json, sys
try:
    groups = json.load(sys.stdin)["groups"]
except ValueError:
    sys.exit(1)
workers = [w for g in groups for w in g["workers"]]
sys.exit(not all(w["state"] == "ready" and w["epoch"] > int(sys.argv[1]) for w in workers))' "$2"
}
last_epoch() {
    bin/tare status --run-dir "$1" --json |
        "$python" -c 'import json, sys; print(max(w["epoch"] for g in json.load(sys.stdin)["groups"] for w in g["workers"]))'
}
# ask NAME: many questions at once, whose answers are those of NAME=first.
ask() {
    asked=
    for n in 1 2 3 4 5 6 7 8; do
        curl -s --max-time 60 "$URL/v1/completions" -H 'Content-Type: application/json' \
            -d "{\"prompt\":\"$n and on\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true}" >"$work/$1.$n" &
        asked="$asked $!"
    done
    [ -z "${2:-}" ] || kill -KILL "$2"
    for pid in $asked; do wait "$pid" || fail "a request was not answered"; done
    "$python" -c '
import json, sys
for n in range(1, 9):
    texts = [json.load(open(f"{sys.argv[1]}/{name}.{n}"))["choices"][0]["text"] for name in ("first", sys.argv[2])]
    assert texts[0] and texts[0] == texts[1], texts' "$work" "$1" || fail "answers differ: $1"
}

start_server "$work/serve.log" "$model" --groups 2 --kv-cache-memory-bytes 16M --run-dir "$work/run" --no-access-log
until_true "both groups ready" ready_above "$work/run" 0
bin/tare status --run-dir "$work/run" >"$work/status"
grep -q '^1  *0  g1r0  *ready' "$work/status" || { cat "$work/status"; fail "tare status does not show the groups"; }
[ "$(bin/tare get groups --run-dir "$work/run" | awk '$2 == "ready" && $3 == 1 && $4 == 1' | wc -l)" = 2 ] || fail "tare get groups"
[ "$(bin/tare get workers --run-dir "$work/run" | awk '$4 == "ready" && $3 == "g" $1 "r" $2' | wc -l)" = 2 ] || fail "tare get workers"
ask first
for child in $(worker_child); do    # one of each group
    epoch=$(last_epoch "$work/run")
    ask "without-$child" "$child"
    until_true "a new epoch" sh -c "[ \$(bin/tare status --run-dir '$work/run' --json | '$python' -c 'import json, sys; print(max(w[\"epoch\"] for g in json.load(sys.stdin)[\"groups\"] for w in g[\"workers\"]))') -gt $epoch ]"
    until_true "both groups are back" ready_above "$work/run" 0
done
bin/tare resize kv 1 24M --run-dir "$work/run" >"$work/resized" || { cat "$work/resized"; fail "tare resize kv 1"; }
bin/tare get groups --run-dir "$work/run" | awk '{ blocks[$1] = $6 } END { exit !(blocks[1] > blocks[0] && blocks[0] > 0) }' || fail "the pool of group 1 is not larger than that of group 0"
code=0
bin/tare resize kv 2 24M --run-dir "$work/run" 2>"$work/resized" || code=$?
[ $code = 3 ] && grep -q "no group '2'" "$work/resized" || fail "tare resize kv 2: code $code"
if bin/tare serve "$model" --port 0 --run-dir "$work/run" 2>"$work/second.log"; then fail "two controllers in one run directory"; fi
grep -q 'belongs to a controller that runs' "$work/second.log" || fail "the second one was not told why"
stop_server
SERVER=

# By hand, so that the workers outlive their controller.
controller() {
    : >"$work/controller.log"
    bin/tare-controller "$model" --port 0 --run-dir "$work/hand" --groups 2 --banner --no-access-log 2>"$work/controller.log" &
    controller=$!
    pids="$pids $controller"
}
controller
until_true "the controller's sockets" [ -S "$work/hand/control.sock" ]
for g in 0 1; do
    bin/tare-worker "$model" --controller "ipc://$work/hand" --group $g --kv-cache-memory-bytes 16M --threads 1 \
        2>"$work/worker$g.log" &
    pids="$pids $!"
done
until_true "both groups ready" ready_above "$work/hand" 0
epoch=$(last_epoch "$work/hand")
kill -KILL "$controller"
wait "$controller" 2>/dev/null || true
controller
until_true "the workers are back" ready_above "$work/hand" "$epoch"
until_true "the address" grep -q '^try ' "$work/controller.log"
URL=$(sed -n 's|^ready *\(http://[^/]*\)/v1.*|\1|p' "$work/controller.log")
ask after
printf 'x' >>"$work/hand/epoch"
kill -TERM "$controller"
wait "$controller" || fail "the controller left with code $?"
controller
code=0
wait "$controller" || code=$?
[ $code = 65 ] && grep -q "epoch file .* is damaged" "$work/controller.log" || fail "a damaged epoch file: code $code"
echo "groups: deaths, a second controller, a restarted one"
