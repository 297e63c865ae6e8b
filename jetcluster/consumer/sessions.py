"""`Sessions`: which turns count. Those of one owner node apply in order and without a gap, or not at all.

A session starts with a turn that says so (`first`). Sessions of an owner count up: a start that comes late, after that
of a newer session, is void like every other turn of the old one. Rows: owner (8 bytes) -> u64 session | u64 serial |
u64 number of the start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from jetcluster.consumer.turn import Turn
from jetcluster.ordered import OrderedSet

MOST: Final = 64
"""Owners remembered. The one whose session is the oldest is forgotten first: it has to start another."""

_ROW: Final = struct.Struct("<QQQ")


class Sessions:
    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._owners = {owner: _ROW.unpack(row) for owner, row in rows}
        """Owner -> session, serial of its newest turn, number of its start."""
        self._starts = max((start for _, _, start in self._owners.values()), default=0)
        self._dirty: OrderedSet[bytes] = OrderedSet()

    def of(self, owner: bytes) -> tuple[int, int] | None:
        """Session and newest serial of an owner."""
        found = self._owners.get(owner)
        return found[:2] if found is not None else None

    def accept(self, turn: Turn) -> bool:
        """True when the turn counts; it is remembered then."""
        known = self._owners.get(turn.owner)
        if turn.first:
            if known is not None and turn.session <= known[0]:
                return False
            self._start(turn)
            return True
        if known is None or turn.session != known[0] or turn.serial != known[1] + 1:
            return False
        self._owners[turn.owner] = (turn.session, turn.serial, known[2])
        self._dirty.add(turn.owner)
        return True

    def write(self, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """The rows that changed since the last call."""
        for owner in self._dirty:
            row = self._owners.get(owner)
            if row is not None:
                put(owner, _ROW.pack(*row))
            else:
                delete(owner)
        self._dirty.clear()

    def _start(self, turn: Turn) -> None:
        self._starts += 1
        self._owners[turn.owner] = (turn.session, turn.serial, self._starts)
        self._dirty.add(turn.owner)
        if len(self._owners) > MOST:
            oldest = min(self._owners, key=lambda owner: self._owners[owner][2])
            del self._owners[oldest]
            self._dirty.add(oldest)
