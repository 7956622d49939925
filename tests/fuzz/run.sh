#!/bin/sh
# Runs every fuzz target for FUZZ_S seconds each (default 600), or those named as arguments. A finding is
# kept under build/fuzz and fails the run; fixed ones belong in tests/fuzz/regression/TARGET.
set -eu
cd "$(dirname "$0")/../.."
seconds=${FUZZ_S:-600}
targets=${*:-$(ls tests/fuzz/fuzz_*.c | sed 's|.*/fuzz_||; s|\.c$||')}
mkdir -p build/fuzz
for t in $targets; do
    make --no-print-directory -s -j2 CC=clang BUILD=fuzz "build/clang-fuzz/tests/fuzz/fuzz_$t" >build/fuzz/build.log 2>&1 ||
        { cat build/fuzz/build.log; exit 1; }
    mkdir -p "build/fuzz/corpus_$t" "tests/fuzz/corpus/$t" "tests/fuzz/regression/$t"
    echo "fuzz $t: $seconds s"
    build/clang-fuzz/tests/fuzz/fuzz_$t -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/$t-" "build/fuzz/corpus_$t" "tests/fuzz/corpus/$t" "tests/fuzz/regression/$t" \
        >"build/fuzz/$t.log" 2>&1 || { tail -n 40 "build/fuzz/$t.log"; echo "fuzz $t: a finding, see build/fuzz"; exit 1; }
    grep -E 'stat::number_of_executed_units|Done' "build/fuzz/$t.log" | tail -n 1
done
echo "fuzz: no finding"
