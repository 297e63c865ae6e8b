"""Input of clients and leaf links is processed in portions, whatever it is."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetcluster.clock import SystemClock
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.server.fairness import HEAVY_READ
from testkit.server_rig import QUIET, Nobody, Peer, ServerRig
from testkit.twins.time import ManualTime
from tests.unit.server.leaf_rig import End, LeafRig

READ = 250_000
"""Bytes that a loop hands over at a time."""
LONGEST = 0.04
"""Seconds of the processor that a turn may take, with this machine's noise; a portion has 2 ms. One read of any of
these took 0.1 to 0.3 s and more in one turn."""

CONNECT = b'CONNECT {"user":"u","pass":"p","verbose":false}\r\n'
GARBAGE: dict[str, bytes] = {
    "connect": CONNECT,
    "deep-connect": b'CONNECT {"x":' + b"[" * 400 + b"]" * 400 + b"}\r\n",
    "ping": b"PING\r\n",
    "pong": b"PONG\r\n",
    "ok": b"+OK\r\n",
    "info": b"INFO {}\r\n",
    "deep-info": b"INFO " + b"[" * 400 + b"]" * 400 + b"\r\n",
    "sub-unsub": b"SUB a.b 1\r\nUNSUB 1\r\n",
    "same-sid": b"SUB a 1\r\n",
    "invalid-sub": b"SUB a..b 1\r\n",
    "refused-publish": b"PUB $NRG.x 0\r\n\r\n",
    "empty-messages": b"PUB a 0\r\n\r\n",
}


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """Keeps the garbage of other tests from being collected in a turn that is timed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class RealTime(ManualTime):
    """Work takes as long as it takes; the turns of the loop are taken by hand, and timed."""

    def __init__(self) -> None:
        super().__init__()
        self.soon: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return SystemClock().monotonic()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        self.soon.append(functools.partial(callback, *args))

    def turns(self, most: int = 100_000) -> list[float]:
        """Processor seconds of each turn until nothing is left to do."""
        took = []
        while self.soon and len(took) < most:
            begun = time.process_time()
            now, self.soon = self.soon, []
            for callback in now:
                callback()
            took.append(time.process_time() - begun)
        return took


def on_real_time(rig: ServerRig) -> RealTime:
    clock = RealTime()
    server = rig.server
    server.state.clock = server.state.timers = clock
    for part in (server.governor, server.budget):
        part._clock = part._timers = clock  # type: ignore[attr-defined]
    return clock


def longest(begun: float, clock: RealTime) -> float:
    first = time.process_time() - begun
    return max([first, *clock.turns()])


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_read_of_anything_takes_a_bounded_part_of_a_turn(kind: str, rig: ServerRig) -> None:
    peer = rig.client()
    peer.ask(b"PING")
    clock = on_real_time(rig)
    lines = GARBAGE[kind] * (READ // len(GARBAGE[kind]))
    begun = time.process_time()
    peer.connection.data_received(lines)
    assert longest(begun, clock) < LONGEST
    peer.connection.data_received(b"PUB done 0\r\n\r\nPING\r\n")
    clock.turns()
    assert not peer.closed
    assert bytes(peer.transport.written).endswith(b"PONG\r\n"), "all of it was worked on, in order"
    assert peer.transport.reading


def test_new_subscriptions_and_long_subjects_take_a_bounded_part_of_a_turn(rig: ServerRig) -> None:
    clock = on_real_time(rig)
    peer = rig.client()
    for lines in (
        b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(18_000)),
        b"".join(b"SUB " + b"*." * 1900 + b"%d l%d\r\n" % (n, n) for n in range(60)),
        b"".join(b"PUB " + b"a." * 1900 + b"%d 0\r\n\r\n" % n for n in range(60)),
    ):
        begun = time.process_time()
        peer.connection.data_received(lines)
        assert longest(begun, clock) < LONGEST
    assert len(peer.connection.subscriptions) == 18_060


def test_subjects_that_nobody_takes_but_many_nearly_do_take_a_bounded_part_of_a_turn(rig: ServerRig) -> None:
    """Half of all subscriptions have to be looked at for each of them, and no cache knows any."""
    clock = on_real_time(rig)
    peer = rig.client()
    subjects = [b".".join(tokens) for tokens in itertools.product((b"a", b"*"), repeat=12)]
    for at in range(0, len(subjects), 500):
        peer.send(b"".join(b"SUB %b.z %d\r\n" % (subject, at + n) for n, subject in enumerate(subjects[at : at + 500])))
        clock.turns()
    begun = time.process_time()
    peer.connection.data_received(b"".join(b"PUB " + b"a." * 12 + b"y%d 0\r\n\r\n" % n for n in range(100)))
    assert longest(begun, clock) < LONGEST
    assert peer.connection.in_msgs == 100


def test_messages_that_go_to_thousands_take_a_bounded_part_of_a_turn(rig: ServerRig) -> None:
    """The more takers, the fewer messages of one connection in a turn."""
    takers = rig.client()
    takers.send(b"".join(b"SUB n %d\r\n" % number for number in range(4000)))
    takers.read()
    peer = rig.client()
    clock = on_real_time(rig)
    rig.server.state.options = dataclasses.replace(rig.server.options, max_pending=1 << 30)
    begun = time.process_time()
    peer.connection.data_received(b"PUB n 0\r\n\r\n" * 100)
    assert longest(begun, clock) < 2 * LONGEST
    assert takers.connection.out_msgs == 400_000


def test_reports_of_traced_messages_take_a_bounded_part_of_a_turn(rig: ServerRig) -> None:
    """Each lists a thousand takers, and was ordered with ninety bytes."""
    takers = rig.client()
    takers.send(b"".join(b"SUB n %d\r\n" % number for number in range(4000)))
    takers.read()
    connect = b'CONNECT {"verbose":false,"headers":true}'
    peer = rig.client(b"PING", connect=connect)
    clock = on_real_time(rig)
    block = b"NATS/1.0\r\nNats-Trace-Dest: traces\r\nNats-Trace-Only: 1\r\n\r\n"
    begun = time.process_time()
    peer.connection.data_received((b"HPUB n %d %d\r\n%b\r\n" % (len(block), len(block), block)) * 50)
    assert longest(begun, clock) < 2 * LONGEST
    assert peer.connection.in_msgs == 50


@pytest.mark.parametrize("how", ["close", "lost", "connect"])
def test_many_subscriptions_go_in_steps_and_take_nothing_meanwhile(how: str, rig: ServerRig) -> None:
    peer, other = rig.client(), rig.client()
    peer.send(b"".join(b"SUB n.%d.x %d\r\n" % (number, number) for number in range(30_000)), b"SUB n.> a")
    other.send(b"SUB n.7.x 1")
    rig.time.advance(0)
    clock = on_real_time(rig)
    begun = time.process_time()
    if how == "close":
        peer.connection.close("Client Closed")
    elif how == "lost":
        peer.connection.connection_lost(None)
    else:
        peer.connection.data_received(CONNECT)
    first = time.process_time() - begun
    sent = peer.connection.out_msgs
    other.connection.data_received(b"PUB n.7.x 0\r\n\r\n")
    assert peer.connection.out_msgs == sent
    assert other.connection.out_msgs == 1
    assert max([first, *clock.turns()]) < LONGEST
    assert rig.router.index.count == 1
    assert not peer.connection.subscriptions


def test_many_that_send_garbage_together_have_no_more_than_one_turn(rig: ServerRig) -> None:
    clock = on_real_time(rig)
    peers = [rig.client() for _ in range(40)]
    clock.turns()
    begun = time.process_time()
    for peer in peers:
        peer.connection.data_received(b"PING\r\n" * 2500)  # 15,000 bytes, which is less than is heavy
    assert time.process_time() - begun < 2 * LONGEST
    assert max(clock.turns()) < LONGEST
    for peer in peers:
        assert bytes(peer.transport.written).count(b"PONG\r\n") == 2500
        assert peer.transport.reading


def test_a_client_that_says_little_is_answered_at_once_while_others_send_garbage(rig: ServerRig) -> None:
    clock = on_real_time(rig)
    noisy, quiet = rig.client(), rig.client()
    clock.turns()
    noisy.connection.data_received(b"PING\r\n" * 40_000)
    quiet.connection.data_received(b"PING\r\n")
    assert quiet.connection.out, "in the same turn"


def test_what_waits_is_forgotten_with_the_connection(rig: ServerRig) -> None:
    peer = rig.client()
    peer.connection.data_received(b"SUB a.b 1\r\nUNSUB 1\r\n" * 10_000)
    assert not peer.transport.reading
    peer.connection.abort("Write Error")
    rig.time.advance(0)
    assert not peer.connection.commands.has_input
    assert not rig.server.governor.waiting


def test_messages_of_a_client_that_leaves_are_published_though_commands_are_among_them(rig: ServerRig) -> None:
    taken: list[bytes] = []
    rig.router.subscribe(b"n", lambda s, r, h, p, o: taken.append(p))
    peer = rig.client()
    lines = b"".join(b"PING\r\nSUB x.%d %d\r\nPUB n 4\r\n%04d\r\n" % (n, n, n) for n in range(4000))
    peer.connection.data_received(lines)
    peer.connection.connection_lost(None)
    rig.time.advance(0)
    assert taken == [b"%04d" % n for n in range(4000)]
    assert rig.server.clients.connected == 0


def test_what_follows_a_connect_that_is_refused_is_not_looked_at() -> None:
    rig = ServerRig(Nobody())
    peer = Peer(rig)
    begun = time.process_time()
    peer.connection.data_received(QUIET + b"PING\r\n" * 60_000)
    assert time.process_time() - begun < LONGEST
    assert peer.closed == "Authentication Failure"


def test_a_subject_has_no_more_tokens_than_a_control_line_holds() -> None:
    rig = ServerRig(max_control_line=1 << 20)
    peer = rig.client()
    peer.ask(b"PING")
    most = b".".join([b"a"] * MAX_TOKENS)
    assert peer.ask(b"SUB %b 1" % most, b"PING") == b"PONG\r\n"
    answer = peer.ask(b"SUB %b.a 2" % most, b"PING")
    assert answer.startswith(b"-ERR 'Permissions Violation for Subscription")
    assert b"too many tokens" in answer[-40:] or b"too many tokens" in answer
    assert list(peer.connection.subscriptions) == [b"1"]


class TestLeaf:
    """The links of leaf nodes."""

    @staticmethod
    def leaf() -> tuple[LeafRig, RealTime, End]:
        leaf_rig = LeafRig()
        end = leaf_rig.leaf()
        return leaf_rig, on_real_time(leaf_rig.rig), end

    @pytest.mark.parametrize(
        "line",
        [b"PING\r\n", b"PONG\r\n", b"\n", b"LS+ a.b\r\nLS- a.b\r\n", b"INFO {}\r\n", b"LMSG a 0\r\n\r\n"],
        ids=["ping", "pong", "empty", "interest", "info", "messages"],
    )
    async def test_a_read_of_anything_takes_a_bounded_part_of_a_turn(self, line: bytes) -> None:
        _, clock, end = self.leaf()
        begun = time.process_time()
        end.link.data_received(line * (READ // len(line)))
        assert longest(begun, clock) < LONGEST
        assert not end.link.close_reason
        assert end.transport.reading
        await asyncio.sleep(0)

    async def test_what_a_link_brought_before_it_closed_counts(self) -> None:
        leaf_rig, clock, end = self.leaf()
        taken: list[bytes] = []
        leaf_rig.router.subscribe(b"n", lambda s, r, h, p, o: taken.append(p))
        lines = b"".join(b"LMSG n 5\r\n%05d\r\n" % n for n in range(10_000))
        assert len(lines) > HEAVY_READ
        end.link.data_received(lines)
        assert len(taken) < 10_000
        end.link.connection_lost(None)
        assert taken == [b"%05d" % n for n in range(10_000)]
        clock.turns()
        assert not leaf_rig.rig.server.governor.waiting

    async def test_interest_in_a_subject_of_too_many_tokens_is_none(self) -> None:
        _, clock, end = self.leaf()
        end.link.data_received(b"LS+ " + b"a." * MAX_TOKENS + b"a\r\nLS+ b\r\n")
        clock.turns()
        assert end.link.wanted == 1
