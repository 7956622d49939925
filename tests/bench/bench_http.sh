#!/bin/sh
# The HTTP front end with a simulated worker, beside what libuv alone can do: tiny requests per second, streamed
# tokens per second, time added to the first byte. The server runs as it comes, its access log included; nothing
# is bound to a core. One JSON line per figure, half a minute.
#   SECONDS_EACH=2 ROUNDS=3 sh tests/bench/bench_http.sh
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
out=build/gcc-release
make --no-print-directory -s "$out/tests/bench/bench_http" "$out/tests/bench/bench_http_limit"
model=models/smollm2-135m-instruct-q4_1.gguf
work=build/bench
mkdir -p "$work"
cleanup() { [ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true; [ -z "${LIMIT:-}" ] || kill "$LIMIT" 2>/dev/null || true; }
trap cleanup EXIT

start_server "$work/http.log" "$model" --device sim:h200 ${FLAGS:-}
rm -f "$work/http.port"    # an earlier run wrote it
"$out/tests/bench/bench_http_limit" >"$work/http.port" &
LIMIT=$!
until [ -s "$work/http.port" ]; do sleep 0.05; done
"$out/tests/bench/bench_http" "${URL##*:}" "$(cat "$work/http.port")" "${SECONDS_EACH:-2}" "${ROUNDS:-3}"
stop_server
