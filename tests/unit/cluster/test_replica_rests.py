"""Which streams and places balance leaves alone (cluster/replica_rests.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster import replica_rests
from jetcluster.cluster.load import REST_SECONDS
from jetcluster.cluster.replica_rests import BY_HAND_SECONDS, REFUSED_SECONDS, ReplicaRests
from testkit.twins.time import ManualTime


def update(gid: int, old: str, new: str) -> Any:
    """A `StreamUpdated`, with a letter for each peer."""
    before, after = (SimpleNamespace(gid=gid, peers=tuple(peers)) for peers in (old, new))
    return SimpleNamespace(previous=before, assignment=after)


def test_a_stream_stays_where_somebody_else_has_put_it() -> None:
    clock = ManualTime()
    rests = ReplicaRests(clock)
    rests.note(update(1, "ABC", "DBC"))
    rests.note(update(2, "ABC", "BAC"))
    assert rests.rests(1) and not rests.rests(2), "another order is none"
    clock.advance(BY_HAND_SECONDS - 1)
    assert rests.rests(1)
    rests.rest(1, 0.5)
    clock.advance(0.9)
    assert rests.rests(1), "a short rest does not end a long one"
    clock.advance(1)
    assert not rests.rests(1)


def test_a_move_for_balance_rests_a_minute() -> None:
    clock = ManualTime()
    rests = ReplicaRests(clock)
    rests.moving(1, tuple("DBC"))
    rests.note(update(1, "ABC", "DBC"))
    rests.note(update(2, "ABC", "DBC"))
    clock.advance(REST_SECONDS - 1)
    assert rests.rests(1)
    clock.advance(2)
    assert not rests.rests(1) and rests.rests(2)
    rests.note(update(1, "DBC", "ABC"))
    clock.advance(REST_SECONDS + 1)
    assert rests.rests(1), "somebody took the move back"


def test_a_refusal_is_remembered_for_a_while_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_rests, "MAX_REMEMBERED", 2)
    clock = ManualTime()
    rests = ReplicaRests(clock)
    for target in "DEF":
        rests.refuse(1, target)
    assert [rests.is_refused(1, target) for target in "DEF"] == [False, True, True]
    assert not rests.is_refused(2, "E")
    clock.advance(REFUSED_SECONDS)
    assert not rests.is_refused(1, "F")
