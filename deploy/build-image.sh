#!/usr/bin/env bash
# Builds the image `jetcluster` (or $1, a name without a tag) as `:latest` and as `:VERSION`, which the chart asks for.
# Where no registry can be reached it makes the base image itself: a minimal Debian by debootstrap, under the name that
# the Dockerfile expects, and takes the wheels along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TAG=${1:-jetcluster}
BASE=${BASE:-python:3.11-slim-bookworm}
DOCKER=${DOCKER:-docker}

make_base() {
    command -v debootstrap >/dev/null || { echo "build-image: neither a registry nor debootstrap (apt-get install debootstrap)"; exit 1; }
    echo "build-image: $BASE cannot be pulled; making it by debootstrap" >&2
    local root
    root=$(mktemp -d)
    chmod 755 "$root" # becomes / of the image
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,tzdata bookworm "$root" >&2
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}
    tar -C "$root" -c . | "$DOCKER" import - "$BASE" >&2
    rm -rf "$root"
}

if ! "$DOCKER" image inspect "$BASE" >/dev/null 2>&1 && ! timeout 60 "$DOCKER" pull -q "$BASE" >/dev/null 2>&1; then
    make_base
fi
options=()
if ! timeout 60 "$DOCKER" run --rm --entrypoint python3 "$BASE" -c \
    'import urllib.request; urllib.request.urlopen("https://pypi.org/simple/pip/", timeout=10)' >/dev/null 2>&1; then
    echo "build-image: containers reach no package index; downloading the wheels here" >&2
    python=$(command -v python3.11 || command -v python3)
    "$python" -m pip download -q --dest deploy/wheels ".[s3]" hatchling "cython>=3.1" "setuptools>=75"
    options=(--build-arg PIP_OPTIONS=--no-index)
fi
"$DOCKER" buildx version >/dev/null 2>&1 || export DOCKER_BUILDKIT=0 # the classic builder does, too
"$DOCKER" build -f deploy/Dockerfile --build-arg BASE="$BASE" "${options[@]}" -t "$TAG" .
case "$TAG" in
    *:*) ;; # a tag of the caller's own
    *) "$DOCKER" tag "$TAG" "$TAG:$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' jetcluster/__init__.py)" ;;
esac
"$DOCKER" run --rm "$TAG" -v # says whether the loops are compiled
