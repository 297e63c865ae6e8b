"""Offsets of a source, and where reading begins and ends."""

from __future__ import annotations

from jetcluster.arrow import offsets
from jetcluster.arrow.offsets import Offset


def test_offsets_as_json() -> None:
    found = {"B": Offset(5), "A": Offset(7, "t")}
    assert list(offsets.to_json(found).items()) == [("A", {"seq": 7, "created": "t"}), ("B", 5)]
    assert offsets.from_json(offsets.to_json(found)) == found
