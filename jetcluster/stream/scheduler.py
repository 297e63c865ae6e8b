"""`Scheduler`: the leader's part in scheduled messages: which are due, and when is the next time of each.

Reads the state machine's index and store, changes nothing. The only place that knows time zones.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final

from jetcluster.model import times
from jetcluster.model.times import SECOND
from jetcluster.store.block_store import BlockStore
from jetcluster.stream import commands, schedules
from jetcluster.stream.commands import Firing
from jetcluster.stream.cron import CronError
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.schedule_pattern import LOCAL, Pattern
from jetcluster.stream.schedules import Schedules

MOST: Final = 512
"""Schedules per command; the rest comes with the next one."""
MOST_BYTES: Final = 4 << 20

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
        self.unknown_zones: set[str] = set()
        """Names that this machine has no file for: their schedules are taken as UTC."""

    def command(self, now: int) -> bytes | None:
        """The FIRE command that is to be proposed at `now` (Unix nanoseconds); None when nothing is due."""
        firings: list[Firing] = []
        size = 0
        for due, seq in self._schedules.index.due(now, MOST):
            firing, payload_bytes = self._firing(due, seq, now)
            size += payload_bytes
            if firings and size > MOST_BYTES:
                break
            firings.append(firing)
        return commands.encode_fire(now, firings) if firings else None

    def _firing(self, due: int, seq: int, now: int) -> tuple[Firing, int]:
        schedule = self._store.get(seq)
        if schedule is None or self._store.last_seq_of(schedule.subject) != seq:
            return Firing(seq, due, 0, True, b""), 0  # apply finds the same, and forgets the entry
        fields = nats_fields(schedule.headers)
        pattern = schedules.pattern_of(fields)
        assert pattern is not None
        size = len(schedule.payload) + len(schedule.headers)
        source = fields.get(schedules.SOURCE)
        if source and (last := self._store.last_seq_of(source)):
            content = self._store.get(last)
            size += len(content.payload) + len(content.headers) if content is not None else 0
        if not pattern.repeats:
            return Firing(seq, due, 0, False, schedules.PURGE), size
        zone = self._zone(pattern)
        planning = bool(pattern.zone) and due == schedule.ts
        try:
            # What was missed while there was no leader is made up for once, not once per time.
            base = due if planning or pattern.next_after(due, zone) >= now else now
            following = pattern.next_after(base, zone)
        except CronError:
            return Firing(seq, due, 0, planning, schedules.PURGE), size
        return Firing(seq, due, following, planning, _text(following, zone)), size

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
