from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.rocks_reader import RocksReader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    kv = RocksKv(tmp_path / "data")
    for number in range(100):
        kv.put(b"\x01%03d" % number, b"v%d" % number)
    kv.commit()
    kv.flush_now()
    kv.close()
    return tmp_path / "data"


def listed(path: Path) -> dict[str, tuple[int, int]]:
    return {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in path.iterdir()}


def test_it_reads_and_leaves_everything_as_it_is(path: Path) -> None:
    before = listed(path)
    path.chmod(0o555)
    try:
        kv = RocksReader(path)
        assert kv.get(b"\x01007") == b"v7" and len(list(kv.scan(b"\x01", b"\x02"))) == 100
        kv.put(b"\x01007", b"new")
        kv.delete_range(b"\x01010", b"\x01020")
        assert kv.commit() == 0
        # What was written is seen, and goes with the reader.
        assert kv.get(b"\x01007") == b"new" and len(list(kv.scan(b"\x01", b"\x02"))) == 90
        links = Path(kv._links.name)
        kv.close()
        assert not links.exists()
    finally:
        path.chmod(0o755)
    assert listed(path) == before
    again = RocksKv(path)
    assert again.get(b"\x01007") == b"v7"
    again.close()


def test_what_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(KvError):
        RocksReader(tmp_path)
