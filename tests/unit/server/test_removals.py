"""The end of an owner of very many subscriptions: nothing reaches them any more, routes leave them out, and the loop
goes on.
"""

from __future__ import annotations

import pytest

from jetcluster import budget
from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.protocol.sublist import Sublist
from jetcluster.server.accounts import accounts
from jetcluster.server.accounts.route import GoneOwners, Route
from jetcluster.server.accounts.subscription import AnySubscription, ClientSubscription, RemoteInterest
from testkit.server_rig import FakeLeaf, FakePeer, Peer, RealTime, ServerRig
from tests.unit.server.sharing import Nodes, account


def test_no_route_has_takers_whose_owner_is_gone() -> None:
    index: Sublist[AnySubscription, Route] = Sublist(Route)
    gone, peer, client = GoneOwners(index, Route), FakePeer("n2"), ServerRig().client().connection
    plain, member = ClientSubscription(client, b"s", None, b"1"), ClientSubscription(client, b"s", b"q", b"2")
    remote = RemoteInterest(peer, b"s", None, 1)
    for taker in (plain, member, remote):
        index.insert(taker)
    assert index.match(b"s").takers == 3
    gone.add(client)
    route = index.match(b"s")
    assert route.peers == (peer,) and not route.clients and not route.queues, "a queue without members is none"
    gone.add(peer)
    assert index.match(b"s").takers == 0
    gone.discard(client)
    assert index.match(b"s").takers == 2
    gone.discard(peer)
    assert index.match(b"s").takers == 3


def test_routes_of_another_kind_leave_them_out_as_well() -> None:
    class Other(Route):
        __slots__ = ()

    index: Sublist[AnySubscription, Route] = Sublist(Route)
    gone, peer = GoneOwners(index, Route), FakePeer("n2")
    index.insert(RemoteInterest(peer, b"s", None, 1))
    gone.add(peer)
    gone.use(Other)
    assert isinstance(index.match(b"s"), Other) and index.match(b"s").takers == 0
    gone.discard(peer)
    assert isinstance(index.match(b"s"), Other) and index.match(b"s").takers == 1


MANY = 20_000
LONGEST = 0.1
"""Seconds of processor time for one turn on a machine that others use as well: 5 ms is what it takes alone; all of them
in one turn would take twice as long."""


def with_many(rig: ServerRig, count: int = MANY, queue: bytes = b"") -> Peer:
    client = rig.client()
    for first in range(0, count, 500):
        client.send(*[b"SUB a.%d%b %d" % (n, queue, n) for n in range(first, min(first + 500, count))])
        while len(client.connection.subscriptions) < min(first + 500, count):
            rig.time.advance(0)
    return client


@pytest.mark.parametrize("marked", [0, 10 * MANY], ids=["its owner is remembered", "each is called"])
def test_they_take_nothing_from_the_moment_their_client_is_gone(monkeypatch: pytest.MonkeyPatch, marked: int) -> None:
    monkeypatch.setattr(accounts, "MAX_MARKED_SUBSCRIPTIONS", marked)
    rig = RealTime()
    client, other = with_many(rig), rig.client(b"SUB a.8 1", b"SUB a.9 q 2", b"SUB r 3")
    member = with_many(rig, 600, b" q")
    assert rig.router.has_interest(b"a.%d" % (MANY - 1))
    out, first = client.connection.out_msgs, len(rig.turns.taken)
    client.connection.close("Client Closed")
    member.connection.close("Client Closed")
    assert rig.router.index.count > MANY, "nearly all are still to be taken out"
    for subject in (b"a.0", b"a.7", b"a.599"):
        assert other.ask(b"PUB %b r 1" % subject, b"x").startswith(b"HMSG r 3 "), "it hears that nobody is there"
        assert not rig.router.publish(subject, b"x")
    # Who is still there has its messages, those of the queue as well.
    for subject, sid in ((b"a.8", 1), (b"a.9", 2)):
        for _ in range(5):
            assert other.ask(b"PUB %b 1" % subject, b"x") == b"MSG %b %d 1\r\nx\r\n" % (subject, sid)
    assert client.connection.out_msgs == out and not client.connection.out and not member.connection.out
    rig.turns.run_out()
    turns = rig.turns.taken[first:]  # on a fast machine all is taken out while the others ask
    assert len(turns) > 5 and max(turns) < LONGEST
    assert rig.router.index.count == 3 and len(list(rig.router.local.entries())) == 3
    assert other.ask(b"PUB a.8 1", b"x") == b"MSG a.8 1 1\r\nx\r\n"


def test_a_peer_that_is_gone_keeps_the_loop_as_little() -> None:
    rig = RealTime()
    client, peer, back = rig.client(b"SUB r 1"), FakePeer("P"), FakePeer("P")
    for n in range(MANY):
        rig.router.peers.set_interest(peer, b"a.%d" % n, b"q" if n % 2 else None, 1)
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and len(peer.sent) == 1
    rig.server.accounts.drop_peer(peer)
    assert rig.router.index.count > MANY // 2
    assert client.ask(b"PUB a.6 r 1", b"x").startswith(b"HMSG r 1 ") and client.ask(b"PUB a.7 r 1", b"x") != b""
    rig.router.peers.set_interest(back, b"a.6", None, 1)  # its next link is somebody else
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and (len(peer.sent), len(back.sent)) == (1, 1)
    turns = rig.turns.run_out()
    assert len(turns) > 5 and max(turns) < LONGEST
    assert rig.router.index.count == 2 and not rig.router.peers.wanted_by(peer)
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and len(back.sent) == 2


@pytest.mark.parametrize("spoke", [True, False], ids=["spoke's end", "hub's end"])
def test_a_leaf_link_that_is_gone_keeps_the_loop_as_little(spoke: bool) -> None:
    rig = RealTime()
    client, link, back, other = rig.client(b"SUB r 1"), FakeLeaf(spoke), FakeLeaf(spoke), FakeLeaf(False, "other")
    other.remote_cluster = b"M"
    for one in (link, other):
        assert rig.router.peers.add_leaf(one)
    before = dict(other.told)
    for n in range(MANY):
        rig.router.peers.set_leaf_interest(link, b"a.%d" % n, b"q" if n % 2 else None, 1)
    assert len(other.told) == MANY
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and len(link.sent) == 1
    rig.server.removals.of_leaf(rig.router, link)
    assert rig.router.index.count > MANY // 2, "nearly all are still to be taken out"
    assert client.ask(b"PUB a.6 r 1", b"x").startswith(b"HMSG r 1 ") and client.ask(b"PUB a.7 r 1", b"x") != b""
    for source, subject, queue, count in rig.router.peers.add_leaf(back):  # its next link is somebody else
        back.interest_changed(source, subject, queue, count)
    rig.router.peers.set_leaf_interest(back, b"a.6", None, 1)
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and (len(link.sent), len(back.sent)) == (1, 1)
    turns = rig.turns.run_out()
    assert len(turns) > 5 and max(turns) < LONGEST
    assert rig.router.index.count == 2 and not rig.router.peers.wanted_by(link)
    assert other.told == {**before, b"a.6": 1} and back.told == {b"r": 1, b"a.6": 1}, "all have heard of the end"
    assert link not in rig.router.leaf_links and len(list(rig.router.local.entries())) == (1 if spoke else 2)
    assert client.ask(b"PUB a.6 r 1", b"x") == b"" and len(back.sent) == 2


def test_what_a_leaf_link_imports_takes_nothing_once_it_is_gone() -> None:
    exporter = account("A", ExportOptions("stream", "pub.>"))
    nodes = Nodes(1, exporter, account("B", ImportOptions("stream", "A", "pub.>", "imp.pub.>")))
    link, router = FakeLeaf(True), nodes.rigs[0].server.account("B")
    router.peers.add_leaf(link)
    for n in range(2 * accounts.MAX_DIRECT_REMOVALS):
        router.peers.set_leaf_interest(link, b"imp.pub.%d" % n, b"q", 1)
    member, writer = nodes.client("B", b"SUB imp.pub.7 q 1"), nodes.client("A")
    link.joined = False
    nodes.rigs[0].server.removals.of_leaf(router, link)
    for _ in range(10):
        writer.send(b"PUB pub.7 1", b"x")
        assert member.read() == b"MSG imp.pub.7 1 1\r\nx\r\n", "it went to the one that is gone"
    assert not link.sent


def test_where_too_much_waits_for_the_loop_it_is_asked_again(monkeypatch: pytest.MonkeyPatch, rig: ServerRig) -> None:
    """And not done at once: who has filled the queue of jobs must not keep the loop by going away."""
    client = with_many(rig, 1000)
    monkeypatch.setattr(budget, "MAX_JOBS", 0)
    rig.server.budget.jobs = 1
    client.connection.close("Client Closed")
    rig.time.advance(3 * accounts.RETRY_SECONDS)
    assert rig.router.index.count >= 999 and not rig.router.publish(b"a.1", b"x")
    monkeypatch.undo()
    rig.server.budget.jobs = 0
    rig.time.advance(2 * accounts.RETRY_SECONDS)
    assert rig.router.index.count == 0
