"""The cost of very many subscriptions of one client: memory, processor time, and a publish beside them.

    python -m bench subscriptions [--subscriptions 1000000]

Prints one line of JSON. The server is in this process, without sockets: memory is its growth (VmRSS), times are
processor time. The publish goes to a subject that none of them takes; it is timed before, with all of them, and after
their client has gone. What the end of their connection takes is done in turns of the loop, whose longest is told.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import NamedTuple

from testkit.harness import resident
from testkit.server_rig import Peer, RealTime

AT_ONCE = 500
PUBLISHES = 10_000
BYTES_LIMIT = 1500
"""Bytes of memory per subscription."""
PUBLISH_FACTOR = 2.0
"""A publish may cost so many times what it did before."""


class Figures(NamedTuple):
    subscriptions: int
    bytes_each: float
    seconds: float
    seconds_to_close: float
    longest_turn_ms: float
    publish_us: float
    publish_with_all_us: float
    publish_after_us: float


def measure(count: int) -> Figures:
    bench = RealTime()
    other = bench.client(b"SUB hot 1")
    before = resident(os.getpid())
    publish = _publish(other)
    client = bench.client()
    began = time.process_time()
    for first in range(0, count, AT_ONCE):
        client.send(*[b"SUB a.%d.%d.> %d" % (n % 1000, n, n) for n in range(first, min(first + AT_ONCE, count))])
        while len(client.connection.subscriptions) < min(first + AT_ONCE, count):
            bench.time.advance(0)  # other connections have their turns in between
    seconds = time.process_time() - began
    memory = resident(os.getpid()) - before
    with_all = _publish(other)
    other.send(b"PUB a.7.7.x 1", b"x")
    assert client.read() == b"MSG a.7.7.x 7 1\r\nx\r\n"
    began = time.process_time()
    client.connection.close("Client Closed")
    turns = [time.process_time() - began]
    assert not bench.router.has_interest(b"a.7.7.x"), "none takes anything from now on"
    turns += bench.turns.run_out()
    assert bench.router.index.count == 1
    longest = max(turns) * 1e3
    return Figures(count, memory / count, seconds, sum(turns), longest, publish, with_all, _publish(other))


def _publish(client: Peer) -> float:
    began = time.process_time()
    for _ in range(PUBLISHES):
        client.send(b"PUB hot 1", b"x")
        client.read()
    return (time.process_time() - began) / PUBLISHES * 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscriptions", type=int, default=1_000_000)


def main(arguments: argparse.Namespace) -> int:
    found = measure(arguments.subscriptions)
    print(json.dumps({name: round(value, 1) for name, value in found._asdict().items()}))
    fits = found.bytes_each < BYTES_LIMIT and found.publish_with_all_us < PUBLISH_FACTOR * found.publish_us
    return 0 if fits else 1
