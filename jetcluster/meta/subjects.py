"""An index of the subjects of an account's streams: it finds overlaps without walking over every stream."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.model.patterns import Patterns


class SubjectBook:
    """Streams' subjects as one set of patterns, so that creating the thousandth stream costs about what the first
    did."""

    def __init__(self) -> None:
        self._patterns = Patterns()
        self._of: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, name: str, subjects: Sequence[str]) -> None:
        for subject in subjects:
            self._patterns.add(subject)
        if subjects:
            self._of.setdefault(name, []).extend(subjects)

    def remove(self, name: str) -> None:
        """Everything of the stream."""
        for subject in self._of.pop(name, ()):
            self._patterns.remove(subject)

    def effort(self, subjects: Sequence[str]) -> int:
        """Most look-ups that `overlaps` takes."""
        return len(subjects) * self._patterns.shapes

    def overlaps(self, subjects: Sequence[str], but: str) -> bool:
        """True when a stream other than `but` has a subject in common with `subjects`."""
        own = self._of.get(but)
        if not own:
            return any(map(self._patterns.overlap, subjects))
        mine = Patterns(own)
        return any(self._patterns.overlaps(subject) > mine.overlaps(subject) for subject in subjects)
