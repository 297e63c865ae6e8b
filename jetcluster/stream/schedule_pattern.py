"""`Nats-Schedule`: when a scheduled message fires (ADR-51).

Everything here is a function of its arguments. Zones are the one thing that replicas could know differently (their
files are of different years), so a pattern with a zone is only checked here against a fixed list of names; the time at
which it fires is worked out by the leader and comes through the log (`scheduler`).
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Final, NamedTuple

from jetcluster.model import durations
from jetcluster.model.times import SECOND, parse_rfc3339
from jetcluster.stream.cron import Cron, CronError


class Pattern(NamedTuple):
    """Exactly one of `at`, `every` and `cron` is set."""

    at: int | None = None
    """`@at`: Unix nanoseconds."""
    every: int | None = None
    """`@every`: nanoseconds, at least a second."""
    cron: Cron | None = None
    zone: str = ""
    """IANA name for a cron pattern; "" is UTC."""

    @property
    def repeats(self) -> bool:
        return self.at is None

    def next_after(self, ts: int, zone: tzinfo = UTC) -> int:
        """When it fires for the first time after `ts`, Unix nanoseconds; of `@at` its time, however long ago. `zone`
        is that of `self.zone`. Raises CronError when a cron pattern has no match in years."""
        if self.at is not None:
            return max(self.at, 0)
        if self.every is not None:
            return (ts + SECOND // 2) // SECOND * SECOND + self.every
        assert self.cron is not None
        return self.cron.next_after(ts // SECOND, zone) * SECOND


MAX_PATTERN: Final = 256
"""Bytes of a pattern that one schedules with here (`schedules.shortened`). A cron pattern of the usual kind has 20."""


def parse(value: bytes, zone: bytes | None) -> Pattern | None:
    """As `_parse`, which is done once for what is used again and again."""
    if len(value) > MAX_PATTERN or (zone is not None and len(zone) > MAX_PATTERN):
        return _parse(value, zone)
    return _remembered(value, zone)


def _parse(value: bytes, zone: bytes | None) -> Pattern | None:
    """`zone`: the value of Nats-Schedule-Time-Zone, None when it is absent; its name is not looked at. None for what is
    no pattern. A cron pattern that never fires parses; `next_after` tells."""
    try:
        text = value.decode("ascii")
        zone_name = zone.decode("ascii") if zone is not None else ""
    except UnicodeDecodeError:
        return None
    if text.startswith("@at "):
        return _parse_at(text[4:]) if zone is None else None
    if text.startswith("@every "):
        every = durations.parse(value[7:]) if zone is None else None
        return Pattern(every=every) if every is not None and every >= SECOND else None
    try:
        return Pattern(cron=Cron(text), zone=zone_name if zone_name not in ("UTC", "") else "")
    except CronError:
        return None


_remembered = lru_cache(maxsize=1024)(_parse)


def _parse_at(text: str) -> Pattern | None:
    try:
        return Pattern(at=parse_rfc3339(text))
    except ValueError:
        return None


LOCAL: Final = "Local"
"""The zone name that means the server's own."""
