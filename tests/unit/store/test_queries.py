"""Filters over a stream with many subjects: every way to answer gives what a walk over all messages gives."""

from __future__ import annotations

import random
import time
from collections.abc import Generator

import pytest

from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.search import queries
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import fits

FILTERS = [
    b"f.JFK.>",
    b"f.*.AA.*",
    b"f.*.*.7",
    b"f.EWR.UA.3",
    b"f.JFK.AA.*",
    b"*.>",
    b"g.>",
    b"f.JFK",
]


@pytest.fixture(scope="module")
def flights() -> tuple[BlockStore, list[Msg]]:
    rng = random.Random(1)
    store = BlockStore(MemKv(), 1, memory=False)
    for size in [1] * 50 + [40] * 100 + [300] * 3:
        subjects = [
            b"f.%b.%b.%d" % (rng.choice([b"JFK", b"EWR"]), rng.choice([b"AA", b"UA", b"DL"]), rng.randrange(200))
            for _ in range(size)
        ]
        store.append(Batch.of(subjects, [], [b""] * size), store.last_seq + 1, store.last_ts + 1)
    store.delete(17)
    for seq in rng.sample(range(50, store.last_seq), 900):
        store.delete(seq)
    store.compact(23)
    messages = [msg for seq in range(1, store.last_seq + 1) if (msg := store.get(seq))]
    assert len(messages) == store.messages
    return store, messages


@pytest.fixture(params=["blocks", "postings"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 0.0 if request.param == "postings" else 1e9
    for name in ("SEEK_COST", "POSTING_COST", "COUNT_COST"):
        monkeypatch.setattr(queries, name, free)
    monkeypatch.setattr(queries, "BLOCK_COST", 1e6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("subject_filter", FILTERS)
def test_both_ways_agree_with_a_walk(flights: tuple[BlockStore, list[Msg]], subject_filter: bytes) -> None:
    store, messages = flights
    matching = [msg for msg in messages if fits(subject_filter, msg.subject)]
    for seq in [0, 1, 22, 23, 24, 51, 700, 2_000, store.last_seq - 301, store.last_seq, store.last_seq + 1]:
        later = [msg for msg in matching if msg.seq >= seq]
        assert list(store.queries.scan(subject_filter, seq)) == later
        assert store.queries.count(subject_filter, seq) == len(later)
        assert store.queries.next_by_subject(subject_filter, seq) == (later[0] if later else None)
        earlier = [msg for msg in matching if msg.seq <= seq]
        assert store.queries.last_by_subject(subject_filter, seq) == (earlier[-1] if earlier else None)
        assert store.last_seqs(subject_filter, seq) == sorted({msg.subject: msg.seq for msg in earlier}.values())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "asked",
    [
        [b"f.*.AA.*", b"f.JFK.*.*"],
        [b"f.*.*.7", b"f.EWR.>", b"f.JFK.UA.3"],
        [b"f.*.*.1", b"f.*.AA.*", b"f.JFK.*.*", b"f.*.UA.*", b"f.JFK.UA.3", b"f.EWR.DL.5"],
    ],
)
def test_what_two_filters_match_is_given_and_counted_once(
    flights: tuple[BlockStore, list[Msg]], asked: list[bytes]
) -> None:
    store, messages = flights
    matching = [msg.seq for msg in messages if any(fits(one, msg.subject) for one in asked)]
    for seq in [1, 24, 51, 700, 2_000, store.last_seq - 301, store.last_seq + 1]:
        later = [one for one in matching if one >= seq]
        assert store.queries.count_any(asked, seq) == len(later)
        for want in (1, 7, 100):
            assert store.next_seqs(asked, seq, want) == later[:want]


def test_a_filter_seen_before_learns_of_subjects_that_come_and_go() -> None:
    store = BlockStore(MemKv(), 1, memory=False)
    for n in range(3_000):
        store.append(Batch.of([b"u.%d" % n, b"other"], [], [b"", b""]), store.last_seq + 1, n)
        store.enforce(max_msgs=10)
        if n % 7 == 0:
            assert store.queries.subject_counts(b"u.*") == [(b"u.%d" % i, 1) for i in range(max(0, n - 4), n + 1)]
            assert store.queries.count(b"*.*", store.first_seq) == min(n + 1, 5)


def test_deleted_gives_no_more_than_asked_for() -> None:
    store = BlockStore(MemKv(), 1, memory=False)
    store.append(Batch.of([b"a"], [], [b""]), 5, 1)
    store.append(Batch.of([b"a"] * 3, [], [b""] * 3), 1_000_000_000, 2)
    store.delete(1_000_000_001)
    assert store.state.first_seq == 5
    assert store.num_deleted == 1_000_000_000 - 5
    assert store.deleted(3) == [6, 7, 8]


# Hundreds of wildcards over thousands of subjects cost one walk, not one each.


def result(steps: Generator[None, None, object]) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def test_hundreds_of_wildcards_over_many_subjects_are_quick() -> None:
    store = BlockStore(MemKv(), 1, memory=False)
    for start in range(0, 20_000, 500):
        subjects = [b"m.b%d.c" % i for i in range(start, start + 500)]
        store.append(Batch.of(subjects, [], [b""] * 500), store.last_seq + 1, store.last_ts + 1)
    asked = [b"m.*.x%d" % i for i in range(4096)]
    begun = time.process_time()
    assert result(store.lasts(asked[:500], None, 1024)) == []
    assert result(store.lasts(asked[:500], 10_000, 1024)) == []
    assert result(store.lasts([*asked[:500], b"m.*.c"], None, 1024)) is None
    store.find_lasts(asked[:400])
    assert [store.last_seq_matching(one) for one in asked[:400]] == [0] * 400
    assert store.queries.count_any(asked, 5) == store.queries.last_of_any(asked) == 0
    assert store.next_seqs(asked, 1, 10) == store.last_seqs_any(asked) == []
    assert time.process_time() - begun < 2.5  # one by one: more than 30 s
