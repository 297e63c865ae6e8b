"""`Nats-Schedule` (ADR-51): patterns of the times at which a scheduled message fires.

Cron patterns have six fields: second, minute, hour, day of month, month, day of week.

    field := part ("," part)*;  part := ("*" | "?" | n | n "-" m) ["/" step];  n "/" step means n-max/step

Months and days of the week may be English three-letter names in any case; Sunday is 0. When both day fields are
restricted, a day must match only one of them, as in Unix cron and nats-server. A local time that a zone skips never
matches; one that occurs twice matches twice.

Everything here is a function of its arguments. Replicas may have zone files of different years, so the leader works out
the times of a pattern with a zone, and they come through the log (`scheduler`).
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from jetcluster.errors import CallerError
from jetcluster.model import durations
from jetcluster.model.times import SECOND, parse_rfc3339
from jetcluster.records import NamedTuple

_DAY_SECONDS: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WIDEST_SECONDS: Final = 27 * 3600
"""Seconds around the same day of UTC that contain a local day, even where the date line was moved."""
_STEP_SECONDS: Final = 3 * 3600
MAX_YEARS: Final = 5
"""Years without a match after which a pattern is refused."""
LAST_SECOND: Final = 250_000_000_000
"""Near the year 9892: `datetime` ends soon after."""

_MONTH_NAMES: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAY_NAMES: Final = "sun mon tue wed thu fri sat"
_MONTHS: Final = {name: n for n, name in enumerate(_MONTH_NAMES.split(), 1)}
_WEEKDAYS: Final = {name: n for n, name in enumerate(_DAY_NAMES.split())}
_FIELDS: Final[tuple[tuple[int, int, dict[str, int]], ...]] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _WEEKDAYS),
)
_MONTH_DAYS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Most days of each month."""
ALIASES: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}


class CronError(CallerError):
    """The text is no pattern, or the pattern never matches."""


class Cron:
    """A parsed pattern. Raises CronError."""

    __slots__ = ("_any_day", "_days", "_hours", "_minutes", "_months", "_never", "_seconds", "_weekdays")

    def __init__(self, pattern: str) -> None:
        fields = ALIASES.get(pattern, pattern).split()
        if len(fields) != len(_FIELDS):
            raise CronError(f"pattern requires 6 fields, got {len(fields)}")
        parsed = [_field(text, *bounds) for text, bounds in zip(fields, _FIELDS, strict=True)]
        self._seconds, self._minutes, self._hours, self._days, self._months, self._weekdays = (
            sorted(values) for values, _ in parsed
        )
        self._any_day = parsed[3][1] or parsed[5][1]
        if not all(values for values, _ in parsed):
            raise CronError("empty field")
        # Every month has every day of the week, so only days of the month can miss all months.
        self._never = (
            self._any_day
            and len(self._weekdays) == 7
            and all(self._days[0] > _MONTH_DAYS[month] for month in self._months)
        )

    def next_after(self, second: int, zone: tzinfo = UTC) -> int:
        """The first matching Unix second after `second`. Raises CronError when there is none in MAX_YEARS."""
        if not 0 <= second <= LAST_SECOND:
            raise CronError("out of range")
        if self._never:
            raise CronError("pattern exceeds maximum range")
        start = second + 1
        day = (_EPOCH + timedelta(seconds=start)).astimezone(zone).date()
        last = date(day.year + MAX_YEARS + 1, 1, 1)
        while day < last:
            if day.month not in self._months:
                day = date(day.year, day.month, monthrange(day.year, day.month)[1])
            elif self._takes(day):
                found = self._on(day, start, zone)
                if found is not None:
                    return found
            day += timedelta(days=1)
        raise CronError("pattern exceeds maximum range")

    def _takes(self, day: date) -> bool:
        of_month = day.day in self._days
        of_week = day.isoweekday() % 7 in self._weekdays
        return of_month and of_week if self._any_day else of_month or of_week

    def _on(self, day: date, start: int, zone: tzinfo) -> int | None:
        """First match on local `day` at or after `start`, or None."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        naive = int((midnight - _EPOCH).total_seconds())
        first = naive - _offset(naive - _offset(naive, zone), zone)
        before, after = _offset(first - 1, zone), _offset(first + _DAY_SECONDS + 7200, zone)
        if before == after == _offset(first, zone):
            return self._in_plain_day(naive - before, start)
        return self._in_odd_day(naive, start, zone)

    def _in_plain_day(self, first: int, start: int) -> int | None:
        """First match on a day of 24 hours that begins at second `first`."""
        for hour in self._hours:
            if first + hour * 3600 + 3599 < start:
                continue
            for minute in self._minutes:
                at = first + hour * 3600 + minute * 60
                if at + 59 < start:
                    continue
                for second in self._seconds:
                    if at + second >= start:
                        return at + second
        return None

    def _in_odd_day(self, naive: int, start: int, zone: tzinfo) -> int | None:
        """First match on a day on which clocks change: the times before and after each change are searched as those of
        a plain day. `naive` is its midnight as if it were UTC."""
        low, end = naive - _WIDEST_SECONDS, naive + _DAY_SECONDS + _WIDEST_SECONDS
        while low < end:
            offset = _offset(low, zone)
            change = _next_change(low, end, offset, zone)
            found = self._in_plain_day(naive - offset, max(start, low))
            if found is not None and found < change:
                return found
            low = change
        return None


def _offset(second: int, zone: tzinfo) -> int:
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _next_change(low: int, end: int, offset: int, zone: tzinfo) -> int:
    """First second with another offset than `low`, at most `end`. No zone has two changes within `_STEP_SECONDS`."""
    while low < end:
        high = min(low + _STEP_SECONDS, end)
        if _offset(high, zone) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                if _offset(middle, zone) == offset:
                    low = middle
                else:
                    high = middle
            return high
        low = high
    return end


def _field(text: str, low: int, high: int, names: dict[str, int]) -> tuple[set[int], bool]:
    """The values of a field, and whether it has an unrestricted `*`."""
    values: set[int] = set()
    star = False
    for part in dict.fromkeys(filter(None, text.split(","))):
        span, *steps = part.split("/")
        ends = span.split("-")
        if len(steps) > 1 or len(ends) > 2:
            raise CronError(f"too many slashes or hyphens: {part}")
        step = _number(steps[0], {}) if steps else 1
        if ends[0] in ("*", "?"):
            first, last = low, high
            star |= step == 1
        else:
            first = _number(ends[0], names)
            last = _number(ends[1], names) if len(ends) == 2 else (high if steps else first)
        if not low <= first <= last <= high or step == 0:
            raise CronError(f"out of range: {part}")
        values.update(range(first, last + 1, step))
    return values, star


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise CronError(f"not a number: {text}")
    return int(text)


class Pattern(NamedTuple):
    """A parsed Nats-Schedule: exactly one of `at`, `every` and `cron` is set."""

    at: int | None = None
    """Time of `@at`, Unix nanoseconds."""
    every: int | None = None
    """Interval of `@every`, nanoseconds, at least a second."""
    cron: Cron | None = None
    zone: str = ""
    """IANA name for a cron pattern; "" is UTC."""

    @property
    def repeats(self) -> bool:
        return self.at is None

    def next_after(self, ts: int, zone: tzinfo = UTC) -> int:
        """The first time after `ts` at which it fires, Unix nanoseconds; the time of `@at`, however long ago. `zone` is
        that of `self.zone`. Raises CronError when a cron pattern has no match in MAX_YEARS."""
        if self.at is not None:
            return max(self.at, 0)
        if self.every is not None:
            return (ts + SECOND // 2) // SECOND * SECOND + self.every
        assert self.cron is not None
        return self.cron.next_after(ts // SECOND, zone) * SECOND


MAX_PATTERN_BYTES: Final = 256
"""Bytes of a pattern (`schedules.shortened`); usual cron patterns have 20."""


def parse(value: bytes, zone: bytes | None) -> Pattern | None:
    """Returns `_parse` of the same, from a cache."""
    if len(value) > MAX_PATTERN_BYTES or (zone is not None and len(zone) > MAX_PATTERN_BYTES):
        return _parse(value, zone)
    return _remembered(value, zone)


def _parse(value: bytes, zone: bytes | None) -> Pattern | None:
    """The pattern in `value`, None when it is none. `zone`: the value of Nats-Schedule-Time-Zone, None when absent; its
    name is not checked. A cron pattern that never fires parses; `next_after` raises for it."""
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
