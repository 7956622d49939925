#!/bin/sh
# What the server takes from the machine it shares: start to ready and its phases, the time of a plan, memory of
# all processes against the formula, processor time when idle, and decode beside one foreign busy core. One JSON
# line each, ratios to a limit or to a run of the same script.
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

# ---- start to ready, first on this machine and again, with the phases of the worker ----
# The file is in the page cache after the unmeasured start; "other" is processes, tokenizer and the join.
start_once() { # which
    begin=$(date +%s%N)
    start_server "$log" "$model" --no-access-log --seal-dir "$work/seals"
    ready=$(date +%s%N)
    ms=$(((ready - begin) / 1000000))
    stop_server
    echo "$1|ready|$ms" >>"$work/starts"
    sed -n 's/.*src=engine msg="start" phase="\([^"]*\)" ms=\([0-9.]*\) .*/\1|\2/p' "$log" |
        awk -F'|' -v which="$1" -v ms="$ms" '{sum += $2; print which "|" $1 "|" $2} END {print which "|other|" ms - sum}' >>"$work/starts"
}
start_row() { # which, limit in ms
    awk -F'|' -v which="$1" '$1 == which && !seen[$2]++ {print $2}' "$work/starts" | while read -r phase; do
        printf '"%s":%s,' "$phase" "$(awk -F'|' -v which="$1" -v phase="$phase" '$1 == which && $2 == phase {print $3}' "$work/starts" | median)"
    done | sed "s/^\"ready\":\([0-9.]*\),\(.*\),\$/{\"bench\":\"start\",\"which\":\"$1\",\"ready_ms_median\":\1,\"limit_ms\":$2,\"phases_ms\":{\2}}\n/"
}
rm -rf "$work/seals"
mkdir -m 700 "$work/seals"
start_once warm-up
: >"$work/starts"
for _ in $(seq "$rounds"); do
    rm -rf "$work/seals"
    mkdir -m 700 "$work/seals"
    start_once first
    start_once second
done
start_row first 8000
start_row second 1500

# ---- a plan of a model of 70 billion parameters on eight ranks, from its shapes ----
: >"$work/plans"
for _ in $(seq "$rounds"); do
    begin=$(date +%s%N)
    bin/tare plan Llama-3.1-70B --device h200 --tensor-parallel-size 8 --json >"$work/plan.json" 2>/dev/null
    echo $((($(date +%s%N) - begin) / 1000000)) >>"$work/plans"
done
plan_ms=$(median <"$work/plans")
echo "{\"bench\":\"plan_70b\",\"ms_median\":$plan_ms,\"limit_ms\":200,\"share\":$(awk -v a="$plan_ms" 'BEGIN {printf "%.2f", a / 200}')}"

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
