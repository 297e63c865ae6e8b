"""Offsets of a source, and where reading begins and ends."""

from __future__ import annotations

from jetcluster.arrow import offsets
from jetcluster.arrow.offsets import Offset, Partitioning


def test_offsets_as_json() -> None:
    found = {"B": Offset(5), "A": Offset(7, "t")}
    assert list(offsets.to_json(found).items()) == [("A", {"seq": 7, "created": "t"}), ("B", 5)]
    assert offsets.from_json(offsets.to_json(found)) == found


def test_an_end_says_how_its_range_is_cut() -> None:
    found = {"A": Offset(7, "t", Partitioning(3, 2)), "B": Offset(5, "", Partitioning(1, 1))}
    assert offsets.to_json(found) == {
        "A": {"seq": 7, "created": "t", "parts": [3, 2]},
        "B": {"seq": 5, "parts": [1, 1]},
    }
    assert offsets.from_json(offsets.to_json(found)) == found
