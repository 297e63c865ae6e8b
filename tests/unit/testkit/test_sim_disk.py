"""Each fault of the simulated disk does what it says, and the real code of a node's files stands them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from jetcluster import files as node_files
from jetcluster.clock import SystemRng
from jetcluster.files import make_folder, read, sync, write, write_durably
from jetcluster.mesh.identity import IdentityError, load_identity, load_key
from jetcluster.raft.journal.disk import FileDisk, FileMark
from jetcluster.store.progress import probe
from testkit.twins.storage import SimDisk, SimWriter
from testkit.twins.time import ManualTime, SeededRng

FLAGS = os.O_RDWR | os.O_CREAT


def new_disk(seed: int = 1, sector: int = 512, capacity: int = 1 << 30) -> SimDisk:
    disk = SimDisk(SeededRng(seed), sector=sector, capacity=capacity)
    disk.files.mkdir("/d")
    sync(Path("/"), disk.files)
    return disk


def test_holes_are_where_a_reading_of_all_bytes_finds_them() -> None:
    rng = Random(3)
    for _ in range(40):
        files, size, content = new_disk(sector=rng.choice([512, 4096])).files, 400_000, bytearray(400_000)
        fd = files.open("/d/one", FLAGS, 0o600)
        files.posix_fallocate(fd, 0, size)
        for _ in range(rng.randrange(4)):
            at, length = rng.randrange(size - 1), rng.choice([1, 700, 70_000, 150_000])
            piece = bytes(rng.randrange(3) for _ in range(min(length, size - at, 5_000))).ljust(length // 8, b"x")
            piece = piece[: size - at]
            files.pwrite(fd, piece, at)
            content[at : at + len(piece)] = piece
        for position in (0, 1, *(rng.randrange(size) for _ in range(9)), size):
            rest = bytes(content[position:])
            end = rest.find(bytes(1024))
            hole = len(rest) if end < 0 else end + 512 - end % 512
            assert files.lseek(fd, position, os.SEEK_HOLE) == position + hole
            if data := rest.lstrip(b"\0"):
                found = len(rest) - len(data)
                assert files.lseek(fd, position, os.SEEK_DATA) == position + found - found % 512
            else:
                with pytest.raises(OSError, match="No such device or address"):
                    files.lseek(fd, position, os.SEEK_DATA)


@pytest.fixture(params=["real", "twin"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[node_files.Files, Path]:
    if request.param == "real":
        return os, tmp_path
    return new_disk().files, Path("/d")


def test_calls_answer_as_those_of_the_operating_system(place: tuple[node_files.Files, Path]) -> None:
    files, folder = place
    one, two = folder / "one", folder / "two"
    fd = files.open(one, FLAGS, 0o600)
    assert files.pwrite(fd, b"abc" * 1_000, 700) == 3_000
    assert files.pwritev(fd, [b"x", b"", b"yz"], 699) == 3
    assert files.pread(fd, 10, 695) == bytes(4) + b"xyzcab"
    assert files.pread(fd, 10, 3_695) == b"bcabc"
    assert files.pread(fd, 10, 9_999) == b""
    files.posix_fallocate(fd, 0, 9_000)
    assert files.fstat(fd).st_size == files.stat(one).st_size == 9_000
    files.fsync(fd)
    files.close(fd)
    with pytest.raises(OSError, match="Bad file"):
        files.pread(fd, 1, 0)
    files.replace(one, two)
    assert files.listdir(folder) == ["two"]
    files.mkdir(folder / "f", 0o700)
    for wrong, code in (
        (lambda: files.stat(one), errno.ENOENT),
        (lambda: files.open(one, os.O_RDONLY), errno.ENOENT),
        (lambda: files.open(two, FLAGS | os.O_EXCL), errno.EEXIST),
        (lambda: files.open(two / "x", os.O_RDONLY), errno.ENOTDIR),
        (lambda: files.mkdir(folder / "f"), errno.EEXIST),
        (lambda: files.mkdir(folder / "g" / "h"), errno.ENOENT),
        (lambda: files.rmdir(two), errno.ENOTDIR),
        (lambda: files.rename(two, folder / "f"), errno.EISDIR),
        (lambda: files.unlink(one), errno.ENOENT),
        (lambda: files.listdir(two), errno.ENOTDIR),
    ):
        _fails(wrong, code)
    files.rename(two, folder / "f" / "two")
    _fails(lambda: files.rmdir(folder / "f"), errno.ENOTEMPTY)
    files.chmod(folder / "f" / "two", 0o640)
    assert files.stat(folder / "f" / "two").st_mode & 0o777 == 0o640
    fd = files.open(folder / "f" / "two", os.O_RDWR | os.O_TRUNC)
    assert files.fstat(fd).st_size == 0
    files.unlink(folder / "f" / "two")
    assert files.pwrite(fd, b"still there", 0) == 11
    assert files.pread(fd, 99, 0) == b"still there"
    files.close(fd)
    files.rmdir(folder / "f")
    assert files.listdir(folder) == []
    assert files.statvfs(folder).f_bavail > 0


def _fails(work: Callable[[], object], code: int) -> None:
    with pytest.raises(OSError) as raised:
        work()
    assert raised.value.errno == code


def test_unsynced_sectors_are_lost_in_any_subset() -> None:
    kept: set[str] = set()
    for seed in range(60):
        disk = new_disk(seed)
        write(Path("/d/f"), b"a" * 512 * 4, disk.files)
        sync(Path("/d"), disk.files)
        fd = disk.files.open("/d/f", os.O_RDWR)
        disk.files.pwrite(fd, b"b" * 512 * 4, 0)
        disk.files.pwrite(fd, b"c" * 700, 5_000)
        disk.lose_power()
        data = read(Path("/d/f"), disk.files)
        assert set(data[:2_048]) <= set(b"ab"), "a sector is written whole or not at all"
        kept.add(bytes(data[at] for at in range(0, 2_048, 512)).decode())
        assert set(data[2_048:5_000]) <= {0}
    assert {"aaaa", "bbbb"} < kept
    assert len(kept) > 8


def test_what_was_synced_is_there() -> None:
    for seed in range(40):
        disk = new_disk(seed)
        write(Path("/d/f"), b"a" * 3_000, disk.files)
        sync(Path("/d"), disk.files)
        fd = disk.files.open("/d/f", os.O_RDWR | os.O_DSYNC)
        disk.files.pwrite(fd, b"b" * 100, 2_950)
        disk.lose_power()
        assert read(Path("/d/f"), disk.files) == b"a" * 2_950 + b"b" * 100


def test_a_killed_process_loses_its_descriptors_and_no_data() -> None:
    disk = new_disk()
    fd = disk.files.open("/d/f", FLAGS)
    disk.files.pwrite(fd, b"written", 0)
    disk.kill_process()
    assert read(Path("/d/f"), disk.files) == b"written"
    with pytest.raises(OSError, match="Bad file"):
        disk.files.pwrite(fd, b"late", 0)


def test_names_are_lost_until_their_folder_is_synced() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in range(60):
        disk = new_disk(seed)
        write(Path("/d/old"), b"old", disk.files)
        sync(Path("/d"), disk.files)
        write(Path("/d/new"), b"new", disk.files)
        disk.files.rename("/d/old", "/d/older")
        disk.lose_power()
        seen.add(tuple(sorted(disk.files.listdir("/d"))))
    assert seen == {("old",), ("older",), ("new", "old"), ("new", "older")}


def test_a_name_is_not_kept_without_what_it_rests_on() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in range(60):
        disk = new_disk(seed)
        for name in ("data", "next"):
            write(Path("/d") / name, name.encode(), disk.files)
        sync(Path("/d"), disk.files)
        disk.files.rename("/d/data", "/d/kept")
        disk.files.rename("/d/next", "/d/data")
        disk.lose_power()
        names = tuple(sorted(disk.files.listdir("/d")))
        seen.add(names)
        if "kept" in names:
            assert read(Path("/d/kept"), disk.files) == b"data"
    assert seen == {("data", "next"), ("kept", "next"), ("data", "kept")}


def test_a_sync_that_failed_has_dropped_what_it_was_to_write() -> None:
    disk = new_disk()
    write(Path("/d/f"), b"a" * 2_000, disk.files)
    sync(Path("/d"), disk.files)
    fd = disk.files.open("/d/f", os.O_RDWR)
    disk.files.pwrite(fd, b"b" * 2_000, 0)
    disk.fail("sync", errno.EIO, within="/d/f", times=1)
    _fails(lambda: disk.files.fsync(fd), errno.EIO)
    disk.files.fsync(fd)
    assert disk.files.pread(fd, 9_999, 0) == b"b" * 2_000, "the running system still sees it"
    disk.lose_power()
    assert read(Path("/d/f"), disk.files) == b"a" * 2_000


def test_errors_hit_the_named_files_as_often_as_said() -> None:
    disk = new_disk()
    for name in ("f", "g"):
        write(Path("/d") / name, b"x", disk.files)
    fault = disk.fail("read", errno.EIO, within="/f")
    for _ in range(3):
        _fails(lambda: read(Path("/d/f"), disk.files), errno.EIO)
    assert read(Path("/d/g"), disk.files) == b"x"
    disk.heal(fault)
    assert read(Path("/d/f"), disk.files) == b"x"
    disk.fail("write", errno.EIO, times=2)
    for _ in range(2):
        _fails(lambda: write(Path("/d/f"), b"y", disk.files), errno.EIO)
    write(Path("/d/f"), b"y", disk.files)


def test_a_full_disk_takes_what_fits() -> None:
    disk = new_disk(capacity=4_096)
    fd = disk.files.open("/d/f", FLAGS)
    assert disk.files.pwrite(fd, b"x" * 3_000, 0) == 3_000
    assert disk.files.statvfs("/d").f_bavail == 2
    assert disk.files.pwrite(fd, b"y" * 3_000, 3_000) == 1_096
    _fails(lambda: disk.files.pwrite(fd, b"z", 4_096), errno.ENOSPC)
    other = disk.files.open("/d/g", FLAGS)
    _fails(lambda: disk.files.posix_fallocate(other, 0, 1), errno.ENOSPC)
    disk.files.unlink("/d/f")
    _fails(lambda: disk.files.posix_fallocate(other, 0, 1), errno.ENOSPC)
    disk.files.close(fd)
    disk.files.posix_fallocate(other, 0, 4_096)
    assert disk.free == 0
    disk.capacity += 512
    disk.files.posix_fallocate(other, 0, 4_608)
    disk.lose_power()
    assert disk.used == sum(file.allocated for _, file in disk.tree())


def test_rot_and_cuts_outlive_the_power() -> None:
    disk = new_disk()
    write(Path("/d/f"), bytes(2_000), disk.files)
    sync(Path("/d"), disk.files)
    disk.rot("/d/f", 600)
    assert read(Path("/d/f"), disk.files)[600] != 0
    disk.cut("/d/f", 1_000)
    disk.lose_power()
    data = read(Path("/d/f"), disk.files)
    assert len(data) == 1_000 and [at for at in range(1_000) if data[at]] == [600]


def _note(ended: list[tuple[str, BaseException | None]], name: str, error: BaseException | None) -> None:
    ended.append((name, error))


def test_work_ends_in_simulated_time_and_hangs_until_released() -> None:
    disk, time = new_disk(), ManualTime()
    disk.slowness = 2.0
    writer = SimWriter(disk, time)
    ended: list[tuple[str, BaseException | None]] = []
    for name in ("one", "two"):
        writer.submit(partial(write, Path("/d/f"), b"x", disk.files), partial(_note, ended, name))
    writer.submit(partial(disk.files.unlink, "/d/missing"), partial(_note, ended, "three"))
    assert ended == []
    time.advance(5.0)
    assert ended[:2] == [("one", None), ("two", None)]
    assert ended[2][0] == "three" and isinstance(ended[2][1], FileNotFoundError)
    disk.hang()
    writer.submit(partial(write, Path("/d/g"), b"y", disk.files), partial(_note, ended, "four"))
    time.advance(100.0)
    assert len(ended) == 3 and writer.waits.done == 3
    disk.release()
    time.advance(5.0)
    assert ended[3] == ("four", None)


def test_work_under_way_is_kept_in_part_when_the_power_goes() -> None:
    kept: list[int] = []
    for seed in range(80):
        disk, time = new_disk(seed), ManualTime()
        for name in range(4):
            write(Path(f"/d/{name}"), b"old", disk.files)
        sync(Path("/d"), disk.files)
        writer = SimWriter(disk, time)

        def job(disk: SimDisk = disk) -> None:
            for name in range(4):
                fd = disk.files.open(f"/d/{name}", os.O_RDWR)
                disk.files.pwrite(fd, b"new", 0)
                disk.files.fsync(fd)
                disk.files.close(fd)

        writer.submit(job, lambda error: None)
        time.advance(disk.rng.uniform(0.0, 0.02) if seed % 4 else 10.0)
        writer.abandon()
        disk.lose_power()
        found = [read(Path(f"/d/{name}"), disk.files) == b"new" for name in range(4)]
        kept.append(sum(found))
        assert seed % 4 or kept[-1] == 4, "it had ended"
    assert {0, 4} < set(kept)


def test_segments_are_those_of_a_real_disk(tmp_path: Path) -> None:
    twin = new_disk()
    found = []
    for disk in (FileDisk(tmp_path / "wal"), FileDisk(Path("/d/wal"), files=twin.files)):
        disk.create(3, 1_000)
        disk.create(12, 1_000)
        disk.write(12, 100, [b"abc", b"", b"def"], True)
        disk.write(12, 990, [b"x" * 50], False)
        disk.sync(12)
        disk.wipe(12, 103)
        disk.delete(3)
        found.append((disk.segments(), disk.load(12), disk.read(12, 99, 8), disk.look(0).free > 0))
        disk.close()
    assert found[0] == found[1]


def test_a_small_file_is_the_old_one_or_the_new_one_whenever_the_power_goes() -> None:
    found: set[str] = set()
    for seed in range(200):
        disk, time = new_disk(seed), ManualTime()
        write_durably(Path("/d/sub/f"), "old", disk.files)
        writer = SimWriter(disk, time)
        writer.submit(partial(write_durably, Path("/d/sub/f"), "new", disk.files), lambda error: None)
        time.advance(disk.rng.uniform(0.0, 0.05))
        writer.abandon()
        disk.lose_power()
        found.add(node_files.read_text(Path("/d/sub/f"), disk.files))
    assert found == {"old\n", "new\n"}


def test_an_identity_that_was_given_out_is_never_lost() -> None:
    begun = 0
    for seed in range(200):
        disk, rng = new_disk(seed), SystemRng()
        store = Path("/d/deep/jetstream")
        if seed % 2:
            first = load_identity(store, "n", guarded=("journal", "data"), rng=rng, files=disk.files)
            key, first = load_key(store, first, rng, disk.files)
            disk.lose_power()
            again = load_identity(store, "n", guarded=("journal", "data"), rng=rng, files=disk.files)
            assert again == first
            assert load_key(store, again, rng, disk.files)[0].public == key.public
            continue
        with disk.flight():
            make_folder(store, disk.files)
            load_identity(store, "n", guarded=("journal", "data"), rng=rng, files=disk.files)
        disk.lose_power()
        try:
            load_identity(store, "n", guarded=("journal", "data"), rng=rng, files=disk.files)
            begun += 1
        except IdentityError as error:
            pytest.fail(f"a crash in the first start, seed {seed}: {error}")
    assert begun == 100


def test_the_mark_is_never_behind_what_it_said() -> None:
    for seed in range(200):
        disk = new_disk(seed)
        mark = FileMark(Path("/d/journal.mark"), "peerA", disk.files)
        for batch in (1, 2, 3):
            mark.write(batch)
        with disk.flight():
            mark.write(4)
        disk.lose_power()
        assert FileMark(Path("/d/journal.mark"), "peerA", disk.files).read() in (3, 4)


def test_the_probe_asks_the_disk_that_it_is_for() -> None:
    disk = new_disk()
    probe(Path("/d"), disk.files)
    assert disk.files.listdir("/d") == []
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        probe(Path("/d"), disk.files)
    assert disk.files.listdir("/d") == []


def test_files_that_are_open_are_all_there_is_when_descriptors_are_used_up() -> None:
    disk = new_disk()
    files = disk.files
    spare = files.open("/d/f", os.O_RDWR | os.O_CREAT)
    files.exhaust()
    with pytest.raises(OSError, match="Too many open files"):
        files.open("/d/g", os.O_RDWR | os.O_CREAT)
    assert disk.incidents == {"/d/g": 1} and files.listdir("/d") == ["f"]
    files.close(spare)
    files.close(files.open("/d/g", os.O_RDWR | os.O_CREAT))
    files.exhaust(wanted=False)
    assert [files.open("/d/g", os.O_RDWR) for _ in range(3)]
    files.exhaust()
    disk.kill_process()
    files.open("/d/g", os.O_RDWR)
