"""`LastSearch`: the last message of every subject that matches one of many filters, as of one moment, in steps."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from jetcluster.store import filters
from jetcluster.store.blocks import BlockTable
from jetcluster.store.filter_set import FEW, FilterSet, Wanted
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.queries import Queries, is_literal
from jetcluster.store.subject_index import SubjectIndex
from jetcluster.store.view import View, Views

SEEKS: Final = 64
"""Subjects whose postings may have to be asked, in a step."""
LOOKS: Final = 1024
"""Literal subjects looked up in a step."""
TRIES: Final = 3


class LastSearch:
    """For one search."""

    def __init__(self, queries: Queries, index: SubjectIndex, views: Views, blocks: BlockTable) -> None:
        self._queries = queries
        self._index = index
        self._views = views
        self._blocks = blocks

    def steps(
        self, subject_filters: Iterable[bytes], up_to: int | None, limit: int
    ) -> Generator[None, None, list[int] | None]:
        """Ascending sequences, each the last at or below `up_to` (None: of all) of a subject; None when there are more
        than `limit`. They are of the moment when the search ends; where `up_to` leaves out what came later, messages
        at or below it are the same all the time."""
        parts = yield from self._arranged(list(dict.fromkeys(subject_filters)))
        if up_to is None:
            for wanted in parts:
                if not is_literal(wanted) and not (yield from self._index.kept.finding(wanted, limit)):
                    return None
            return self._found(parts, MAX_SEQ, limit)
        for _ in range(TRIES):
            watch = View(self._views, b">", self._blocks.first_seq, up_to)
            self._views.held.add(watch)
            try:
                found = yield from self._below(parts, up_to, limit, watch)
                if not watch.lost:
                    return found
            finally:
                watch.close()
        return self._found(parts, up_to, limit)

    def _arranged(self, subject_filters: list[bytes]) -> Generator[None, None, list[Wanted]]:
        parts: list[Wanted] = []
        wild: list[bytes] = []
        for start in range(0, len(subject_filters), LOOKS):
            for one in subject_filters[start : start + LOOKS]:
                (parts if filters.is_literal(one) else wild).append(one)
            if start:
                yield
        if len(wild) <= FEW:
            return [*parts, *wild]
        for start in range(0, len(wild), LOOKS):
            parts.append(FilterSet(wild[start : start + LOOKS]))
            yield
        return parts

    def _found(self, parts: Iterable[Wanted], up_to: int, limit: int) -> list[int] | None:
        """All at once."""
        found: set[int] = set()
        for wanted in parts:
            found.update(self._queries.last_seqs(wanted, up_to, limit))
            if len(found) > limit:
                return None
        return sorted(found)

    def _below(
        self, parts: Iterable[Wanted], up_to: int, limit: int, watch: View
    ) -> Generator[None, None, list[int] | None]:
        """Subject by subject; void when `watch` has lost what it looks at."""
        found: set[int] = set()
        last = self._index.last_at_or_before
        for number, subject in enumerate(self._subjects(parts), 1):
            seq = last(subject, up_to) if subject else None
            if seq is not None:
                found.add(seq)
                if len(found) > limit:
                    return None
            if not subject or not number % SEEKS:
                yield
                if watch.lost:
                    return None
        return sorted(found)

    def _subjects(self, parts: Iterable[Wanted]) -> Generator[bytes, None, None]:
        """Matching subjects that there are, and b"" after so much work."""
        there = self._index.table.__contains__
        looked = 0
        for wanted in parts:
            if is_literal(wanted):
                looked += 1
                if there(wanted):
                    yield wanted
                if not looked % LOOKS:
                    yield b""
                continue
            for subjects in self._index.kept.walk(wanted):
                yield from filter(there, subjects)
                yield b""
