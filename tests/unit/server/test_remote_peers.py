"""Remote peers of an account: the interest of other nodes and leaf links, the client as whose their messages count, and
what their clients have not read yet.
"""

from __future__ import annotations

import pytest

from jetcluster.protocol.bus import Outgoing, Valve
from jetcluster.protocol.sublist import Sublist
from jetcluster.server.accounts import bulk, remote_peers
from jetcluster.server.accounts.local_interest import LocalInterest
from jetcluster.server.accounts.remote_peers import ASK_BYTES, RemoteBacklog, RemotePeers, ServerOrigin
from jetcluster.server.accounts.route import Route
from jetcluster.server.accounts.subscription import AnySubscription, RemoteInterest
from testkit.server_rig import FakeLeaf, FakePeer, ServerRig
from testkit.twins.memory import held


def test_the_server_itself_and_its_peers_never_wait_at_a_valve() -> None:
    valve = Valve()
    valve.close()
    for origin in (ServerOrigin("system", "A"), ServerOrigin("route", "A", "PEER")):
        origin.wait_at(valve)
    assert len(valve) == 0
    assert (origin.kind, origin.account, origin.peer_id) == ("route", "A", "PEER")


def test_little_is_not_asked_about() -> None:
    far, peer = RemoteBacklog("$G"), FakePeer("far")
    for n in range(100):
        far.sent(peer, b"inbox.%d" % n, 1000)
    assert peer.asked == []
    assert far.of(peer, b"inbox.7") == 1000
    assert far.of(peer, b"other") == 0


def test_what_was_sent_counts_until_the_answer_and_then_what_it_says() -> None:
    far, peer = RemoteBacklog("$G"), FakePeer("far")
    empty = held(far)
    far.sent(peer, b"a", ASK_BYTES)
    far.sent(peer, b"a", ASK_BYTES)
    assert peer.asked == [("$G", b"a", ASK_BYTES)], "one question at a time"
    assert far.of(peer, b"a") == 2 * ASK_BYTES
    far.answered(peer, b"a", ASK_BYTES, 10)
    assert far.of(peer, b"a") == 10 + ASK_BYTES
    assert peer.asked[1:] == [("$G", b"a", 2 * ASK_BYTES)]
    far.answered(peer, b"a", 2 * ASK_BYTES, 3 * ASK_BYTES)
    assert len(peer.asked) == 2
    assert far.of(peer, b"a") == 3 * ASK_BYTES
    assert len(peer.asked) == 3, "who looks at a large backlog wants to know when it is gone"
    assert far.of(peer, b"a") == 3 * ASK_BYTES
    assert len(peer.asked) == 3
    far.answered(peer, b"a", 2 * ASK_BYTES, 0)
    assert far.of(peer, b"a") == 0
    assert held(far) == empty


def test_strange_answers_change_nothing() -> None:
    far, peer = RemoteBacklog("$G"), FakePeer("far")
    far.answered(peer, b"a", 5, 5)
    far.sent(peer, b"a", ASK_BYTES)
    far.answered(peer, b"a", ASK_BYTES + 1, 5)
    far.answered(FakePeer("other"), b"a", ASK_BYTES, 5)
    assert far.of(peer, b"a") == ASK_BYTES


def test_a_lost_peer_and_too_many_subjects_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_peers, "MAX_FLOWS", 3)
    far, peer, other = RemoteBacklog("$G"), FakePeer("far"), FakePeer("other")
    for n in (1, 2, 3, 1, 4):
        far.sent(peer, b"%d" % n, 10)
    assert [far.of(peer, b"%d" % n) for n in (1, 2, 3, 4)] == [20, 0, 10, 10]
    far.sent(other, b"1", 10)
    far.drop_peer(peer)
    assert far.of(peer, b"1") == 0
    assert far.of(other, b"1") == 10


def test_the_backlog_of_a_subject_holds_the_far_takers(rig: ServerRig) -> None:
    peer = FakePeer("far")
    rig.router.peers.set_interest(peer, b"inbox", None, 1)
    messages: list[Outgoing] = [(b"s", b"", b"", b"x" * 999)] * 1000
    rig.router.deliver_many(b"inbox", messages)
    assert rig.router.backlog(b"inbox") == 1_000_000
    ((_, _, mark),) = peer.asked
    rig.server.accounts.backlog_told(peer, "$G", b"inbox", mark, 5)
    assert rig.router.backlog(b"inbox") == 0
    rig.router.deliver_many(b"inbox", messages)
    rig.router.peers.drop_peer(peer)
    assert rig.router.backlog(b"inbox") == -1, "nobody is left"


def test_the_answer_is_what_the_slowest_client_here_waits_for(rig: ServerRig) -> None:
    accounts = rig.server.accounts
    client = rig.client(b"SUB inbox 1", b"SUB group q 2")
    client.transport.jammed = True
    assert accounts.backlog_here("$G", b"inbox") == 0
    accounts.deliver_many_from_peer(FakePeer("far"), "$G", b"inbox", [], [(b"s", b"", b"", b"x" * 1000)] * 200)
    assert accounts.backlog_here("$G", b"inbox") > 200_000
    assert accounts.backlog_here("$G", b"group") > 200_000
    rig.client(b"SUB group q 2")
    assert accounts.backlog_here("$G", b"group") == 0, "another member can take more"
    assert accounts.backlog_here("$G", b"nobody") == 0


def test_a_far_member_of_a_queue_group_that_is_behind_is_passed_over(rig: ServerRig) -> None:
    peer = FakePeer("far")
    rig.router.peers.set_interest(peer, b"a", b"q", 5)
    here = rig.client(b"SUB a q 7")
    messages: list[Outgoing] = [(b"s", b"", b"", b"x" * 10_000)] * 10
    for _ in range(60):
        rig.router.deliver_many(b"a", messages)
        here.read()
    assert bulk.LAGGING_BYTES < rig.router.peers.backlog.of(peer, b"a") < bulk.LAGGING_BYTES + 200_000
    assert rig.router.backlog(b"a") == 0


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
    assert not own.told, "what a node wants is not sent to the others"


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
    assert sorted(own.peers.add_leaf(other)) == [(link, b"p", None, 1), (link, b"s", b"q", 3)], "it hears whose it is"
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
