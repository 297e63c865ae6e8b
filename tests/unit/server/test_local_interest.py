"""Interest of a node: counted by subject and queue, and announced to those who have to know, among them watches of
literal subjects, however these are subscribed to.
"""

from __future__ import annotations

from functools import partial

import pytest

from jetcluster.server.accounts.local_interest import InterestWatches, LocalInterest
from testkit.server_rig import FakeLeaf, FakePeer, ServerRig


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


@pytest.mark.parametrize("pattern", [b"_INBOX.x.1", b"_INBOX.x.*", b"_INBOX.*.1", b"_INBOX.>", b"*.x.*", b">"])
def test_any_subscription_that_takes_the_subject_is_seen(rig: ServerRig, pattern: bytes) -> None:
    told: list[int] = []
    rig.router.watch_interest(b"_INBOX.x.1", lambda: told.append(len(told)))
    rig.router.watch_interest(b"unrelated", lambda: None)
    client = rig.client(b"SUB %b 1" % pattern)
    assert len(told) == 1
    client.send(b"SUB %b 2" % pattern)
    assert len(told) == 1, "no change"
    client.send(b"UNSUB 1")
    assert len(told) == 1
    client.send(b"UNSUB 2")
    assert len(told) == 2
    client.send(b"SUB %b q 3" % pattern)
    assert len(told) == 3
    client.connection.connection_lost(None)
    assert len(told) == 4


def test_interest_of_other_nodes_is_seen(rig: ServerRig) -> None:
    told: list[int] = []
    rig.router.watch_interest(b"a.b", lambda: told.append(1))
    far = FakePeer("far")
    rig.router.peers.set_interest(far, b"a.*", None, 1)
    rig.router.peers.set_interest(far, b"a.*", None, 0)
    assert len(told) == 2
    rig.router.peers.set_interest(far, b"a.b", b"q", 1)
    rig.router.peers.drop_peer(far)
    assert len(told) == 4
    rig.router.peers.set_interest(far, b"x", None, 1)
    assert len(told) == 4


def test_a_watch_ends_and_may_end_itself(rig: ServerRig) -> None:
    told: list[str] = []

    def once() -> None:
        told.append("once")
        end_once()

    end_once = rig.router.watch_interest(b"a.b", once)
    end_other = rig.router.watch_interest(b"a.b", lambda: told.append("other"))
    client = rig.client(b"SUB a.* 1")
    client.send(b"UNSUB 1")
    assert told == ["once", "other", "other"]
    end_other()
    end_other()
    end_once()
    client.send(b"SUB a.b 1")
    assert len(told) == 3
    assert not rig.router.local.watched


def test_the_note_finds_the_interest_there(rig: ServerRig) -> None:
    seen: list[bool] = []
    rig.router.watch_interest(b"a", lambda: seen.append(rig.router.has_interest(b"a")))
    client = rig.client(b"SUB a 1")
    client.send(b"UNSUB 1")
    assert seen == [True, False]


def test_many_watches_are_not_all_looked_at() -> None:
    told: list[bytes] = []
    watches = InterestWatches(2)
    ends = [watches.add(subject, partial(told.append, subject)) for subject in (b"in.1", b"in.2", b"x.y.z")]
    watches.changed(b"x.>")
    assert told == []
    watches.changed(b"in.*")
    watches.changed(b"x.y.z")
    assert sorted(told) == [b"in.1", b"in.2", b"x.y.z"]
    ends[0]()
    watches.changed(b"x.>")
    assert told[-1] == b"x.y.z" and len(told) == 4


Told = list[tuple[str, bytes, bytes | None, int]]


def made() -> tuple[LocalInterest, Told]:
    told: Told = []
    return LocalInterest("A", lambda *what: told.append(what)), told


def test_plain_interest_is_announced_when_it_begins_and_ends_and_that_of_a_queue_each_time() -> None:
    interest, told = made()
    for change in (1, 1, -1, -1):
        interest.count(b"s", None, change)
    assert told == [("A", b"s", None, 1), ("A", b"s", None, 0)]
    told.clear()
    for change in (1, 2, -3):
        interest.count(b"s", b"q", change)
    assert told == [("A", b"s", b"q", 1), ("A", b"s", b"q", 3), ("A", b"s", b"q", 0)]
    assert not interest.counts()


def test_more_than_there_are_cannot_go() -> None:
    interest, _ = made()
    with pytest.raises(AssertionError):
        interest.count(b"s", None, -1)


def test_entries_are_announced_as_they_are_when_their_turn_comes() -> None:
    interest, _ = made()
    for subject, queue in ((b"a", None), (b"b", b"q"), (b"c", None)):
        interest.count(subject, queue, 2)
    found = interest.entries()
    assert next(found) == (b"a", None, 1), "plain interest counts once"
    interest.count(b"b", b"q", 1)
    interest.count(b"c", None, -2)
    assert list(found) == [(b"b", b"q", 3)]


def test_leaf_links_hear_of_everything_and_the_mesh_of_what_is_of_this_node() -> None:
    interest, told = made()
    link = FakeLeaf(spoke=False)
    interest.leaf_links.append(link)
    interest.count(b"here", None, 1)
    interest.count_elsewhere(FakePeer("n2"), b"there", None, 1)
    interest.offer(b"mapped", 1)
    assert link.told == {b"here": 1, b"there": 1, b"mapped": 1}
    assert [subject for _, subject, _, _ in told] == [b"here"]
    assert interest.offered() == {b"mapped": 1} and interest.counts() == {(b"here", None): 1}
    interest.offer(b"mapped", -1)
    assert not interest.offered() and b"mapped" not in link.told


def test_who_waits_for_a_taker_or_for_its_end_is_called() -> None:
    interest, _ = made()
    seen: list[str] = []
    end_watch = interest.watch(b"s", lambda: seen.append("changed"))
    end_await = interest.await_end(b"s", lambda: seen.append("ended"))
    interest.count(b"s", None, 1)
    interest.count(b"s", None, 1)
    assert seen == ["changed"]
    interest.count(b"s", None, -2)
    assert seen == ["changed", "changed", "ended"]
    seen.clear()
    interest.note(b"*", ended=False)
    interest.note(b"*", ended=True)
    assert seen == ["changed", "changed", "ended"], "the same of interest elsewhere"
    end_watch()
    end_await()
    interest.note(b"s", ended=True)
    assert len(seen) == 3 and not interest.watched
