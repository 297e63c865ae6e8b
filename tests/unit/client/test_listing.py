"""Lists in pages, while streams come and go."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jetcluster.client.listing import ListChangedError, listed


class Names:
    """A sorted list of streams in pages, which changes before each page but the first."""

    def __init__(self, *names: str, page: int = 3) -> None:
        self.names = set(names)
        self.page = page
        self.changes: list[tuple[set[str], set[str]]] = []
        """(deleted, created) before each page from the second on."""
        self.silent: set[str] = set()
        self.asked = 0

    def __call__(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        assert subject == "STREAM.LIST"
        if self.asked and self.changes:
            gone, new = self.changes.pop(0)
            self.names = (self.names - gone) | new
        self.asked += 1
        part = sorted(self.names)[body["offset"] :][: self.page]
        answer: dict[str, Any] = {
            "total": len(self.names),
            "streams": [{"config": {"name": name}} for name in part if name not in self.silent],
        }
        if missing := [name for name in part if name in self.silent]:
            answer["missing"] = missing
        return answer


def test_all_pages_are_read() -> None:
    names = [f"S{number}" for number in range(8)]
    assert list(listed(Names(*names), "STREAM.LIST", "streams").entries) == names
    assert listed(Names(), "STREAM.LIST", "streams").entries == {}
    assert list(listed(Names("A", "B", page=1), "STREAM.LIST", "streams").entries) == ["A", "B"]


def test_a_stream_that_does_not_answer_is_told() -> None:
    names = Names(*"ABCDEFG")
    names.silent = {"B", "C", "G"}
    found = listed(names, "STREAM.LIST", "streams")
    assert list(found.entries) == ["A", "D", "E", "F"] and found.missing == {"B", "C", "G"}


def test_a_deletion_between_two_pages_hides_no_other_stream() -> None:
    names = Names(*"ABCDEF")
    names.changes = [({"A"}, set())]
    assert set("BCDEF") <= set(listed(names, "STREAM.LIST", "streams").entries)


def test_streams_that_stay_are_found_whatever_else_happens() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        stay = {f"{letter}{rng.choice('05')}" for letter in "abcdefgh"}
        others = [f"{letter}{digit}" for letter in "abcdefgh" for digit in "123"]
        names = Names(*stay, *rng.sample(others, 8), page=rng.choice([2, 3, 5]))
        names.changes = [
            (set(rng.sample(others, rng.randrange(4))), set(rng.sample(others, rng.randrange(4)))) for _ in range(6)
        ]
        assert stay <= set(listed(names, "STREAM.LIST", "streams").entries), seed


def test_a_list_that_never_rests_is_an_error() -> None:
    names = Names(*(f"{number:04d}" for number in range(400)))
    names.changes = [({f"{number:04d}"}, set()) for number in range(400)]
    with pytest.raises(ListChangedError):
        listed(names, "STREAM.LIST", "streams")
