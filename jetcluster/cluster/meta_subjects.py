"""Which stream of an account listens to which subjects: the overlap question, without walking over every stream."""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.model.subjects import tokens_overlap

_Entry = tuple[str, ...]


class SubjectBook:
    """Streams' subjects by their first token: most overlaps are ruled out there, so that creating the thousandth
    stream costs about what the first did."""

    def __init__(self) -> None:
        self._by_first: dict[str, dict[str, list[_Entry]]] = {}
        """First token ("*" for both wildcards) -> stream name -> its subjects, split."""

    def add(self, name: str, subjects: Sequence[str]) -> None:
        for subject in subjects:
            entry = tuple(subject.split("."))
            self._by_first.setdefault(_bucket(entry), {}).setdefault(name, []).append(entry)

    def remove(self, name: str, subjects: Sequence[str]) -> None:
        for subject in subjects:
            bucket = _bucket(tuple(subject.split(".")))
            streams = self._by_first.get(bucket, {})
            streams.pop(name, None)
            if not streams:
                self._by_first.pop(bucket, None)

    def overlapping(self, subjects: Sequence[str], but: str) -> str | None:
        """Name of a stream other than `but` that has a subject in common with `subjects`; None when there is none."""
        for subject in subjects:
            entry = tuple(subject.split("."))
            first = _bucket(entry)
            buckets = list(self._by_first.values()) if first == "*" else self._near(first)
            for streams in buckets:
                for name, entries in streams.items():
                    if name != but and any(tokens_overlap(entry, other) for other in entries):
                        return name
        return None

    def _near(self, first: str) -> list[dict[str, list[_Entry]]]:
        return [bucket for bucket in (self._by_first.get(first), self._by_first.get("*")) if bucket]


def _bucket(entry: _Entry) -> str:
    return "*" if entry[0] in {"*", ">"} else entry[0]
