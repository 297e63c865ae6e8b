"""From sequences to messages, over the cache and past it.

A frozen view holds what was live at its moment, whatever happens to the store meanwhile.
"""

from __future__ import annotations

import random

import pytest

from jetcluster.store import block_reader, keys
from jetcluster.store.api import Columns, DamagedError, Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import OVERHEAD_BYTES
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import encode_block
from testkit.shelf import STREAM, Shelf
from testkit.twins.mem_kv import MemKv


def rows(columns: Columns) -> list[Msg]:
    return [Msg(*row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("cached", [True, False])
def test_every_way_of_reading_gives_the_same_messages(cached: bool) -> None:
    shelf = Shelf(1, 5, 40, 2, 90, cached=cached)
    shelf.delete(3, 10, 11, 60, 138)
    rng, reader = random.Random(3), shelf.reader
    for _ in range(100):
        low = rng.randrange(1, 145)
        asked = sorted(rng.sample(range(low, 150), rng.randrange(150 - low))) if rng.random() < 0.5 else range(low, 150)
        wanted = [shelf.messages[seq] for seq in asked if seq in shelf.messages]
        assert reader.read(asked) == wanted
        assert rows(reader.read_columns(asked)) == wanted
        live = [message.seq for message in wanted]
        assert list(reader.messages(live)) == wanted
        assert rows(reader.take(live, 1 << 20)) == wanted
        assert [reader.get(seq) for seq in live] == wanted
    assert reader.get(3) is reader.get(0) is reader.get(139) is None


def test_a_few_messages_of_a_large_block_are_cut_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(900)
    asked = [7, 300, 301, 899]
    monkeypatch.setattr(Batch, "columns", None)
    assert rows(shelf.reader.read_columns(asked)) == [shelf.messages[seq] for seq in asked]


def test_a_portion_has_about_so_many_bytes_and_one_message_at_least() -> None:
    shelf = Shelf(50, 50)
    seqs = range(1, 101)
    assert shelf.reader.take(seqs, 1).seqs == [1]
    assert shelf.reader.take(seqs, 0).seqs == []
    each = sum(len(m.subject + m.headers + m.payload) + OVERHEAD_BYTES for m in shelf.messages.values()) // 100
    for count in (5, 30, 70):
        found = shelf.reader.take(seqs, each * count).seqs
        assert found == list(range(1, len(found) + 1))
        assert abs(len(found) - count) <= 3


def test_what_is_deleted_between_two_steps_is_left_out() -> None:
    shelf = Shelf(4, 4)
    steps = shelf.reader.messages([2, 3, 6, 7])
    assert next(steps).seq == 2
    shelf.delete(3, 7)
    assert [message.seq for message in steps] == [6]


def test_an_index_that_leads_astray_is_damage() -> None:
    shelf = Shelf(4)
    with pytest.raises(DamagedError):
        shelf.reader.take([9], 100)
    with pytest.raises(DamagedError):
        list(shelf.reader.messages([9]))


@pytest.mark.parametrize("how", ["gone", "another time", "fewer messages", "rot"])
def test_a_block_that_is_not_what_the_table_says_is_damage(how: str) -> None:
    shelf = Shelf(4, 4, cached=False)
    key = keys.block(STREAM, 5)
    raw = shelf.reader.batch(1).raw
    fewer = Batch.of([b"s"] * 3, [b""] * 3, [b"x"] * 3).raw
    if how in ("gone", "rot"):
        shelf.kv.put(key, b"" if how == "gone" else encode_block(key, 1005, raw)[:-1] + b"?")
    else:
        shelf.put(5, 1006 if how == "another time" else 1005, fewer if how == "fewer messages" else raw)
    assert shelf.reader.get(4) is not None
    for read in (
        lambda: shelf.reader.get(6),
        lambda: shelf.reader.read([4, 6]),
        lambda: shelf.reader.read_columns([6]),
        lambda: shelf.reader.take([6], 100),
    ):
        with pytest.raises(DamagedError) as raised:
            read()
        assert (raised.value.first_seq, raised.value.last_seq) == (5, 8)


def test_what_was_read_once_is_read_from_the_cache() -> None:
    shelf = Shelf(4)
    assert shelf.reader.get(2) is not None
    shelf.put(1, 9, b"")
    assert shelf.reader.get(3) == shelf.messages[3]
    shelf.cache.drop_stream(STREAM)
    with pytest.raises(DamagedError):
        shelf.reader.get(3)


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
    return list(store.queries.scan(b">", 1))


def read(kv: MemKv, stream: int = 7) -> list[Msg]:
    return [message for block in block_reader.messages(kv.snapshot(), stream) for message in block]


def test_all_live_messages_and_no_others() -> None:
    kv, store = filled()
    store.touch()
    assert read(kv) == live(store)
    assert read(kv, 8) == []


def test_later_changes_do_not_show() -> None:
    kv, store = filled()
    store.touch()
    expected = live(store)
    blocks = block_reader.messages(kv.snapshot(), 7)
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
