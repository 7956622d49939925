#!/bin/sh
# A worker by itself, beside a controller: whichever half of it is ended and however, nothing of it stays, the
# code of the parent says what happened, and a child that comes back attaches to what was kept.
#   holder.sh MODEL
set -eu
cd "$(dirname "$0")/../.."
model=$1
dir=$(mktemp -d)
chmod 700 "$dir"
CONTROLLER= WORKER=
cleanup() {
    for one in $CONTROLLER $WORKER; do kill -KILL "$one" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

# Looks again, with a pause that only spaces the looks, until the command succeeds.
until_true() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo "holder: never true: $*"; tail -n 5 "$dir"/*.log; exit 1; }
        sleep 0.05
    done
}
gone() { ! kill -0 "$1"; }
readies() { [ "$(grep -c 'worker: *engine ready\|msg="engine ready"' "$dir/worker.log")" -ge "$1" ]; }
child() { pgrep -P "$WORKER" -x tare-worker; }
start_worker() {
    : >"$dir/worker.log"
    bin/tare-worker "$model" --controller "ipc://$dir" --seal-dir off --kv-cache-memory-bytes 8M \
        --log-format logfmt "$@" 2>>"$dir/worker.log" &
    WORKER=$!
    until_true readies 1
}
# The parent's code must be this one.
leaves_with() {
    code=0
    wait "$WORKER" || code=$?
    WORKER=
    [ $code = "$1" ] || { echo "holder: the parent left with $code, not $1"; exit 1; }
}

bin/tare-controller "$model" --run-dir "$dir" --port 0 --log-format logfmt 2>"$dir/controller.log" &
CONTROLLER=$!
until_true test -S "$dir/control.sock"

# The child, twice: another one attaches.
start_worker
for count in 2 3; do
    kill -KILL "$(child)"
    until_true readies $count
done
[ "$(grep -c 'attached=1' "$dir/worker.log")" = 2 ]
# Asked to leave: both do, with code 0.
last=$(child)
kill -TERM "$WORKER"
leaves_with 0
until_true gone "$last"

# The parent: the child goes with it.
start_worker
last=$(child)
kill -KILL "$WORKER"
leaves_with 137
until_true gone "$last"

# Both at once.
start_worker
last=$(child)
kill -KILL "$WORKER" "$last"
leaves_with 137
until_true gone "$last"

# What a restart cannot help is said once, with the child's own code.
code=0
bin/tare-worker "$dir/no-such-model" --controller "ipc://$dir" 2>"$dir/worker.log" || code=$?
[ $code = 66 ] || { echo "holder: a missing model gave $code"; exit 1; }
code=0
bin/tare-worker "$model" --controller "ipc://$dir" --rank 1 2>"$dir/worker.log" || code=$?
[ $code = 64 ] || { echo "holder: a rank outside its group gave $code"; exit 1; }

kill -TERM "$CONTROLLER"
wait "$CONTROLLER"
CONTROLLER=
