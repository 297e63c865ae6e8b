"""Dead letters that wait: messages of a consumer that were given up, and whose letter is not confirmed yet.

key u32 consumer id | u64 sequence (big-endian) -> u8 reason | u32 deliveries | u64 time | text
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from jetcluster.ordered import OrderedSet
from jetcluster.records import NamedTuple

MAX_DELIVER: Final = 1
"""Reason: it was delivered as often as max_deliver permits."""
TERMINATED: Final = 2
"""Reason: a client said +TERM."""
REASONS: Final = frozenset((MAX_DELIVER, TERMINATED))

MAX_TEXT_BYTES: Final = 256
"""Bytes of the reason that a client gave with +TERM."""
MAX_LETTERS: Final = 16_384
"""Letters of a consumer that wait. With more, messages stay pending instead, and count for max_ack_pending."""

_SEQ: Final = struct.Struct(">Q")
_ROW: Final = struct.Struct("<BIQ")


class Letter(NamedTuple):
    """The reason for which a message was given up, and its circumstances."""

    reason: int
    deliveries: int
    time: int
    """Time of the command that gave it up, Unix nanoseconds."""
    text: bytes = b""
    """The text that the client sent with +TERM, cut to `MAX_TEXT_BYTES`."""


class WaitingLetters:
    """The letters of one consumer that wait, with their rows; only changes are written, once per commit."""

    __slots__ = ("_changes", "by_seq")

    def __init__(self) -> None:
        self.by_seq: dict[int, Letter] = {}
        """In the order in which they were given up."""
        self._changes: OrderedSet[int] = OrderedSet()

    def __len__(self) -> int:
        return len(self.by_seq)

    def __contains__(self, seq: int) -> bool:
        return seq in self.by_seq

    def add(self, seq: int, letter: Letter) -> None:
        self.by_seq[seq] = letter
        self._changes.add(seq)

    def take(self, seq: int) -> Letter | None:
        """Remove a letter and return it; None when it is absent."""
        letter = self.by_seq.pop(seq, None)
        if letter is not None:
            self._changes.add(seq)
        return letter

    @property
    def oldest(self) -> Letter | None:
        """The one that waits the longest, None without any."""
        return next(iter(self.by_seq.values()), None)

    def lowest(self, otherwise: int) -> int:
        """Return the lowest sequence, at most `otherwise`."""
        return min(otherwise, min(self.by_seq, default=otherwise))

    def write(self, prefix: bytes, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """Write the rows that changed since the last call; `prefix` is the consumer's id."""
        for seq in self._changes:
            letter = self.by_seq.get(seq)
            if letter is not None:
                put(prefix + _SEQ.pack(seq), _ROW.pack(letter.reason, letter.deliveries, letter.time) + letter.text)
            else:
                delete(prefix + _SEQ.pack(seq))
        self._changes.clear()

    def remove(self, prefix: bytes, delete: Callable[[bytes], None]) -> None:
        """Delete all rows."""
        for seq in self._changes | self.by_seq:
            delete(prefix + _SEQ.pack(seq))

    def load(self, seq: int, row: bytes) -> None:
        """Load a row. Raises struct.error."""
        reason, deliveries, at = _ROW.unpack_from(row)
        self.by_seq[seq] = Letter(reason, deliveries, at, row[_ROW.size :])

    def loaded(self) -> None:
        """End the loading of rows: the letters are in the order in which they were given up again."""
        self.by_seq = dict(sorted(self.by_seq.items(), key=lambda one: (one[1].time, one[0])))
