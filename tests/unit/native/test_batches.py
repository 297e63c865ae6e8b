"""Compiled reading of encoded batches equals that of Python, and bytes that fit nothing do no harm."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.store.batch import Batch
from testkit.native import python_alone
from testkit.shelf import Shelf

pytestmark = pytest.mark.skipif(native.message_of is None, reason=f"no compiled loops: {native.why_pure}")

subjects = st.sampled_from([b"a", b"a.b", b"orders.eu.1", b"x" * 300])
blocks = st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"])
payloads = st.one_of(st.just(b"same"), st.binary(max_size=40))
messages = st.lists(st.tuples(subjects, blocks, payloads), min_size=1, max_size=40)


def encoded(some: list[tuple[bytes, bytes, bytes]]) -> bytes:
    return Batch.encode(*([message[part] for message in some] for part in range(3)))  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None)
@given(messages, st.binary(max_size=9))
def test_every_message_is_found(some: list[tuple[bytes, bytes, bytes]], before: bytes) -> None:
    assert native.message_of is not None
    raw = before + encoded(some)
    assert [native.message_of(raw, len(before), i) for i in range(len(some))] == some
    assert native.message_of(raw, len(before), len(some)) is native.message_of(raw, len(before), -1) is None


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 255, 256, 257, 1023, 1024, 1025]), st.booleans(), st.booleans(), st.booleans())
def test_all_layouts(count: int, many: bool, headers: bool, same: bool) -> None:
    assert native.message_of is not None
    some = [
        (b"s.%d" % (i if many else 0), b"h" * (i % 5) if headers else b"", b"p" * (3 if same else i % 7))
        for i in range(count)
    ]
    raw = encoded(some)
    found = [native.message_of(raw, 0, i) for i in range(count)]
    assert found == (some if count <= 1024 else [None] * count)


@settings(max_examples=400, deadline=None)
@given(messages, st.data())
def test_damage_stays_within_the_bytes(some: list[tuple[bytes, bytes, bytes]], data: st.DataObject) -> None:
    assert native.message_of is not None
    raw = bytearray(encoded(some))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 127, 255]))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for i in range(len(some)):
        found = native.message_of(cut, 0, i)
        assert found is None or (sum(map(len, found)) <= len(cut) and all(part in cut for part in found))


def test_only_bytes_are_read() -> None:
    assert native.message_of is not None
    for wrong in (bytearray(20), None, "x"):
        with pytest.raises(TypeError):
            native.message_of(wrong, 0, 0)
    assert native.message_of(b"", 5, 0) is native.message_of(b"x", -1, 0) is None


@pytest.mark.parametrize("seed", range(30))
def test_scattered_messages_are_taken_alike(seed: int) -> None:
    """The same columns, the same order of the cache, and the same damage."""
    rng = random.Random(seed)
    counts = [rng.choice([1, 2, 9, 30, 1100 if seed % 5 == 0 else 12]) for _ in range(30)]
    total = sum(counts)
    deleted = [sum(counts[:i]) + 2 for i in range(30) if counts[i] > 2 and not rng.randrange(9)]
    cut = rng.choice([1, 1, 6])
    asked = sorted(rng.sample(range(1, total + 3), rng.randrange(1, min(total, 120))))
    if rng.random() < 0.8:
        asked = [seq for seq in asked if cut <= seq <= total and seq not in deleted]
    sizes = [rng.choice([1, 300, 3000, 1 << 20]) for _ in range(20)]

    def run() -> object:
        shelf = Shelf(*counts)
        shelf.delete(*deleted)
        shelf.table.first_seq = cut
        taken: list[object] = []
        at = 0
        for size in sizes:
            try:
                columns = shelf.reader.take(asked[at:], size)
            except Exception as error:
                return taken, repr(error), list(shelf.cache.batches)
            at += len(columns.seqs)
            taken.append(columns)
        return taken, "", list(shelf.cache.batches)

    compiled = run()
    with python_alone():
        assert run() == compiled


def test_a_table_of_unequal_columns_is_refused() -> None:
    assert native.take_scattered is not None
    shelf = Shelf(3, 3)
    table = shelf.table
    columns: tuple[list[object], ...] = ([], [], [], [], [])
    with pytest.raises(ValueError):
        native.take_scattered(
            columns, [1], 0, 99, (table.firsts, table.counts[:1], table.lives, table.times, {}, 1), {}, 7, 200, 6
        )
