"""Offsets of a query: per stream the next sequence to read, and when that stream was created.

Spark's checkpoint has them as `{"ORDERS": {"seq": 30001, "created": "2026-11-22T..."}}`. The creation time reveals a
stream that was deleted and created again: its sequences mean other messages. In options, a bare number is an offset.

The end of a micro-batch also says into which parts its range is cut: `"parts": [1, 4]`, four from sequence 1 on. So a
second try of it has the same partitions, with other settings and on another machine, too: a sink may know rows by their
places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Partitioning(NamedTuple):
    """The parts of the range that ends at an offset."""

    low: int
    """The first sequence of the range."""
    number: int
    """Parts, of equal size."""


class Offset(NamedTuple):
    """A position in one stream."""

    seq: int
    """The next sequence to read."""
    created: str = ""
    """The time of the stream's creation, as the server writes it; empty: unknown."""
    parts: Partitioning | None = None
    """None: this is no end of a micro-batch, or one of a version that did not write them."""


Offsets = dict[str, Offset]
"""By stream."""


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Returns the offsets sorted by stream, as Spark compares them as JSON text."""
    return {stream: _to_json(offset) for stream, offset in sorted(offsets.items())}


def _to_json(offset: Offset) -> dict[str, Any] | int:
    made: dict[str, Any] = {"seq": offset.seq}
    if offset.created:
        made["created"] = offset.created
    if offset.parts is not None:
        made["parts"] = list(offset.parts)
    return made if len(made) > 1 else offset.seq


def from_json(found: Mapping[str, Any]) -> Offsets:
    """Parses offsets. Raises ValueError, and KeyError for an object without `seq`."""
    offsets: Offsets = {}
    for stream, value in found.items():
        if isinstance(value, Mapping):
            parts = Partitioning(*map(int, value["parts"])) if value.get("parts") else None
            offsets[stream] = Offset(int(value["seq"]), str(value.get("created", "")), parts)
        else:
            offsets[stream] = Offset(int(value))
    return offsets
