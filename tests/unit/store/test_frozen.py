"""A frozen view holds what was live at its moment, whatever happens to the store meanwhile."""

from __future__ import annotations

import pytest

from jetcluster.store import frozen, keys
from jetcluster.store.api import DamagedError, Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from testkit.twins.mem_kv import MemKv


def filled() -> tuple[MemKv, BlockStore]:
    kv = MemKv()
    store = BlockStore(kv, 7, memory=False)
    for first in range(1, 41, 10):
        batch = Batch.of([b"a.%d" % (i % 3) for i in range(10)], [], [b"%d" % (first + i) for i in range(10)])
        store.append(batch, first, first * 1000)
    for seq in (12, 19, 40):
        store.delete(seq)
    store.compact(5)
    return kv, store


def live(store: BlockStore) -> list[Msg]:
    return list(store.scan(b">", 1))


def read(kv: MemKv, stream: int = 7) -> list[Msg]:
    return [message for block in frozen.messages(kv.snapshot(), stream) for message in block]


def test_all_live_messages_and_no_others() -> None:
    kv, store = filled()
    store.touch()
    assert read(kv) == live(store)
    assert read(kv, 8) == []


def test_later_changes_do_not_show() -> None:
    kv, store = filled()
    store.touch()
    expected = live(store)
    blocks = frozen.messages(kv.snapshot(), 7)
    found = list(next(blocks))
    store.purge()
    store.append(Batch.of([b"a.new"], [], [b""]), 41, 99_000)
    kv.commit()
    assert found + [message for block in blocks for message in block] == expected


def test_an_empty_stream() -> None:
    kv, store = filled()
    store.purge()
    store.touch()
    assert read(kv) == []


def test_damage_raises() -> None:
    kv, store = filled()
    store.touch()
    key = keys.block(7, 11)
    value = bytearray(kv.get(key) or b"")
    value[-1] ^= 1
    kv.put(key, bytes(value))
    with pytest.raises(DamagedError):
        read(kv)
    kv.delete(key)
    with pytest.raises(DamagedError):
        read(kv)
