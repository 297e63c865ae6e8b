"""`LocalInterest`: the counted interest of this node in one account, with the listeners to its changes.

They are the mesh (`protocol.interest.InterestListener`), the account's leaf links, and watches of single subjects
(`InterestWatches`), such as of consumers that wait for a subscription to their deliver subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jetcluster.protocol import subjects
from jetcluster.protocol.interest import RemotePeer
from jetcluster.server.accounts.subscription import LeafPeer

Note = Callable[[], None]
MAX_COMPARED = 64
"""Awaited replies up to which all are compared with an ended wildcard subscription; more time out instead."""
Subject = tuple[bytes, bytes | None]
"""A subject and its queue group, None for plain interest."""
InterestChanged = Callable[[str, bytes, bytes | None, int], None]


class InterestWatches:
    """Watches of literal subjects, found by a subscription that begins or ends: by the literal subject, for `head.*` (a
    client's inbox) by its head, for other wildcards by comparing all."""

    def __init__(self, max_compared: int | None = None) -> None:
        """`max_compared`: watched subjects up to which all are compared; with more, none is called in that case."""
        self._most = max_compared
        self._notes: dict[bytes, dict[object, Note]] = {}
        self._heads: dict[bytes, dict[bytes, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._notes)

    def __len__(self) -> int:
        """Returns the number of entries, 0 when every watch has ended."""
        return len(self._notes) + len(self._heads)

    def add(self, subject: bytes, note: Note) -> Callable[[], None]:
        """Watches `subject`; returns a function that ends the watch. Ending it twice does nothing."""
        key = object()
        self._notes.setdefault(subject, {})[key] = note
        self._heads.setdefault(subject.rpartition(b".")[0], {})[subject] = None
        return lambda: self._end(subject, key)

    def _end(self, subject: bytes, key: object) -> None:
        notes = self._notes.get(subject)
        if notes is None or notes.pop(key, None) is None or notes:
            return
        del self._notes[subject]
        head = subject.rpartition(b".")[0]
        del self._heads[head][subject]
        if not self._heads[head]:
            del self._heads[head]

    def changed(self, subject: bytes) -> None:
        """Calls the watches of all subjects that `subject`, of a subscription that began or ended, matches."""
        for watched in self._affected(subject):
            for note in list(self._notes.get(watched, {}).values()):
                note()

    def _affected(self, subject: bytes) -> list[bytes]:
        if subjects.is_literal(subject):
            return [subject] if subject in self._notes else []
        head, _, last = subject.rpartition(b".")
        if last == b"*" and subjects.is_literal(head):
            return list(self._heads.get(head, ()))
        if self._most is not None and len(self._notes) > self._most:
            return []
        return [watched for watched in self._notes if subjects.matches(watched, subject)]


class LocalInterest:
    """The interest of this node in one account. All counts are positive."""

    def __init__(self, account: str, changed: InterestChanged | None = None) -> None:
        """`changed` is called as `InterestListener` defines."""
        self._account = account
        self._changed = changed
        self._counts: dict[Subject, int] = {}
        self._offered: dict[bytes, int] = {}
        """Subjects that each node maps or imports for itself: announced to leaf links, not to other nodes."""
        self._watches = InterestWatches()
        self._awaited: InterestWatches | None = None
        """Watches of interest that ends, in an account that awaits responses of others."""
        self.leaf_links: list[LeafPeer] = []
        """Leaf links that have joined, which get every change."""

    def count(self, subject: bytes, queue: bytes | None, change: int, source: LeafPeer | None = None) -> None:
        """Adds `change` members (negative: removes). `source`: the leaf link that has them, None for this node."""
        key = (subject, queue)
        before = self._counts.get(key, 0)
        count = before + change
        assert count >= 0
        if count:
            self._counts[key] = count
        else:
            del self._counts[key]
        if self._watches and (not before or not count):
            self._watches.changed(subject)
        if not count and self._awaited is not None:
            self._awaited.changed(subject)
        for link in self.leaf_links:
            link.interest_changed(source, subject, queue, change)
        if self._changed is None:
            return
        if queue is not None:
            self._changed(self._account, subject, queue, count)
        elif not before or not count:
            self._changed(self._account, subject, None, count)

    def count_elsewhere(self, source: RemotePeer, subject: bytes, queue: bytes | None, change: int) -> None:
        """Announces members of another node, or of the hub on a leaf link, to leaf links only."""
        for link in self.leaf_links:
            link.interest_changed(source, subject, queue, change)

    def offer(self, subject: bytes, change: int) -> None:
        """Counts a subject that each node takes for itself, and announces it to leaf links only."""
        self._offered[subject] = self._offered.get(subject, 0) + change
        if not self._offered[subject]:
            del self._offered[subject]
        for link in self.leaf_links:
            link.interest_changed(None, subject, None, change)

    def entries(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Yields this node's interest as (subject, queue, current count), with count 1 for plain interest."""
        for key in list(self._counts):
            count = self._counts.get(key)
            if count is not None:
                subject, queue = key
                yield subject, queue, count if queue is not None else 1

    def counts(self) -> dict[Subject, int]:
        """Returns a copy of the members by subject and queue, including those behind this node's leaf links."""
        return dict(self._counts)

    def offered(self) -> dict[bytes, int]:
        """Returns a copy of the counted subjects of `offer`."""
        return dict(self._offered)

    # ---- watches

    def watch(self, subject: bytes, note: Callable[[], None]) -> Callable[[], None]:
        """Calls `note` when interest in `subject` begins or ends; returns a function that ends the watch."""
        return self._watches.add(subject, note)

    @property
    def watched(self) -> int:
        """Number of entries for `watch`, 0 when every watch has ended."""
        return len(self._watches)

    def await_end(self, subject: bytes, note: Callable[[], None]) -> Callable[[], None]:
        """Calls `note` when a taker of `subject`, perhaps the last, ends; returns a function that ends the watch."""
        if self._awaited is None:
            self._awaited = InterestWatches(MAX_COMPARED)
        return self._awaited.add(subject, note)

    def note(self, subject: bytes, *, ended: bool) -> None:
        """Reports that interest in `subject` has begun, or `ended`, on another node or leaf link."""
        self._watches.changed(subject)
        if ended and self._awaited is not None:
            self._awaited.changed(subject)
