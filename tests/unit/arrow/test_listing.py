"""Subjects in pages: all of them while some go and come, in names or in ranges (arrow/listing.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.arrow import listing
from jetcluster.arrow.cut import ChangedError
from jetcluster.arrow.listing import Page
from jetcluster.arrow.planner import Subjects
from jetcluster.protocol.subjects import matches
from tests.unit.arrow.fake_server import StreamPeer, numbered, options_for, store_of


def all_names(peer: StreamPeer, *filters: str, at_least: int = 0) -> list[str]:
    found = listing.plan(
        lambda one, place: listing.asked_page(options_for(peer), "S", one, place), filters, at_least, size=5
    )
    assert not found.ranges
    return list(found.names)


@pytest.mark.parametrize("gone", [[0], [0, 1], [1], [0, 1, 2, 3], [5], [*range(9)]])
@pytest.mark.parametrize("behind", [1, 2, 4])
def test_subjects_that_go_between_pages_hide_no_others(gone: list[int], behind: int) -> None:
    """Two subjects a page. Some that were listed go, so that those behind them move to pages that were read."""
    with StreamPeer(store_of(numbered(10, tuple(f"s.{n}" for n in range(10))))) as peer:
        pages = 0
        info = peer.info

        def removing(request: dict[str, Any]) -> dict[str, Any]:
            nonlocal pages
            found = info(request)
            pages += 1
            if pages == behind:
                peer.leader.delete_all([n + 1 for n in gone])
            return found

        peer.info = removing  # type: ignore[method-assign]
        found = all_names(peer, "s.*", "none", at_least=10)
    assert set(found) >= {f"s.{n}" for n in range(10) if n not in gone}
    assert len(set(found)) == len(found)


def test_subjects_that_go_all_the_time_are_not_listed_for_ever() -> None:
    pages = 0

    def others(subject_filter: str, place: int) -> Page:
        nonlocal pages
        pages += 1
        return Page("S", 3, 1000, [f"s.{pages:06}.{n}" for n in range(2)], place)

    with pytest.raises(ChangedError, match=r"S: subjects of s\.> go faster than"):
        listing.plan(others, ("s.>",), size=5)
    assert pages < 250


def paged(names: Callable[[], set[str]], size: int) -> listing.AskPage:
    def ask(subject_filter: str, place: int) -> Page:
        held = sorted(name for name in names() if matches(name.encode(), subject_filter.encode()))
        return Page("S", 10, len(held), held[place : place + size], place)

    return ask


def test_few_subjects_are_named_and_many_are_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LAST_CHUNK_SUBJECTS", 1)
    monkeypatch.setattr(listing, "MAX_NAMED", 100)
    ask = paged(lambda: {f"s.{n:03}" for n in range(100)}, 7)
    assert listing.plan(ask, ("s.*",), size=9) == Subjects(tuple(f"s.{n:03}" for n in range(100)))
    monkeypatch.setattr(listing, "MAX_NAMED", 99)
    few = listing.plan(ask, ("s.*",), size=40)
    assert [(one.low, one.high, one.place) for one in few.ranges] == [
        ("", "s.040", 0), ("s.040", "s.080", 40), ("s.080", "", 80),
    ]  # fmt: skip
    assert not few.names
    assert len(listing.plan(ask, ("s.*",), size=40, least=10).ranges) == 10
    monkeypatch.setattr(listing, "LAST_CHUNK_SUBJECTS", 50)
    assert len(listing.plan(ask, ("s.*",), size=1).ranges) == 2, "not a task for each"


def test_ranges_have_each_subject_once_however_subjects_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject that is there all the time is in one range, whatever pages and cuts; ranges share none."""
    monkeypatch.setattr(listing, "MAX_NAMED", 0)
    monkeypatch.setattr(listing, "LAST_CHUNK_SUBJECTS", 1)
    for seed in range(100):
        dice = random.Random(seed)
        universe = [f"{dice.choice('ab')}.{dice.choice('xy')}.{n}" for n in range(dice.randrange(1, 150))]
        stay = set(dice.sample(universe, len(universe) // 2))
        held, others = set(universe), [name for name in universe if name not in stay]

        def now(held: set[str] = held, dice: random.Random = dice, others: list[str] = others) -> set[str]:
            held ^= set(dice.sample(others, min(len(others), 3)))
            return held

        ask = paged(now, dice.randrange(16, 60))
        filters = dice.choice([(">",), ("a.>", "b.>"), ("a.x.*", "*.x.*", "b.>"), ("a.>", "none")])
        wanted = {name for name in stay if any(matches(name.encode(), one.encode()) for one in filters)}
        planned = listing.plan(ask, filters, 10, size=dice.randrange(1, 40))
        found = [name for part in planned.ranges for names in listing.within(ask, part, 10) for name in names]
        assert wanted <= set(found) and len(set(found)) == len(found), seed


def test_a_range_ends_at_a_leader_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_NAMED", 0)
    ask = paged(lambda: {"s.1", "s.2", "s.3"}, 2)
    (part, *_) = listing.plan(ask, ("s.*",), 10, size=1).ranges
    with pytest.raises(ChangedError, match="S: the leader that answers ends before 11"):
        list(listing.within(ask, part, 11))
