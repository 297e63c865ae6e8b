#!/bin/sh
# Before a node is stopped: waits (PRE_STOP_SECONDS at most, default 60) until the others can do without it, then lets
# clients and leaderships move away (lame duck). The server exits by itself; the kubelet's TERM finds it on its way out.
set -eu
end=$(($(date +%s) + ${PRE_STOP_SECONDS:-60}))
until probe.py "/healthz?safe-to-restart=true"; do
    if [ "$(date +%s)" -ge "$end" ]; then
        echo "pre-stop: still not safe; the node stops all the same" >&2
        break
    fi
    sleep 1
done
pid=$(cat /run/jetcluster/server.pid)
jetcluster serve -sl "ldm=$pid"
while [ "$(date +%s)" -lt "$end" ] && kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
done
