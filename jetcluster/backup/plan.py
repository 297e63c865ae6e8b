"""The decisions of a backup, as functions of what is stored and what the servers say; none of them does I/O.

- `base_of` and `longer`: which segments of a stream a run goes on from.
- `rewriting`: which neighbouring segments become one, as they are small or mostly deleted messages.
- `expired` and `unused`: which points and blobs are removed.
- `order`: in which order the streams are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from jetcluster.backup.point import Blob, RestorePoint, Segment, StreamPoint
from jetcluster.backup.segment import SEGMENT_BYTES
from jetcluster.backup.sequences import Sequences

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?")
MAX_SMALL_SEGMENTS: Final = 8
"""Neighbouring segments that together would be one; with more of them they become one."""


@dataclass(frozen=True, slots=True)
class StoredBase:
    """A stream in the destination when a run begins."""

    segments: tuple[Segment, ...] = ()
    anchor: tuple[int, str] = (0, "")
    stored: Sequences = field(default_factory=Sequences)
    """Sequences that are in the segments."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The segments of a stream that a point has, or that an interrupted run has written."""

    created: str
    segments: tuple[Segment, ...]
    anchor: tuple[int, str] = (0, "")
    live: Blob | None = None
    """The list of sequences of the point."""
    listed: tuple[Segment, ...] = ()
    """The segments that the list is of; an interrupted run has others besides."""


def base_of(points: Sequence[RestorePoint], stream: str, created: str) -> StreamProgress:
    """The segments of the newest point with this stream; none if it was created again since."""
    for point in sorted(points, key=lambda one: one.name, reverse=True):
        if (found := point.stream(stream)) is not None:
            same = found.created == created
            if not same:
                break
            return StreamProgress(created, found.segments, found.anchor, found.live, found.segments)
    return StreamProgress(created, ())


def longer(base: StreamProgress, partial: StreamProgress | None) -> StreamProgress:
    """The base, or what an interrupted run made of it if that goes farther."""
    if partial is None or partial.created != base.created:
        return base
    if end_of(partial.segments) <= end_of(base.segments):
        return base
    return partial if base.live is None else replace(partial, live=base.live, listed=base.segments)


def end_of(segments: Sequence[Segment]) -> int:
    return segments[-1].last if segments else 0


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Segments `start` to `end` (excluded) of a stream that become one or several others."""

    start: int
    end: int


def rewriting(segments: Sequence[Segment], live: Sequences) -> list[Rewrite]:
    """Returns stretches of segments to rewrite, ascending. A stretch is worth it if it holds more than
    MAX_SMALL_SEGMENTS that fit into one, or if less than half of its messages are live."""
    found: list[Rewrite] = []
    at = 0
    while at < len(segments):
        end, size, held, alive = at, 0, 0, 0
        while end < len(segments):
            one = segments[end]
            left = len(live.within(one.first, one.last))
            share = one.bytes * left // max(one.messages, 1)
            if end > at and size + share > SEGMENT_BYTES:
                break
            size, held, alive = size + share, held + one.messages, alive + left
            end += 1
        if end - at > MAX_SMALL_SEGMENTS or 2 * alive < held:
            found.append(Rewrite(at, end))
        at = end
    return found


def order(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the streams, copies (mirrors, streams with sources) before their origins: so a copy is never ahead of
    its origin after a restore."""
    done: dict[str, None] = {}
    copies: dict[str, list[str]] = {name: [] for name in configs}
    for name, config in sorted(configs.items()):
        for origin in origins(config):
            if origin in copies:
                copies[origin].append(name)
    for name in sorted(configs):
        _place(name, copies, done)
    return list(done)


def _place(name: str, copies: Mapping[str, list[str]], done: dict[str, None]) -> None:
    """Appends the copies of a stream, then the stream; without recursion, as chains may be long."""
    stack = [(name, False)]
    begun: set[str] = set()
    while stack:
        one, placed = stack.pop()
        if placed:
            done[one] = None
        elif one not in done and one not in begun:  # sources may go in a circle
            begun.add(one)
            stack.append((one, True))
            stack.extend((copy, False) for copy in reversed(copies[one]))


def origins(config: Mapping[str, Any]) -> list[str]:
    """Streams of the same account that a stream copies."""
    links = [config["mirror"]] if config.get("mirror") else []
    links += config.get("sources") or []
    return [str(link["name"]) for link in links if not link.get("external")]


def expired(points: Iterable[RestorePoint], keep: int, *, verified: bool = False, gone: bool = False) -> list[str]:
    """Names of the points beyond the newest `keep`, the oldest first. Points of all streams are counted, and those of
    the same asked ones apart; a point that is known to be damaged does not count, nor does one that nobody verified if
    `verified`. The last point of a stream stays, also of a stream that is gone unless `gone`."""
    assert keep >= 1, keep
    counted: Counter[tuple[str, ...]] = Counter()
    found: list[RestorePoint] = []
    there: set[str] = set()
    for one in sorted(points, key=lambda one: one.name, reverse=True):
        good = one.verified is not False and (one.verified is True or not verified)
        if counted[one.asked] >= keep:
            found.append(one)
            continue
        counted[one.asked] += good
        if one.verified is not False:
            there |= one.names
    if not gone:
        found = [one for one in found if not _is_last(one, there)]
    return sorted(one.name for one in found)


def _is_last(point: RestorePoint, there: set[str]) -> bool:
    """Returns whether none of the newer points, whose streams are `there`, has one of its streams; then adds them."""
    if point.verified is False or point.names <= there:
        return False
    there |= point.names
    return True


def doubt(before: RestorePoint, names: Collection[str], cluster: str) -> str:
    """Returns why an account with these streams seems not to be the one of the point; "" if nothing is against it."""
    if (known := before.account.get("cluster")) and cluster and known != cluster:
        return f"the cluster is {cluster}, and the one of the point {before.name} was {known}"
    left = len(before.names & set(names))
    if 2 * left < len(before.names):
        return f"{left} of the {len(before.names)} streams of the point {before.name} are there"
    return ""


def emptied(before: RestorePoint, made: Collection[StreamPoint]) -> str:
    """Returns how much of the point is there if the streams were all made again since, and not restored."""
    same = {(one.name, one.created) for one in before.streams} & {(one.name, one.created) for one in made}
    held, then = sum(one.messages for one in made), sum(one.messages for one in before.streams)
    if same or 2 * held >= then:
        return ""
    return f"every stream was made again since the point {before.name}, which has {then} messages; there are {held}"


def unused(held: Iterable[str], points: Iterable[RestorePoint], partial: Iterable[Blob]) -> list[str]:
    """Paths of blobs that neither a point nor an interrupted run needs."""
    needed = {blob.path for point in points for blob in point.blobs} | {blob.path for blob in partial}
    return sorted(path for path in held if path not in needed)


def moment(text: str) -> datetime | None:
    """Returns the time that `2026-11-28T02:00`, with seconds and a zone or without (UTC), names; None for other
    texts."""
    if not _TIME.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def not_after(points: Iterable[str], time: datetime) -> str | None:
    """The name of the newest point that is not later; None if there is none."""
    last = time.isoformat()[:19].replace("-", "").replace(":", "") + "Z"
    return max((name for name in points if name[: len(last)] <= last), default=None)


def at_point(streams: Iterable[StreamPoint], names: Collection[str]) -> list[StreamPoint]:
    """The wanted streams (no names: all), origins before their copies."""
    found = {one.name: one for one in streams if not names or one.name in names}
    return [found[name] for name in reversed(order({name: one.config for name, one in found.items()}))]
