"""Watches of interest: told when somebody begins or ceases to take a literal subject, however it is subscribed to."""

from __future__ import annotations

from functools import partial

import pytest

from jetcluster.server.watches import InterestWatches
from testkit.server_rig import Bench, FakePeer


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("pattern", [b"_INBOX.x.1", b"_INBOX.x.*", b"_INBOX.*.1", b"_INBOX.>", b"*.x.*", b">"])
def test_any_subscription_that_takes_the_subject_is_seen(bench: Bench, pattern: bytes) -> None:
    told: list[int] = []
    bench.router.watch_interest(b"_INBOX.x.1", lambda: told.append(len(told)))
    bench.router.watch_interest(b"unrelated", lambda: None)
    client = bench.client(b"SUB %b 1" % pattern)
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


def test_interest_of_other_nodes_is_seen(bench: Bench) -> None:
    told: list[int] = []
    bench.router.watch_interest(b"a.b", lambda: told.append(1))
    far = FakePeer("far")
    bench.router.peers.set_interest(far, b"a.*", None, 1)
    bench.router.peers.set_interest(far, b"a.*", None, 0)
    assert len(told) == 2
    bench.router.peers.set_interest(far, b"a.b", b"q", 1)
    bench.router.peers.drop_peer(far)
    assert len(told) == 4
    bench.router.peers.set_interest(far, b"x", None, 1)
    assert len(told) == 4


def test_a_watch_ends_and_may_end_itself(bench: Bench) -> None:
    told: list[str] = []

    def once() -> None:
        told.append("once")
        end_once()

    end_once = bench.router.watch_interest(b"a.b", once)
    end_other = bench.router.watch_interest(b"a.b", lambda: told.append("other"))
    client = bench.client(b"SUB a.* 1")
    client.send(b"UNSUB 1")
    assert told == ["once", "other", "other"]
    end_other()
    end_other()
    end_once()
    client.send(b"SUB a.b 1")
    assert len(told) == 3
    assert not bench.router.local.watched


def test_the_note_finds_the_interest_there(bench: Bench) -> None:
    seen: list[bool] = []
    bench.router.watch_interest(b"a", lambda: seen.append(bench.router.has_interest(b"a")))
    client = bench.client(b"SUB a 1")
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
