"""`PendingSet`: the messages of one consumer that were delivered and wait for their ack.

A dict by stream sequence, with two additions: the order of first deliveries, which finds the lowest entry without a
walk over removed ones, and pages for storage. A page is a row with the entries of 64 neighbouring consumer sequences
(`cseq >> PAGE_BITS` of the first delivery), so it is dense however sparse the filter is. Only changed pages are
written, once per commit of the store.

    key u32 consumer id | u64 page (big-endian) -> u64 sequence * n | u64 cseq * n | u64 due * n | u32 deliveries * n
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Final

from jetcluster.records import NamedTuple

PAGE_BITS: Final = 6
"""Larger pages are cheaper while acks come in order, but each ack rewrites a page."""
NEVER: Final = (1 << 63) - 1
"""The due time of a message that is not redelivered by itself."""

_KEY: Final = struct.Struct(">IQ")
_ENTRY_BYTES: Final = 28
_MAX_STALE_KEYS: Final = 1024


class Pending(NamedTuple):
    """A message that was delivered and waits for its ack."""

    cseq: int
    """Consumer sequence of its first delivery."""
    due: int
    """Time of the next delivery, Unix ns: last delivery, +WPI or NAK plus its wait; NEVER without ack_wait."""
    deliveries: int


_new: Final[Callable[[tuple[int, int, int]], Pending]] = partial(tuple.__new__, Pending)
"""Makes a Pending in C, since one delivery makes hundreds."""


class PendingSet:
    """The pending messages of one consumer, with their rows."""

    __slots__ = ("_dirty", "_pages", "entries", "order", "redelivered")

    def __init__(self) -> None:
        self.entries: dict[int, Pending] = {}
        """Pending messages by stream sequence, in order of first delivery, which is ascending."""
        self.redelivered = 0
        """Number of entries that were delivered more than once."""
        self.order: deque[int] = deque()
        """The keys of `entries`, ascending, with some already removed ones."""
        self._pages: dict[int, list[int]] = {}
        """Page -> its sequences, with some already removed ones."""
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def lowest(self) -> int:
        """Return the lowest sequence, 0 when nothing is pending; amortised O(1)."""
        order, entries = self.order, self.entries
        while order and order[0] not in entries:
            order.popleft()
        return order[0] if order else 0

    def add(self, seqs: Sequence[int], cseq: int, due: int) -> None:
        """Add first deliveries, numbered from `cseq`; `seqs` are ascending and above all earlier ones."""
        count = len(seqs)
        self.entries.update(zip(seqs, map(_new, zip(range(cseq, cseq + count), repeat(due), repeat(1)))))  # noqa: B905
        self.order.extend(seqs)
        if len(self.order) > 2 * len(self.entries) + _MAX_STALE_KEYS:
            self.order = deque(self.entries)
        at = 0
        while at < count:
            page = (cseq + at) >> PAGE_BITS
            end = min(count, ((page + 1) << PAGE_BITS) - cseq)
            self._pages.setdefault(page, []).extend(seqs[at:end])
            self._dirty.add(page)
            at = end

    def change(self, seq: int, due: int, deliveries: int) -> Pending:
        """Replace an existing entry; return the new one."""
        old = self.entries[seq]
        if deliveries > 1 and old.deliveries == 1:
            self.redelivered += 1
        new = self.entries[seq] = Pending(old.cseq, due, deliveries)
        self._dirty.add(old.cseq >> PAGE_BITS)
        return new

    def take(self, seqs: Sequence[int]) -> tuple[list[int], list[Pending]]:
        """Remove those of `seqs` that are pending; return them and their entries, in the given order."""
        entries = self.entries
        before = len(entries)
        found = list(map(entries.pop, seqs, repeat(None)))
        if before - len(entries) == len(seqs):
            taken, gone = list(seqs), found
        else:
            pairs = [(seq, entry) for seq, entry in zip(seqs, found, strict=True) if entry is not None]
            taken, gone = [seq for seq, _ in pairs], [entry for _, entry in pairs]
        self._went(gone)  # type: ignore[arg-type]  # None is filtered out
        return taken, gone  # type: ignore[return-value]

    def take_up_to(self, seq: int) -> tuple[list[int], list[Pending]]:
        """Remove all at or below `seq`; return them and their entries, ascending."""
        order, entries = self.order, self.entries
        doomed: list[int] = []
        while order and order[0] <= seq:
            first = order.popleft()
            if first in entries:
                doomed.append(first)
        return self.take(doomed)

    def clear(self) -> None:
        """Remove all; `entries` becomes another object, so that a reader of the old one still sees it whole."""
        self.entries = {}
        self.redelivered = 0
        self.order.clear()
        self._dirty.update(self._pages)
        self._pages.clear()

    def _went(self, gone: list[Pending]) -> None:
        self._dirty.update([entry[0] >> PAGE_BITS for entry in gone])
        if self.redelivered:
            self.redelivered -= sum(1 for entry in gone if entry.deliveries > 1)

    # -- rows -----------------------------------------------------------------------------------------------------

    def write(self, cid: int, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """Write the rows that changed since the last call."""
        entries, pages = self.entries, self._pages
        for page in self._dirty:
            live = [seq for seq in pages.get(page, ()) if seq in entries]
            if live:
                pages[page] = live
                put(_KEY.pack(cid, page), _encode(live, [entries[seq] for seq in live]))
            else:
                pages.pop(page, None)
                delete(_KEY.pack(cid, page))
        self._dirty.clear()

    def remove(self, cid: int, delete: Callable[[bytes], None]) -> None:
        """Delete all rows."""
        for page in self._dirty.union(self._pages):
            delete(_KEY.pack(cid, page))

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row; rows must come in key order."""
        page = cid_and_page(key)[1]
        seqs, cseqs, dues, deliveries = _decode(value)
        self.entries.update(zip(seqs, map(_new, zip(cseqs, dues, deliveries))))  # noqa: B905
        self.order.extend(seqs)
        self._pages[page] = seqs
        self.redelivered += sum(1 for count in deliveries if count > 1)


def cid_and_page(key: bytes) -> tuple[int, int]:
    cid, page = _KEY.unpack(key)
    return cid, page


def _encode(seqs: list[int], entries: list[Pending]) -> bytes:
    cseqs, dues, deliveries = zip(*entries, strict=True)
    n = len(seqs)
    return struct.pack(f"<{3 * n}Q{n}I", *seqs, *cseqs, *dues, *deliveries)


def _decode(value: bytes) -> tuple[list[int], list[int], list[int], list[int]]:
    n, rest = divmod(len(value), _ENTRY_BYTES)
    if rest or not n:
        raise ValueError(f"a page of pending messages of {len(value)} bytes")
    numbers = list(struct.unpack(f"<{3 * n}Q{n}I", value))
    return numbers[:n], numbers[n : 2 * n], numbers[2 * n : 3 * n], numbers[3 * n :]
