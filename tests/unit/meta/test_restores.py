from __future__ import annotations

from jetcluster.meta.restores import ALIVE_SECONDS, SILENT_SECONDS, RestoreWatch
from jetcluster.meta.state import Assignment
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
