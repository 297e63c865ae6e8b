from __future__ import annotations

import pytest

from jetcluster.stream.apply.dedupe import SWEEP_IDS, DedupeWindow
from jetcluster.stream.ports import SIDE_DEDUPE
from testkit.twins.memory import held
from tests.unit.stream.fake_store import NaiveStore


def put(window: DedupeWindow, now: int, first: int, *ids: bytes) -> None:
    window.advance(now, first)
    pairs = [(first + i, msg_id) for i, msg_id in enumerate(ids)]
    for seq, msg_id in pairs:
        window.add(msg_id, seq)
    window.seal(now, pairs)


def rows(store: NaiveStore) -> int:
    return len(list(store.side_scan(SIDE_DEDUPE)))


@pytest.fixture
def store() -> NaiveStore:
    return NaiveStore()


def test_one_row_per_command_and_gone_after_the_window(store: NaiveStore) -> None:
    window = DedupeWindow(store, 100)
    put(window, 1000, 1, b"a", b"b")
    put(window, 1050, 3, b"c")
    assert rows(store) == 2
    window.advance(1100, 4)
    assert (window.seq_of(b"a"), window.seq_of(b"c")) == (None, 3)
    assert (rows(store), len(window)) == (1, 1)


def test_reload_gives_the_same_answers(store: NaiveStore) -> None:
    window = DedupeWindow(store, 100)
    put(window, 1000, 1, b"a", b"", b"\xff\x00")
    put(window, 1090, 300, b"a2")
    again = DedupeWindow(store, 100)
    again.advance(1095, 301)
    assert [again.seq_of(i) for i in (b"a", b"", b"\xff\x00", b"a2", b"zz")] == [1, 2, 3, 300, None]


def test_an_id_used_again_after_its_window_outlives_the_sweep_of_its_first_use(store: NaiveStore) -> None:
    window = DedupeWindow(store, 100)
    window.advance(1000, 1)
    put(window, 1000, 1, *[b"%d" % i for i in range(SWEEP_IDS + 1)])
    put(window, 1001, 20_000, b"x")
    put(window, 1200, 20_001, b"x")  # the sweep stops before the row of the first x
    assert window.seq_of(b"x") == 20_001
    window.advance(1201, 20_002)
    assert (window.seq_of(b"x"), rows(store), len(window)) == (20_001, 1, 1)


def test_what_is_expired_but_not_swept_is_not_found_also_after_a_restart(store: NaiveStore) -> None:
    window = DedupeWindow(store, 100)
    put(window, 1000, 1, *[b"%d" % i for i in range(SWEEP_IDS + 1)])
    put(window, 1001, 20_000, b"x")
    window.advance(1500, 20_001)
    again = DedupeWindow(store, 100)
    again.advance(1500, 20_001)
    for each in (window, again):
        assert each.seq_of(b"x") is None


def test_many_rows_are_compacted(store: NaiveStore) -> None:
    window = DedupeWindow(store, 100)
    for i in range(5000):
        put(window, 1000 + i, i + 1, b"%d" % i)
    assert rows(store) == len(window) == 100
    assert held(window) < 10_000
    assert (window.seq_of(b"4900"), window.seq_of(b"4899")) == (4901, None)


def test_longer_window_brings_back_what_was_not_swept_yet_on_every_replica(store: NaiveStore) -> None:
    window = DedupeWindow(store, 10)
    put(window, 1000, 1, *[b"%d" % i for i in range(SWEEP_IDS + 1)])
    put(window, 1001, 20_000, b"x")
    window.advance(1500, 20_001)
    again = DedupeWindow(store, 10)
    for each in (window, again):
        each.set_window(10_000)
        each.advance(1501, 20_001)
    assert window.seq_of(b"x") == again.seq_of(b"x") == 20_000
