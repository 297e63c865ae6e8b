"""The differences between copies of one range of a stream. Pure: rows in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Place = tuple[int, int]
"""(time in Unix nanoseconds, digest of subject, header block and payload)."""
Places = Mapping[int, Place]
"""Sequence -> what is there."""


class Stored(NamedTuple):
    """One message as a copy holds it."""

    time_ns: int
    subject: str
    headers: bytes
    data: bytes


FIELDS: Final = Stored._fields


def differing(copies: Mapping[str, Places]) -> dict[int, dict[str, Place | None]]:
    """Sequences that are not the same in all copies -> what each has there (None: nothing). Ascending."""
    every: set[int] = set()
    for places in copies.values():
        every |= places.keys()
    found = {}
    for seq in sorted(every):
        held = {name: places.get(seq) for name, places in copies.items()}
        if len(set(held.values())) > 1:
            found[seq] = held
    return found


def lasting(
    first: Mapping[int, dict[str, Place | None]], again: Mapping[int, dict[str, Place | None]]
) -> dict[int, dict[str, Place | None]]:
    """Differences that are still the same when all copies were read once more: what was only read at two moments of a
    stream in use (a deletion that one replica had applied and the other not) is gone by then."""
    found = {}
    for seq, now in again.items():
        before = first.get(seq, {})
        if {name: before[name] for name in now if name in before} == now:  # one may not have answered again
            found[seq] = now
    return found


def odd_ones(held: Mapping[str, object]) -> list[str]:
    """The copies that a majority of the others outvotes; none when there is no majority."""
    (value, count), *_ = Counter(held.values()).most_common()
    return sorted(name for name, other in held.items() if other != value) if 2 * count > len(held) else []


def describe(held: Mapping[str, Stored | None]) -> dict[str, Any]:
    """The differences in one message: the fields, and by copy the values of short ones, the sizes of long ones."""
    there = [stored for stored in held.values() if stored is not None]
    fields = [name for name in FIELDS if len({getattr(stored, name) for stored in there}) > 1]
    if len(there) < len(held):
        fields.append("missing")
    return {
        "differs": fields,
        "copies": {name: _shown(stored, fields) for name, stored in sorted(held.items())},
    }


def _shown(stored: Stored | None, fields: list[str]) -> dict[str, Any] | None:
    if stored is None:
        return None
    shown: dict[str, Any] = {"subject": stored.subject, "bytes": len(stored.data)}
    for name in fields:
        if name in FIELDS:
            value = getattr(stored, name)
            shown[name] = value[:80].decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return shown
