"""Turns of connections that have sent more than fits into one (server/fairness.py), and closed valves."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from jetcluster.budget import LoopBudget
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.protocol.bus import Origin, Valve
from jetcluster.server.client.commands import MAX_LIGHT_MESSAGES, NARROW_BYTES
from jetcluster.server.fairness import (
    CROWD_SIZE,
    FLOOD_SECONDS,
    HEAVY_READ,
    LOOK_SECONDS,
    MAX_QUANTUM,
    MIN_QUANTUM,
    STRANGER_SECONDS,
    TURNS_PER_HEAVY,
    Crowd,
    Governor,
)
from testkit.server_rig import FakePeer, FakeTransport, Peer, ServerRig
from testkit.twins.time import SteppedTime


def flood(peer: Peer, name: bytes, count: int) -> None:
    peer.send(b"".join(b"PUB n 5\r\n%b%04d\r\n" % (name, n) for n in range(count)))


class Taker:
    """An internal subscription with a valve, as a stream's ingest has one."""

    def __init__(self, rig: ServerRig, subject: bytes = b"n") -> None:
        self.rig = rig
        self.valve = Valve()
        self.taken: list[bytes] = []
        rig.router.subscribe(subject, self._take)

    @classmethod
    def closed(cls, **options: Any) -> tuple[ServerRig, Taker]:
        """A server, and a taker whose valve is closed."""
        rig = ServerRig(**options)
        taker = cls(rig)
        taker.valve.close()
        return rig, taker

    def open(self) -> None:
        self.valve.open()
        self.rig.time.advance(0)

    def _take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.taken.append(payload)
        if self.valve.closed:
            origin.wait_at(self.valve)

    def names(self) -> bytes:
        return b"".join(payload[:1] for payload in self.taken)


class TestTurns:
    def test_those_that_send_much_take_turns_and_who_sends_little_does_not_wait(self, rig: ServerRig) -> None:
        taker = Taker(rig)
        a, b, c = rig.client(), rig.client(), rig.client()
        flood(a, b"a", 3 * MAX_QUANTUM)
        flood(b, b"b", 3 * MAX_QUANTUM)
        c.send(b"PUB n 5\r\nc0000\r\n")
        begun = taker.names()
        assert begun == b"a" * MAX_QUANTUM + b"c", (
            "the first one was admitted, the second one waits, the last one is light"
        )
        assert not a.transport.reading
        assert not b.transport.reading
        rig.time.advance(0)
        rest = taker.names()[len(begun) :]
        assert rest.count(b"a") == 2 * MAX_QUANTUM
        assert rest.count(b"b") == 3 * MAX_QUANTUM
        longest = max(len(run) for run in rest.replace(b"ab", b"a b").replace(b"ba", b"b a").split()[:-2])
        assert longest <= MAX_QUANTUM // 2, "none of two has more than half of a turn's messages at a time"
        for name in (b"a", b"b"):
            assert [m for m in taker.taken if m[:1] == name] == [name + b"%04d" % n for n in range(3 * MAX_QUANTUM)]
        assert a.transport.reading
        assert b.transport.reading

    def test_of_many_each_has_a_small_turn(self, rig: ServerRig) -> None:
        taker = Taker(rig)
        peers = [rig.client() for _ in range(20)]
        for number, peer in enumerate(peers):
            flood(peer, b"%c" % (65 + number), 2 * MAX_QUANTUM)
        begun = len(taker.taken)
        rig.time.advance(0)
        turns = taker.names()[begun : begun + 20 * MIN_QUANTUM]
        assert len(set(turns)) == 20, "everybody had a turn before anybody had two"

    def test_a_short_read_of_a_client_that_waits_keeps_its_order(self) -> None:
        rig, taker = Taker.closed()
        peer = rig.client()
        peer.send(b"PUB n 1\r\n1\r\nPUB n 1\r\n2\r\n")
        peer.send(b"PUB n 1\r\n3\r\n")
        rig.time.advance(0)
        assert taker.taken == [b"1"]
        taker.open()
        assert taker.taken == [b"1", b"2", b"3"]

    def test_the_time_of_a_turn_is_bounded(self) -> None:
        clock, turns = SteppedTime(), list[int]()
        governor = Governor(clock, clock, LoopBudget(clock, clock))

        class Busy:
            def wait_at(self, valve: Valve) -> None: ...

            def take_turn(self, quantum: int) -> None:
                turns[-1] += 1
                clock.now += 0.002  # as long as a portion takes

        for _ in range(9):
            governor.wait(Busy(), None, light=False)
        while clock.soon:
            turns.append(0)
            clock.turn()
        assert turns == [3, 3, 3], "the loop gets to others in between"


class TestValves:
    def test_who_publishes_into_a_closed_valve_is_read_no_more_until_it_opens(self) -> None:
        rig, taker = Taker.closed()
        peer = rig.client()
        flood(peer, b"a", 10)
        rig.time.advance(0)
        assert taker.names() == b"a"
        assert not peer.transport.reading
        taker.open()
        assert taker.names() == b"a" * 10
        assert peer.transport.reading

    def test_those_that_had_sent_little_go_first_but_not_for_ever(self) -> None:
        rig, taker = Taker.closed()
        heavy, light = [rig.client() for _ in range(3)], [rig.client() for _ in range(2 * TURNS_PER_HEAVY)]
        for peer in heavy:
            flood(peer, b"h", 10)
        for peer in light:
            flood(peer, b"l", 1)
        rig.time.advance(0)
        order: list[int] = []
        for peer in (*heavy, *light):
            keep = peer.connection.take_turn

            def turn(quantum: int, keep: object = keep, cid: int = peer.connection.cid) -> None:
                order.append(cid)
                keep(quantum)  # type: ignore[operator]

            peer.connection.take_turn = turn  # type: ignore[method-assign]
        taker.open()
        heavies = {peer.connection.cid for peer in heavy}
        first = next(at for at, cid in enumerate(order) if cid in heavies)
        assert 0 < first <= TURNS_PER_HEAVY

    def test_a_valve_that_closes_again_is_met_by_the_first_and_spares_the_others(self) -> None:
        rig, taker = Taker.closed()
        peers = [rig.client() for _ in range(5)]
        for peer in peers:
            flood(peer, b"a", 10)
        rig.time.advance(0)
        assert len(taker.taken) == 5
        keep = peers[0].connection.take_turn

        def turn(quantum: int) -> None:
            keep(quantum)
            taker.valve.close()

        peers[0].connection.take_turn = turn  # type: ignore[method-assign]
        taker.open()
        assert len(taker.taken) == 5 + 9
        assert peers[0].transport.reading
        assert not any(peer.transport.reading for peer in peers[1:])

    def test_a_valve_that_was_open_for_a_moment_only_lets_those_that_wait_have_a_turn(self) -> None:
        """Two notices of another node, read at once."""
        rig, taker = Taker.closed()
        heavy, light = rig.client(), [rig.client() for _ in range(3)]
        flood(heavy, b"h", 10)
        for peer in light:
            flood(peer, b"l", 1)
        rig.time.advance(0)
        taker.valve.open()
        taker.valve.close()
        rig.time.advance(0)
        assert all(peer.transport.reading for peer in light)
        assert taker.names() == b"hlllh", "who has sent much sends one more"
        assert not heavy.transport.reading
        rig.time.advance(0)
        assert taker.names() == b"hlllh"

    def test_other_requests_of_others_go_on(self) -> None:
        rig, _ = Taker.closed()
        peer, other = rig.client(), rig.client()
        flood(peer, b"a", 10)
        assert other.ask(b"PING").startswith(b"PONG\r\n")

    def test_what_was_read_of_a_connection_that_is_gone_has_its_turn(self) -> None:
        rig, taker = Taker.closed()
        peer = rig.client()
        flood(peer, b"a", 10)
        peer.connection.connection_lost(None)
        rig.time.advance(0)
        assert taker.names() == b"a"
        taker.open()
        assert taker.names() == b"a" * 10
        assert peer.closed == "Client Closed"
        assert peer.connection.cid not in rig.server.clients

    def test_what_was_read_of_a_connection_that_is_gone_outlives_its_time_limits(self) -> None:
        """It did not read its messages, either, nor answer a PING."""
        rig, taker = Taker.closed()
        peer = rig.client(b"SUB m 1")
        peer.transport.jammed = True
        rig.router.publish(b"m", b"x" * 100_000)
        rig.time.advance(0)
        flood(peer, b"a", 10)
        peer.connection.connection_lost(None)
        rig.time.advance(1000)
        taker.open()
        assert taker.names() == b"a" * 10
        assert peer.closed == "Client Closed"

    def test_a_connection_that_is_gone_takes_nothing_and_asks_nothing(self) -> None:
        rig, taker = Taker.closed()
        gone, other = rig.client(b"SUB q g 1", b"SUB r 2"), rig.client(b"SUB q g 1", b"SUB _INBOX.> 9")
        gone.send(b"PUB n 1\r\n1\r\nSUB s 3\r\nPING\r\nPUB n 1\r\n2\r\nPUB n 1\r\n3\r\n")
        gone.connection.connection_lost(None)
        gone.transport.closing = True
        for number in range(10):
            assert other.ask(b"PUB q 1\r\n%d" % number) == b"MSG q 1 1\r\n%d\r\n" % number
        assert b" 503" in other.ask(b"PUB r _INBOX.1 1\r\nx")
        assert not rig.router.has_interest(b"r")
        taker.valve.open()
        taker.valve.close()
        rig.time.advance(0)
        assert taker.taken == [b"1", b"2"], "one turn, and there is more"
        assert not rig.router.has_interest(b"s")
        assert not gone.connection.out
        taker.open()
        assert taker.taken == [b"1", b"2", b"3"]
        assert gone.closed == "Client Closed"

    def test_a_connection_that_is_gone_is_none_for_the_limits(self) -> None:
        rig, taker = Taker.closed(max_connections=2)
        gone, other = rig.client(), rig.client()
        assert rig.client().closed == "Maximum Connections Exceeded"
        flood(gone, b"a", 10)
        gone.connection.connection_lost(None)
        third = rig.client()
        assert not third.closed
        assert rig.client().closed == "Maximum Connections Exceeded"
        assert not rig.server.clients.is_full
        rig.server.reconfigure(rig.server.options, rig.server.authenticator)
        assert not third.closed
        assert not other.closed
        taker.open()
        assert taker.names() == b"a" * 10
        assert not rig.server.clients.departed
        assert rig.client().closed == "Maximum Connections Exceeded"

    def test_connections_that_are_gone_are_bounded_themselves(self) -> None:
        rig, _ = Taker.closed(max_connections=3)
        for _ in range(10):
            peer = rig.client()
            flood(peer, b"a", 10)
            if not peer.closed:
                peer.connection.connection_lost(None)
        assert len(rig.server.clients.departed) == 4

    def test_who_was_closed_waits_no_more(self) -> None:
        rig, taker = Taker.closed()
        heavy, light, stays = rig.client(), rig.client(), rig.client()
        for peer, count in ((heavy, 10), (light, 1), (stays, 10)):
            flood(peer, b"a", count)
        assert (len(taker.valve), rig.server.governor.waiting) == (3, 3)
        heavy.connection.close("Kicked")
        light.connection.connection_lost(None)
        assert (len(taker.valve), rig.server.governor.waiting) == (1, 1)
        assert not heavy.connection.commands.has_input
        gone = rig.client()
        flood(gone, b"a", 10)
        gone.connection.connection_lost(None)
        gone.connection.close("Kicked")
        assert (len(taker.valve), rig.server.governor.waiting, rig.server.clients.departed) == (1, 1, set())
        taker.open()
        assert stays.transport.reading
        assert (len(taker.valve), rig.server.governor.waiting) == (0, 0)
        assert len(taker.taken) == 1 + 1 + 10 + 1

    def test_who_was_closed_while_it_waited_for_a_turn_only(self, rig: ServerRig) -> None:
        taker = Taker(rig)
        a, b = rig.client(), rig.client()
        flood(a, b"a", 3 * MAX_QUANTUM)
        flood(b, b"b", 3 * MAX_QUANTUM)
        a.connection.close("Kicked")
        assert rig.server.governor.waiting == 1
        rig.time.advance(0)
        assert taker.names() == b"a" * MAX_QUANTUM + b"b" * 3 * MAX_QUANTUM

    def test_a_node_that_takes_no_more_is_waited_for_until_it_says_so_or_is_gone(self) -> None:
        for release in ("told", "interest", "peer"):
            rig = ServerRig()
            far = FakePeer("P")
            accounts = rig.server.accounts
            accounts.set_remote_interest(far, "$G", b"n", None, 1)
            accounts.valve_told(far, "$G", b"n", True)
            accounts.valve_told(far, "$G", b"another", True)
            peer = rig.client()
            flood(peer, b"a", 3)
            rig.time.advance(0)
            assert len(far.sent) == 1
            assert not peer.transport.reading
            if release == "told":
                accounts.valve_told(far, "$G", b"n", False)
            elif release == "interest":
                accounts.set_remote_interest(far, "$G", b"n", None, 0)
            else:
                accounts.drop_peer(far)
            rig.time.advance(0)
            assert peer.transport.reading, release
            assert len(far.sent) == (3 if release == "told" else 1)

    def test_a_link_with_enough_to_do_is_waited_for(self, rig: ServerRig) -> None:
        far = FakePeer("P")
        rig.server.accounts.set_remote_interest(far, "$G", b"n", None, 1)
        far.valve.close()
        peer = rig.client()
        flood(peer, b"a", 3)
        rig.time.advance(0)
        assert len(far.sent) == 1
        far.valve.open()
        rig.time.advance(0)
        assert len(far.sent) == 3


class Socket:
    """Has the one method of a socket that `bound_input` needs."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options.append((level, option, value))


def test_the_kernel_takes_in_less_for_each_connection_of_a_flood() -> None:
    """Or all that it had taken in would come before what is sent after the flood."""
    rig, taker = Taker.closed()
    peers = [rig.client() for _ in range(CROWD_SIZE + 2)]
    sockets = [Socket() for _ in peers]
    for peer, found in zip(peers, sockets, strict=True):
        peer.transport.get_extra_info = lambda name, default=None, found=found: found if name == "socket" else default  # type: ignore[method-assign, assignment]

    def send(chosen: list[Peer]) -> None:
        for peer in chosen:
            flood(peer, b"a", 3 * MAX_LIGHT_MESSAGES)
            rig.time.advance(0)

    def bounded() -> list[list[tuple[int, int, int]]]:
        return [found.options for found in sockets if found.options]

    def burst(seconds: float) -> None:
        """All peers send, some before and the others after a time in which the taker waits."""
        send(peers[:CROWD_SIZE])
        rig.time.advance(seconds)
        send(peers[CROWD_SIZE:])
        taker.open()
        taker.valve.close()

    send(peers[: CROWD_SIZE - 1])
    rig.time.advance(2 * FLOOD_SECONDS)
    send(peers[: CROWD_SIZE - 1])
    taker.open()
    taker.valve.close()
    assert not bounded(), "some connections that send much are no flood"
    for _ in range(5):
        burst(FLOOD_SECONDS * 0.9)
    assert not bounded(), "nor are many that send much for a moment"
    burst(FLOOD_SECONDS)
    assert len(bounded()) >= 2
    send(peers)
    rig.time.advance(FLOOD_SECONDS)
    taker.open()
    assert all(options == [(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)] for options in bounded()), "once each"


def test_a_large_read_that_breaks_the_protocol_at_once_is_answered_at_once(rig: ServerRig) -> None:
    """Also while others have their turns."""
    Taker(rig)
    a, b = rig.client(), rig.client()
    flood(a, b"a", 3 * MAX_QUANTUM)
    b.send(b"x" * 2 * HEAVY_READ)
    assert b.closed


def test_a_heavy_read_is_known_by_its_size() -> None:
    assert len(b"PUB n 5\r\na0000\r\n") * MAX_QUANTUM >= HEAVY_READ, "or the tests above would not be about heavy reads"


# Connections admitted and closed while file descriptors run short (server/fairness.py).


class FakeSocket:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


@pytest.fixture
def next_descriptor(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number that the next connections get."""
    found = [10]
    plain = FakeTransport.get_extra_info

    def get_extra_info(self: FakeTransport, name: str, default: Any = None) -> Any:
        return FakeSocket(found[0]) if name == "socket" else plain(self, name, default)

    monkeypatch.setattr(FakeTransport, "get_extra_info", get_extra_info)
    return found


def crowded_bench() -> ServerRig:
    rig = ServerRig()
    rig.server.crowd.watch = DescriptorWatch(lambda: 200, lambda: 10)
    return rig


def test_what_is_left_is_looked_for_twice_a_second() -> None:
    clock, lowest = SteppedTime(), [10]
    crowd = Crowd(clock, DescriptorWatch(lambda: 200, lambda: lowest[0]))
    assert crowd.trouble() == ""
    lowest[0] = 190
    clock.now += LOOK_SECONDS / 2
    assert crowd.trouble() == ""
    clock.now += LOOK_SECONDS / 2
    assert crowd.trouble() == "190 of 200 file descriptors are in use"


def test_who_comes_when_descriptors_are_short_is_refused_with_an_error(
    next_descriptor: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "jetcluster.server")
    rig = crowded_bench()
    known = rig.client()
    next_descriptor[0] = 150
    for _ in range(3):
        late = Peer(rig, b"")
        assert late.info.endswith(b"-ERR 'maximum connections exceeded'\r\n")
        assert late.closed == "Maximum Connections Exceeded"
        assert late.transport.closing, "it does not linger"
    assert not known.closed
    assert rig.server.crowd.refused == 3
    assert len(caplog.records) == 1
    assert "File descriptors run short (limit 200, 40 of them for the store)" in caplog.records[0].getMessage()
    next_descriptor[0] = 20
    assert not rig.client().closed


def test_those_that_have_not_logged_in_go_first(next_descriptor: list[int]) -> None:
    rig = crowded_bench()
    first, second, known = Peer(rig, b""), Peer(rig, b""), rig.client()
    next_descriptor[0] = 150
    assert rig.client().closed, "they have only just come"
    rig.time.advance(STRANGER_SECONDS)
    fresh = rig.client()
    assert not fresh.closed
    assert first.closed == "Maximum Connections Exceeded"
    assert not second.closed
    assert not rig.client().closed
    assert second.closed
    assert rig.client().closed, "there is nobody left who has not logged in"
    assert not known.closed
    assert not fresh.closed
    assert rig.server.crowd.closed == 2


def test_without_a_watch_nothing_is_looked_at(next_descriptor: list[int]) -> None:
    next_descriptor[0] = 1 << 20
    assert not ServerRig().client().closed


def test_nobody_is_kept_in_mind_who_is_gone_or_known() -> None:
    rig = crowded_bench()
    peer = Peer(rig, b"")
    assert list(rig.server.crowd.strangers) == [peer.connection.cid]
    peer.connection.abort("Client Closed")
    known = rig.client()
    assert not known.closed
    assert rig.server.crowd.strangers == {}
