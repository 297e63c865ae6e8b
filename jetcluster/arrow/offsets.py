"""Offsets of a query: per stream the next sequence to read, and when that stream was created.

Spark's checkpoint has them as `{"ORDERS": {"seq": 30001, "created": "2026-11-22T..."}}`. The creation time reveals a
stream that was deleted and created again: its sequences mean other messages. In options, a bare number is an offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Offset(NamedTuple):
    """A position in one stream."""

    seq: int
    """The next sequence to read."""
    created: str = ""
    """The time of the stream's creation, as the server writes it; empty: unknown."""


Offsets = dict[str, Offset]
"""By stream."""


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Returns the offsets sorted by stream, as Spark compares them as JSON text."""
    return {
        stream: {"seq": offset.seq, "created": offset.created} if offset.created else offset.seq
        for stream, offset in sorted(offsets.items())
    }


def from_json(found: Mapping[str, Any]) -> Offsets:
    """Parses offsets. Raises ValueError, and KeyError for an object without `seq`."""
    offsets: Offsets = {}
    for stream, value in found.items():
        if isinstance(value, Mapping):
            offsets[stream] = Offset(int(value["seq"]), str(value.get("created", "")))
        else:
            offsets[stream] = Offset(int(value))
    return offsets
