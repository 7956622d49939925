#!/bin/sh
# Random disconnects and kills under load for CHAOS_S seconds (default 900, for a thousand kills): every request ends
# with the tokens it would have had, no block leaks. A group of two ranks; the prefix cache and pipelining as always.
# Prints one JSON line last.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
work=$(mktemp -d /tmp/tare-chaos-XXXXXX)
python=$(sh tests/e2e/clients/venv.sh)
"$python" tests/golden/make_tiny.py "$work/tiny" qwen3-moe 7
cleanup() {
    [ -z "${SERVER:-}" ] || kill -KILL "$SERVER" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
start_server "$work/server.log" "$work/tiny" --tensor-parallel-size 2 --no-access-log --kv-cache-memory-bytes 16M
"$python" tests/e2e/clients/chaos.py "$URL" "$SERVER" "$work/server.log" "${CHAOS_S:-900}" || {
    code=$?
    tail -n 40 "$work/server.log"
    exit $code
}
stop_server
