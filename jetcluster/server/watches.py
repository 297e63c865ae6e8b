"""Watches on interest: they are told when the first subscriber to a subject appears. Consumers whose deliver subject
has none set them.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.protocol import subjects

Note = Callable[[], None]


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
