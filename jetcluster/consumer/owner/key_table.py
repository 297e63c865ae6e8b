"""`KeyTable`: a number and a sequence for each of many keys, in little memory.

A hash table with open addressing and linear probing in flat arrays: 20 bytes per place (24 with holders), of which one
to two thirds are taken. A dict of integers takes 84 bytes for each key, and more for its values.

A key is a hash of 64 bits that is not 0. Two keys of one hash count as one, which does no harm: both are in order.
"""

from __future__ import annotations

from array import array
from itertools import compress
from typing import Final

MIN_PLACES: Final = 64


class KeyTable:
    """Key -> (`out`: how many messages are out, `last`: sequence of the last one that waits, 0 for none), and with
    `holders` also who has those that are out, 0 if that is not one."""

    __slots__ = ("_holders", "_keys", "_last", "_mask", "_out", "_used")

    def __init__(self, *, holders: bool = False) -> None:
        self._used = 0
        self._mask, self._keys, self._out, self._last = _empty(MIN_PLACES)
        self._holders = array("I", bytes(4 * MIN_PLACES)) if holders else None

    def __len__(self) -> int:
        return self._used

    @property
    def places(self) -> int:
        return self._mask + 1

    def _find(self, key: int) -> int:
        """Return the place of `key`, or the empty one where it belongs."""
        keys, mask = self._keys, self._mask
        at = key & mask
        while keys[at] not in (key, 0):
            at = (at + 1) & mask
        return at

    def waiting(self) -> list[int]:
        """Return the keys with messages that wait."""
        return list(compress(self._keys, self._last))

    def get(self, key: int) -> tuple[int, int]:
        """Return (out, last), zeros for a key that is not there."""
        at = self._find(key)
        return self._out[at], self._last[at]

    def holder(self, key: int) -> int:
        """Return who has what is out of `key`; 0: nobody, or nobody knows, or several."""
        return 0 if self._holders is None else self._holders[self._find(key)]

    def hold(self, key: int, holder: int) -> None:
        """Set the holder of a key that is there."""
        if self._holders is not None:
            at = self._find(key)
            assert self._keys[at], key
            self._holders[at] = holder & 0xFFFFFFFF

    def set(self, key: int, out: int, last: int) -> None:
        """Set the values of `key`; zeros remove it."""
        at = self._find(key)
        if not out and not last:
            if self._keys[at]:
                self._remove(at)
            return
        if not self._keys[at]:
            self._used += 1
            if 3 * self._used > 2 * (self._mask + 1):
                self._resize(2 * (self._mask + 1))
                at = self._find(key)
            self._keys[at] = key
        self._out[at], self._last[at] = out, last

    def _remove(self, at: int) -> None:
        """Empty a place, and move those behind it that would not be found any more."""
        keys, mask = self._keys, self._mask
        behind = at
        while True:
            behind = (behind + 1) & mask
            if not keys[behind]:
                break
            if (behind - (keys[behind] & mask)) & mask >= (behind - at) & mask:
                keys[at], self._out[at], self._last[at] = keys[behind], self._out[behind], self._last[behind]
                if self._holders is not None:
                    self._holders[at] = self._holders[behind]
                at = behind
        keys[at] = self._out[at] = self._last[at] = 0
        if self._holders is not None:
            self._holders[at] = 0
        self._used -= 1
        if self.places > MIN_PLACES and 8 * self._used < self._mask:
            self._resize((self._mask + 1) // 2)

    def _resize(self, places: int) -> None:
        held = self._holders
        taken = [entry for entry in zip(self._keys, self._out, self._last, strict=True) if entry[0]]
        holders = None if held is None else list(compress(held, self._keys))
        self._mask, self._keys, self._out, self._last = _empty(places)
        self._holders = None if held is None else array("I", bytes(4 * places))
        for number, (key, out, last) in enumerate(taken):
            at = self._find(key)
            self._keys[at], self._out[at], self._last[at] = key, out, last
            if self._holders is not None and holders is not None:
                self._holders[at] = holders[number]


def _empty(places: int) -> tuple[int, array[int], array[int], array[int]]:
    """Return the mask and the arrays of a table."""
    return places - 1, array("Q", bytes(8 * places)), array("I", bytes(4 * places)), array("Q", bytes(8 * places))
