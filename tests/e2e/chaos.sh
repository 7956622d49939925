#!/bin/sh
# Random disconnects and kills under load for CHAOS_S seconds (default 300): every request ends, no block
# leaks, streams that survive a kill have the tokens they would have had. Prints one JSON line last.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
work=build/chaos
mkdir -p "$work"
python=$(sh tests/e2e/clients/venv.sh)
"$python" tests/golden/make_tiny.py "$work/tiny" llama 7
cleanup() { [ -z "${SERVER:-}" ] || kill -KILL "$SERVER" 2>/dev/null || true; }
trap cleanup EXIT
start_server "$work/server.log" "$work/tiny" --no-access-log
"$python" tests/e2e/clients/chaos.py "$URL" "$SERVER" "${CHAOS_S:-300}"
stop_server
