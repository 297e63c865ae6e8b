"""Which streams and places balance leaves alone (cluster/replica_rests.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.cluster import replica_rests
from jetcluster.cluster.load import REST_SECONDS
from jetcluster.cluster.replica_rests import BY_HAND_SECONDS, REFUSED_SECONDS, ReplicaRests
from testkit.twins.time import ManualTime


class Table:
    """The meta group's streams."""

    def __init__(self) -> None:
        self.streams: dict[int, tuple[str, ...]] = {}

    def all_assignments(self) -> list[Any]:
        return [SimpleNamespace(gid=gid, peers=peers) for gid, peers in self.streams.items()]


def table_of(count: int) -> tuple[Table, ManualTime, ReplicaRests]:
    table, clock = Table(), ManualTime()
    table.streams = dict.fromkeys(range(count), ("A", "B", "C"))
    rests = ReplicaRests(table, clock)  # type: ignore[arg-type]
    at_once(rests.look(1))
    return table, clock, rests


def test_a_stream_stays_where_somebody_else_has_put_it() -> None:
    table, clock, rests = table_of(3)
    table.streams[0] = "D", "B", "C"
    table.streams[1] = "B", "A", "C"
    table.streams[3] = "A", "B"
    at_once(rests.look(1))
    assert rests.rests(0) and not any(map(rests.rests, (1, 2, 3))), "another order is none, and one is new"
    clock.advance(BY_HAND_SECONDS - 1)
    at_once(rests.look(1))
    assert rests.rests(0)
    clock.advance(2)
    at_once(rests.look(1))
    assert not rests.rests(0)


def test_a_move_for_balance_rests_a_minute() -> None:
    table, clock, rests = table_of(2)
    rests.moved(0, ("D", "B", "C"))
    table.streams[0] = "D", "B", "C"
    at_once(rests.look(1))
    assert rests.rests(0)
    clock.advance(REST_SECONDS + 1)
    at_once(rests.look(1))
    assert not rests.rests(0)


def test_what_another_meta_leader_decided_says_nothing() -> None:
    table, _, rests = table_of(1)
    table.streams[0] = "D", "B", "C"
    at_once(rests.look(2))
    assert not rests.rests(0)


def test_a_refusal_is_remembered_for_a_while_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_rests, "MAX_REFUSED", 2)
    _, clock, rests = table_of(1)
    for target in "DEF":
        rests.refuse(0, target)
    assert [rests.is_refused(0, target) for target in "DEF"] == [False, True, True]
    assert not rests.is_refused(1, "E")
    clock.advance(REFUSED_SECONDS)
    at_once(rests.look(1))
    assert not rests.is_refused(0, "F")
