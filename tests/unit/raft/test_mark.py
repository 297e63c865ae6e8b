from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.raft.mark import SLOT, FileMark, NoMark
from testkit.twins.journal import MemoryMark
from testkit.twins.time import SeededRng
from tests.unit.raft.journals import Bench, fill


def test_the_newest_batch_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.mark"
    mark = FileMark(path, "peerA")
    assert mark.read() == 0
    for batch in (3, 4, 9):
        mark.write(batch)
        assert FileMark(path, "peerA").read() == batch
    mark.close()
    again = FileMark(path, "peerA")
    assert again.read() == 9
    again.write(10)
    assert FileMark(path, "peerA").read() == 10
    again.close()


def test_a_torn_slot_leaves_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "journal.mark"
    mark = FileMark(path, "peerA")
    for batch in (1, 2, 3):
        mark.write(batch)
    mark.close()
    whole = path.read_bytes()
    newest = 0 if whole[:SLOT] > whole[SLOT:] and b"\x03" in whole[:SLOT] else 1
    for at in range(SLOT // 2):
        torn = bytearray(whole)
        torn[newest * SLOT + at] ^= 0xFF
        path.write_bytes(torn)
        assert FileMark(path, "peerA").read() in (2, 3)
    path.write_bytes(whole[:5])
    assert FileMark(path, "peerA").read() == 0


def test_after_a_torn_slot_the_good_one_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "journal.mark"
    mark = FileMark(path, "peerA")
    for batch in (1, 2):
        mark.write(batch)
    mark.close()
    torn = bytearray(path.read_bytes())
    torn[SLOT + 8] ^= 0xFF
    path.write_bytes(torn)
    again = FileMark(path, "peerA")
    assert again.read() == 1
    again.write(7)
    assert path.read_bytes()[:SLOT] == bytes(torn[:SLOT])
    assert FileMark(path, "peerA").read() == 7
    again.close()


def test_the_mark_of_another_node_says_nothing(tmp_path: Path) -> None:
    mark = FileMark(tmp_path / "journal.mark", "peerA")
    mark.write(5)
    mark.close()
    assert FileMark(tmp_path / "journal.mark", "peerB").read() == 0


@pytest.mark.parametrize(("mark", "kept"), [(MemoryMark(), 5), (NoMark(), 0)])
def test_the_twins(mark: MemoryMark | NoMark, kept: int) -> None:
    assert mark.read() == 0
    mark.write(5)
    mark.close()
    assert mark.read() == kept


def test_a_clean_end_marks_all_that_was_written() -> None:
    for interval in (None, 120.0):
        bench = Bench(sync_interval=interval)
        fill(bench.log(), 5)
        bench.settle()
        fill(bench.log(), 5)
        bench.journal.close()
        bench.disk.crash(SeededRng(5))
        found = bench.open().seq - 1
        assert bench.mark.batch == found >= 2, "and it is on the disk, whatever the interval"
        assert bench.found.damage == []
        assert bench.log().last_index == 10


def test_a_last_write_that_fails_is_not_marked() -> None:
    bench = Bench()
    fill(bench.log(), 5)
    bench.settle()
    fill(bench.log(), 5)
    with faults.armed("journal.write", faults.fail(errno.EIO)):
        bench.journal.close()
    assert bench.mark.batch == 0
    bench.open()
    assert bench.found.damage == []


def test_the_mark_is_written_with_a_sync(tmp_path: Path) -> None:
    mark = FileMark(tmp_path / "journal.mark", "peerA")
    mark.write(3)
    assert mark._fd is not None
    assert fcntl.fcntl(mark._fd, fcntl.F_GETFL) & os.O_DSYNC
    mark.close()
