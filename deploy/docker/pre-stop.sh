#!/bin/sh
# Before a node is stopped: waits (PRE_STOP_SECONDS at most, default 60) until the others can do without it, then lets
# clients and leaderships move away (lame duck) and ends. It must end before the server does, with which the container
# and this script would go, and the kubelet would warn. A lame duck ignores the TERM that follows, and exits by itself.
set -eu
file=${PID_FILE:-/run/jetcluster/server.pid}
end=$(($(date +%s) + ${PRE_STOP_SECONDS:-60}))
until probe.py "/healthz?safe-to-restart=true"; do
    if [ ! -s "$file" ]; then
        echo "pre-stop: the server has not started" >&2
        exit 0
    fi
    if [ "$(date +%s)" -ge "$end" ]; then
        echo "pre-stop: still not safe; the node stops all the same" >&2
        break
    fi
    sleep 1
done
jetcluster serve -sl "ldm=$(cat "$file")"
