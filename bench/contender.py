"""`Contender`: a server in one mode. The page has a column for each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from testkit.harness import TOP, find_server


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    server: str
    config: str = ""
    note: str = ""


LAZY = Contender("lazy", "nats-server", note="its default: it acks before it fsyncs")
ALWAYS = Contender("always", "nats-server", "jetstream { sync_interval: always }\n", "it fsyncs before it acks")
OURS = Contender("jetcluster", "jetcluster", note="it fsyncs on a majority before it acks")
ALL = (LAZY, ALWAYS, OURS)

PEER = TOP / ".tools/peer/nats-server"
"""The version that the page compares with (scripts/tools.sh); tests use another one."""


def use_peer() -> bool:
    """Makes the harness start that version, if it is there and NATS_SERVER names no other one; False when there is no
    nats-server at all."""
    if PEER.exists():
        os.environ.setdefault("NATS_SERVER", str(PEER))
    return find_server("nats-server") is not None
