#!/bin/sh
# `scale-down.sh SECONDS NODE...`: takes nodes out of the cluster, one after the other, before their pods go. NATS_URL
# has the servers that stay, NATS_USER and NATS_PASSWORD a user of the system account, NATS_CA the authorities for TLS.
# A node that is gone already, as after an earlier attempt, is no error.
set -eu
within=$1
shift
folder=$(mktemp -d)
for node in "$@"; do
    {
        jetcluster decommission "$node" --within "$within" --server "$NATS_URL" 2>&1 && code=0 || code=$?
        echo "$code" >"$folder/code"
    } | tee "$folder/said"
    code=$(cat "$folder/code")
    if [ "$code" -ne 0 ] && ! grep -q "not a member" "$folder/said"; then
        echo "scale-down: $node was not taken out (exit code $code); nothing is scaled down" >&2
        exit "$code"
    fi
done
