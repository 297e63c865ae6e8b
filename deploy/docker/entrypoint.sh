#!/bin/sh
# Starts the server with the image's flags or those given. In a set of pods or containers called NAME-0 .. NAME-(n-1),
# JETCLUSTER_REPLICAS=n makes this node's name and the routes to all of them out of the host name:
#   JETCLUSTER_REPLICAS   how many
#   JETCLUSTER_SERVICE    domain of their names, e.g. a headless service "jetcluster.default.svc" (default: none)
#   JETCLUSTER_CLUSTER    name of the cluster (default: NAME)
#   JETCLUSTER_PORT       cluster port (default: 6222), or "file" where the configuration file has it, with the password
#                         of the routes, which the flag would clear
#   JETCLUSTER_ROUTE_PORT the port of the others then (default: 6222)
# JETCLUSTER_ZONE, or else the content of the file JETCLUSTER_ZONE_FILE, becomes the server tag zone:<it>.
# JETCLUSTER_WORKERS is the number of processes that serve its ports together, or auto (--workers).
# Streams of another JetStream domain, behind a leaf link, are mirrored here (`jetcluster mirror`, at each start):
#   JETCLUSTER_MIRROR           their names, with blanks between them
#   JETCLUSTER_MIRROR_DOMAIN    that domain
#   JETCLUSTER_MIRROR_REPLICAS  replicas of each mirror (default: 1)
#   JETCLUSTER_MIRROR_SERVER    this server as a client sees it (default: nats://127.0.0.1:4222); NATS_CA for tls://
set -eu

case "${1:-}" in
    "" | -*) ;;
    *) exec "$@" ;; # another command, e.g. `jetcluster up`
esac

if [ -n "${JETCLUSTER_REPLICAS:-}" ]; then
    case "$JETCLUSTER_REPLICAS" in
        *[!0-9]* | 0*)
            echo "entrypoint: JETCLUSTER_REPLICAS is '$JETCLUSTER_REPLICAS', not a number of nodes" >&2
            exit 1
            ;;
    esac
    host=${HOSTNAME:-$(hostname)}
    host=${host%%.*}
    base=${host%-*}
    number=${host##*-}
    case "$number" in
        '' | *[!0-9]*)
            echo "entrypoint: host name '$host' does not end in -<number>: unset JETCLUSTER_REPLICAS" >&2
            exit 1
            ;;
    esac
    domain=${JETCLUSTER_SERVICE:+.$JETCLUSTER_SERVICE}
    port=${JETCLUSTER_PORT:-6222}
    if [ "$port" = file ]; then
        port=${JETCLUSTER_ROUTE_PORT:-6222}
    else
        set -- "$@" --cluster "nats://0.0.0.0:$port"
    fi
    routes=""
    n=0
    while [ "$n" -lt "$JETCLUSTER_REPLICAS" ]; do
        routes="$routes${routes:+,}nats://$base-$n$domain:$port"
        n=$((n + 1))
    done
    set -- "$@" --server_name "$host" --cluster_name "${JETCLUSTER_CLUSTER:-$base}" --routes "$routes"
    if [ -n "$domain" ]; then
        set -- "$@" --cluster_advertise "$host$domain:$port"
    fi
fi
zone=${JETCLUSTER_ZONE:-}
if [ -z "$zone" ] && [ -s "${JETCLUSTER_ZONE_FILE:-}" ]; then
    zone=$(cat "$JETCLUSTER_ZONE_FILE")
fi
if [ -n "$zone" ]; then
    set -- "$@" --tags "zone:$zone"
fi
if [ -n "${JETCLUSTER_WORKERS:-}" ]; then
    set -- "$@" --workers "$JETCLUSTER_WORKERS"
fi
if [ -n "${JETCLUSTER_MIRROR:-}" ]; then
    # These become children of the server, which does not know them: nobody is to wait for their exit codes.
    trap '' CHLD
    for stream in $JETCLUSTER_MIRROR; do
        jetcluster mirror "$stream" --domain "${JETCLUSTER_MIRROR_DOMAIN:-}" \
            --replicas "${JETCLUSTER_MIRROR_REPLICAS:-1}" \
            --server "${JETCLUSTER_MIRROR_SERVER:-nats://127.0.0.1:4222}" --within 3600 &
    done
fi
exec jetcluster serve "$@"
