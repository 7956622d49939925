#!/bin/sh
# One controller, two groups of workers in networks of their own, by tcp with keys: they serve, strangers and
# impostors stay outside, a cable that is pulled costs a pause. Needs root and ip(8); else says that it is skipped.
set -eu
cd "$(dirname "$0")/../.."
model=${1:?usage: network.sh MODEL PYTHON}
python=${2:?usage: network.sh MODEL PYTHON}
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! ip netns list >/dev/null 2>&1; then
    echo "network: skipped: it needs root and network namespaces (ip netns)"
    exit 0
fi
work=$(mktemp -d /tmp/tare-net-XXXXXX)
id=$(basename "$work" | cut -d- -f3)
net=10.$((200 + $$ % 50)).$(($$ / 50 % 250))
pids=
cleanup() {
    for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
    for n in 0 1; do
        for pid in $(ip netns pids "tare$id$n" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
        ip netns del "tare$id$n" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "network: $*"
    tail -n 20 "$work"/*.log
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

# Two networks with a cable each: the host has .1 and .5, the groups .2 and .6.
for n in 0 1; do
    ip netns add "tare$id$n" 2>/dev/null || { echo "network: skipped: no network namespace can be made here"; exit 0; }
    ip link add "h$id$n" type veth peer name "w$id$n" netns "tare$id$n" 2>/dev/null ||
        { echo "network: skipped: no cable (veth) can be made here"; exit 0; }
    ip addr add "$net.$((n * 4 + 1))/30" dev "h$id$n"
    ip link set "h$id$n" up
    ip -n "tare$id$n" addr add "$net.$((n * 4 + 2))/30" dev "w$id$n"
    ip -n "tare$id$n" link set "w$id$n" up
    ip -n "tare$id$n" link set lo up
done

bin/tare keygen --out "$work" controller >/dev/null
bin/tare keygen --out "$work" g0r0 g1r0 >"$work/allowed"
bin/tare keygen --out "$work" stranger >/dev/null
: >"$work/controller.log"
bin/tare-controller "$model" --port 0 --run-dir "$work/run" --banner --groups 2 --no-access-log --timer-scale 3 \
    --worker-bind "tcp://$net.1:7000" --worker-bind "tcp://$net.5:7000" \
    --worker-key-file "$work/controller.secret" --worker-allow-file "$work/allowed" 2>"$work/controller.log" &
controller=$!
pids=$controller
# worker NAME NETWORK GROUP KEY
worker() {
    ip netns exec "tare$id$2" bin/tare-worker "$model" --controller "tcp://$net.$(($2 * 4 + 1)):7000" --group "$3" \
        --curve-secret-file "$work/$4.secret" --curve-server-key-file "$work/controller.pub" --threads 1 \
        --kv-cache-memory-bytes 16M 2>"$work/$1.log" &
    pids="$pids $!"
}
worker group-0 0 0 g0r0
worker group-1 1 1 g1r0
worker stranger 0 0 stranger
stranger=$!

status() { bin/tare status --run-dir "$work/run" --json 2>/dev/null; }
# both_ready EPOCH: every place is taken, in an epoch above this one.
both_ready() {
    status | "$python" -c '
import json, sys
try:
    groups = json.load(sys.stdin)["groups"]
except ValueError:
    sys.exit(1)
workers = [w for g in groups for w in g["workers"]]
assert len(workers) == 2
sys.exit(not all(w["state"] == "ready" and w["key"] == w["id"] and w["epoch"] > int(sys.argv[1]) for w in workers))' "$1"
}
until_true "both groups ready" both_ready 0
url=$(sed -n 's|^ready *\(http://[^/]*\)/v1.*|\1|p' "$work/controller.log")

# Many at once, so that both groups have some. A question has one answer, whoever computes it: ask NAME keeps them.
ask() {
    asked=
    for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
        curl -s --max-time 60 "$url/v1/completions" -H 'Content-Type: application/json' \
            -d "{\"prompt\":\"$n and on\",\"max_tokens\":400,\"temperature\":0,\"ignore_eos\":true}" >"$work/$1.$n" &
        asked="$asked $!"
    done
    for pid in $asked; do wait "$pid" || fail "a request was not answered"; done
    "$python" -c '
import json, sys
for n in range(1, 17):
    texts = [json.load(open(f"{sys.argv[1]}/{name}.{n}"))["choices"][0]["text"] for name in ("first", sys.argv[2])]
    assert texts[0] and texts[0] == texts[1], texts' "$work" "$1" || fail "answers differ: $1"
}
ask first
both_worked() {
    status | "$python" -c '
import json, sys
groups = json.load(sys.stdin)["groups"]
sys.exit(not all(w["completed_seq"] > 0 for g in groups for w in g["workers"]))'
}
until_true "both groups have carried out plans" both_worked

# The right key with another place.
worker impostor 0 1 g0r0
impostor=$!
code=0
wait "$impostor" || code=$?
[ "$code" = 76 ] || fail "the impostor left with code $code"
grep -q "the key 'g0r0' may not be rank 0 of group 1" "$work/impostor.log" || fail "the impostor was not told why"

# A key that nobody knows.
code=0
wait "$stranger" || code=$?
[ "$code" = 75 ] || fail "the stranger left with code $code"
grep -q "refuses this worker's key" "$work/stranger.log" || fail "the stranger was not told why"
grep -q 'connections refused.* unknown_key=[1-9]' "$work/controller.log" || fail "the stranger was not noticed"

# A cable is pulled: the other group serves; put back, it joins again by itself.
epoch=$(status | "$python" -c 'import json, sys; print(max(w["epoch"] for g in json.load(sys.stdin)["groups"] for w in g["workers"]))')
ip link set "h${id}0" down
lost() { grep -q 'worker lost.* group=0' "$work/controller.log"; }
until_true "the group without a cable is lost" lost
ask without
ip link set "h${id}0" up
back() {
    status | "$python" -c '
import json, sys
worker = json.load(sys.stdin)["groups"][0]["workers"][0]
sys.exit(not (worker["state"] == "ready" and worker["epoch"] > int(sys.argv[1])))' "$epoch"
}
until_true "the group is back" back
ask back

kill -TERM "$controller"
wait "$controller" || fail "the controller left with code $?"
echo "network: two groups served by tcp with keys"
