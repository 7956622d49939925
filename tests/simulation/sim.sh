#!/bin/sh
# The simulator: that it links the daemon's own core, every scenario with its bound, then random worlds for the
# rest of the time. One JSON line per run; the first thing that does not hold ends it with the command that
# replays it.
#   sim.sh SECONDS [OUT [TRACES]]        OUT: build/gcc-release or another variant
# The recorded traces are read from TRACES, or ../shared/traces beside the repository where that exists;
# without them the small ones of this folder are.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-1200}
out=${2:-build/gcc-release}
run=$out/tests/simulation/run
start=$(date +%s)
left() { echo $((start + seconds - $(date +%s))); }

# ---- the very objects -----------------------------------------------------------------------------------------
# Each function of the core's objects is in both programs, once, with the same size; the simulator's own objects
# define none of them.
for program in "$run" "$out/bin/tare-controller"; do
    nm -S --defined-only "$program" | awk 'NF == 4 && $3 == "T" { print $4, $2 }' | sort >"$out/tests/simulation/$(basename "$program").symbols"
done
nm -S --defined-only "$out"/controller/core/*.o | awk 'NF == 4 && $3 == "T" { print $4, $2 }' | sort >"$out/tests/simulation/core.symbols"
for program in run tare-controller; do
    missing=$(comm -23 "$out/tests/simulation/core.symbols" "$out/tests/simulation/$program.symbols")
    [ -z "$missing" ] || { echo "simulation: $program does not have the core's objects: $missing"; exit 1; }
done
nm --defined-only "$out"/tests/simulation/*.o | awk '$2 == "T" { print $3 }' | sort >"$out/tests/simulation/own.symbols"
twice=$(cut -d' ' -f1 "$out/tests/simulation/core.symbols" | comm -12 - "$out/tests/simulation/own.symbols")
[ -z "$twice" ] || { echo "simulation: defined here and in the core: $twice"; exit 1; }
echo "simulation: links $(wc -l <"$out/tests/simulation/core.symbols") functions of controller/core as tare-controller does"

# ---- scenarios, each twice ------------------------------------------------------------------------------------
traces=${3:-../shared/traces}
[ -d "$traces" ] && [ "$seconds" -gt 100 ] || traces=tests/simulation
for scenario in $("$run" --list | awk '$2 == "holds" && $1 != "swarm" { print $1 }'); do
    "$run" --scenario "$scenario" --seed 1 --traces "$traces" --twice
done

# ---- worlds that found a defect once ---------------------------------------------------------------------------
for seed in 63 2156; do
    "$run" --scenario swarm --seed $seed
done
for seed in 84 375; do
    "$run" --scenario swarm --seed $seed --full --hours 0.1
done

# ---- random worlds --------------------------------------------------------------------------------------------
jobs=$(nproc 2>/dev/null || echo 2)
rest=$(left)
[ "$rest" -gt 10 ] || rest=10
"$run" --campaign --seconds $((rest * 3 / 4)) --jobs "$jobs" --first 0
"$run" --campaign --seconds $((rest / 4)) --jobs "$jobs" --first 0 --full --hours 0.1
