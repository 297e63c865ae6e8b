"""A damaged data store is renewed at a start: what is whole is copied, nothing is deleted. Restarts for its sake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jetcluster.cluster.meta_replica import LOST_KEY
from jetcluster.mesh.identity import MARKER_NAME
from jetcluster.node import data_renewal
from jetcluster.node.data_renewal import (
    MAX_RESTARTS,
    RENEWAL_PAUSE_SECONDS,
    RESTART_PAUSE_SECONDS,
    RESTART_PERIOD_SECONDS,
    DataRestarts,
    open_data,
    recently_renewed,
    settle,
)
from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime

NOW = 1_800_000_000.0
WHOLE, ROTTEN = 2, 3


def message_batch(number: int) -> Batch:
    return Batch.of([b"s"], [b""], [b"%d-" % number + os.urandom(800)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two streams in table files."""
    kv = RocksKv(tmp_path / "data")
    (tmp_path / "data" / MARKER_NAME).write_text("nonce\n")
    kv.put(b"\x00meta", b"of the node")
    for stream in (WHOLE, ROTTEN):
        store = BlockStore(kv, stream, memory=False)
        for number in range(1, 201):
            store.append(message_batch(number), number, number)
        kv.flush_now()
    kv.close()
    return tmp_path


def table_file(directory: Path, start: bytes) -> Path:
    """The one that begins with a key that begins so."""
    kv = RocksKv(directory / "data")
    files = [file for file in kv._db.live_files() if file["start_key"].startswith(start)]
    kv.close()
    return directory / "data" / str(files[0]["name"]).lstrip("/")


def rot(directory: Path, stream: int) -> None:
    """Flips a bit in the stream's messages, in the table file that holds them."""
    path = table_file(directory, keys.stream_prefix(keys.BLOCK, stream))
    with path.open("r+b") as file:
        at = path.stat().st_size // 3
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def messages(kv: RocksKv, stream: int) -> int:
    return BlockStore(kv, stream, memory=False).messages


def test_a_sound_store_is_opened_as_it_is(directory: Path) -> None:
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is None and messages(kv, WHOLE) == messages(kv, ROTTEN) == 200
    assert not kv.damage
    kv.check_files()
    assert not kv.damage
    kv.close()


def test_what_is_marked_is_renewed_and_streams_that_are_whole_are_kept(directory: Path) -> None:
    rot(directory, ROTTEN)
    data_renewal.mark(directory, "a test")
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is not None
    assert (renewal.reason, renewal.kept, renewal.left) == ("a test", (WHOLE,), (ROTTEN,))
    assert messages(kv, WHOLE) == 200 and messages(kv, ROTTEN) == 0
    assert kv.get(b"\x00meta") == b"of the node" and kv.get(LOST_KEY) is None
    assert (directory / "data" / MARKER_NAME).read_text() == "nonce\n"
    assert (renewal.quarantine / MARKER_NAME).exists(), "what was there is kept"
    kv.close()
    kv, renewal = open_data(directory, renewable=True, now=NOW + 1)
    assert renewal is None
    kv.close()
    assert recently_renewed(directory, NOW + 1) and not recently_renewed(directory, NOW + RENEWAL_PAUSE_SECONDS + 1)


def test_a_truncated_file_is_noticed_by_its_size_and_at_the_open(directory: Path) -> None:
    kv = RocksKv(directory / "data")
    path = max((directory / "data").glob("*.sst"), key=lambda file: file.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)
    kv.check_files()
    assert path.name in kv.damage
    kv.close()
    with pytest.raises(KvDamagedError):
        open_data(directory, renewable=False, now=NOW)
    assert not (directory / "quarantine").exists()
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is not None and len(renewal.kept) < 2
    kv.close()


@pytest.mark.parametrize("newest", [False, True])
def test_a_file_that_is_gone_is_damage_when_it_is_read(directory: Path, newest: bool) -> None:
    """A manifest that was cut has the same effect: it names files that a compaction has replaced."""
    sorted((directory / "data").glob("*.sst"))[-1 if newest else 0].unlink()
    with pytest.raises(KvDamagedError):
        open_data(directory, renewable=False, now=NOW)
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is not None and len(renewal.kept) < 2
    assert all(messages(kv, stream) == (200 if stream in renewal.kept else 0) for stream in (WHOLE, ROTTEN))
    kv.close()


def test_a_renewal_cut_off_is_finished_or_begun_anew(directory: Path) -> None:
    half = RocksKv(directory / "data.next")
    half.put(b"\x00junk", b"")
    half.flush_now()
    half.close()
    settle(directory)
    assert (directory / "data").exists() and (directory / "data.next").exists(), "it had no marker yet"
    data_renewal.mark(directory, "a test")
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is not None and renewal.kept == (WHOLE, ROTTEN) and kv.get(b"\x00junk") is None
    kv.close()
    (directory / "data").rename(directory / "data.next")  # as a crash between the two renames leaves it
    settle(directory)
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is None and messages(kv, WHOLE) == 200
    kv.close()


def test_one_renewal_after_the_other_is_distinguished_from_what_else_lies_in_the_quarantine(directory: Path) -> None:
    quarantine = directory / "quarantine"
    assert not data_renewal.recently_renewed(directory, NOW)
    for name in ("data-mine", "data-1-copy", "data-", f"data-{int(NOW) + 10**8}", f"data-{int(NOW) - 601}"):
        (quarantine / name).mkdir(parents=True)
    assert not data_renewal.recently_renewed(directory, NOW), "of a name, or of a clock that was ahead"
    (quarantine / f"data-{int(NOW) - 599}").mkdir()
    assert data_renewal.recently_renewed(directory, NOW) and data_renewal.last_renewed(directory, NOW) <= NOW


def test_a_crash_leaves_no_mark_without_its_reason(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError):
        data_renewal.mark(directory, "a test")
    assert not (directory / "data" / data_renewal.MARKER_FILE).exists()


@pytest.mark.parametrize("what", ["MANIFEST", "records of the node"])
def test_a_store_that_was_renewed_without_the_state_of_the_meta_group_says_so(directory: Path, what: str) -> None:
    path = next((directory / "data").glob("MANIFEST*"))
    if what != "MANIFEST":
        path = table_file(directory, b"\x00")
        data_renewal.mark(directory, "a test")
    raw = bytearray(path.read_bytes())
    for at in range(10, 80):
        raw[at] ^= 0x5A
    path.write_bytes(raw)
    kv, renewal = open_data(directory, renewable=True, now=NOW)
    assert renewal is not None
    assert kv.get(b"\x00meta") is None and kv.get(LOST_KEY) == b""
    kv.close()


def test_not_twice_within_a_minute_and_not_while_the_disk_takes_nothing(tmp_path: Path) -> None:
    time, log, started = ManualTime(), ListLog(), list[int]()
    restarts = DataRestarts(tmp_path, time, os, log, lambda: started.append(1))
    restarts.again("IO error")
    restarts.again("IO error")
    assert len(started) == 1
    assert "the data store failed again soon after a start: the disk may be failing" in log.events("warning")
    time.advance(RESTART_PAUSE_SECONDS + 1)
    restarts.again("IO error")
    assert len(started) == 2
    for _ in range(10):
        time.advance(RESTART_PAUSE_SECONDS + 1)
        restarts.again("IO error")
    assert len(started) == MAX_RESTARTS == 3, "it does not help"
    time.advance(RESTART_PERIOD_SECONDS)
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
