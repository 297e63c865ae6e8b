"""What other nodes and leaf links want of an account, in its index and as its leaf links are told of it."""

from __future__ import annotations

from jetcluster.protocol.sublist import Sublist
from jetcluster.server.local_interest import LocalInterest
from jetcluster.server.remote_peers import RemotePeers
from jetcluster.server.route import Route
from jetcluster.server.subscription import AnySubscription, RemoteInterest
from testkit.server_rig import FakeLeaf, FakePeer


class Account:
    def __init__(self) -> None:
        self.index: Sublist[AnySubscription, Route] = Sublist(Route)
        self.told: list[tuple[bytes, bytes | None, int]] = []
        self.local = LocalInterest("A", lambda _, subject, queue, count: self.told.append((subject, queue, count)))
        self.changed: list[tuple[RemoteInterest | None, RemoteInterest | None]] = []
        self.peers = RemotePeers("A", self.index, self.local, lambda *entries: self.changed.append(entries))


def test_interest_is_replaced_and_ends_with_a_count_of_zero() -> None:
    own, peer = Account(), FakePeer("n2")
    own.peers.set_interest(peer, b"s", b"q", 2)
    own.peers.set_interest(peer, b"s", b"q", 5)
    (entry,) = own.index
    assert isinstance(entry, RemoteInterest) and (entry.peer, entry.count) == (peer, 5)
    own.peers.set_interest(peer, b"no..subject", None, 1)
    assert own.peers.wanted_by(peer) == 1
    own.peers.set_interest(peer, b"s", b"q", 0)
    assert own.index.count == own.peers.wanted_by(peer) == 0
    assert not own.told, "what a node wants is not told to the others"


def test_a_peer_that_is_gone_leaves_nothing() -> None:
    own, peer, link = Account(), FakePeer("n2"), FakeLeaf(spoke=False)
    assert own.peers.add_leaf(link) == []
    own.peers.set_interest(peer, b"a", None, 1)
    own.peers.set_interest(peer, b"b", b"q", 3)
    assert link.told == {b"a": 1, b"b": 3}
    origin = own.peers.origin_of(peer)
    assert own.peers.origin_of(peer) is origin and (origin.kind, origin.account, origin.peer_id) == ("peer", "A", "n2")
    own.peers.drop_peer(peer)
    assert own.index.count == 0 and not link.told
    assert own.peers.origin_of(peer) is not origin, "its next link is somebody else"


def test_the_valve_of_a_taker_elsewhere() -> None:
    own, peer = Account(), FakePeer("n2")
    own.peers.valve_told(peer, b"s", True)
    own.peers.set_interest(peer, b"s", None, 1)
    own.peers.valve_told(peer, b"s", True)
    (entry,) = own.index
    assert isinstance(entry, RemoteInterest) and entry.valve is not None and entry.valve.closed
    own.peers.set_interest(peer, b"s", None, 0)
    assert not entry.valve.closed, "nobody waits for who wants nothing any more"


def test_the_hub_s_end_of_a_leaf_link_counts_as_this_node() -> None:
    own, link, other = Account(), FakeLeaf(spoke=False), FakeLeaf(spoke=True, peer_id="other")
    own.peers.add_leaf(link)
    assert own.peers.set_leaf_interest(link, b"s", b"q", 2) == 1
    assert own.told == [(b"s", b"q", 2)]
    assert own.peers.set_leaf_interest(link, b"s", b"q", 3) == 0
    assert own.peers.set_leaf_interest(link, b"p", None, 7) == 1
    assert own.told[1:] == [(b"s", b"q", 3), (b"p", None, 1)], "plain interest counts once"
    assert sorted(own.peers.add_leaf(other)) == [(link, b"p", None, 1), (link, b"s", b"q", 3)], "it is told whose it is"
    own.peers.drop_leaf(link)
    assert own.index.count == 0 and not own.local.counts() and own.local.leaf_links == [other]


def test_the_spoke_s_end_of_a_leaf_link_is_this_node_s_own_affair() -> None:
    own, link = Account(), FakeLeaf(spoke=True)
    own.peers.add_leaf(link)
    own.peers.set_leaf_interest(link, b"s", None, 1)
    assert not own.told and link.told == {b"s": 1}
    ((before, now),) = own.changed
    assert before is None and now in own.index
    own.peers.set_leaf_interest(link, b"s", None, 0)
    assert own.changed[1:] == [(now, None)]
