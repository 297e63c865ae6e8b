"""`ConsumerRetention`: removes messages that consumers no longer need (work queue and interest).

- `workqueue`: a message is removed when it is acked or termed; filters of a work queue's consumers never overlap, so
  no other consumer can want it.
- `interest`: a message is removed once every consumer whose filter matches it has got and acked it, and when it is
  published without such a consumer.

A message that reached max_deliver stays, since it was never acked. One whose dead letter waits stays until the letter
is confirmed, and counts as acked then. The machine applies the limits besides.
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
"""Messages examined in one step."""
MAX_CACHED_SUBJECTS: Final = 8192
"""Subjects whose interested consumers are cached."""
MAX_EXHAUSTED_GONE: Final = 1024
"""Removed messages that may still be listed as exhausted."""
MAX_CONSUMERS_ASKED: Final = 16
"""Up to this number, all others are asked first: mostly none wants the message, whose subject need not be read then."""


class ConsumerRetention:
    """The retention policy of one stream. `consumers` are the table's, by id. All methods may raise DamagedError."""

    def __init__(self, store: BlockStore, consumers: Mapping[int, ConsumerState]) -> None:
        self.policy = LIMITS
        self._store = store
        self._consumers = consumers
        self._takers: dict[bytes, list[ConsumerState]] = {}
        self._literal: dict[bytes, list[ConsumerState]] = {}
        self._wants_all: list[ConsumerState] = []
        self._burying: list[ConsumerState] = []
        """Consumers with dead letters."""
        self._index_of_wildcards = _new_index()
        self._indexed = False

    def consumers_changed(self) -> None:
        """Note that a consumer was added, removed, or got other filters or dead letters."""
        self._indexed = False

    def stored(self, first_seq: int, last_seq: int) -> None:
        """Remove those of the new messages that no consumer wants."""
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
        """Remove messages that were acked or termed by `state`, if no other consumer wants them."""
        if self.policy == LIMITS or not seqs:
            return
        ordered = sorted(seqs)
        if self.policy == WORKQUEUE or self._alone(state, ordered[-1]):
            self._store.delete_all(ordered)
        else:
            self._sift(ordered)

    def exhausted(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        """Keep messages that reached max_deliver of this consumer, independently of the others."""
        if self.policy != INTEREST:
            return
        kept = state.exhausted
        if len(kept.keys) > 2 * self._store.messages + MAX_EXHAUSTED_GONE:
            for seq in [seq for seq in kept.keys if not self._store.contains(seq)]:
                kept.discard(seq)
        for seq in seqs:
            kept.add(seq)

    def passed(self, state: ConsumerState, low: int, high: int) -> None:
        """Remove messages above `low` up to `high` that `state` got without acks, or skipped."""
        if self.policy == LIMITS or (self.policy == WORKQUEUE and state.rules.acks):
            return
        alone = self.policy == WORKQUEUE or self._alone(state, high)
        for seqs in self._matching(state.rules.filters, low + 1, high):
            if alone:
                self._store.delete_all([seq for seq in seqs if seq not in state.pending])
            else:
                self._sift(seqs)

    def released(self, filters: Sequence[bytes], low: int, sift: Sift) -> None:
        """Remove, by `sift` in pieces, the messages from `low` on that only a consumer with `filters` wanted: it was
        deleted, has other filters or begins elsewhere."""
        if self.policy != INTEREST:
            return
        store = self._store
        consumers = self._consumers.values()
        if not consumers:
            store.compact(store.last_seq + 1)
            return
        # An unfiltered consumer wants all messages above its cursor.
        high = min([store.last_seq, *(state.delivered_sseq for state in consumers if state.rules.filters == (b">",))])
        if low <= high:
            sift(filters, low, high)

    def begin(self, sift: Sift) -> None:
        """Remove, by `sift` in pieces, the messages that no consumer wants: the retention has become `interest`."""
        store = self._store
        if not self._consumers:
            store.compact(store.last_seq + 1)
            return
        sift((b">",), store.first_seq, store.last_seq)

    def _sift(self, seqs: Sequence[int]) -> None:
        """Remove those of the ascending `seqs` that no consumer wants."""
        columns = self._store.read_columns(seqs)
        wanted = self.wanted
        doomed = [
            seq for seq, subject in zip(columns.seqs, columns.subjects, strict=True) if not wanted(seq, subject)
        ]  # fmt: skip
        if doomed:
            self._store.delete_all(doomed)

    def wanted(self, seq: int, subject: bytes) -> bool:
        """Return True when a consumer has yet to get or ack the message at `seq`, or its letter waits: also with one
        whose filters were others then."""
        return any(state.wants(seq) for state in self._takers_of(subject)) or any(
            seq in state.letters.by_seq for state in self._burying
        )

    def forgotten(self, seqs: Sequence[int]) -> None:
        """Remove messages whose letters are forgotten, if no consumer wants them. A work queue keeps them."""
        if self.policy == INTEREST and seqs:
            self._sift(sorted(seqs))

    def _alone(self, state: ConsumerState, highest: int) -> bool:
        """Return True when certainly no other consumer wants a message up to `highest`."""
        consumers = self._consumers
        if len(consumers) > MAX_CONSUMERS_ASKED:
            return False
        return not any(
            other is not state
            and (
                other.delivered_sseq < highest or other.unacked.entries or other.exhausted.keys or other.letters.by_seq
            )
            for other in consumers.values()
        )

    def _remove_all_from(self, first_seq: int, last_seq: int) -> None:
        store = self._store
        if store.first_seq >= first_seq:
            store.compact(last_seq + 1)
        else:
            store.delete_all(range(first_seq, last_seq + 1))

    def _matching(self, filters: Sequence[bytes], low: int, high: int) -> Iterator[list[int]]:
        """Yield matching sequences in low..high, ascending, in pieces; the caller may remove each piece."""
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
            if len(self._takers) >= MAX_CACHED_SUBJECTS:
                self._takers.clear()
            takers = self._literal.get(subject, []) + self._index_of_wildcards.match(subject)
            self._takers[subject] = takers
        return takers

    def _index(self) -> None:
        self._indexed = True
        self._takers.clear()
        self._literal.clear()
        self._wants_all.clear()
        self._burying.clear()
        self._index_of_wildcards = _new_index()
        for state in self._consumers.values():
            if state.rules.letters is not None or state.letters:
                self._burying.append(state)
            for filter in state.rules.filters:
                if is_literal(filter):
                    self._literal.setdefault(filter, []).append(state)
                else:
                    if filter == b">":
                        self._wants_all.append(state)
                    self._index_of_wildcards.insert(_Filter(filter, state))


class _Filter:
    """A wildcard filter of a consumer."""

    __slots__ = ("queue", "state", "subject")

    def __init__(self, subject: bytes, state: ConsumerState) -> None:
        self.subject = subject
        self.queue: bytes | None = None
        self.state = state


def _new_index() -> Sublist[_Filter, list[ConsumerState]]:
    return Sublist(lambda subject, found, queues: [one.state for one in found])
