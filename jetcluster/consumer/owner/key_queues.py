"""`KeyQueues`: the messages of a consumer with order per key that are out, and those that wait for them.

A message is *out* from its selection until it is settled (acked, terminated, given up or removed); at most `limit` of a
key are. Others of the key *wait*, in the order of the stream, until one of those is settled; the first is *ready* then,
and nothing of its key passes it. While members have keys of their own (`members`), what is ready waits for its member,
and nothing more of a key is ready for another one than has what is out of it.

All is in flat arrays, since there may be 100,000 keys: docs/consumers.md has the measured cost.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final

from jetcluster.consumer.owner.key_stocks import NOBODY, KeyStocks
from jetcluster.consumer.owner.key_table import KeyTable

NO_KEY: Final = 0
"""The key of messages that have none: they wait for no others."""
ANYBODY: Final = -1
"""The member of messages while nobody is known to be one: each may get the next of a key."""
SLOT_SHIFT: Final = 52
"""The bits of a key above these are its hash slot (`members.SLOTS`)."""

_GONE, _OUT, _WAITS, _READY, _LEFT, _RETURNED = range(6)
"""States of a message. _LEFT: it waited and is settled, but the one before it still leads to it. _RETURNED: it is out,
and its member gave it back to get it again later."""
_MIN_STALE: Final = 1024
_LEFT_PART: Final = 16
"""One in so many known messages may have left while it waited."""


class KeyQueues:
    """The messages of one consumer, by key, from their selection until they are settled."""

    __slots__ = (
        "_heap",
        "_keys",
        "_next",
        "_restoring",
        "_seqs",
        "_stale",
        "_states",
        "_table",
        "_unsorted",
        "blocked",
        "busy",
        "heard",
        "left",
        "limit",
        "sole",
        "stocks",
        "waiting",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0
        """Number of messages that wait or are ready."""
        self.left = 0
        """Number of messages that waited, are settled, and take their place until those before them have gone on."""
        self.blocked = 0
        """Number of keys with messages that wait or are ready."""
        self.sole = NOBODY
        """The only member, who gets all that is selected without naming one."""
        self.busy: dict[int, int] = {}
        """Member -> number of messages that are out with it."""
        self.heard: set[int] = set()
        """Members of whose messages some were settled, until the owner of the set clears it."""
        self.stocks: KeyStocks | None = None
        """The ready messages by member, while members have keys of their own."""
        self._restoring = False
        """True until all of the replicated state is here: a key may have more messages out than is known yet."""
        self._heap: list[int] = []
        """Sequences that are ready for anybody; some may be settled since."""
        self._unsorted: list[int] = []
        """Those that are yet to be put where the present mode has them."""
        self._table = KeyTable(holders=limit > 1)
        self._seqs = array("Q")
        """Sequences of all known messages, ascending. Parallel to it:"""
        self._keys = array("Q")
        self._next = array("Q")
        """Sequence of the next waiting message of the key; after the last one the first. Of one that is out: its
        member."""
        self._states = bytearray()
        self._stale = 0
        """Number of messages that are _GONE."""

    @property
    def ready(self) -> bool:
        """True while messages are ready for anybody."""
        heap = self._heap
        while heap:
            if self._is_ready(heap[0]):
                return True
            heapq.heappop(heap)
        return bool(self._unsorted)

    # -- members ----------------------------------------------------------------------------------------------------

    def share(self, slots: list[int] | None) -> None:
        """Let members have keys of their own, by the table `slots`, or not (None). `arrange` must follow."""
        if (slots is not None) == (self.stocks is not None):
            return
        if self.stocks is not None:
            self._unsorted += self.stocks.all()
        else:
            self._unsorted += self._heap
            self._heap = []
        self.stocks = None if slots is None else KeyStocks(slots)

    def arrange(self, most: int) -> bool:
        """Put at most `most` ready messages where the mode has them; return True when all are there."""
        for _ in range(min(most, len(self._unsorted))):
            seq = self._unsorted.pop()
            at = self._at(seq)
            if at >= 0 and self._states[at] == _READY:
                self._show(seq, self._keys[at])
        return not self._unsorted

    def key_of(self, seq: int) -> int:
        """Return the key of a message, NO_KEY also when it is not known."""
        at = self._at(seq)
        return NO_KEY if at < 0 else self._keys[at]

    def holder(self, seq: int) -> int:
        """Return the member that has a message which is out; NOBODY when that is not known."""
        at = self._at(seq)
        return self._next[at] if at >= 0 and self._states[at] in (_OUT, _RETURNED) else NOBODY

    def is_returned(self, seq: int) -> bool:
        """Return True for a message that is out and that its member gave back."""
        at = self._at(seq)
        return at >= 0 and self._states[at] == _RETURNED

    def returned(self, seqs: Iterable[int]) -> None:
        """Note that members gave messages back, which are due later: their keys stay taken, they are not busy."""
        for seq in seqs:
            at = self._at(seq)
            if at >= 0 and self._states[at] == _OUT:
                self._leave_hand(at)
                self._states[at] = _RETURNED

    def _leave_hand(self, at: int) -> None:
        """Count a message that is out with a member as no longer so; it is a sign of life."""
        member = self._next[at]
        if member != NOBODY:
            self._count(member, -1)
            self.heard.add(member)

    def hold(self, seq: int, member: int) -> None:
        """Note that a message which is out goes to a member once more."""
        at = self._at(seq)
        state = self._states[at] if at >= 0 else _GONE
        if state not in (_OUT, _RETURNED) or (state == _OUT and self._next[at] == member):
            return
        if state == _OUT:
            self._count(self._next[at], -1)
        self._count(member, 1)
        self._next[at], self._states[at] = member, _OUT
        key = self._keys[at]
        if key != NO_KEY:
            self._table.hold(key, member if self._table.get(key)[0] == 1 else NOBODY)

    def may_go(self, key: int, member: int) -> bool:
        """Return True when a new message of `key` would not wait for others of it, and might go to `member`."""
        out, last = self._table.get(key)
        return not last and self._joins(key, out, member)

    # -- selection --------------------------------------------------------------------------------------------------

    def offer(self, seq: int, key: int) -> bool:
        """Add a message above all earlier ones. Return True when it may be sent and is out; False when it waits."""
        if key != NO_KEY:
            out, last = self._table.get(key)
            if last or out >= self.limit or not self._joins(key, out, self.sole or ANYBODY):
                self._wait(seq, key, out, last)
                return False
            self._table.set(key, out + 1, last)
            self._bind(key, out, self.sole)
        self._append(seq, key, _OUT, self.sole)
        self._count(self.sole, 1)
        return True

    def add(self, seq: int, key: int, member: int) -> None:
        """Add a message above all earlier ones that goes to a member, as it may (`may_go`)."""
        if key != NO_KEY:
            out, last = self._table.get(key)
            self._table.set(key, out + 1, last)
            self._bind(key, out, member)
        self._append(seq, key, _OUT, member)
        self._count(member, 1)

    def park(self, seq: int, key: int) -> None:
        """Add a message above all earlier ones that waits, if not for others of its key then for its member."""
        if key == NO_KEY:
            self._append(seq, key, _READY, seq)
            self.waiting += 1
            self._show(seq, key)
        else:
            self._wait(seq, key, *self._table.get(key))
            self._advance(key)

    def restore(self, seq: int, key: int, *, held: bool, holder: int = NOBODY) -> None:
        """Add a message of the replicated state, above all earlier ones: it is out, or it waits (`held`). When all are
        there `check` must be called for all keys that `restored` returns."""
        self._restoring = True
        out, last = self._table.get(key) if key != NO_KEY else (0, 0)
        if held and key != NO_KEY:
            self._wait(seq, key, out, last)
        elif held:
            self.park(seq, key)
        else:
            self._append(seq, key, _OUT, holder)
            self._count(holder, 1)
            if key != NO_KEY:
                self._table.set(key, out + 1, last)
                self._bind(key, out, holder)

    def restored(self) -> list[int]:
        """End the restoring; return the keys whose messages wait."""
        self._restoring = False
        return self._table.waiting()

    @property
    def is_sparse(self) -> bool:
        """True when so many messages left while they waited that all should be restored anew. Each restoring costs few
        steps per message that left, and no key's next message is behind very many."""
        return self.left > max(_MIN_STALE, len(self._seqs) // _LEFT_PART)

    def check(self, keys: Iterable[int]) -> None:
        """Make ready what waits of `keys` as far as there is room."""
        for key in keys:
            self._advance(key)

    def take(self, want: int) -> list[int]:
        """Take at most `want` messages that are ready for anybody, ascending: they are out now."""
        taken: list[int] = []
        while len(taken) < want and self.ready and self._heap:
            seq = heapq.heappop(self._heap)
            if self._go(seq, self.sole or ANYBODY):
                taken.append(seq)
        return taken

    def take_of(self, member: int, want: int, *, spilled: bool = False) -> list[int]:
        """Take at most `want` ready messages of a member's keys: they are out now, with it. `spilled`: they go to
        others (`hold`), so only those of keys with nothing out are taken."""
        taker = NOBODY if spilled else member
        taken: list[int] = []
        while len(taken) < want and self.stocks is not None and (seq := self.stocks.pop(member)):
            if self._is_ready(seq) and self._go(seq, taker):
                taken.append(seq)
        return taken

    def give_back(self, seqs: Sequence[int]) -> None:
        """Make messages ready that are out and were not sent: they are the first of their keys."""
        for seq in sorted(seqs, reverse=True):
            at = self._at(seq)
            key = self._keys[at]
            self._count(self._next[at], -1)
            self._states[at] = _READY
            if key != NO_KEY:
                out, last = self._table.get(key)
                if last:
                    behind = self._at(last)
                    first = self._at(self._next[behind])
                    if self._states[first] == _READY:
                        self._states[first] = _WAITS
                    self._next[at], self._next[behind] = self._next[behind], seq
                else:
                    self.blocked += 1
                    self._next[at] = last = seq
                self._table.set(key, out - 1, last)
            self._show(seq, key)
        self.waiting += len(seqs)

    def settle(self, seqs: Iterable[int]) -> None:
        """Forget messages: they are settled. Others of their keys become ready."""
        for seq in seqs:
            at = self._at(seq)
            state = self._states[at] if at >= 0 else _GONE
            key = self._keys[at] if at >= 0 else NO_KEY
            if state in (_OUT, _RETURNED):
                if state == _OUT:
                    self._leave_hand(at)
                self._forget(at)
                if key != NO_KEY:
                    out, last = self._table.get(key)
                    self._table.set(key, out - 1, last)
                    if last and not self._restoring:
                        self._advance(key)
            elif state in (_WAITS, _READY):
                self.waiting -= 1
                if key == NO_KEY:
                    self._forget(at)
                    continue
                self._states[at] = _LEFT
                self.left += 1
                if state == _READY:
                    self._advance(key)

    # -- internals --------------------------------------------------------------------------------------------------

    def _at(self, seq: int) -> int:
        """Return the position of `seq`, -1 when it is not known."""
        seqs = self._seqs
        at = bisect_left(seqs, seq)
        return at if at < len(seqs) and seqs[at] == seq else -1

    def _is_ready(self, seq: int) -> bool:
        at = self._at(seq)
        return at >= 0 and self._states[at] == _READY

    def _append(self, seq: int, key: int, state: int, then: int) -> None:
        assert not self._seqs or seq > self._seqs[-1], (seq, self._seqs[-1])
        self._seqs.append(seq)
        self._keys.append(key)
        self._next.append(then)
        self._states.append(state)

    def _count(self, member: int, change: int) -> None:
        """Count messages that are out with a member."""
        if member != NOBODY:
            count = self.busy.get(member, 0) + change
            if count > 0:
                self.busy[member] = count
            else:
                del self.busy[member]

    def _bind(self, key: int, out: int, member: int) -> None:
        """Note who has the messages of a key, of which `out` were out before."""
        if self.limit > 1:
            self._table.hold(key, member if not out or self._table.holder(key) == member else NOBODY)

    def _show(self, seq: int, key: int) -> None:
        """Put a ready message where those look who may take it."""
        if self.stocks is None or key == NO_KEY:
            heapq.heappush(self._heap, seq)
        else:
            self.stocks.push(key >> SLOT_SHIFT, seq)

    def _wait(self, seq: int, key: int, out: int, last: int) -> None:
        """Let a new message wait behind `last`."""
        self._append(seq, key, _WAITS, seq)
        if last:
            behind = self._at(last)
            self._next[-1], self._next[behind] = self._next[behind], seq
        else:
            self.blocked += 1
        self._table.set(key, out, seq)
        self.waiting += 1

    def _joins(self, key: int, out: int, member: int) -> bool:
        """Return True when one more of `key`, of which `out` are out, may go to a member: who has them is the same."""
        if not out or member == ANYBODY:
            return True
        return out < self.limit and member != NOBODY and self._table.holder(key) == member

    def _go(self, seq: int, member: int) -> bool:
        """Take a ready message out of its queue, for a member; the next of its key is ready if there is room. Return
        False when another one has messages of its key: it waits until they are settled."""
        at = self._at(seq)
        key = self._keys[at]
        if self.limit > 1 and key != NO_KEY and not self._joins(key, self._table.get(key)[0], member):
            self._states[at] = _WAITS
            return False
        member = NOBODY if member == ANYBODY else member
        self.waiting -= 1
        self._states[at] = _OUT
        if key != NO_KEY:
            out, last = self._table.get(key)
            last = self._unlink(at, last)
            self._table.set(key, out + 1, last)
            self._bind(key, out, member)
            if last and out + 1 < self.limit:
                self._next[at] = member
                self._count(member, 1)
                self._advance(key)
                return True
        self._next[at] = member
        self._count(member, 1)
        return True

    def _unlink(self, at: int, last: int) -> int:
        """Take the first of a queue out of it, which is at this position; return the last one, 0 for none."""
        seq = self._seqs[at]
        if seq == last:
            self.blocked -= 1
            return 0
        self._next[self._at(last)] = self._next[at]
        return last

    def _advance(self, key: int) -> None:
        """Make the first waiting message of `key` ready if there is room."""
        out, last = self._table.get(key)
        while last and out < self.limit:
            at = self._at(self._next[self._at(last)])
            if self._states[at] == _LEFT:
                last = self._unlink(at, last)
                self.left -= 1
                self._forget(at)
                continue
            if self._states[at] == _WAITS:
                self._states[at] = _READY
                self._show(self._seqs[at], key)
            break
        self._table.set(key, out, last)

    def _forget(self, at: int) -> None:
        """Drop the message at a position; positions change."""
        self._states[at] = _GONE
        self._stale += 1
        if self._stale > _MIN_STALE and 3 * self._stale > len(self._seqs):
            states = bytes(self._states)
            self._seqs = array("Q", compress(self._seqs, states))
            self._keys = array("Q", compress(self._keys, states))
            self._next = array("Q", compress(self._next, states))
            self._states = bytearray(filter(None, states))
            self._stale = 0
