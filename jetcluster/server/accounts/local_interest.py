"""`LocalInterest`: what this node wants of one account, counted, and told to those who have to know.

These are the mesh (`protocol.interest.InterestListener`), the account's leaf links, and who waits for a subject to find
a taker or to lose one (`InterestWatches`): consumers whose deliver subject nobody listens on wait for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jetcluster.protocol import subjects
from jetcluster.protocol.interest import RemotePeer
from jetcluster.server.accounts.subscription import LeafPeer

Note = Callable[[], None]
MAX_COMPARED = 64
"""Awaited replies that one wildcard subscription's end is compared with; with more, those who wait run out of patience
instead. An inbox, `head.*`, is found at once among any number."""
Subject = tuple[bytes, bytes | None]
"""A subject and the queue group, None for plain interest."""
InterestChanged = Callable[[str, bytes, bytes | None, int], None]


class InterestWatches:
    """Watches of literal subjects, found by the subscription that begins or ends: by the subject itself, for
    `head.*` (a client's inbox) by what stands before the last token, for other wildcards by looking at all."""

    def __init__(self, most_looked_at: int | None = None) -> None:
        """`most_looked_at`: with more watches than this, subscriptions that would have all looked at tell nobody."""
        self._most = most_looked_at
        self._notes: dict[bytes, dict[object, Note]] = {}
        self._heads: dict[bytes, dict[bytes, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._notes)

    def __len__(self) -> int:
        """Entries that are kept: none once every watch has ended."""
        return len(self._notes) + len(self._heads)

    def add(self, subject: bytes, note: Note) -> Callable[[], None]:
        """Returns what ends the watch; ending it twice does nothing."""
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
        """A subscription to `subject`, which may have wildcards, has come or gone."""
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
    """The interest of one account. Every count is positive: what nobody wants has no entry."""

    def __init__(self, account: str, changed: InterestChanged | None = None) -> None:
        """`changed` is told as `InterestListener` says."""
        self._account = account
        self._changed = changed
        self._counts: dict[Subject, int] = {}
        self._offered: dict[bytes, int] = {}
        """Told to leaf links and not to other nodes: subjects that each node maps or imports for itself."""
        self._watches = InterestWatches()
        self._awaited: InterestWatches | None = None
        """Told of interest that ends, of an account that waits for responses of others."""
        self.leaf_links: list[LeafPeer] = []
        """Links that have been told what this account wants, and hear of every change."""

    def count(self, subject: bytes, queue: bytes | None, change: int, source: LeafPeer | None = None) -> None:
        """Members came, or went when `change` is negative. `source`: the leaf link that has them, None when they are of
        this node."""
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
        """The same of members that another node has, or the hub at the other end of a leaf link: leaf links alone are
        told of these."""
        for link in self.leaf_links:
            link.interest_changed(source, subject, queue, change)

    def offer(self, subject: bytes, change: int) -> None:
        """The same of a subject that each node takes for itself: leaf links alone are told."""
        self._offered[subject] = self._offered.get(subject, 0) + change
        if not self._offered[subject]:
            del self._offered[subject]
        for link in self.leaf_links:
            link.interest_changed(None, subject, None, change)

    def entries(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """(subject, queue, count) of what this node wants; the count of plain interest is 1. May be left and taken up
        again: each is told as it is then."""
        for key in list(self._counts):
            count = self._counts.get(key)
            if count is not None:
                subject, queue = key
                yield subject, queue, count if queue is not None else 1

    def counts(self) -> dict[Subject, int]:
        """Members by subject and queue, those behind this node's leaf links included; a copy."""
        return dict(self._counts)

    def offered(self) -> dict[bytes, int]:
        """The subjects of `offer`, counted; a copy."""
        return dict(self._offered)

    # ---- who waits for a taker, or for the last one to go

    def watch(self, subject: bytes, note: Callable[[], None]) -> Callable[[], None]:
        """`note` is called when interest in `subject` begins or ends; returns what ends this."""
        return self._watches.add(subject, note)

    @property
    def watched(self) -> int:
        """Entries that are kept for `watch`: none once every watch has ended."""
        return len(self._watches)

    def await_end(self, subject: bytes, note: Callable[[], None]) -> Callable[[], None]:
        """`note` is called when somebody stops to take `subject`, perhaps the last; returns what ends this."""
        if self._awaited is None:
            self._awaited = InterestWatches(MAX_COMPARED)
        return self._awaited.add(subject, note)

    def note(self, subject: bytes, *, ended: bool) -> None:
        """Interest in `subject` has begun, or `ended`, somewhere else."""
        self._watches.changed(subject)
        if ended and self._awaited is not None:
            self._awaited.changed(subject)
