#!/bin/sh
# The worker's engine against an independent implementation: tiny random checkpoints of every family and
# container through the plain path, and the demo model's quantised path by its perplexity.
set -eu
cd "$(dirname "$0")/../.."
out=build/gcc-release
make --no-print-directory -s "$out/tests/golden/run_model"
python=$(sh tests/e2e/clients/venv.sh)
work=build/integration
mkdir -p "$work"
for kind in llama llama3 qwen3 llama-sharded llama-bf16 llama-f16 llama-eight qwen3-moe qwen3-moe-fused qwen3-moe-shared; do
    "$python" tests/golden/make_tiny.py "$work/$kind" "$kind" 7
    for isa in scalar auto; do
        "$python" tests/golden/compare.py "$out/tests/golden/run_model" "$work/$kind" --isa $isa
    done
done
"$python" tests/golden/perplexity.py "$out/tests/golden/run_model" models/smollm2-135m-instruct-q4_1.gguf
echo "integration: all comparisons hold"
