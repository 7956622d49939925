# Functions for scripts that start a server of their own. Sourced; the caller is in the root of the tree.
# start_server LOG MODEL [flags]: a server on a free port; sets URL and SERVER. Waits until it is ready.
# stop_server: asks it to drain; fails unless it leaves with code 0.

start_server() {
    log=$1
    shift
    : >"$log"    # not what an earlier server wrote there
    "${TARE:-bin/tare}" serve "$@" --port 0 2>"$log" &
    SERVER=$!
    # The condition is the line after the ready line, which is then whole; the pause only spaces the looks at it.
    tries=0
    until grep -q '^try ' "$log"; do
        tries=$((tries + 1))
        if ! kill -0 "$SERVER" 2>/dev/null || [ $tries -gt 600 ]; then
            echo "server did not get ready:"
            cat "$log"
            return 1
        fi
        sleep 0.1
    done
    URL=$(sed -n 's|^ready *\(http://[^/]*\)/v1.*|\1|p' "$log")
}

stop_server() {
    kill -TERM "$SERVER"
    if wait "$SERVER"; then :; else
        echo "server left with code $?:"
        tail -n 20 "$log"
        return 1
    fi
}

# The child of the worker that computes (the holder's child).
worker_child() {
    for holder in $(pgrep -P "$SERVER" -x tare-worker); do
        pgrep -P "$holder" -x tare-worker
    done
}

# The run directory of the server that was started: others may run on this host.
run_dir() {
    tr '\0' '\n' <"/proc/$(pgrep -P "$SERVER" -x tare-controller)/cmdline" | sed -n 's/^--run-dir=//p'
}
