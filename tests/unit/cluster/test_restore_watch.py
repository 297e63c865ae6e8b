"""Restores that the meta leader watches (cluster/restore_watch.py)."""

from __future__ import annotations

import pytest

from jetcluster.cluster.restore_watch import ALIVE_SECONDS, SILENT_SECONDS, RestoreWatch
from jetcluster.errors import ApiError, by_code
from jetcluster.meta.state import Assignment
from jetcluster.raft.api import NotLeaderError
from testkit.twins.time import ManualTime


def stream(gid: int, **fields: object) -> Assignment:
    config = {"name": f"S{gid}", "storage": "file", "num_replicas": 1, **fields}
    return Assignment(gid, "A", f"S{gid}", config, ("n1",), 1, "n1", 1)


def test_who_says_nothing_is_overdue() -> None:
    time = ManualTime()
    watch = RestoreWatch(time)
    silent, alive, ordinary = stream(2, restoring=True), stream(3, restoring=True), stream(4)
    for _ in range(int(SILENT_SECONDS / ALIVE_SECONDS)):
        assert watch.overdue([silent, alive, ordinary], 1) == []
        time.advance(ALIVE_SECONDS)
        watch.alive(3)
        watch.alive(99)
    assert watch.overdue([silent, alive, ordinary], 1) == [silent]
    assert watch.overdue([alive, ordinary], 1) == []
    time.advance(SILENT_SECONDS)
    assert watch.overdue([alive, ordinary], 1) == [alive]


def test_a_new_term_waits_anew() -> None:
    time = ManualTime()
    watch = RestoreWatch(time)
    assert watch.overdue([stream(2, restoring=True)], 1) == []
    time.advance(2 * SILENT_SECONDS)
    assert watch.overdue([stream(2, restoring=True)], 2) == []
    time.advance(SILENT_SECONDS)
    assert watch.overdue([stream(2, restoring=True)], 2) == [stream(2, restoring=True)]


def test_what_ends_is_not_overdue_until_a_refusal() -> None:
    time = ManualTime()
    watch = RestoreWatch(time)
    watch.overdue([stream(2, restoring=True)], 1)
    time.advance(SILENT_SECONDS)
    with pytest.raises(ApiError), watch.ending(2):
        assert watch.overdue([stream(2, restoring=True)], 1) == []
        raise by_code(10059)
    assert watch.overdue([stream(2, restoring=True)], 1) == [stream(2, restoring=True)]


def test_an_end_whose_outcome_is_unknown_may_come_true_in_this_term() -> None:
    time = ManualTime()
    watch = RestoreWatch(time)
    watch.overdue([stream(2, restoring=True)], 1)
    with pytest.raises(NotLeaderError), watch.ending(2):
        raise NotLeaderError("n2")
    time.advance(SILENT_SECONDS)
    assert watch.overdue([stream(2, restoring=True)], 1) == []
    assert watch.overdue([stream(2, restoring=True)], 2) == []
    time.advance(SILENT_SECONDS)
    assert watch.overdue([stream(2, restoring=True)], 2) == [stream(2, restoring=True)]
