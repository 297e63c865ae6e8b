from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.raft.journal.disk import SLOT_BYTES, Disk, FileDisk, FileMark, MissingError, NoMark
from testkit.twins.journal import JournalDisk, MemoryMark
from testkit.twins.storage import SimDisk
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import Rig, fill


@pytest.fixture(params=["files", "relaxed files", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "memory":
        return JournalDisk()
    return FileDisk(tmp_path / "wal", always_sync=request.param == "files")


def test_segments_are_preallocated_written_read_wiped_and_deleted(disk: Disk) -> None:
    disk.create(3, 1_000)
    disk.create(12, 1_000)
    assert disk.segments() == [3, 12]
    disk.write(12, 100, [b"abc", b"", b"def"], True)
    disk.write(12, 990, [b"x" * 50], False)
    disk.sync(12)
    assert disk.read(12, 99, 8) == b"\0abcdef\0"
    assert len(disk.load(12)) == 1_040
    disk.wipe(12, 103)
    assert disk.load(12) == (bytes(100) + b"abc").ljust(1_040, b"\0"), "as long as it was"
    disk.delete(3)
    assert disk.segments() == [12]
    assert disk.look(0).free > 0
    disk.close()


@pytest.mark.parametrize("seed", range(20))
def test_deleted_segments_are_gone_in_their_order_after_a_power_failure(seed: int) -> None:
    machine = SimDisk(SeededRng(seed))
    disk = FileDisk(Path("/wal"), files=machine.files)
    for number in range(1, 6):
        disk.create(number, 4096)
    with machine.flight():
        for number in (1, 2, 3):
            disk.delete(number)
        machine.lose_power()
    left = FileDisk(Path("/wal"), files=machine.files).segments()
    assert left == list(range(left[0], 6)), "no gap"


def test_many_chunks_go_out_in_order(disk: Disk) -> None:
    disk.create(1, 100)
    chunks = [b"%04d" % i for i in range(2_500)]
    disk.write(1, 0, chunks, True)
    assert disk.load(1) == b"".join(chunks)
    disk.close()


def test_files_survive_reopening_and_foreign_files_are_ignored(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.create(1, 10)
    disk.write(1, 0, [b"x"], True)
    disk.close()
    (tmp_path / "zzzz.wal").write_bytes(b"")
    (tmp_path / "0000000000000zzz.wal").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    again = FileDisk(tmp_path)
    assert again.segments() == [1]
    assert again.load(1)[:1] == b"x"
    again.close()


def test_a_segment_that_could_not_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)

    def no_space(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        disk.create(1, 1 << 20)
    assert disk.segments() == []
    disk.close()


def test_after_a_failed_sync_nothing_is_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path, always_sync=False)
    disk.create(1, 1_000)
    disk.write(1, 0, [b"x"], False)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            disk.sync(1)
    for work in (lambda: disk.sync(1), lambda: disk.write(1, 1, [b"y"], True), lambda: disk.write(1, 1, [b"y"], False)):
        with pytest.raises(OSError, match="an earlier sync") as raised:
            work()
        assert raised.value.errno == errno.EIO, "not what is waited out"
    disk.close()


def test_fault_points(disk: Disk) -> None:
    disk.create(1, 10)
    for name, call in (
        ("journal.create", lambda: disk.create(2, 10)),
        ("journal.write", lambda: disk.write(1, 0, [b"x"], True)),
        ("journal.synced", lambda: disk.write(1, 0, [b"x"], True)),
        ("journal.read", lambda: disk.read(1, 0, 1)),
    ):
        with faults.armed(name, faults.fail(errno.EIO)), pytest.raises(OSError, match="Input/output"):
            call()
    disk.close()


def test_the_twin_forgets_what_was_not_synced() -> None:
    left = []
    for seed in range(20):
        disk = JournalDisk()
        disk.create(1, 1_000)
        disk.write(1, 0, [b"a" * 100], True)
        disk.write(1, 100, [b"b" * 800], False)
        disk.crash(SeededRng(seed))
        data = disk.load(1)
        assert data[:100] == b"a" * 100
        left.append(data.count(b"b"))
    assert min(left) < 200
    assert max(left) > 600
    assert any(0 < n < 800 for n in left), "some sectors made it"


def test_without_descriptors_a_segment_is_made_and_old_ones_are_read(tmp_path: Path) -> None:
    earlier = FileDisk(tmp_path)
    earlier.create(1, 100)
    earlier.create(2, 100)
    earlier.write(1, 0, [b"old"], True)
    earlier.close()
    disk = FileDisk(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        assert disk.read(1, 0, 3) == b"old"
        assert disk.read(1, 0, 3) == b"old", "as often as it takes"
        disk.create(3, 100)
        disk.write(3, 0, [b"new"], True)
        with pytest.raises(OSError, match="Too many open files"):
            disk.create(4, 100)
        os.close(taken.pop())
        os.close(taken.pop())
        disk.fill_spares()
        disk.create(4, 100)
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert disk.segments() == [1, 2, 3, 4]
    disk.close()


@pytest.mark.parametrize(
    ("change", "there"),
    [
        ("none", True),
        ("grown", True),
        ("segment deleted", False),
        ("segment replaced", False),
        ("folder deleted", False),
        ("folder moved", False),
        ("copied back", False),
        ("parent moved", False),
    ],
)
def test_what_is_open_and_not_on_the_disk_any_more_is_missing(tmp_path: Path, change: str, there: bool) -> None:
    folder = tmp_path / "store" / "journal"
    disk = FileDisk(folder)
    disk.create(1, 100)
    disk.create(2, 100)
    path = folder / f"{2:016x}.wal"
    if change == "grown":
        disk.create(3, 100)
        disk.delete(1)
    elif change == "segment deleted":
        path.unlink()
    elif change == "segment replaced":
        path.rename(tmp_path / "old")
        path.write_bytes(bytes(100))
    elif change == "folder deleted":
        shutil.rmtree(folder)
    elif change == "folder moved":
        folder.rename(tmp_path / "old")
    elif change == "copied back":
        folder.rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", folder)
    elif change == "parent moved":
        folder.parent.rename(tmp_path / "old")
    if there:
        assert disk.look(2).free > 0 and disk.look(0).size > 0
    else:
        with pytest.raises(MissingError, match="deleted, or another one is in its place"):
            disk.look(2)
        disk.write(2, 0, [b"x"], True)  # it seems to succeed
    disk.close()


def test_a_look_that_fails_otherwise_does_not_say_that_it_is_missing(tmp_path: Path) -> None:
    class Files:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def stat(self, path: object) -> os.stat_result:
            if broken:
                raise OSError(errno.EIO, "input/output error")
            return Path(str(path)).stat()

    broken = False
    disk = FileDisk(tmp_path, files=Files())  # type: ignore[arg-type]
    broken = True
    with pytest.raises(OSError, match="input/output error") as caught:
        disk.look(0)
    assert not isinstance(caught.value, MissingError)
    disk.close()


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
    newest = 0 if whole[:SLOT_BYTES] > whole[SLOT_BYTES:] and b"\x03" in whole[:SLOT_BYTES] else 1
    for at in range(SLOT_BYTES // 2):
        torn = bytearray(whole)
        torn[newest * SLOT_BYTES + at] ^= 0xFF
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
    torn[SLOT_BYTES + 8] ^= 0xFF
    path.write_bytes(torn)
    again = FileMark(path, "peerA")
    assert again.read() == 1
    again.write(7)
    assert path.read_bytes()[:SLOT_BYTES] == bytes(torn[:SLOT_BYTES])
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
        rig = Rig(sync_interval=interval)
        rig.fill(rig.log(), 5)
        fill(rig.log(), 5)
        rig.journal.close()
        rig.disk.crash(SeededRng(5))
        found = rig.open().seq - 1
        assert rig.mark.batch == found >= 2, "and it is on the disk, whatever the interval"
        assert rig.found.damage == []
        assert rig.log().last_index == 10


def test_a_last_write_that_fails_is_not_marked(rig: Rig) -> None:
    rig.fill(rig.log(), 5)
    fill(rig.log(), 5)
    with faults.armed("journal.write", faults.fail(errno.EIO)):
        rig.journal.close()
    assert rig.mark.batch == 0
    rig.open()
    assert rig.found.damage == []


def test_the_mark_is_written_with_a_sync(tmp_path: Path) -> None:
    mark = FileMark(tmp_path / "journal.mark", "peerA")
    mark.write(3)
    assert mark._fd is not None
    assert fcntl.fcntl(mark._fd, fcntl.F_GETFL) & os.O_DSYNC
    mark.close()
