"""Searches over a stream's subjects in steps, while the stream changes: against a look at every message.

The last sequences of wildcards, against a look at every message.
"""

from __future__ import annotations

import random

import pytest

from jetcluster.store.search import kept_filters
from jetcluster.store.search.filters import FilterSet
from tests.unit.store.searches import ASKED, change, filled, run
from tests.unit.stream.fake_store import fits

pytestmark = pytest.mark.usefixtures("steps")


@pytest.mark.parametrize("seed", range(40))
def test_what_is_prepared_in_steps_is_answered_as_without(seed: int) -> None:
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(12):
        asked = rng.sample(ASKED[:10], rng.choice([1, 1, 2, 7]))
        seq = rng.randint(0, store.last_seq + 1)
        run(store.queries.preparing(asked, seq), store, rng, changes=0.2)
        for _ in range(2):
            there = list(store.queries.scan(b">", 0))
            for one in asked:
                matching = [m for m in there if fits(one, m.subject)]
                assert set(store._index.kept.matching(one)) == {m.subject for m in matching}
                assert store.queries.count(one, seq) == sum(m.seq >= seq for m in matching)
                assert store.queries.last_by_subject(one) == (matching[-1] if matching else None)
                assert store.queries.next_by_subject(one, seq) == next((m for m in matching if m.seq >= seq), None)
            change(store, rng)


def test_a_set_of_filters_is_kept_up_to_date() -> None:
    rng = random.Random(3)
    store = filled(rng)
    together = FilterSet(ASKED[:6])
    for _ in range(60):
        change(store, rng)
        there = {m.subject for m in store.queries.scan(b">", 0) if any(fits(one, m.subject) for one in ASKED[:6])}
        assert set(store._index.kept.matching(together)) == there


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most", [3, 8192])
def test_the_last_sequences_of_many_wildcards_are_those_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int, most: int
) -> None:
    """It holds for all that comes and goes after they were looked for."""
    monkeypatch.setattr(kept_filters, "MAX_RECENT_SUBJECTS", most)
    rng = random.Random(seed)
    store = filled(rng)
    for _ in range(6):
        asked = [one for one in (*ASKED, b"*.*.w", b"s.b.*", b"*.c.*", b"*.*.*") if b"*" in one]
        store.find_lasts(rng.sample(asked, rng.randint(0, len(asked))))
        for _ in range(8):
            for one in rng.sample(asked, 4):
                last = max((m.seq for m in store.queries.scan(b">", 0) if fits(one, m.subject)), default=0)
                assert store.last_seq_matching(one) == last
                found = store.queries.last_by_subject(one)
                assert (found.seq if found else 0) == last
            change(store, rng)
