"""The cost of very many subscriptions of one client: memory, processor time, and a publish beside them.

    python -m scripts.bench_subscriptions [--subscriptions 1000000]

Prints one line of JSON. The server is in this process, without sockets: memory is its growth (VmRSS), times are
processor time. The publish goes to a subject that none of them takes; it is timed before, with all of them, and after
their client has gone. What the end of their connection takes is done in turns of the loop, whose longest is told.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock
from jetcluster.config.options import Options
from jetcluster.server.server import Server
from testkit.twins.time import SeededRng
from tests.unit.server.support import Bench, Peer

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


class Turns:
    """The loop's timers, a turn at a time; what is for later never comes."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.taken: list[float] = []
        """Processor seconds of each turn in which there was something to do."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Turns:
        self._soon.append((callback, args))
        return self

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turns:
        return self

    def cancel(self) -> None:
        """Nothing that is for later comes anyway."""

    def advance(self, seconds: float) -> None:
        due, self._soon = self._soon, []
        began = time.process_time()
        for callback, args in due:
            callback(*args)
        if due:
            self.taken.append(time.process_time() - began)

    def run_out(self) -> list[float]:
        """Processor seconds of each turn until nothing is left to do."""
        first = len(self.taken)
        while self._soon:
            self.advance(0)
        return self.taken[first:]


class RealTime(Bench):
    """Its server's clock is the machine's."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.time = self.turns  # type: ignore[assignment]
        self.server = Server(Options(), Authenticator(Options()), SystemClock(), SeededRng(7), self.turns)
        self.router = self.server.account("$G")


def measure(count: int) -> Figures:
    bench = RealTime()
    other = bench.client(b"SUB hot 1")
    before = _resident()
    publish = _publish(other)
    client = bench.client()
    began = time.process_time()
    for first in range(0, count, AT_ONCE):
        client.send(*[b"SUB a.%d.%d.> %d" % (n % 1000, n, n) for n in range(first, min(first + AT_ONCE, count))])
        while len(client.connection.subscriptions) < min(first + AT_ONCE, count):
            bench.time.advance(0)  # other connections have their turns in between
    seconds = time.process_time() - began
    memory = _resident() - before
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


def _resident() -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    found = measure(parser.parse_args().subscriptions)
    print(json.dumps({name: round(value, 1) for name, value in found._asdict().items()}))
    fits = found.bytes_each < BYTES_LIMIT and found.publish_with_all_us < PUBLISH_FACTOR * found.publish_us
    return 0 if fits else 1


if __name__ == "__main__":
    raise SystemExit(main())
