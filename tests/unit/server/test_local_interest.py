"""What is wanted on a node: counted by subject and queue, and told to those who have to know."""

from __future__ import annotations

import pytest

from jetcluster.server.local_interest import LocalInterest
from testkit.server_rig import FakeLeaf, FakePeer

Told = list[tuple[str, bytes, bytes | None, int]]


def made() -> tuple[LocalInterest, Told]:
    told: Told = []
    return LocalInterest("A", lambda *what: told.append(what)), told


def test_plain_interest_is_told_when_it_begins_and_ends_and_that_of_a_queue_each_time() -> None:
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


def test_entries_are_told_as_they_are_when_their_turn_comes() -> None:
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


def test_who_waits_for_a_taker_or_for_its_end_is_told() -> None:
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
