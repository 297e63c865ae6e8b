"""Clients whose login takes time, and their input meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.auth.secrets import SlowPart
from jetcluster.config.options import Options
from jetcluster.protocol.connection_states import CHECKING, CLOSED, CONNECTED, OPEN, RECHECKING, SETTLED
from testkit.server_rig import QUIET, Bench

SLOW = QUIET.replace(b"{", b'{"name":"slow",')


class Slow(Authenticator):
    """It takes time to let in who is called `name`, until `go_on` is set."""

    def __init__(self, name: str = "slow") -> None:
        super().__init__(Options())
        self.name = name
        self.go_on = threading.Event()

    def slow_part(self, connect: Mapping[str, object]) -> SlowPart | None:
        return SlowPart(b"key", lambda: self.go_on.wait(5) and None) if connect.get("name", "") == self.name else None


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.go_on.set()


async def until_known(bench: Bench) -> None:
    while bench.server.parts.tasks:
        await asyncio.sleep(0.001)


async def test_input_waits_for_the_answer(slow: Slow) -> None:
    bench = Bench(slow)
    listener, peer = bench.client(b"SUB a 1"), bench.client(connect=b"")
    assert peer.connection.state is OPEN
    peer.send(SLOW, b"PUB a 1", b"x")
    assert peer.connection.state is CHECKING and not peer.transport.reading and listener.read() == b""
    slow.go_on.set()
    await until_known(bench)
    assert peer.connection.state is CONNECTED and peer.transport.reading and listener.read() == b"MSG a 1 1\r\nx\r\n"


async def test_one_that_has_said_no_connect_loses_nothing_meanwhile() -> None:
    slow = Slow(name="")
    bench = Bench(slow)
    peer, told = bench.client(connect=b""), []
    bench.router.subscribe(b"a", lambda *message: told.append(message[3]))
    peer.send(b"PUB a 1", b"x", b"PUB a 1", b"y")
    assert peer.connection.state is CHECKING and not told
    slow.go_on.set()
    await until_known(bench)
    assert told == [b"x", b"y"]


async def test_a_client_that_is_settled_is_still_told_of_changes_while_its_next_connect_is_checked(slow: Slow) -> None:
    bench = Bench(slow)
    peer = bench.client(b"PING")
    assert peer.connection.state is SETTLED
    peer.send(SLOW)
    assert peer.connection.state is RECHECKING
    bench.server.announce_lame_duck()
    assert b'"ldm":true' in peer.read()
    slow.go_on.set()
    await until_known(bench)
    assert peer.connection.state is SETTLED


async def test_one_that_goes_away_after_a_reload_meanwhile_leaves_nothing(slow: Slow) -> None:
    bench = Bench(slow)
    peer = bench.client(b"SUB a 1")
    peer.send(SLOW, b"PUB a 1", b"x")
    bench.server.reconfigure(bench.server.options, slow)
    assert peer.connection.state is CHECKING
    peer.connection.connection_lost(None)
    assert peer.connection.state is CLOSED and not bench.server.clients and not bench.server.sockets
