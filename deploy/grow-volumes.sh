#!/usr/bin/env bash
# Makes the volumes of a release larger: `deploy/grow-volumes.sh [-n NAMESPACE] STATEFULSET SIZE [CHECK_SECONDS]`.
# A StatefulSet does not change its claims, so: each claim is asked for SIZE, one after the other, and waited for; then
# the StatefulSet alone is deleted (its pods and claims stay, `--cascade=orphan`), for `helm upgrade` to make it anew with
# config.jetstream.fileStore.pvc.size=SIZE. Pods are not restarted by it. Needs a storage class that allows it
# (allowVolumeExpansion); volumes never get smaller. Can be run again at any point.
set -euo pipefail
options=()
if [ "${1:-}" = -n ]; then
    options=(-n "$2")
    shift 2
fi
[ $# -ge 2 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
name=$1 size=$2 seconds=${3:-600}
KUBECTL=${KUBECTL:-kubectl}

k() { "$KUBECTL" "${options[@]}" "$@"; }

# bytes TEXT: of a quantity such as 20Gi, 1.5Ti or 500G.
bytes() {
    awk -v text="$1" 'BEGIN {
        number = text + 0; unit = text; sub(/^[0-9.]+/, "", unit)
        split("k M G T P E", names, " ")
        for (i = 1; i <= 6; i++) { power[names[i]] = 1000 ^ i; power[toupper(names[i]) "i"] = 1024 ^ i }
        if (unit == "") power[unit] = 1
        if (number <= 0 || !(unit in power)) exit 1
        printf "%.0f", number * power[unit]
    }'
}

wanted=$(bytes "$size") || { echo "grow-volumes: '$size' is no size like 20Gi" >&2; exit 2; }
# The pods' claims are called data-NAME-0 and so on; those of pods that are scaled away grow, too, as they may come back.
claims=$(k get pvc -o name | sed 's|^.*/||' | grep -E "^data-$name-[0-9]+$" || true)
[ -n "$claims" ] || { echo "grow-volumes: there is no claim data-$name-<number>" >&2; exit 1; }
for claim in $claims; do
    class=$(k get pvc "$claim" -o 'jsonpath={.spec.storageClassName}')
    if [ "$("$KUBECTL" get storageclass "$class" -o 'jsonpath={.allowVolumeExpansion}')" != true ]; then
        echo "grow-volumes: storage class '$class' of $claim does not allow it (allowVolumeExpansion)" >&2
        exit 1
    fi
    if [ "$(bytes "$(k get pvc "$claim" -o 'jsonpath={.spec.resources.requests.storage}')")" -gt "$wanted" ]; then
        echo "grow-volumes: $claim has asked for more than $size already; volumes do not get smaller" >&2
        exit 1
    fi
done
for claim in $claims; do
    k patch pvc "$claim" --type merge -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$size\"}}}}" >/dev/null
    end=$(($(date +%s) + seconds))
    # A claim that no pod uses has its file system resized by the next pod.
    until now=$(k get pvc "$claim" -o 'jsonpath={.status.capacity.storage} {.status.conditions[*].type}') &&
        { [ "$(bytes "${now%% *}")" -ge "$wanted" ] || [[ $now == *FileSystemResizePending* ]]; }; do
        if [ "$(date +%s)" -ge "$end" ]; then
            echo "grow-volumes: $claim is not larger after $seconds s: $now" >&2
            exit 1
        fi
        sleep 2
    done
    echo "$claim: $now"
done
if k get statefulset "$name" >/dev/null 2>&1; then
    k delete statefulset "$name" --cascade=orphan
fi
echo "now: helm upgrade ... --set config.jetstream.fileStore.pvc.size=$size"
