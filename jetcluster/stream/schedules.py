"""`Schedules`: messages that make other messages later (ADR-51): the checks at publish, and when each is due.

A schedule is the last message of its subject and carries Nats-Schedule. Its entry in the index goes when it fires for
the last time; one whose message is deleted or superseded is found out when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal, matches
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.cron import CronError
from jetcluster.stream.due_index import DueIndex
from jetcluster.stream.fields import appended, nats_fields, replaced
from jetcluster.stream.ports import SIDE_SCHEDULES
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.schedule_pattern import LOCAL, MAX_PATTERN, Pattern, parse
from jetcluster.stream.ttl import parse_ttl
from jetcluster.stream.zones import ZONES

PATTERN: Final = b"Nats-Schedule"
ZONE: Final = b"Nats-Schedule-Time-Zone"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
TTL: Final = b"Nats-Schedule-TTL"
ROLLUP: Final = b"Nats-Schedule-Rollup"
NEXT: Final = b"Nats-Schedule-Next"
SCHEDULER: Final = b"Nats-Scheduler"
PURGE: Final = b"purge"

_DISABLED: Final = errors.by_code(10188)
_BAD_PATTERN: Final = errors.by_code(10189)
_BAD_TARGET: Final = errors.by_code(10190)
_BAD_TTL: Final = errors.by_code(10191)
_BAD_ROLLUP: Final = errors.by_code(10192)
_BAD_SOURCE: Final = errors.by_code(10203)
_BAD_SCHEDULER: Final = errors.by_code(10212)
_BAD_ZONE: Final = errors.by_code(10223)
_TTL_DISABLED: Final = errors.by_code(10166)

_NO_PATTERN: Final = b"too long"
_FROM_ELSEWHERE: Final = b"imported"
"""In place of a scheduler's subject: no stream takes it (10212)."""

LastHeaders = Callable[[bytes], bytes | None]
"""Header block of the last message of a literal subject; None when it holds no message."""


def check_schedule(
    rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], ts: int, last_headers: LastHeaders
) -> ApiError | None:
    """Fault of a published message's `Nats-` fields, at the time `ts` (nanoseconds)."""
    if PATTERN not in fields and ZONE not in fields and NEXT not in fields and SCHEDULER not in fields:
        return None
    return _check_pattern(rules, subject, fields, ts) or _check_scheduler(rules, subject, fields, last_headers)


def pattern_of(fields: Mapping[bytes, bytes]) -> Pattern | None:
    """Pattern in a stored schedule's fields; None when it has no pattern."""
    value = fields.get(PATTERN)
    return parse(value, fields.get(ZONE)) if value else None


def _check_pattern(rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], ts: int) -> ApiError | None:
    zone = fields.get(ZONE)
    error = None
    if zone is not None and not _is_zone(zone):
        error = _BAD_ZONE
    elif not fields.get(PATTERN):
        return None
    else:
        pattern = pattern_of(fields)
        if pattern is None or not _fires(pattern, ts):
            error = _BAD_PATTERN
    if not rules.allow_msg_schedules:
        return _DISABLED
    return error or _check_options(rules, fields) or _check_subjects(rules, subject, fields)


def _check_options(rules: StreamRules, fields: Mapping[bytes, bytes]) -> ApiError | None:
    ttl = fields.get(TTL)
    if ttl and parse_ttl(ttl) is None:
        return _BAD_TTL
    if fields.get(ROLLUP, b"") not in (b"", b"sub"):
        return _BAD_ROLLUP
    return _TTL_DISABLED if ttl and not rules.allow_msg_ttl else None


def _check_subjects(rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes]) -> ApiError | None:
    target, source = fields.get(TARGET, b""), fields.get(SOURCE, b"")
    if target == subject or not is_own(rules, target):
        return _BAD_TARGET
    if source and (source in (target, subject) or not is_own(rules, source)):
        return _BAD_SOURCE
    return None if fields.get(b"Nats-Rollup", b"").lower() in (b"", b"sub") else _BAD_ROLLUP


def _check_scheduler(
    rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], last_headers: LastHeaders
) -> ApiError | None:
    scheduler = fields.get(SCHEDULER)
    if not fields.get(NEXT):
        return _BAD_SCHEDULER if scheduler else None
    if fields[NEXT] != PURGE or not scheduler or scheduler == subject or not is_valid_literal(scheduler):
        return _BAD_SCHEDULER
    if not rules.allow_msg_schedules:
        return _DISABLED
    headers = last_headers(scheduler)
    if headers is not None and not header_block.get(headers, PATTERN):
        return _BAD_SCHEDULER
    return None


def is_own(rules: StreamRules, subject: bytes) -> bool:
    """A literal subject that the stream takes."""
    return is_valid_literal(subject) and any(matches(subject, own) for own in rules.subjects)


def with_rollup(headers: bytes, fields: dict[bytes, bytes]) -> bytes:
    """A schedule replaces the one before it on its subject: says so, in the block and in `fields`."""
    if not fields.get(PATTERN) or fields.get(b"Nats-Rollup"):
        return headers
    fields[b"Nats-Rollup"] = b"sub"
    return appended(headers, b"Nats-Rollup", b"sub")


def without_schedule(headers: bytes) -> bytes:
    """The block of a message of another account (one with Nats-Request-Info): where it would schedule something or
    delete a schedule, its fields make way for one that every replica refuses (10212)."""
    fields = nats_fields(headers)
    found = [key for key in (PATTERN, ZONE, NEXT, SCHEDULER) if key in fields]
    for key in found:
        headers = header_block.remove(headers, key)
    return appended(headers, SCHEDULER, _FROM_ELSEWHERE) if found else headers


def shortened(headers: bytes) -> bytes:
    """The block of a message that a client publishes: in place of a pattern so long that reading it takes
    milliseconds, one that every replica refuses (10189)."""
    pattern = header_block.get(headers, PATTERN)
    return replaced(headers, PATTERN, _NO_PATTERN) if pattern is not None and len(pattern) > MAX_PATTERN else headers


class Schedules:
    """The index of due times."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self.index = DueIndex(store, SIDE_SCHEDULES)
        self.plans: dict[tuple[bytes, str], tuple[int, int]] = {}
        """Memory of the `Scheduler`, no part of the state: by a cron pattern and its zone since when it has no match
        and its next one."""

    def note(self, seq: int, ts: int, fields: Mapping[bytes, bytes]) -> None:
        """A schedule was stored. One with a zone is due at once, for the leader to say when it really is."""
        pattern = pattern_of(fields)
        assert pattern is not None  # checked
        self.index.add(ts if pattern.zone else pattern.next_after(ts), [seq])
        self.index.sweep(self._store.contains)


def _fires(pattern: Pattern, ts: int) -> bool:
    try:
        pattern.next_after(ts)
    except CronError:
        return False
    return True


def _is_zone(name: bytes) -> bool:
    return name.decode("latin-1") in ZONES or name == LOCAL.encode()
