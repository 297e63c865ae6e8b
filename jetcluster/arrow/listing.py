"""Listings of the subjects that a stream has, in pages: to plan who reads which, and by those who read.

A plan has the names while they are few. Of many it keeps ranges alone, by the names at their ends, so that neither the
one who plans nor the plan grows with the subjects; each task lists its range again, page by page.

A page begins at a count of subjects, so when some in front of it go, those behind them move into the page before.
Therefore each page overlaps with the one before it, and one that does not any more is asked for again from further in
front. So each subject is listed that had a message all the time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from jetcluster.arrow.cut import ChangedError
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.planner import LAST_CHUNK_SUBJECTS, SubjectRange, Subjects
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ask
from jetcluster.protocol.subjects import matches

MAX_NAMED: Final = 100_000
"""Subjects whose names a plan has: as many as a server's page."""
RANGE_SUBJECTS: Final = 100_000
"""Subjects of a range, where no option says it."""
OVERLAP_GROWTH: Final = 16
MAX_OVERLAP: Final = 50_000
"""Subjects; half of a server's page."""
MAX_STEPS_BACK: Final = 100
"""Pages of subjects that are asked for again before a listing is given up."""
PAGE_SECONDS: Final = 30.0


class Page(NamedTuple):
    """A part of a listing as a server gives it."""

    stream: str
    last_seq: int
    """The stream's last sequence at the leader that answered."""
    total: int
    """The number of all subjects of the filter."""
    names: list[str]
    """In order."""
    place: int = 0
    """The number of subjects before them."""


AskPage = Callable[[str, int], Page]
"""Asks for the page of a filter that begins behind so many subjects."""


def page(link: Connection, stream: str, subject_filter: str, place: int) -> Page:
    """Raises what `Connection.api` raises."""
    body = {"subjects_filter": subject_filter, "offset": place}
    info = link.api(f"STREAM.INFO.{stream}", body, timeout=PAGE_SECONDS)
    state = info["state"]
    return Page(stream, int(state["last_seq"]), int(info.get("total", 0)), sorted(state.get("subjects") or ()), place)


def asked_page(options: SourceOptions, stream: str, subject_filter: str, place: int) -> Page:
    """The same over a connection of its own, for `retryTimeout`. Raises what `ask` raises."""

    def question(link: Connection) -> Page:
        return page(link, stream, subject_filter, place)

    return ask(options.server, question, options.retry_timeout)


def plan(
    ask_page: AskPage,
    filters: Sequence[str],
    at_least: int = 0,
    *,
    size: int,
    least: int = 0,
) -> Subjects:
    """Returns the subjects of the stream's messages up to `at_least` or a later one: by name, or if they are more than
    MAX_NAMED, in ranges of about `size`, about `least` of them where that makes more. Raises ChangedError when a leader
    that answers has not reached that sequence, or subjects go faster than they are listed, and what `ask_page`
    raises."""
    names: dict[str, None] | None = {}
    ranges: list[SubjectRange] = []
    for at, one in enumerate(filters):
        cuts: list[tuple[str, int]] = []
        step, left, last = 0, 0, ""
        for found in _pages(ask_page, one, at_least):
            if names is not None:
                names.update(dict.fromkeys(found.names))
                names = names if len(names) <= MAX_NAMED else None
            step = step or max(min(size, found.total // least if least else size), LAST_CHUNK_SUBJECTS)
            begin = bisect_right(found.names, last) + left
            while begin < len(found.names):
                cuts.append((found.names[begin], found.place + begin))
                begin += step
            left = begin - len(found.names)
            last = found.names[-1] if found.names else last
        ranges += _between(one, cuts, tuple(filters[:at]))
    return Subjects(ranges=tuple(ranges)) if names is None else Subjects(tuple(names))


def _between(subject_filter: str, cuts: list[tuple[str, int]], elsewhere: tuple[str, ...]) -> Iterator[SubjectRange]:
    """Yields the ranges that begin at cuts. The first one begins before any subject, the last one has no end."""
    for at, (low, place) in enumerate(cuts):
        high = cuts[at + 1][0] if at + 1 < len(cuts) else ""
        yield SubjectRange(subject_filter, low if at else "", high, place if at else 0, elsewhere)


def names(ask_page: AskPage, filters: Sequence[str], at_least: int = 0) -> Iterator[list[str]]:
    """Yields all subjects in pages; some are in two of them. Raises as `plan`."""
    for one in filters:
        for found in _pages(ask_page, one, at_least):
            yield found.names


def within(ask_page: AskPage, part: SubjectRange, at_least: int = 0) -> Iterator[tuple[str, ...]]:
    """Yields the subjects of a range in order, each once, page by page. Raises as `plan`."""
    others = [one.encode() for one in part.elsewhere]
    last = ""
    for found in _pages(ask_page, part.filter, at_least, part.place, part.low):
        first = bisect_right(found.names, last) if last else bisect_left(found.names, part.low)
        end = bisect_left(found.names, part.high) if part.high else len(found.names)
        held = found.names[first:end]
        if held:
            last = held[-1]
            yield tuple(name for name in held if not any(matches(name.encode(), other) for other in others))
        if end < len(found.names):
            return


def _pages(ask_page: AskPage, subject_filter: str, at_least: int, place: int = 0, last: str = "") -> Iterator[Page]:
    """Yields pages until none is left; the first one begins with `last` or before it."""
    overlap, gone_back = 1, 0
    while True:
        found = ask_page(subject_filter, place)
        if found.last_seq < at_least:
            raise ChangedError(f"{found.stream}: the leader that answers ends before {at_least}")
        page_names = found.names
        if place and (not page_names or page_names[0] > last):
            gone_back += 1
            if gone_back > MAX_STEPS_BACK:
                raise ChangedError(f"{found.stream}: subjects of {subject_filter} go faster than they are listed")
            overlap = min(overlap * OVERLAP_GROWTH, MAX_OVERLAP)
            place = max(min(place, found.total) - overlap, 0)
            continue
        yield found
        if not page_names or place + len(page_names) >= found.total:
            return
        last = page_names[-1]
        place += max(len(page_names) - min(overlap, len(page_names) // 2), 1)
