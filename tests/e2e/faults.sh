#!/bin/sh
# Ranks of groups that die, stop, hang and answer wrongly, under streams: everybody gets the tokens they would have had,
# ranks that were not hit keep their processes, and whoever fails again and again is given up while other groups go on.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
python=${1:?usage: faults.sh PYTHON}
# Beside a worker that fails on demand; of another variant, for the sanitizers: FAULTY=build/gcc-asan/tests/e2e/bin.
TARE=${FAULTY:-build/gcc-release/tests/e2e/bin}/tare
work=$(mktemp -d /tmp/tare-faults-XXXXXX)
cleanup() {
    [ -z "${SERVER:-}" ] || kill -KILL "$SERVER" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "faults: $*"
    tail -n 30 "$work/log"
    exit 1
}
until_true() {
    what=$1
    shift
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "never: $what"
        sleep 0.05
    done
}
# Nothing of ours under /dev/shm: what was there at the end is gone a moment later, since groups of others only pass by.
nothing_shared() {
    left=$(ls /dev/shm | grep '^tare-group-' || true)
    for name in $left; do until_true "/dev/shm/$name is removed" [ ! -e "/dev/shm/$name" ]; done
}
export FAULTS_DIR="$work/faults"
mkdir "$FAULTS_DIR"

# under RANKS MODEL KIND...
under() {
    ranks=$1 model=$2
    shift 2
    "$python" tests/golden/make_tiny.py "$work/$model" "$model" 7
    start_server "$work/log" "$work/$model" --tensor-parallel-size "$ranks" --kv-cache-memory-bytes 16M --threads "$ranks" \
        --run-dir "$work/run" --no-access-log --seal-dir off
    "$python" tests/e2e/clients/faults.py "$URL" "$SERVER" "$work/run" "$work/log" "$FAULTS_DIR" "$@" ||
        fail "$ranks ranks"
    children=$(worker_child)
    stop_server
    SERVER=
    for pid in $children; do until_true "process $pid is gone" [ ! -e "/proc/$pid" ]; done
    [ -z "$(ls "$work/run" | grep -vE '^(epoch|lock)$' || true)" ] || fail "left in the run directory: $(ls "$work/run")"
    nothing_shared
}
under 2 llama-eight kill-child kill-child-0 kill-holder kill-both kill-two stop-child stop-holder stop-both hang digest \
    token noise in-message in-decode in-prefill in-start in-load once-started in-attach once-attached
under 3 llama-nine kill-child kill-two kill-holder stop-child digest in-message in-load in-attach once-attached

# A rank that always lies, in the only group: no answer, and few epochs. Once it stops, the next request is served.
printf 'digest!' >"$FAULTS_DIR/g0r1"
start_server "$work/log" "$work/llama-eight" --tensor-parallel-size 2 --kv-cache-memory-bytes 16M --run-dir "$work/run" \
    --no-access-log --seal-dir off
ask() { curl -sf -m 10 "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}' >"$work/answer"; }
for lie in 1 2 3; do
    if ask; then fail "a lie was an answer"; fi
done
epochs=$(grep -c 'epoch begins' "$work/log")
[ "$epochs" -ge 4 ] && [ "$epochs" -le 16 ] || fail "$epochs epochs"
rm "$FAULTS_DIR/g0r1"
until_true "the group serves again" ask
stop_server
SERVER=
nothing_shared

# A worker that fails again and again is given up; the other group serves, until it fails like that too.
printf 'start!' >"$FAULTS_DIR/g1r0"
start_server "$work/log" "$work/llama-eight" --groups 2 --kv-cache-memory-bytes 16M --run-dir "$work/run" \
    --no-access-log --seal-dir off
until_true "group 1 is given up" grep -q 'worker g1r0 is not started again (exit code 70): the other groups go on' "$work/log"
[ "$(grep -c 'child died.*signal=9' "$work/log")" = 4 ] || fail "started again three times"
curl -sf "$URL/health" >"$work/answer" || fail "the other group is not healthy"
curl -sf "$URL/v1/completions" -d '{"prompt":"a","max_tokens":2}' >"$work/answer" || fail "the other group does not serve"
printf 'start!' >"$FAULTS_DIR/g0r0"
kill -KILL "$(worker_child)"
code=0
wait "$SERVER" || code=$?
SERVER=
[ $code = 70 ] || fail "the service ended with $code"
grep -q 'worker g0r0 is not started again (exit code 70): the service ends' "$work/log" || fail "the last group was not named"
nothing_shared
echo "faults: deaths, standstills, lies and failing starts"
