"""Snapshots of the data store."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv


def test_a_snapshot_does_not_keep_a_closed_database_open(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "db")
    kv.put(b"a", b"1")
    snapshot = kv.snapshot()
    under_way = snapshot.scan(b"a", b"b")
    assert next(under_way) == (b"a", b"1")
    under_way.close()
    kv.close()
    with pytest.raises(KvError):
        list(snapshot.scan(b"a", b"b"))
    again = RocksKv(tmp_path / "db")
    assert again.get(b"a") == b"1"
    again.close()
