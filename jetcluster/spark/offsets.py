"""Offsets of a query: per stream the next sequence to read, and when that stream was created.

As Spark's checkpoint keeps them: `{"ORDERS": {"seq": 30001, "created": "2026-11-22T..."}}`. The creation time tells a
stream that was deleted and made again, whose sequences begin at 1 and mean other messages. In options, a bare number is
an offset too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Offset(NamedTuple):
    seq: int
    """The next one to read."""
    created: str = ""
    """The time of the stream's creation, as the server writes it; empty: not known."""


Offsets = dict[str, Offset]
"""By stream."""


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Spark compares offsets as JSON text: streams in order."""
    return {
        stream: {"seq": offset.seq, "created": offset.created} if offset.created else offset.seq
        for stream, offset in sorted(offsets.items())
    }


def from_json(found: Mapping[str, Any]) -> Offsets:
    """Raises ValueError."""
    offsets: Offsets = {}
    for stream, value in found.items():
        if isinstance(value, Mapping):
            offsets[stream] = Offset(int(value["seq"]), str(value.get("created", "")))
        else:
            offsets[stream] = Offset(int(value))
    return offsets
