#!/bin/sh
# Makes the virtual environment of the client tests (build/e2e-venv) and prints its python.
set -eu
cd "$(dirname "$0")/../../.."
venv=build/e2e-venv
want=$(cksum <tests/e2e/clients/requirements.txt)
if [ "$(cat "$venv/made-from" 2>/dev/null)" != "$want" ]; then
    mkdir -p build
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install -q --disable-pip-version-check -r tests/e2e/clients/requirements.txt >&2
    printf '%s\n' "$want" >"$venv/made-from"
fi
echo "$venv/bin/python"
