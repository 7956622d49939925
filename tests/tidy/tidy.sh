#!/bin/sh
# What a machine can check of the house rules: layers, doors, purity, bans, formatting, headers.
# Prints every finding and fails if there is one. Needs gcc, nm, clang-format (skipped if absent).
set -u
cd "$(dirname "$0")/../.."
fail=0
found() { echo "tidy: $*"; fail=1; }
CC=${CC:-gcc}

# ---- layers: who may include whom ---------------------------------------------------------------
# folder pattern, allowed include prefixes
layer() {
    for f in $(git ls-files "$1" | grep -E '\.(c|h|cu|cuh)$'); do
        grep -nE '^#include "' "$f" | while IFS= read -r line; do
            inc=$(printf '%s\n' "$line" | sed -E 's/.*"([^"]+)".*/\1/')
            ok=0
            for p in $2; do case "$inc" in $p*) ok=1 ;; esac; done
            [ $ok = 1 ] || echo "$f:${line%%:*}: may not include $inc"
        done
    done
}
out=$(
    layer common "common/"
    layer proto "common/ proto/"
    layer kernels "common/ kernels/"
    layer worker "common/ proto/ kernels/ worker/"
    layer controller/core "common/ proto/messages.h controller/core/"
    layer controller/text "common/ controller/text/"
    layer controller/http "common/ proto/messages.h controller/core/ controller/text/ controller/http/ controller/stats.h"
    layer controller/net "common/ proto/ controller/core/ controller/net/"
    layer controller/cli "common/ proto/link_keys.h controller/cli/"
    layer controller "common/ proto/ controller/"
)
[ -z "$out" ] || { printf '%s\n' "$out"; found "layers: the includes above point the wrong way"; }

# ---- doors: each library has its named includers -------------------------------------------------
door() {    # header pattern, allowed files
    for f in $(git grep -lE "#include [<\"]($1)" -- '*.c' '*.h' '*.cu' | grep -v '^tests/'); do
        ok=0
        for a in $2; do case "$f" in $a) ok=1 ;; esac; done
        [ $ok = 1 ] || echo "$f includes $1"
    done
}
out=$(
    door 'uv\.h' 'controller/http/http_server.c controller/http/http_connection.* controller/http/background.c proto/transport_zmq.c controller/main.c'
    door 'zmq\.h' 'proto/transport_zmq.c proto/transport_zap.c proto/link_keys.c'
    door 'protobuf-c|proto/.*\.pb-c\.h' 'proto/codec.c proto/codec_control.c proto/codec_internal.h'
    door 'jansson\.h' 'common/json.c'
    door 'yaml\.h' 'common/config.c'
    door 'xxhash\.h' 'common/hash.c'
    door 'sodium' 'common/hash.c proto/transport_zmq.c'
    door 'utf8proc\.h|pcre2\.h' 'controller/text/*.c'
    door 'curl/|ncurses' 'controller/cli/*.c'
    door 'check\.h' ''
    door 'cuda|nccl' 'worker/device/device_cuda.c worker/comm/collective_nccl.c kernels/cuda/*'
)
[ -z "$out" ] || { printf '%s\n' "$out"; found "doors: a library is included outside its door"; }

# ---- bans ----------------------------------------------------------------------------------------
code=$(git ls-files '*.c' '*.h' '*.cu' | grep -v '^tests/')
out=$(grep -nE '(^|[^a-z_])(strcpy|strcat|sprintf|vsprintf|strtok|gmtime|localtime|atoi|atol|gets)\(' $code)
[ -z "$out" ] || { printf '%s\n' "$out"; found "bans: unsafe calls"; }
out=$(grep -nE '(^|[^a-z_])(malloc|calloc|realloc|free|strdup|strndup)\(' $code | grep -v '^common/memory.c:')
[ -z "$out" ] || { printf '%s\n' "$out"; found "bans: heap calls outside common/memory.c"; }
out=$(grep -nE '(^|[^a-z_])(getenv|secure_getenv)\(' $code | grep -v '^common/config.c:')
[ -z "$out" ] || { printf '%s\n' "$out"; found "bans: environment read outside common/config.c"; }
out=$(grep -nE '(^|[^a-z_])(exit|_exit)\(' $code | grep -vE '^(controller/cli/serve|worker/holder)\.c:')
[ -z "$out" ] || { printf '%s\n' "$out"; found "bans: only main exits (children that cannot exec excepted)"; }
out=$(grep -nE '_Thread_local|__thread' $code | grep -v '^common/memory.c:')
[ -z "$out" ] || { printf '%s\n' "$out"; found "bans: thread-locals"; }
out=$(grep -nE '(TODO|FIXME)' $code | grep -vE 'TODO\(#[0-9]+\)')
[ -z "$out" ] || { printf '%s\n' "$out"; found "leftover markers"; }
out=$(LC_ALL=C.UTF-8 grep -nE '^.{101,}$' $code)
[ -z "$out" ] || { printf '%s\n' "$out"; found "lines over 100 columns"; }
out=$(for f in $(git ls-files '*.c' '*.h' '*.cu' '*.cuh'); do head -n1 "$f" | grep -q 'SPDX-License-Identifier' || echo "$f"; done)
[ -z "$out" ] || { printf '%s\n' "$out"; found "files without a licence tag"; }

# ---- headers: guard named after the path, compile alone -------------------------------------------
mkdir -p build/tidy
for h in $(git ls-files '*.h' | grep -v '^tests/'); do
    guard=$(printf '%s' "$h" | tr 'a-z/.-' 'A-Z___')
    grep -q "^#ifndef $guard\$" "$h" || found "$h: guard is not $guard"
    stamp="build/tidy/$(printf '%s' "$h" | tr '/' '_').ok"
    if [ ! -e "$stamp" ] || [ -n "$(find "$h" common -name '*.h' -newer "$stamp" 2>/dev/null | head -n1)" ]; then
        case "$h" in
        common/options.h) touch "$stamp" ;;    # a table for config.h
        *) if $CC -std=c11 -D_GNU_SOURCE -fsyntax-only -mavx2 -mfma -mf16c -mavx512f -I. -Ibuild/gen -x c "$h" 2>build/tidy/err; then
               touch "$stamp"
           else
               cat build/tidy/err; found "$h does not compile alone"
           fi ;;
        esac
    fi
done

# ---- purity: the core may call memory and string functions and the project's own base, nothing else -
pure='^(_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__mem[a-z]+_chk|__strn?(cpy|len)_chk|__v?snprintf_chk|memcpy|memmove|memset|memcmp|strlen|strcmp|strncmp|strnlen|memchr|snprintf|vsnprintf|floor|ceil|log|exp|pow|sqrt|fmin|fmax)$'
for o in build/gcc-release/controller/core/*.o; do
    [ -e "$o" ] || continue
    nm -u "$o" | awk '{print $2}' | grep -vE "$pure" | grep -vE '^(core|request|kv_blocks|scheduler|group|step_plan|rank_answers|safety_tree|prefix_index|prefix|waiting|overload|prediction|cost_model|cost_shape)_' |
        grep -vE '^(memory|invariant|error|status|arena|hash|rng|plan|result|capacity|sampling|step_share|step_size)_' | sed "s|^|$o: |"
done > build/tidy/impure
[ -s build/tidy/impure ] && { cat build/tidy/impure; found "purity: the core reaches outside"; }

# ---- the controller never sees CUDA ----------------------------------------------------------------
for b in build/gcc-release/bin/tare-controller build/gcc-release/bin/tare; do
    [ -e "$b" ] || continue
    if readelf -d "$b" | grep NEEDED | grep -qiE 'cuda|nccl|cublas|nvidia'; then found "$b needs a CUDA library"; fi
done

# ---- formatting ------------------------------------------------------------------------------------
if command -v clang-format >/dev/null 2>&1; then
    out=$(clang-format --dry-run $(git ls-files '*.c' '*.h') 2>&1 | grep -E 'warning' | cut -d: -f1 | sort | uniq -c)
    [ -z "$out" ] || { printf '%s\n' "$out"; found "formatting: run make format"; }
fi

# ---- sizes: printed, never a failure -----------------------------------------------------------------
wc -l $code | awk '$2 != "total" && $1 > 800 { print "tidy: note: " $2 " has " $1 " lines" }'
[ $fail = 0 ] && echo "tidy: layers, doors, bans, headers, purity, formatting hold"
exit $fail
