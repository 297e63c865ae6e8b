"""Valves of other nodes: told, repeated, forgotten, and of no account while a node is silent (mesh/valves.py)."""

from __future__ import annotations

import struct

import pytest

from jetcluster.mesh import valves
from jetcluster.mesh.interest import MeshInterest
from jetcluster.mesh.valves import EVERY, LASTS, ToldValve
from jetcluster.protocol.bus import Origin
from jetcluster.protocol.valve import Valve
from jetcluster.server.accounts.accounts import Accounts
from testkit.twins.mesh_memory import InMemoryMesh, MemoryNetwork
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.cluster.nodes import ACCOUNT, Cluster
from tests.unit.cluster.virtual_loop import virtual_time

A, B = "AAAAAAAA", "BBBBBBBB"


class Publisher(Origin):
    """A client that publishes to `subject` at node b, as far as valves see it."""

    kind = "client"
    account = ACCOUNT

    def __init__(self, accounts: Accounts, subject: bytes) -> None:
        self._accounts = accounts
        self._subject = subject
        self.met: Valve | None = None

    def wait_at(self, valve: Valve) -> None:
        self.met = valve

    def waits(self) -> bool:
        """Would it have to wait after a message?"""
        self.met = None
        for interest in self._accounts[ACCOUNT].lookup(self._subject).remote:
            interest.hold(self)
        return self.met is not None


class Pair:
    """Node a takes `orders.>`, clients of node b publish to it."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.network = MemoryNetwork(self.time, clock=self.time)
        self.a, self.b = self.network.mesh("a", A), self.network.mesh("b", B)
        self.here, self.there = Accounts(SeededRng(1)), Accounts(SeededRng(2))
        for mesh, accounts in ((self.a, self.here), (self.b, self.there)):
            MeshInterest(mesh, accounts, self.time, self.time)
            mesh.start_now()
        self.here[ACCOUNT].subscribe(b"orders.>", lambda *message: None)
        self.here[ACCOUNT].subscribe(b"old", lambda *message: None)
        self.told = ToldValve(self.a, ACCOUNT, self.time)
        self.publisher = Publisher(self.there, b"orders.1")
        assert self.there[ACCOUNT] is not None, "the account is in use there"
        self.time.advance(0)

    def tells(self, closed: bool, subject: bytes = b"orders.>", mesh: InMemoryMesh | None = None) -> None:
        """As a node of before does."""
        account = ACCOUNT.encode()
        (mesh or self.a).notify(None, "valve", struct.pack("!?H", closed, len(account)) + account + subject)
        self.time.advance(0)


def test_clients_of_another_node_wait_as_long_as_it_is_repeated() -> None:
    pair = Pair()
    assert not pair.publisher.waits()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0)
    for _ in range(20):
        assert pair.publisher.waits()
        pair.time.advance(1.0)
    pair.told.closed_for([])
    pair.time.advance(0)
    assert not pair.publisher.waits()
    pair.time.advance(20 * EVERY)
    assert not pair.publisher.waits(), "and nothing says otherwise later"


def test_a_subject_that_is_let_go_is_open_and_a_new_one_is_closed() -> None:
    pair = Pair()
    old = Publisher(pair.there, b"old")
    pair.told.closed_for([b"old"])
    pair.time.advance(0)
    assert old.waits()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0)
    assert not old.waits()
    assert pair.publisher.waits()


def test_what_is_repeated_no_more_is_open_in_the_end() -> None:
    pair = Pair()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(EVERY)
    assert pair.told._repeat is not None
    pair.told._repeat.cancel()
    assert pair.publisher.waits()
    held = pair.publisher.met
    pair.time.advance(LASTS - 0.1)
    assert pair.publisher.waits()
    pair.time.advance(EVERY + 0.2)
    assert not pair.publisher.waits()
    assert held is not None and not held.closed, "who waited has their turn"


def test_a_node_of_before_repeats_nothing_and_is_waited_for_a_while() -> None:
    pair = Pair()
    pair.tells(True)
    pair.time.advance(LASTS - 0.1)
    assert pair.publisher.waits()
    pair.tells(False)
    assert not pair.publisher.waits()
    pair.tells(True)
    pair.time.advance(LASTS + EVERY)
    assert not pair.publisher.waits()


def test_a_stranger_closes_nothing() -> None:
    pair = Pair()
    for member in (False, True):
        pair.b.is_member = lambda peer, member=member: member  # type: ignore[misc]
        pair.told.closed_for([b"orders.>"])
        pair.time.advance(0)
        assert pair.publisher.waits() is member
        pair.told.closed_for([])
        pair.time.advance(0)
    assert pair.b.counters.strangers == 2


def test_a_node_of_before_understands_what_it_is_told() -> None:
    pair = Pair()
    heard: list[tuple[bool, int]] = []
    old = pair.network.mesh("old", "CCCCCCCC")
    old.on_notice("valve", lambda peer, payload: heard.append(struct.unpack_from("!?H", payload)))
    old.start_now()
    pair.time.advance(0)
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0)
    pair.told.closed_for([])
    pair.time.advance(0)
    assert heard == [(True, len(ACCOUNT)), (False, len(ACCOUNT))]


def test_what_is_no_notice_does_no_harm() -> None:
    pair = Pair()
    pair.a.notify(None, "valve", b"")
    pair.tells(True, b"nobody.takes.this")
    assert not pair.publisher.waits()


def test_nobody_waits_for_a_silent_node_until_it_is_heard_again() -> None:
    pair = Pair()
    for told in (lambda: pair.told.closed_for([b"orders.>"]), lambda: pair.tells(True)):
        pair.told.closed_for([])
        told()
        pair.time.advance(0)
        link = pair.b.links[A]
        assert pair.publisher.waits()
        held = pair.publisher.met
        link.valve.close()
        pair.b.set_silent(link, True)
        assert not pair.publisher.waits()
        assert held is not None and not held.closed, "who waited has their turn"
        pair.b.set_silent(link, False)
        assert pair.publisher.waits(), "it has not said otherwise"
        pair.tells(False)
        assert not pair.publisher.waits()


def test_a_node_that_went_away_and_came_back_is_told_of_anew() -> None:
    pair = Pair()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0)
    pair.network.cut(A, B)
    assert not pair.publisher.waits()
    pair.network.heal(A, B)
    pair.time.advance(0)
    assert not pair.publisher.waits()
    pair.time.advance(EVERY)
    assert pair.publisher.waits()


def test_closed_valves_of_one_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr(valves, "MOST", 3)
    for number in range(3):
        pair.tells(True, b"other.%d" % number)
    pair.tells(True)
    assert not pair.publisher.waits()
    pair.tells(False, b"other.0")
    pair.tells(True)
    assert pair.publisher.waits()


@virtual_time
@pytest.mark.parametrize("let_go", ["updated", "deleted", "deposed"])
async def test_publishers_of_other_nodes_do_not_wait_for_what_a_stream_has_let_go(let_go: str) -> None:
    """Beside the stream a client of its leader's node takes the same subject: the node's interest does not end."""
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s", "t"])
        leader, other = cluster.leader("S"), cluster.followers("S")[0]
        leader.bus.subscribe(b"s", lambda *message: None)
        publisher = Publisher(other.accounts, b"s")
        leader.replica("S").ingest.valve.close()
        await cluster.until(publisher.waits, what="a publisher that waits")
        held = publisher.met
        assert held is not None
        if let_go == "updated":
            await cluster.update("S", subjects=["t"])
        elif let_go == "deleted":
            await cluster.delete("S")
        else:
            leader.replica("S").group.transfer(other.me)
        await cluster.until(lambda: not held.closed, seconds=0.9, what="those that wait go on")
