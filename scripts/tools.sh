#!/usr/bin/env bash
# Installs the peers we test against into .tools/bin: the real `nats-server` and the `nats` CLI, built with Go.
# And helm, which renders the chart in deploy/helm, toxiproxy-server, the links of `make chaos`, and azurite (with npm), a
# twin of Azure's object store for tests of archives. None is needed to run jetcluster. Where one cannot be had, one line
# says why and the script goes on. `tools.sh helm` installs that one only.
# `tools.sh peer` installs the nats-server that `make bench` compares with into .tools/peer: the newest one.
set -u
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin="$top/.tools/bin"
# The one that the recorded tables of the tests are of: a newer one is taken along with them.
NATS_SERVER_VERSION=${NATS_SERVER_VERSION:-v2.15.2}
PEER_VERSION=${PEER_VERSION:-v2.15.3}
NATS_CLI_VERSION=${NATS_CLI_VERSION:-v0.5.1}
LIMIT=${TOOLS_TIMEOUT:-240}   # seconds per tool
wanted=${*:-nats-server nats toxiproxy-server helm azurite}
mkdir -p "$bin"

if [[ " $wanted " == *" azurite "* ]]; then
  azurite="$top/.tools/azurite"
  if [ -x "$azurite/node_modules/.bin/azurite-blob" ]; then
    echo "tools: azurite is there"
  elif ! command -v npm >/dev/null 2>&1; then
    echo "tools: no npm on this machine: azurite is not installed (its tests say so and are skipped)"
  elif log=$(mkdir -p "$azurite" && timeout "$LIMIT" npm install --prefix "$azurite" --no-audit --no-fund "azurite@${AZURITE_VERSION:-3.37.0}" 2>&1); then
    echo "tools: installed azurite"
  else
    echo "tools: azurite is not installed: $(tail -n 1 <<<"$log")"
  fi
  wanted=${wanted/azurite/}
  [ -n "${wanted// /}" ] || exit 0
fi

if ! command -v go >/dev/null 2>&1; then
  echo "tools: no Go on this machine: nats-server and the nats CLI are not installed (their tests say so and are skipped), nor helm, nor toxiproxy-server"
  exit 0
fi

# is_there NAME VERSION: it is in $bin, and of that version where it says one that is asked for by number.
is_there() {
  [ -x "$bin/$1" ] || return 1
  [[ $2 == v* && $1 == nats* ]] || return 0
  [[ "$("$bin/$1" --version 2>/dev/null | head -n 1)" =~ (^|\ )"$2"$ ]]
}

# build NAME MODULE VERSION PACKAGE: through a scratch module. `go install module/cmd@version` also asks the proxy for
# every longer path as a module of its own, and a proxy that refuses one (403, not 404) ends the install.
build() {
  local name=$1 module=$2 version=$3 package=$4 scratch log
  is_there "$name" "$version" && { echo "tools: $name is there ($("$bin/$name" --version 2>/dev/null | head -n 1))"; return 0; }
  scratch=$(mktemp -d) && log="$scratch/log"
  if (cd "$scratch" && go mod init scratch && timeout "$LIMIT" go get "$module@$version" &&
      timeout "$LIMIT" go build -mod=mod -o "$bin/$name" "$package") >"$log" 2>&1; then
    echo "tools: built $name ($("$bin/$name" --version 2>/dev/null | head -n 1))"
  else
    echo "tools: $name is not installed: $(grep -vE '^go: (downloading|added|creating)' "$log" | tail -n 1)"
  fi
  rm -rf "$scratch"
}

# install NAME MODULE VERSION PACKAGE: if it is wanted, and nowhere on PATH.
install() {
  [[ " $wanted " == *" $1 "* ]] || return 0
  local found
  found=$(command -v "$1" || true)
  [ "$found" -ef "$top/scripts/nats-server" ] && found=""   # our own wrapper is not the peer
  if [ -n "$found" ]; then echo "tools: $1 found at $found"; else build "$@"; fi
}

if [[ " $wanted " == *" peer "* ]]; then
  bin="$top/.tools/peer" && mkdir -p "$bin"
  build nats-server github.com/nats-io/nats-server/v2 "$PEER_VERSION" github.com/nats-io/nats-server/v2
  exit 0
fi
install nats-server github.com/nats-io/nats-server/v2 "$NATS_SERVER_VERSION" github.com/nats-io/nats-server/v2
install nats github.com/nats-io/natscli "$NATS_CLI_VERSION" github.com/nats-io/natscli/nats
install toxiproxy-server github.com/Shopify/toxiproxy/v2 "${TOXIPROXY_VERSION:-v2.12.0}" github.com/Shopify/toxiproxy/v2/cmd/server
install helm helm.sh/helm/v3 "${HELM_VERSION:-v3.19.2}" helm.sh/helm/v3/cmd/helm
exit 0
