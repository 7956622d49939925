#!/bin/sh
# The controller's turn in time and, where valgrind is present, in instructions, which are the same every time.
# One JSON line per size. At most 30 s after the build.
#   bench_core.sh OUT
set -eu
cd "$(dirname "$0")/../.."
bench=$1/tests/bench/bench_core
turns=200
work=build/bench-core
mkdir -p "$work"
"$bench" >"$work/times"
: >"$work/instructions"
if command -v valgrind >/dev/null 2>&1; then
    for running in 256 1024 8192; do
        # The 8,192 take the longest to come up under valgrind: fewer turns.
        [ $running = 8192 ] && turns=20
        valgrind --tool=callgrind --toggle-collect=turn --callgrind-out-file="$work/callgrind" \
            "$bench" --running $running --turns $turns >/dev/null 2>"$work/valgrind"
        total=$(sed -n 's/^summary: //p;s/^totals: //p' "$work/callgrind" | head -n 1)
        echo "$running $((total / turns))" >>"$work/instructions"
    done
fi
while read -r line; do
    case $line in *core_single*) printf '%s\n' "$line"; continue ;; esac
    running=$(printf '%s' "$line" | sed 's/.*"running":\([0-9]*\).*/\1/')
    instructions=$(awk -v r="$running" '$1 == r { print $2 }' "$work/instructions")
    printf '%s\n' "$line" | sed "s/}\$/,\"instructions_per_turn\":${instructions:-null}}/"
done <"$work/times"
