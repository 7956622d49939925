#!/bin/sh
# Every variant, tidy, the whole soak, integration, e2e, a public load tool, each fuzz target for a minute and a
# short chaos: what a release must pass.
set -eu
cd "$(dirname "$0")/.."
start=$(date +%s)
step() { echo "== $* ($(($(date +%s) - start)) s)"; }
step "unit tests, every compiler and variant"
for cc in gcc clang; do
    for build in release debug asan tsan; do
        make --no-print-directory -s -j2 "build/$cc-$build/tests/unit/run" CC=$cc BUILD=$build
        make --no-print-directory -s -j2 unit-worker unit-kernels unit-controller unit-core CC=$cc BUILD=$build
    done
done
step tidy
make --no-print-directory -s tidy
step soak
make --no-print-directory -s soak
step integration
make --no-print-directory -s integration
step e2e
make --no-print-directory -s e2e
step load tool
sh tests/e2e/load_tool.sh
step fuzz
FUZZ_S=${FUZZ_S:-60} sh tests/fuzz/run.sh
step chaos
CHAOS_S=${CHAOS_S:-300} sh tests/e2e/chaos.sh
step done
