#!/bin/sh
# Tensor and expert parallelism on the cpu device: groups of 1, 2, 4 and 8 ranks give the same bits, three ranks of the
# demo model the same greedy tokens; what cannot be shared out is refused with what can.
set -eu
cd "$(dirname "$0")/../.."
. tests/e2e/server.sh
demo=${1:?usage: ranks.sh MODEL PYTHON}
python=${2:?usage: ranks.sh MODEL PYTHON}
work=$(mktemp -d /tmp/tare-ranks-XXXXXX)
cleanup() {
    kill -KILL ${SERVER:-} 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

"$python" tests/golden/make_tiny.py "$work/moe" qwen3-moe 7
for ranks in 1 2 4 8; do
    start_server "$work/log" "$work/moe" --tensor-parallel-size $ranks
    "$python" tests/e2e/clients/ask_all.py "$URL" "$work/moe.$ranks" >"$work/said" || { cat "$work/said" "$work/log"; exit 1; }
    stop_server
    cmp "$work/moe.1" "$work/moe.$ranks" || { echo "ranks: $ranks ranks answer otherwise than one"; exit 1; }
done
echo "ranks: 1, 2, 4 and 8 ranks of a model with experts: the same bits"

# Nine heads are shared by three ranks, which add in another order than one. Where products read their input rounded to
# 8 bits, as the demo model's do, the last bit of a sum decides a rounding here and there: margins of that size.
"$python" tests/golden/make_tiny.py "$work/nine" llama-nine 7
for model in "$work/nine 1e-4" "$demo 0.5"; do
    for ranks in 1 3; do
        start_server "$work/log" ${model% *} --tensor-parallel-size $ranks --kv-cache-memory-bytes 64M --max-model-len 512
        "$python" tests/e2e/clients/ask_all.py "$URL" "$work/three.$ranks" greedy >"$work/said" || { cat "$work/said" "$work/log"; exit 1; }
        stop_server
    done
    "$python" tests/e2e/clients/same_greedy.py "$work/three.1" "$work/three.3" ${model#* }
done

code=0
bin/tare serve "$demo" --tensor-parallel-size 2 --port 0 >"$work/log" 2>&1 || code=$?
[ $code -ne 0 ] && grep -q 'allows --tensor-parallel-size 1, 3' "$work/log" || { echo "ranks: two ranks of nine heads: code $code"; cat "$work/log"; exit 1; }
