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
[ "$(id -u)" = 0 ] || say "the full-disk tests: mounting a tmpfs needs root"
[ "$missing" = 1 ] || echo "every group of tests could run on this machine"
