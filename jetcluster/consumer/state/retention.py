"""`ConsumerRetention`: which messages go because of what consumers did (work queue and interest).

- `workqueue`: a message goes when it is acked or termed; filters of a work queue's consumers never overlap, so nobody
  else can want it.
- `interest`: a message goes when no consumer whose filter it matches has yet to get or acknowledge it. A message that
  nobody wants when it is published is not kept.

A message that was delivered as often as is permitted stays, as nobody acked it. Limits apply as well; that is the
machine's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.protocol.subjects import is_literal
from jetcluster.protocol.sublist import Sublist
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.ports import Sift
from jetcluster.stream.rules import INTEREST, LIMITS, WORKQUEUE

MESSAGES_PER_STEP: Final = 4096
"""Messages looked at in one step."""
MAX_SUBJECTS: Final = 8192
"""Subjects whose takers are remembered."""
MAX_EXHAUSTED_GONE: Final = 1024
"""Messages that are gone and may still be remembered as exhausted."""
ASKED_FIRST: Final = 16
"""With so many consumers all are asked first: mostly nobody else wants the message, and its subject is not needed."""


class ConsumerRetention:
    """`consumers` are the table's, by id. All methods may raise DamagedError."""

    def __init__(self, store: BlockStore, consumers: Mapping[int, ConsumerState]) -> None:
        self.policy = LIMITS
        self._store = store
        self._consumers = consumers
        self._takers: dict[bytes, list[ConsumerState]] = {}
        self._literal: dict[bytes, list[ConsumerState]] = {}
        self._wants_all: list[ConsumerState] = []
        self._index_of_wildcards = _new_index()
        self._indexed = False

    def consumers_changed(self) -> None:
        """One came, went, or has other filters."""
        self._indexed = False

    def stored(self, first_seq: int, last_seq: int) -> None:
        """New messages; those that nobody wants go."""
        if self.policy != INTEREST:
            return
        store = self._store
        if not self._consumers:
            self._remove_all_from(first_seq, last_seq)
            return
        if not self._indexed:
            self._index()
        if any(state.delivered_sseq < first_seq for state in self._wants_all):
            return
        for start in range(max(first_seq, store.first_seq), last_seq + 1, MESSAGES_PER_STEP):
            self._sift(range(start, min(start + MESSAGES_PER_STEP, last_seq + 1)))

    def settled(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        """Acked or termed; `state` does not want them any more."""
        if self.policy == LIMITS or not seqs:
            return
        ordered = sorted(seqs)
        if self.policy == WORKQUEUE or self._alone(state, ordered[-1]):
            self._store.delete_all(ordered)
        else:
            self._sift(ordered)

    def exhausted(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        """Delivered as often as is permitted: kept for this consumer, independently of the others."""
        if self.policy != INTEREST:
            return
        kept = state.exhausted
        if len(kept.keys) > 2 * self._store.messages + MAX_EXHAUSTED_GONE:
            for seq in [seq for seq in kept.keys if not self._store.contains(seq)]:
                kept.discard(seq)
        for seq in seqs:
            kept.add(seq)

    def passed(self, state: ConsumerState, low: int, high: int) -> None:
        """Deliveries went from above `low` to `high` without waiting for acks, or left some out."""
        if self.policy == LIMITS or (self.policy == WORKQUEUE and state.rules.acks):
            return
        alone = self.policy == WORKQUEUE or self._alone(state, high)
        for seqs in self._matching(state.rules.filters, low + 1, high):
            if alone:
                self._store.delete_all([seq for seq in seqs if seq not in state.pending])
            else:
                self._sift(seqs)

    def released(self, filters: Sequence[bytes], low: int, sift: Sift) -> None:
        """A consumer is gone, has other filters or begins elsewhere: what it wanted from `low` on with `filters`, and
        nobody else, goes; `sift` does that in pieces."""
        if self.policy != INTEREST:
            return
        store = self._store
        consumers = self._consumers.values()
        if not consumers:
            store.compact(store.last_seq + 1)
            return
        # Above the cursor of a consumer without filter nothing has to be looked at: it wants all of that.
        high = min([store.last_seq, *(state.delivered_sseq for state in consumers if state.rules.filters == (b">",))])
        if low <= high:
            sift(filters, low, high)

    def begin(self, sift: Sift) -> None:
        """The stream's retention has become `interest`: what nobody wants goes, all of it when there is no consumer;
        `sift` does that in pieces."""
        store = self._store
        if not self._consumers:
            store.compact(store.last_seq + 1)
            return
        sift((b">",), store.first_seq, store.last_seq)

    def _sift(self, seqs: Sequence[int]) -> None:
        """Removes those of the ascending `seqs` that nobody wants."""
        columns = self._store.read_columns(seqs)
        wanted = self.wanted
        doomed = [
            seq for seq, subject in zip(columns.seqs, columns.subjects, strict=True) if not wanted(seq, subject)
        ]  # fmt: skip
        if doomed:
            self._store.delete_all(doomed)

    def wanted(self, seq: int, subject: bytes) -> bool:
        """The message at `seq` is for a consumer that has yet to get or acknowledge it."""
        return any(state.wants(seq) for state in self._takers_of(subject))

    def _alone(self, state: ConsumerState, highest: int) -> bool:
        """True when certainly no other consumer wants a message up to `highest`."""
        consumers = self._consumers
        if len(consumers) > ASKED_FIRST:
            return False
        return not any(
            other is not state and (other.delivered_sseq < highest or other.unacked.entries or other.exhausted.keys)
            for other in consumers.values()
        )

    def _remove_all_from(self, first_seq: int, last_seq: int) -> None:
        store = self._store
        if store.first_seq >= first_seq:
            store.compact(last_seq + 1)
        else:
            store.delete_all(range(first_seq, last_seq + 1))

    def _matching(self, filters: Sequence[bytes], low: int, high: int) -> Iterator[list[int]]:
        """Stored sequences in low..high that match, ascending, in pieces; the pieces given may be removed meanwhile."""
        while low <= high:
            found = self._store.next_seqs(filters, low, MESSAGES_PER_STEP)
            if not found:
                return
            low = found[-1] + 1
            while found and found[-1] > high:
                found.pop()
            if found:
                yield found

    def _takers_of(self, subject: bytes) -> list[ConsumerState]:
        if not self._indexed:
            self._index()
        takers = self._takers.get(subject)
        if takers is None:
            if len(self._takers) >= MAX_SUBJECTS:
                self._takers.clear()
            takers = self._literal.get(subject, []) + self._index_of_wildcards.match(subject)
            self._takers[subject] = takers
        return takers

    def _index(self) -> None:
        self._indexed = True
        self._takers.clear()
        self._literal.clear()
        self._wants_all.clear()
        self._index_of_wildcards = _new_index()
        for state in self._consumers.values():
            for filter in state.rules.filters:
                if is_literal(filter):
                    self._literal.setdefault(filter, []).append(state)
                else:
                    if filter == b">":
                        self._wants_all.append(state)
                    self._index_of_wildcards.insert(_Filter(filter, state))


class _Filter:
    """A wildcard of a consumer."""

    __slots__ = ("queue", "state", "subject")

    def __init__(self, subject: bytes, state: ConsumerState) -> None:
        self.subject = subject
        self.queue: bytes | None = None
        self.state = state


def _new_index() -> Sublist[_Filter, list[ConsumerState]]:
    return Sublist(lambda subject, found, queues: [one.state for one in found])
