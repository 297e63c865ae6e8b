"""`Scheduler`: the leader's part in scheduled messages: which are due, and when is the next time of each.

Reads the state machine's index and store, changes nothing. The only place that knows time zones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final

from jetcluster.model import times
from jetcluster.model.times import SECOND
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream import commands, schedules
from jetcluster.stream.commands import Firing
from jetcluster.stream.cron import LOCAL, MAX_PATTERN, CronError, Pattern
from jetcluster.stream.fields import FIELD, nats_fields
from jetcluster.stream.schedules import Schedules

MOST: Final = 512
"""Schedules per command; the rest comes with the next one."""
MOST_WORK: Final = 10_000
"""Microseconds or so that a command may cost, both the leader that plans it and every replica that applies it."""
_EACH: Final = 10
_PER_KIB: Final = 4
_PER_LINE: Final = 1
_PLANNING: Final = 40
_IN_ZONE: Final = 200
"""The parts of that: a schedule, its message's bytes, header fields that are looked at one by one, and finding the next
time of a cron pattern."""
MAX_PLANS: Final = 4096
"""Patterns whose last answer is remembered."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FindZone = Callable[[str], tzinfo]
"""Raises LookupError or OSError for a zone that this machine does not know."""


def system_zone(name: str) -> tzinfo:
    """IANA zones from the machine's files; `Local` is its own."""
    from zoneinfo import ZoneInfo

    if name != LOCAL:
        return ZoneInfo(name)
    with Path("/etc/localtime").open("rb") as file:
        return ZoneInfo.from_file(file, key=LOCAL)


class Scheduler:
    def __init__(self, store: BlockStore, due: Schedules, find_zone: FindZone = system_zone) -> None:
        self._store = store
        self._schedules = due
        self._find_zone = find_zone
        self._work = 0
        self._plans = due.plans
        self.unknown_zones: set[str] = set()
        """Names that this machine has no file for: their schedules are taken as UTC."""

    def command(self, now: int) -> bytes | None:
        """The FIRE command that is to be proposed at `now` (Unix nanoseconds); None when nothing is due."""
        firings: list[Firing] = []
        self._work = 0
        for due, seq in self._schedules.index.due(now, MOST):
            firings.append(self._firing(due, seq, now))
            if self._work > MOST_WORK:
                break
        return commands.encode_fire(now, firings) if firings else None

    def _firing(self, due: int, seq: int, now: int) -> Firing:
        self._work += _EACH
        schedule = self._store.get(seq)
        if schedule is None or self._store.last_seq_of(schedule.subject) != seq:
            return Firing(seq, due, 0, True, b"")  # apply finds the same, and forgets the entry
        fields = nats_fields(schedule.headers)
        pattern = schedules.pattern_of(fields)
        assert pattern is not None
        self._count(schedule)
        source = fields.get(schedules.SOURCE)
        if source and (last := self._store.last_seq_of(source)):
            content = self._store.get(last)
            if content is not None:
                self._count(content)
        if not pattern.repeats:
            return Firing(seq, due, 0, False, schedules.PURGE)
        zone = self._zone(pattern)
        planning = bool(pattern.zone) and due == schedule.ts
        try:
            # What was missed while there was no leader is made up for once, not once per time.
            following = self._next_after(pattern, fields, due, zone)
            if following < now and not planning:
                following = self._next_after(pattern, fields, now, zone)
        except CronError:
            return Firing(seq, due, 0, planning, schedules.PURGE)
        return Firing(seq, due, following, planning, _text(following, zone))

    def _count(self, message: Msg) -> None:
        """Adds the cost of a firing that makes a copy of `message`."""
        size = len(message.headers) + len(message.payload)
        self._work += (size >> 10) * _PER_KIB + message.headers.count(FIELD) * _PER_LINE

    def _next_after(self, pattern: Pattern, fields: Mapping[bytes, bytes], ts: int, zone: tzinfo) -> int:
        """As the pattern's. Many schedules have the same one: what was the answer after one time is so up to then."""
        if pattern.cron is None:
            return pattern.next_after(ts, zone)
        key = fields[schedules.PATTERN], pattern.zone
        since, until = self._plans.get(key, (0, 0))
        if since <= ts < until:
            return until
        self._work += _IN_ZONE if pattern.zone else _PLANNING
        found = pattern.next_after(ts, zone)
        if len(key[0]) <= MAX_PATTERN:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = ts, found
        return found

    def _zone(self, pattern: Pattern) -> tzinfo:
        if not pattern.zone:
            return UTC
        try:
            return self._find_zone(pattern.zone)
        except (LookupError, OSError, ValueError):
            self.unknown_zones.add(pattern.zone)
            return UTC


def _text(ts: int, zone: tzinfo) -> bytes:
    """RFC 3339 in the zone."""
    offset = (_EPOCH + timedelta(seconds=ts // SECOND)).astimezone(zone).utcoffset()
    minutes = int(offset.total_seconds()) // 60 if offset is not None else 0
    if not minutes:
        return times.rfc3339_bytes(ts)
    sign, shown = (b"-", -minutes) if minutes < 0 else (b"+", minutes)
    return times.rfc3339_bytes(ts + minutes * 60 * SECOND)[:-1] + b"%b%02d:%02d" % (sign, shown // 60, shown % 60)
