"""`KeyStocks`: the ready messages of a consumer whose members have keys of their own, by hash slot and by member.

A slot's messages are in a heap of their own, so that a slot that moves takes them along at once. Each member has a heap
of the first messages of its slots; entries that are outdated are dropped when they come up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

NOBODY = 0
"""The member of a slot that belongs to none."""


class KeyStocks:
    """Sequences by slot. `slots`: slot -> number of the member that has it; `moved` follows its changes."""

    __slots__ = ("_heaps", "_of_member", "_slots")

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._heaps: dict[int, list[int]] = {}
        """Slot -> heap of its sequences, never empty."""
        self._of_member: dict[int, list[tuple[int, int]]] = {}
        """Member -> heap of (first sequence, slot), with one entry at least for each of its slots that has some."""

    def push(self, slot: int, seq: int) -> None:
        heap = self._heaps.setdefault(slot, [])
        heapq.heappush(heap, seq)
        if heap[0] == seq:
            self._show(slot, seq)

    def pop(self, member: int) -> int:
        """Take the first message of a member's slots; 0 when it has none."""
        if not self.has(member):
            return 0
        shown = self._of_member[member]
        seq, slot = heapq.heappop(shown)
        heap = self._heaps[slot]
        heapq.heappop(heap)
        if heap:
            heapq.heappush(shown, (heap[0], slot))
        else:
            del self._heaps[slot]
        return seq

    def has(self, member: int) -> bool:
        """Return True when a member's slots have messages."""
        shown = self._of_member.get(member)
        while shown:
            seq, slot = shown[0]
            heap = self._heaps.get(slot)
            if heap and heap[0] == seq and self._slots[slot] == member:
                return True
            heapq.heappop(shown)
        self._of_member.pop(member, None)
        return False

    def members(self) -> list[int]:
        """Return the members that may have messages."""
        return list(self._of_member)

    def moved(self, slots: Iterable[int]) -> None:
        """Follow slots that have other members now."""
        for slot in slots:
            heap = self._heaps.get(slot)
            if heap:
                self._show(slot, heap[0])

    def forget(self, member: int) -> None:
        """Drop what is left of a member that has no slots any more."""
        self._of_member.pop(member, None)

    def all(self) -> list[int]:
        """Return the messages of all slots, in no order."""
        return [seq for heap in self._heaps.values() for seq in heap]

    def _show(self, slot: int, seq: int) -> None:
        member = self._slots[slot]
        if member != NOBODY:
            heapq.heappush(self._of_member.setdefault(member, []), (seq, slot))
