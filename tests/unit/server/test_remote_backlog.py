"""What clients of other nodes have not read yet."""

from __future__ import annotations

import pytest

from jetcluster.protocol.bus import Outgoing
from jetcluster.server import bulk, remote_backlog
from jetcluster.server.remote_backlog import ASK_EVERY, RemoteBacklog
from testkit.server_rig import Bench, FakePeer
from testkit.twins.memory import held


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
    far.sent(peer, b"a", ASK_EVERY)
    far.sent(peer, b"a", ASK_EVERY)
    assert peer.asked == [("$G", b"a", ASK_EVERY)], "one question at a time"
    assert far.of(peer, b"a") == 2 * ASK_EVERY
    far.told(peer, b"a", ASK_EVERY, 10)
    assert far.of(peer, b"a") == 10 + ASK_EVERY
    assert peer.asked[1:] == [("$G", b"a", 2 * ASK_EVERY)]
    far.told(peer, b"a", 2 * ASK_EVERY, 3 * ASK_EVERY)
    assert len(peer.asked) == 2
    assert far.of(peer, b"a") == 3 * ASK_EVERY
    assert len(peer.asked) == 3, "who looks at a large backlog wants to know when it is gone"
    assert far.of(peer, b"a") == 3 * ASK_EVERY
    assert len(peer.asked) == 3
    far.told(peer, b"a", 2 * ASK_EVERY, 0)
    assert far.of(peer, b"a") == 0
    assert held(far) == empty


def test_strange_answers_change_nothing() -> None:
    far, peer = RemoteBacklog("$G"), FakePeer("far")
    far.told(peer, b"a", 5, 5)
    far.sent(peer, b"a", ASK_EVERY)
    far.told(peer, b"a", ASK_EVERY + 1, 5)
    far.told(FakePeer("other"), b"a", ASK_EVERY, 5)
    assert far.of(peer, b"a") == ASK_EVERY


def test_a_lost_peer_and_too_many_subjects_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_backlog, "MAX_FLOWS", 3)
    far, peer, other = RemoteBacklog("$G"), FakePeer("far"), FakePeer("other")
    for n in (1, 2, 3, 1, 4):
        far.sent(peer, b"%d" % n, 10)
    assert [far.of(peer, b"%d" % n) for n in (1, 2, 3, 4)] == [20, 0, 10, 10]
    far.sent(other, b"1", 10)
    far.drop_peer(peer)
    assert far.of(peer, b"1") == 0
    assert far.of(other, b"1") == 10


def test_the_backlog_of_a_subject_holds_the_far_takers() -> None:
    bench = Bench()
    peer = FakePeer("far")
    bench.router.peers.set_interest(peer, b"inbox", None, 1)
    messages: list[Outgoing] = [(b"s", b"", b"", b"x" * 999)] * 1000
    bench.router.deliver_many(b"inbox", messages)
    assert bench.router.backlog(b"inbox") == 1_000_000
    ((_, _, mark),) = peer.asked
    bench.server.accounts.backlog_told(peer, "$G", b"inbox", mark, 5)
    assert bench.router.backlog(b"inbox") == 0
    bench.router.deliver_many(b"inbox", messages)
    bench.router.peers.drop_peer(peer)
    assert bench.router.backlog(b"inbox") == -1, "nobody is left"


def test_the_answer_is_what_the_slowest_client_here_waits_for() -> None:
    bench = Bench()
    accounts = bench.server.accounts
    client = bench.client(b"SUB inbox 1", b"SUB group q 2")
    client.transport.jammed = True
    assert accounts.backlog_here("$G", b"inbox") == 0
    accounts.deliver_many_from_peer(FakePeer("far"), "$G", b"inbox", [], [(b"s", b"", b"", b"x" * 1000)] * 200)
    assert accounts.backlog_here("$G", b"inbox") > 200_000
    assert accounts.backlog_here("$G", b"group") > 200_000
    bench.client(b"SUB group q 2")
    assert accounts.backlog_here("$G", b"group") == 0, "another member can take more"
    assert accounts.backlog_here("$G", b"nobody") == 0


def test_a_far_member_of_a_queue_group_that_is_behind_is_passed_over() -> None:
    bench = Bench()
    peer = FakePeer("far")
    bench.router.peers.set_interest(peer, b"a", b"q", 5)
    here = bench.client(b"SUB a q 7")
    messages: list[Outgoing] = [(b"s", b"", b"", b"x" * 10_000)] * 10
    for _ in range(60):
        bench.router.deliver_many(b"a", messages)
        here.read()
    assert bulk.BEHIND < bench.router.peers.backlog.of(peer, b"a") < bulk.BEHIND + 200_000
    assert bench.router.backlog(b"a") == 0
