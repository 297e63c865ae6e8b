"""Progress of a data store: what ails it, and for how long.

The probe of a data store's disk asks the disk that the store is on.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jetcluster import faults
from jetcluster.store.kv import KvError
from jetcluster.store.progress import COMMIT_HANG_SECONDS, FLUSH_HANG_SECONDS, READ_FAILURE_SECONDS, probe
from jetcluster.store.rocks_kv import RocksKv
from testkit.twins.storage import SimDisk
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.store.fake_rocks import END, flushing


async def test_trouble_is_what_takes_too_long_or_fails(tmp_path: Path) -> None:
    time = ManualTime()
    kv = RocksKv(tmp_path / "db", owner_flushes=True, monotonic=time.monotonic)
    kv.put(b"a", b"1")
    kv.commit()
    began = time.monotonic()
    async with flushing(kv):
        assert kv.busy_since == began
        time.advance(FLUSH_HANG_SECONDS - 0.1)
        assert not kv.trouble()
        time.advance(0.1)
        assert kv.trouble() == "a flush has not returned for 10.0 s"
    assert kv.busy_since is None and not kv.trouble()

    kv._active = 1 << 40
    kv.put(b"a", b"2")
    kv.commit()
    time.advance(COMMIT_HANG_SECONDS)
    assert kv.trouble() == "nothing could be committed for 2.0 s" and not kv.failing
    kv._active = 0
    kv.commit()
    assert not kv.trouble()

    with faults.armed("store.write", faults.fail(errno.EIO)):
        kv.put(b"a", b"3")
        with pytest.raises(KvError):
            kv.commit()
    assert kv.trouble() == kv.failing != ""
    kv.commit()
    assert not kv.failing
    with faults.armed("store.flush", faults.fail(errno.EIO)), pytest.raises(KvError):
        await kv.flush()
    assert kv.failing and kv.durable == 1
    await kv.flush()
    assert not kv.failing and kv.durable == kv.commits == 3
    with faults.armed("store.read", faults.fail(errno.EIO)):
        for read in (
            lambda: kv.get(b"a"),
            lambda: list(kv.scan(b"", END)),
            lambda: kv.floor(b"b", b""),
            lambda: kv.ceiling(b"", END),
        ):
            with pytest.raises(KvError):
                read()
    assert kv.failing
    time.advance(READ_FAILURE_SECONDS)
    assert not kv.trouble()
    kv.close()


def test_a_disk_that_is_well_keeps_the_file_and_loses_it_again(tmp_path: Path) -> None:
    probe(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_the_disk_that_was_given_is_asked(operation: str) -> None:
    disk = SimDisk(SeededRng(1))
    folder = Path("/data")
    disk.files.mkdir(folder)
    probe(folder, disk.files)
    assert disk.files.listdir(folder) == []
    fault = disk.fail(operation, errno.EIO, within="/data/")
    with pytest.raises(OSError, match="Input/output error"):
        probe(folder, disk.files)
    disk.heal(fault)
    probe(folder, disk.files)
