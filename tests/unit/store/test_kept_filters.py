"""Searches over a stream's subjects in steps, while the stream changes: against a look at every message."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest

from jetcluster.store import kept_filters, last_of_each, last_search, queries
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.filter_set import FilterSet
from tests.twins.mem_kv import MemKv

from .model import matches

ASKED = [b"s.*.x", b"s.a.*", b"s.*.*", b"*.b.>", b"s.>", b"t.*.*", b"s.c.y", b"t.a.x", b"none.*", b"*.*.z", b">"]


@pytest.fixture(params=["small steps", "as it is"], autouse=True)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small steps":
        monkeypatch.setattr(kept_filters, "STEP", 2)
        monkeypatch.setattr(kept_filters, "PAUSES", 0)
        monkeypatch.setattr(last_of_each, "WIDE", 0)
        monkeypatch.setattr(last_search, "SEEKS", 1)
        monkeypatch.setattr(last_search, "LOOKS", 1)
        monkeypatch.setattr(queries, "LONG", 0.0)
        monkeypatch.setattr(queries, "BLOCKS_PER_STEP", 1)
        monkeypatch.setattr(queries, "PAUSE_EVERY", 1)


def subject(rng: random.Random) -> bytes:
    return b".".join([rng.choice([b"s", b"t"]), rng.choice([b"a", b"b", b"c"]), rng.choice([b"x", b"y", b"z", b"w"])])


def change(store: BlockStore, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.5:
        subjects = [subject(rng) for _ in range(rng.randint(1, 3))]
        store.append(Batch.of(subjects, [], [b""] * len(subjects)), store.last_seq + 1, store.last_ts + 1)
    elif kind < 0.9:
        store.delete(rng.randint(1, store.last_seq))
    elif kind < 0.95:
        store.purge(rng.choice(ASKED[:6]))
    else:
        store.compact(store.first_seq + rng.randint(1, 4))


def filled(rng: random.Random, count: int = 40) -> BlockStore:
    store = BlockStore(MemKv(), 1, memory=False)
    for _ in range(count):
        subjects = [subject(rng) for _ in range(rng.randint(1, 3))]
        store.append(Batch.of(subjects, [], [b""] * len(subjects)), store.last_seq + 1, store.last_ts + 1)
    return store


def lasts(store: BlockStore, asked: list[bytes], up_to: int) -> list[int]:
    """As it was asked for before: filter by filter, in one go."""
    found: dict[bytes, int] = {}
    for message in store.scan(b">", 0):
        if message.seq <= up_to and any(matches(one, message.subject) for one in asked):
            found[message.subject] = message.seq
    return sorted(found.values())


def run(steps: Generator[None, None, object], store: BlockStore, rng: random.Random, changes: float) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        if rng.random() < changes:
            change(store, rng)


@pytest.mark.parametrize("seed", range(40))
def test_lasts_in_steps_are_those_of_the_moment_when_the_search_ends(seed: int) -> None:
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(12):
        asked = rng.sample(ASKED, rng.randint(1, len(ASKED)))
        limit = rng.choice([3, 1000])
        up_to = rng.choice([None, None, rng.randint(1, store.last_seq)])
        found = run(store.lasts(asked, up_to, limit), store, rng, changes=0.3)
        expected = lasts(store, asked, store.last_seq if up_to is None else up_to)
        assert found == (expected if len(expected) <= limit else None), (asked, up_to, limit)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_prepared_in_steps_is_answered_as_without(seed: int) -> None:
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(12):
        asked = rng.sample(ASKED[:10], rng.choice([1, 1, 2, 7]))
        seq = rng.randint(0, store.last_seq + 1)
        run(store.preparing(asked, seq), store, rng, changes=0.2)
        for _ in range(2):
            there = list(store.scan(b">", 0))
            for one in asked:
                matching = [m for m in there if matches(one, m.subject)]
                assert set(store._index.kept.matching(one)) == {m.subject for m in matching}
                assert store.count(one, seq) == sum(m.seq >= seq for m in matching)
                assert store.last_by_subject(one) == (matching[-1] if matching else None)
                assert store.next_by_subject(one, seq) == next((m for m in matching if m.seq >= seq), None)
            change(store, rng)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most", [3, 8192])
def test_the_last_sequences_of_many_wildcards_are_those_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    """Whatever comes and goes after they were looked for."""
    monkeypatch.setattr(last_of_each, "MAX_RECENT", most)
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(6):
        asked = [one for one in (*ASKED, b"*.*.w", b"s.b.*", b"*.c.*", b"*.*.*") if b"*" in one]
        store.find_lasts(rng.sample(asked, rng.randint(0, len(asked))))
        for _ in range(8):
            for one in rng.sample(asked, 4):
                last = max((m.seq for m in store.scan(b">", 0) if matches(one, m.subject)), default=0)
                assert store.last_seq_matching(one) == last
                found = store.last_by_subject(one)
                assert (found.seq if found else 0) == last
            change(store, rng)


def test_a_set_of_filters_is_kept_up_to_date() -> None:
    rng = random.Random(3)
    store = filled(rng)
    together = FilterSet(ASKED[:6])
    for _ in range(60):
        change(store, rng)
        there = {m.subject for m in store.scan(b">", 0) if any(matches(one, m.subject) for one in ASKED[:6])}
        assert set(store._index.matching(together)) == there
