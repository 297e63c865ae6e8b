"""`KeyQueues`: the messages of a consumer with order per key that are out, and those that wait for them.

A message is *out* from its selection until it is settled (acked, terminated, given up or removed); at most `limit` of a
key are. Others of the key *wait*, in the order of the stream, until one of those is settled; the next is *ready* then.
A ready message has its place among those out, so that nothing of its key passes it.

All is in flat arrays, since there may be 100,000 keys: docs/consumers.md has the measured cost.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final

from jetcluster.consumer.owner.key_table import KeyTable

NO_KEY: Final = 0
"""The key of messages that have none: they wait for no others."""

_GONE, _OUT, _WAITS, _READY, _LEFT = range(5)
"""States of a message. _LEFT: it waited and is settled, but the one before it still leads to it."""
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
        "blocked",
        "left",
        "limit",
        "waiting",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0
        """Number of messages that wait or are ready."""
        self.left = 0
        """Number of messages that waited, are settled, and take their place until those before them have gone on."""
        self.blocked = 0
        """Number of keys whose messages wait."""
        self._restoring = False
        """True until all of the replicated state is here: a key may have more messages out than is known yet."""
        self._heap: list[int] = []
        """Sequences that are ready; some may be settled since."""
        self._table = KeyTable()
        self._seqs = array("Q")
        """Sequences of all known messages, ascending. Parallel to it:"""
        self._keys = array("Q")
        self._next = array("Q")
        """Sequence of the next waiting message of the key; after the last one the first."""
        self._states = bytearray()
        self._stale = 0
        """Number of messages that are _GONE."""

    @property
    def ready(self) -> bool:
        """True while messages are ready."""
        heap = self._heap
        while heap:
            at = self._at(heap[0])
            if at >= 0 and self._states[at] == _READY:
                return True
            heapq.heappop(heap)
        return False

    # -- selection --------------------------------------------------------------------------------------------------

    def offer(self, seq: int, key: int) -> bool:
        """Add a message above all earlier ones. Return True when it may be sent and is out; False when it waits."""
        if key != NO_KEY:
            out, last = self._table.get(key)
            if out >= self.limit:
                self._wait(seq, key, out, last)
                return False
            self._table.set(key, out + 1, last)
        self._append(seq, key, _OUT)
        return True

    def restore(self, seq: int, key: int, *, held: bool) -> None:
        """Add a message of the replicated state, above all earlier ones: it is out, or it waits (`held`). When all are
        there `check` must be called for all keys that `restored` returns."""
        self._restoring = True
        out, last = self._table.get(key) if key != NO_KEY else (0, 0)
        if held and key != NO_KEY:
            self._wait(seq, key, out, last)
            return
        self._append(seq, key, _OUT)
        if held:
            self.give_back([seq])
        elif key != NO_KEY:
            self._table.set(key, out + 1, last)

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
        """Take at most `want` ready messages, ascending: they are out now."""
        taken: list[int] = []
        while len(taken) < want and self.ready:
            seq = heapq.heappop(self._heap)
            self._states[self._at(seq)] = _OUT
            taken.append(seq)
        self.waiting -= len(taken)
        return taken

    def give_back(self, seqs: Sequence[int]) -> None:
        """Make messages ready that are out and were not sent."""
        for seq in seqs:
            self._states[self._at(seq)] = _READY
            heapq.heappush(self._heap, seq)
        self.waiting += len(seqs)

    def settle(self, seqs: Iterable[int]) -> None:
        """Forget messages: they are settled. Others of their keys become ready."""
        for seq in seqs:
            at = self._at(seq)
            state = self._states[at] if at >= 0 else _GONE
            if state == _WAITS:
                self._states[at] = _LEFT
                self.waiting -= 1
                self.left += 1
            elif state in (_OUT, _READY):
                self.waiting -= state == _READY
                key = self._keys[at]
                self._forget(at)
                if key != NO_KEY:
                    out, last = self._table.get(key)
                    self._table.set(key, out - 1, last)
                    if last and not self._restoring:
                        self._advance(key)

    # -- internals --------------------------------------------------------------------------------------------------

    def _at(self, seq: int) -> int:
        """Return the position of `seq`, -1 when it is not known."""
        seqs = self._seqs
        at = bisect_left(seqs, seq)
        return at if at < len(seqs) and seqs[at] == seq else -1

    def _append(self, seq: int, key: int, state: int) -> None:
        assert not self._seqs or seq > self._seqs[-1], (seq, self._seqs[-1])
        self._seqs.append(seq)
        self._keys.append(key)
        self._next.append(seq)
        self._states.append(state)

    def _wait(self, seq: int, key: int, out: int, last: int) -> None:
        """Let a new message wait behind `last`."""
        self._append(seq, key, _WAITS)
        if last:
            behind = self._at(last)
            self._next[-1], self._next[behind] = self._next[behind], seq
        else:
            self.blocked += 1
        self._table.set(key, out, seq)
        self.waiting += 1

    def _advance(self, key: int) -> None:
        """Make the first waiting messages of `key` ready while there is room."""
        out, last = self._table.get(key)
        while last and out < self.limit:
            behind = self._at(last)
            first = self._next[behind]
            at = self._at(first)
            self._next[behind] = self._next[at]
            if first == last:
                last = 0
                self.blocked -= 1
            if self._states[at] == _LEFT:
                self.left -= 1
                self._forget(at)
                continue
            self._states[at] = _READY
            heapq.heappush(self._heap, first)
            out += 1
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
