#!/usr/bin/env bash
# Says which groups of tests this machine could not run, and why: a skip nobody reads is a hole.
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
missing=0
say() { echo "not run here: $1"; missing=1; }
go="run \`make tools\`"
command -v go >/dev/null 2>&1 || go="needs Go"
[ -x "$top/.tools/bin/nats" ] || command -v nats >/dev/null 2>&1 || say "tests/interop/test_nats_cli.py: no nats CLI ($go)"
[ -x "$top/.tools/bin/nats-server" ] || command -v nats-server >/dev/null 2>&1 ||
  say "make oracle and the peer column of make bench: no nats-server ($go)"
[ -x "$top/.tools/bin/helm" ] || command -v helm >/dev/null 2>&1 || say "tests of the chart's values: no helm ($go)"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ||
  say "tests/console: no Chromium on PATH (Debian: apt-get install chromium)"
[ -x "$top/.tools/azurite/node_modules/.bin/azurite-blob" ] || command -v azurite-blob >/dev/null 2>&1 ||
  say "archives in Azure: no azurite (run \`make tools\`; needs npm)"
docker info >/dev/null 2>&1 || say "tests/deploy/test_containers.py: no docker daemon answers"
[ -x "$top/.tools/bin/toxiproxy-server" ] || command -v toxiproxy-server >/dev/null 2>&1 ||
  say "chaos on links between nodes: no toxiproxy-server ($go)"
[ -n "$(ls "$top"/jetcluster/native/*.so 2>/dev/null)" ] ||
  say "tests/unit/native: no compiled loops (they need a C compiler and Python's headers; run \`make install\` again then)"
echo "not in \`make test\`: tests/kubernetes, the chart on a real control plane: \`make kubernetes\` (root, Go, half an hour)"
command -v valgrind >/dev/null 2>&1 || say "make counts: no valgrind (Debian: apt-get install valgrind)"
command -v cc >/dev/null 2>&1 || say "chaos with clocks and power cuts: no C compiler (cc)"
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
"$java" -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' ||
  say "tests/spark: no Java 17 or newer (JAVA_HOME, PATH); Debian: apt-get install openjdk-17-jre-headless"
[ "$(id -u)" = 0 ] || say "the full-disk tests: mounting a tmpfs needs root"
[ "$missing" = 1 ] || echo "every group of tests could run on this machine"
