"""Starting again for the sake of the data store (node/data_restarts.py)."""

from __future__ import annotations

import os
from pathlib import Path

from jetcluster.node.data_restarts import COOL_DOWN, MOST, PERIOD, DataRestarts
from testkit.twins.time import ManualTime
from tests.unit.cluster.nodes import ListLog


def test_not_twice_within_a_minute_and_not_while_the_disk_takes_nothing(tmp_path: Path) -> None:
    time, log, started = ManualTime(), ListLog(), list[int]()
    restarts = DataRestarts(tmp_path, time, os, log, lambda: started.append(1))
    restarts.again("IO error")
    restarts.again("IO error")
    assert len(started) == 1
    assert "the data store failed again soon after a start: the disk may be failing" in log.events("warning")
    time.advance(COOL_DOWN + 1)
    restarts.again("IO error")
    assert len(started) == 2
    for _ in range(10):
        time.advance(COOL_DOWN + 1)
        restarts.again("IO error")
    assert len(started) == MOST == 3, "it does not help"
    time.advance(PERIOD)
    restarts.again("IO error")
    assert len(started) == 4
    elsewhere = DataRestarts(tmp_path / "gone", time, os, log, lambda: started.append(1))
    elsewhere.again("IO error")
    assert len(started) == 4 and "the disk is not well" in log.events("error")


def test_a_stamp_of_a_clock_that_was_wrong_does_not_count(tmp_path: Path) -> None:
    time, started = ManualTime(), list[int]()
    for stamp in (str(time.time_ns() // 10**9 + 10**6), "not a number", ""):
        (tmp_path / "started-again").write_text(stamp)
        DataRestarts(tmp_path, time, os, ListLog(), lambda: started.append(1)).again("IO error")
    assert len(started) == 3


def test_a_damaged_store_is_marked_and_renewed_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    time, log, started = ManualTime(), ListLog(), list[int]()
    restarts = DataRestarts(tmp_path, time, os, log, lambda: started.append(1))
    restarts.renew("bad")
    assert len(started) == 1 and (tmp_path / "data" / "DAMAGED").read_text().strip() == "bad"
    (tmp_path / "quarantine" / f"data-{time.time_ns() // 10**9}").mkdir(parents=True)
    restarts.renew("bad")
    assert len(started) == 1 and "the data store is damaged again: the disk may be failing" in log.events("error")
