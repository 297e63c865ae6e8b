"""`Scheduler`: the leader's part in scheduled messages: which ones are due, and the next time of each.

It reads the state machine's index and store and changes neither. Only this module reads the files of time zones.
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
from jetcluster.stream.apply import schedules
from jetcluster.stream.apply.cron import LOCAL, MAX_PATTERN_BYTES, CronError, Pattern
from jetcluster.stream.apply.schedules import Schedules
from jetcluster.stream.fields import FIELD, nats_fields
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import Firing

MAX_FIRINGS: Final = 512
"""Schedules per command; the next command has the rest."""
MAX_WORK_MICROSECONDS: Final = 10_000
"""Approximate cost of a command, microseconds, both for the leader that plans it and a replica that applies it."""
_FIRING_COST: Final = 10
_KIB_COST: Final = 4
_FIELD_COST: Final = 1
_CRON_COST: Final = 40
_ZONED_CRON_COST: Final = 200
"""Microseconds: a schedule, a KiB of its message, a `Nats-` field, a cron pattern's next time without or with zone."""
MAX_PLANS: Final = 4096
"""Patterns whose next time is remembered."""

LOCAL_FILE: Final = "/etc/localtime"
"""The machine's own zone."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

FindZone = Callable[[str], tzinfo]
"""Returns a zone by name. Raises LookupError, OSError or ValueError for one that this machine does not know."""


def system_zone(name: str) -> tzinfo:
    """Returns an IANA zone from the machine's files; `Local` is the machine's own."""
    from zoneinfo import ZoneInfo

    if name != LOCAL:
        return ZoneInfo(name)
    with Path(LOCAL_FILE).open("rb") as file:
        return ZoneInfo.from_file(file, key=LOCAL)


class Scheduler:
    """Plans one FIRE command."""

    def __init__(self, store: BlockStore, due: Schedules, find_zone: FindZone = system_zone) -> None:
        self._store = store
        self._schedules = due
        self._find_zone = find_zone
        self._work = 0
        self._plans = due.plans
        self.unknown_zones: set[str] = set()
        """Names of zones that this machine has no file for: their schedules are taken as UTC."""

    def command(self, now: int) -> bytes | None:
        """The FIRE command to propose at `now` (Unix nanoseconds); None when nothing is due."""
        firings: list[Firing] = []
        self._work = 0
        for due, seq in self._schedules.index.due(now, MAX_FIRINGS):
            firings.append(self._firing(due, seq, now))
            if self._work > MAX_WORK_MICROSECONDS:
                break
        return commands.encode_fire(now, firings) if firings else None

    def _firing(self, due: int, seq: int, now: int) -> Firing:
        self._work += _FIRING_COST
        schedule = self._store.get(seq)
        if schedule is None or self._store.last_seq_of(schedule.subject) != seq:
            return Firing(seq, due, 0, True, b"")  # apply finds the same and removes the entry
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
            # Times missed while there was no leader fire once, not once each.
            following = self._next_after(pattern, fields, due, zone)
            if following < now and not planning:
                following = self._next_after(pattern, fields, now, zone)
        except CronError:
            return Firing(seq, due, 0, planning, schedules.PURGE)
        return Firing(seq, due, following, planning, _text(following, zone))

    def _count(self, message: Msg) -> None:
        """Adds the cost of copying `message`."""
        size = len(message.headers) + len(message.payload)
        self._work += (size >> 10) * _KIB_COST + message.headers.count(FIELD) * _FIELD_COST

    def _next_after(self, pattern: Pattern, fields: Mapping[bytes, bytes], ts: int, zone: tzinfo) -> int:
        """Returns `pattern.next_after`, remembered: many schedules share a pattern and its next time."""
        if pattern.cron is None:
            return pattern.next_after(ts, zone)
        key = fields[schedules.PATTERN], pattern.zone
        since, until = self._plans.get(key, (0, 0))
        if since <= ts < until:
            return until
        self._work += _ZONED_CRON_COST if pattern.zone else _CRON_COST
        found = pattern.next_after(ts, zone)
        if len(key[0]) <= MAX_PATTERN_BYTES:
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
    """The time in RFC 3339, with the zone's offset."""
    offset = (_EPOCH + timedelta(seconds=ts // SECOND)).astimezone(zone).utcoffset()
    minutes = int(offset.total_seconds()) // 60 if offset is not None else 0
    if not minutes:
        return times.rfc3339_bytes(ts)
    sign, shown = (b"-", -minutes) if minutes < 0 else (b"+", minutes)
    return times.rfc3339_bytes(ts + minutes * 60 * SECOND)[:-1] + b"%b%02d:%02d" % (sign, shown // 60, shown % 60)
