"""`PendingSet`: the messages of one consumer that were delivered and wait for their ack.

A dict by stream sequence, with two additions: the ascending order, which finds the lowest entry without a walk over
removed ones, and pages for storage. A page is a row with the entries of 64 neighbouring consumer sequences
(`cseq >> PAGE_BITS` of the first delivery), so it is dense however sparse the filter is. Only changed pages are
written, once per commit of the store.

With order per key the set also has messages that wait for others of their key (`HELD`): the cursor has passed them, and
they were not delivered. Their pages are by stream sequence, behind all others (`_HELD_PAGES`). As they are delivered
later, the order of first deliveries is another one then, and kept too (`_sent`).

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

_HELD_PAGES: Final = 1 << 63
"""Lowest page of held messages."""

_KEY: Final = struct.Struct(">IQ")
_ENTRY_BYTES: Final = 28
_MAX_STALE_KEYS: Final = 1024


class Pending(NamedTuple):
    """A message that was delivered and waits for its ack."""

    cseq: int
    """Consumer sequence of its first delivery; 0: held."""
    due: int
    """Time of the next delivery, Unix ns: last delivery, +WPI or NAK plus its wait; NEVER without ack_wait."""
    deliveries: int


HELD: Final = Pending(0, NEVER, 0)
"""The entry of each message that waits for others of its key."""

_new: Final[Callable[[tuple[int, int, int]], Pending]] = partial(tuple.__new__, Pending)
"""Makes a Pending in C, since one delivery makes hundreds."""


class PendingSet:
    """The pending messages of one consumer, with their rows."""

    __slots__ = ("_dirty", "_pages", "_sent", "entries", "held", "order", "redelivered")

    def __init__(self) -> None:
        self.entries: dict[int, Pending] = {}
        """Pending messages by stream sequence, ascending."""
        self.held = 0
        """Number of entries that are `HELD`."""
        self.redelivered = 0
        """Number of entries that were delivered more than once."""
        self.order: deque[int] = deque()
        """The keys of `entries`, ascending, with some already removed ones."""
        self._sent: deque[int] | None = None
        """The keys of the delivered entries in order of first delivery, with some already removed ones; None until
        `first_unacked` is called."""
        self._pages: dict[int, list[int]] = {}
        """Page -> its sequences, with some already removed ones."""
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        """Return the number of messages that were delivered."""
        return len(self.entries) - self.held

    def lowest(self) -> int:
        """Return the lowest sequence, 0 when nothing is pending; amortised O(1)."""
        order, entries = self.order, self.entries
        while order and order[0] not in entries:
            order.popleft()
        return order[0] if order else 0

    def first_unacked(self) -> int:
        """Return the lowest consumer sequence of the delivered entries, 0 when there are none; amortised O(1)."""
        entries, sent = self.entries, self._sent
        if sent is None:
            by_cseq = sorted((entry.cseq, seq) for seq, entry in entries.items() if entry.cseq)
            sent = self._sent = deque(seq for _, seq in by_cseq)
        while sent and sent[0] not in entries:
            sent.popleft()
        return entries[sent[0]].cseq if sent else 0

    def add(self, seqs: Sequence[int], cseq: int, due: int) -> None:
        """Add first deliveries, numbered from `cseq`; `seqs` are ascending and above all earlier ones."""
        count = len(seqs)
        if self._sent is not None:
            self._follow(seqs)
        self.entries.update(zip(seqs, map(_new, zip(range(cseq, cseq + count), repeat(due), repeat(1)))))  # noqa: B905
        self.order.extend(seqs)
        self._paged(seqs, cseq)

    def _paged(self, seqs: Sequence[int], cseq: int) -> None:
        """Put first deliveries into their pages; forget removed entries in `order`."""
        if len(self.order) > 2 * len(self.entries) + _MAX_STALE_KEYS:
            self.order = deque(self.entries)
        at, count = 0, len(seqs)
        while at < count:
            page = (cseq + at) >> PAGE_BITS
            end = min(count, ((page + 1) << PAGE_BITS) - cseq)
            self._pages.setdefault(page, []).extend(seqs[at:end])
            self._dirty.add(page)
            at = end

    # -- order per key ----------------------------------------------------------------------------------------------

    def add_some(self, seqs: Sequence[int], held: Sequence[int], cseq: int, due: int) -> None:
        """Add first deliveries, numbered from `cseq`, and held messages. Each list is ascending, and all are above the
        earlier ones."""
        count = len(seqs)
        if self._sent is not None:
            self._follow(seqs)
        entries = dict.fromkeys(held, HELD)
        entries.update(zip(seqs, map(_new, zip(range(cseq, cseq + count), repeat(due), repeat(1)))))  # noqa: B905
        ascending = sorted(entries)
        self.entries.update((seq, entries[seq]) for seq in ascending)
        self.order.extend(ascending)
        self._paged(seqs, cseq)
        self.held += len(held)
        for seq in held:
            page = _HELD_PAGES + (seq >> PAGE_BITS)
            self._pages.setdefault(page, []).append(seq)
            self._dirty.add(page)

    def release(self, seqs: Sequence[int], cseq: int, due: int) -> None:
        """Make held messages first deliveries, numbered from `cseq`."""
        for number, seq in enumerate(seqs, cseq):
            assert self.entries[seq] is HELD, seq
            self.entries[seq] = Pending(number, due, 1)
            self._dirty.add(_HELD_PAGES + (seq >> PAGE_BITS))
        self.held -= len(seqs)
        if self._sent is not None:
            self._follow(seqs)
        self._paged(seqs, cseq)

    def delivered(self, seqs: Sequence[int]) -> list[int]:
        """Return those of `seqs` that are pending and not held, in the given order."""
        entries = self.entries
        return [seq for seq in seqs if seq in entries and entries[seq] is not HELD]

    def held_of(self, seqs: Sequence[int]) -> list[int]:
        """Return those of `seqs` that are held, in the given order."""
        return [seq for seq in seqs if self.entries.get(seq) is HELD]

    def _follow(self, seqs: Sequence[int]) -> None:
        """Note first deliveries in `_sent`, and forget removed ones there."""
        entries = self.entries
        assert self._sent is not None
        if not entries:
            self._sent = None  # most consumers never ask for it again
            return
        if len(self._sent) > 2 * len(entries) + _MAX_STALE_KEYS:
            self._sent = deque(seq for seq in self._sent if seq in entries)
        self._sent.extend(seqs)

    def change(self, seq: int, due: int, deliveries: int) -> Pending:
        """Replace an existing entry; return the new one."""
        old = self.entries[seq]
        assert old is not HELD, seq
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
        self._went(taken, gone)  # type: ignore[arg-type]  # None is filtered out
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
        self.held = self.redelivered = 0
        self._sent = None
        self.order.clear()
        self._dirty.update(self._pages)
        self._pages.clear()

    def _went(self, seqs: list[int], gone: list[Pending]) -> None:
        if self.held:
            held = [seq for seq, entry in zip(seqs, gone, strict=True) if entry is HELD]
            self.held -= len(held)
            self._dirty.update([_HELD_PAGES + (seq >> PAGE_BITS) for seq in held])
            gone = [entry for entry in gone if entry is not HELD]
        self._dirty.update([entry[0] >> PAGE_BITS for entry in gone])
        if self.redelivered:
            self.redelivered -= sum(1 for entry in gone if entry.deliveries > 1)

    # -- rows -----------------------------------------------------------------------------------------------------

    def write(self, cid: int, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """Write the rows that changed since the last call."""
        entries, pages = self.entries, self._pages
        for page in self._dirty:
            live = [seq for seq in pages.get(page, ()) if seq in entries]
            if page >= _HELD_PAGES:
                live = self.held_of(live)
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
        if page >= _HELD_PAGES:
            self.entries.update(dict.fromkeys(seqs, HELD))
            self.held += len(seqs)
        else:
            self.entries.update(zip(seqs, map(_new, zip(cseqs, dues, deliveries))))  # noqa: B905
        self.order.extend(seqs)
        self._pages[page] = seqs
        self.redelivered += sum(1 for count in deliveries if count > 1)

    def loaded(self) -> None:
        """End the loading of rows: consumer sequences need not be in the order of the messages."""
        ascending = sorted(self.entries)
        if ascending != list(self.order):
            self.entries = {seq: self.entries[seq] for seq in ascending}
            self.order = deque(ascending)


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
