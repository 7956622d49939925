#!/bin/sh
# What the server takes from the machine it shares: start to ready, memory of all processes against the formula,
# processor time when idle, and decode beside one foreign busy core. One JSON line each, ratios to a limit or to
# a run of the same script.
#   ROUNDS=3 sh tests/bench/bench_machine.sh
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
out=build/gcc-release
make --no-print-directory -s "$out/tests/bench/bench_load"
model=models/smollm2-135m-instruct-q4_1.gguf
work=build/bench
mkdir -p "$work"
rounds=${ROUNDS:-3}
log=$work/machine.log
cleanup() { [ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true; [ -z "${BUSY:-}" ] || kill "$BUSY" 2>/dev/null || true; }
trap cleanup EXIT

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
processes() { pgrep -s "$(ps -o sid= -p "$SERVER" | tr -d ' ')" -f 'tare' | while read -r p; do
    case $(readlink "/proc/$p/exe") in */bin/tare | */bin/tare-controller | */bin/tare-worker) echo "$p" ;; esac
done; }
# Proportional: a page that several processes map counts once. Anonymous + shared, KiB.
memory_kib() { for p in $(processes); do cat "/proc/$p/smaps_rollup"; done | awk '/^Pss_(Anon|Shmem):/ {sum += $2} END {print sum}'; }
# Run time in nanoseconds and turns on a processor, of all threads: exact, where clock ticks are sampled.
turns() { for p in $(processes); do cat "/proc/$p/task/"*/schedstat; done | awk '{ns += $1; runs += $3} END {printf "%.0f %d", ns, runs}'; }
load() { "$out/tests/bench/bench_load" 127.0.0.1 "${URL##*:}" "$@"; }
stream() { load clients=1 requests=2 prompt=128 output=128 seed="$1" | sed 's/.*"stream_tok_s":\([0-9.]*\).*/\1/'; }

# ---- start to ready; the file is in the page cache after the first ----
: >"$work/starts"
for _ in $(seq 0 "$rounds"); do
    begin=$(date +%s%N)
    start_server "$log" "$model" --no-access-log
    ready=$(date +%s%N)
    echo $(((ready - begin) / 1000000)) >>"$work/starts"
    stop_server
done
echo "{\"bench\":\"start\",\"ready_ms_median\":$(tail -n +2 "$work/starts" | median),\"limit_ms\":1500}"

# ---- memory and idle time ----
kv_bytes=$((64 * 1024 * 1024))
start_server "$log" "$model" --no-access-log --kv-cache-memory-bytes $kv_bytes
limit=$(($(stat -c %s "$model") * 11 / 10 / 1024 + kv_bytes / 1024 + 96 * 1024))
at_start=$(memory_kib)
load clients=16 requests=32 prompt=128 output=32 >/dev/null
after=$(memory_kib)
sleep 12    # heartbeats slow down ten seconds after the last plan
before=$(turns)
sleep 10    # the interval that idle processor time is measured over
idle=$(echo "$before $(turns)" | awk '{printf "\"cpu_percent\":%.2f,\"wakeups_per_s\":%.1f", ($3 - $1) / 1e8, ($4 - $2) / 10}')
stop_server
echo "{\"bench\":\"memory\",\"kib_at_start\":$at_start,\"kib_after_load\":$after,\"limit_kib\":$limit,\"share\":$(awk -v a="$after" -v l="$limit" 'BEGIN {printf "%.2f", a / l}')}"
echo "{\"bench\":\"idle\",$idle,\"limit_percent\":1}"

# ---- decode beside one busy core: one thread alone, two threads alone, two threads in company ----
: >"$work/company"
for round in $(seq 1 "$rounds"); do
    start_server "$log" "$model" --no-access-log --threads 1
    echo "one $(stream "$round")" >>"$work/company"
    stop_server
    start_server "$log" "$model" --no-access-log --threads 2
    echo "two $(stream "$round")" >>"$work/company"
    taskset -c 0 sh -c 'while :; do :; done' &
    BUSY=$!
    echo "company $(stream "$round")" >>"$work/company"
    kill "$BUSY"
    wait "$BUSY" 2>/dev/null || true
    BUSY=
    stop_server
done
of() { sed -n "s/^$1 //p" "$work/company" | median; }
echo "{\"bench\":\"company\",\"one_thread_tok_s\":$(of one),\"two_threads_tok_s\":$(of two),\"two_threads_beside_a_busy_core_tok_s\":$(of company),\"ratio_to_one_thread\":$(awk -v c="$(of company)" -v o="$(of one)" 'BEGIN {printf "%.2f", c / o}')}"
