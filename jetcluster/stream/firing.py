"""Effect of a FIRE command: due schedules produce their messages, and are given their next times (ADR-51).

The leader proposes which schedules fire and when the next time is (`scheduler`); whether an entry still holds is
decided here, in apply, from the state: the index must have it at exactly that time, and its message must still be the
last one of its subject. So two leaders proposing the same entry fire it once.
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream import schedules
from jetcluster.stream.commands import Firing
from jetcluster.stream.fields import appended, nats_fields, without
from jetcluster.stream.rules import StreamRules
from jetcluster.stream.schedules import Schedules

_DROPPED_PREFIXES = (b"Nats-Schedule", b"Nats-Expected-")
"""Nats-Scheduler among them."""
_DROPPED = frozenset((b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup"))


def fire(store: BlockStore, rules: StreamRules, due: Schedules, firings: Sequence[Firing]) -> Batch | None:
    """Moves the entries in the index on; returns the messages to be stored in the same command. Raises DamagedError."""
    made: list[tuple[bytes, bytes, bytes]] = []
    index = due.index
    for firing in firings:
        if rules.sealed or not index.has(firing.due, firing.seq):
            continue
        index.remove(firing.due, firing.seq)
        schedule = store.get(firing.seq)
        if schedule is None or store.last_seq_of(schedule.subject) != firing.seq:
            continue
        if firing.next_due:
            index.add(firing.next_due, [firing.seq])
        if not firing.planned_only and (message := produced(store, rules, schedule, firing.next_text)) is not None:
            made.append(message)
    if not made:
        return None
    subjects, headers, payloads = zip(*made, strict=True)
    return Batch.of(subjects, headers, payloads)


def produced(
    store: BlockStore, rules: StreamRules, schedule: Msg, next_text: bytes
) -> tuple[bytes, bytes, bytes] | None:
    """Subject, header block and payload of what a schedule makes; None when the stream does not take its target any
    more. `next_text` goes into Nats-Schedule-Next: a time, or "purge" for the last time."""
    fields = nats_fields(schedule.headers)
    target = fields.get(schedules.TARGET, b"")
    if not schedules.is_own(rules, target):
        return None
    content = schedule
    source = fields.get(schedules.SOURCE)
    if source and (last := store.last_seq_of(source)):
        content = store.get(last) or schedule
    headers = without(content.headers, _DROPPED, _DROPPED_PREFIXES)
    headers = appended(headers, schedules.SCHEDULER, schedule.subject)
    headers = appended(headers, schedules.NEXT, next_text)
    ttl, rollup = fields.get(schedules.TTL), fields.get(schedules.ROLLUP)
    if ttl:
        headers = appended(headers, b"Nats-TTL", ttl)
    if rollup:
        headers = appended(headers, b"Nats-Rollup", rollup)
    return target, headers, content.payload
