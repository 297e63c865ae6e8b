"""The last message of each of many subjects, searched in steps while the stream changes."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import pytest

from jetcluster.store import view
from jetcluster.store.api import LostViewError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import ROW_BYTES
from jetcluster.stream.read.msg_get import subjects_page
from tests.unit.store.searches import ASKED, filled, run
from tests.unit.stream.fake_store import fits

pytestmark = pytest.mark.usefixtures("steps")


def lasts(store: BlockStore, asked: list[bytes], up_to: int) -> list[int]:
    """The same answer, computed filter by filter and in one go."""
    found: dict[bytes, int] = {}
    for message in store.queries.scan(b">", 0):
        if message.seq <= up_to and any(fits(one, message.subject) for one in asked):
            found[message.subject] = message.seq
    return sorted(found.values())


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


def test_frozen_views_keep_to_their_bound_with_their_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(random.Random(1))
    most = view.FROZEN_CACHE_BYTES + len(store.blocks.firsts) * ROW_BYTES
    views = [store.view(b">", 0) for _ in range(3)]
    for one in views:
        one.hold()
    monkeypatch.setattr(view, "MAX_FROZEN_BYTES", most + view.FROZEN_CACHE_BYTES)
    messages = [message.seq for message in store.queries.scan(b">", 0)]
    store.purge(b">")
    assert sum(one.frozen_bytes for one in views) == most
    assert sorted(one.frozen_bytes for one in views) == [0, 0, most]
    for one in views:
        if one.frozen_bytes:
            found: list[int] = []
            while not one.ended:
                found += one.take(100, 1 << 30).seqs
            assert found == messages
        else:
            with pytest.raises(LostViewError):
                one.take(1, 1 << 30)


@pytest.mark.parametrize("seed", range(20))
def test_a_subject_that_is_removed_and_put_again_while_subjects_are_listed_is_not_missed(seed: int) -> None:
    rng = random.Random(seed)
    store = filled(rng)
    store.slices.step = store.slices.step._replace(subjects=2)

    def put_again() -> None:
        one = rng.choice([name for name, _ in store.queries.subject_counts(b">")])
        store.purge(one)
        store.append(Batch.of([one], [], [b""]), store.last_seq + 1, store.last_ts + 1)

    def result(steps: Generator[None, None, Any]) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
            put_again()

    for _ in range(6):
        asked, there = rng.sample(ASKED, rng.randint(1, len(ASKED))), dict(store.queries.subject_counts(b">"))
        assert result(store.lasts(asked, None, 1000)) == lasts(store, asked, store.last_seq)
        page, _ = result(subjects_page(store, asked[0]))
        assert set(page) == {name.decode() for name in there if fits(asked[0], name)}
