"""The history of a run: all operations of clients and their results as JSON lines, the only input of every checker.
`python -m chaos` writes it.

Each line is one event. `type` is `invoke` when a client begins, then `ok` (success), `fail` (a definite refusal:
nothing was stored) or `info` (unknown). Completions repeat the fields of their `invoke`, so a line is complete in
itself; an `invoke` without completion is an `info` that never ended. Fields at their default are left out:

    type op workload f client subject msg_id seq expect count replica t0 t1 error wish bound applied age

`f` is the operation: `publish`, `cas` (publish if the subject's last sequence is `expect`), `read` (answered by the
leader), `direct` (by any replica), `fresh` (a read that asked for a freshness: `wish` is the consistency that holds for
it, `expect` its `min_last_seq`, `bound` its `max_staleness`; the answer tells `applied` and `age`), `batch` (`count`
messages, `seq` of the last), `deliver` (the `count`-th delivery came at `t0`), `ack` (confirmed; `info`: sent without
waiting for that), `term` (a client terminated a message), `keyed` (the workload's consumer keeps the order per
subject), `calm` (from `t0` to `t1` `count` members shared the subjects, and none came or went), `lettered` (it has dead
letters), `letter` (one of them, of the message `seq`, after `count` of at most `expect` deliveries, `error` is the
reason), `drained` (a consumer or a mirror had nothing left to get), `mirror` (this workload's stream mirrors the one of
workload `subject`), `stored` (one message of `replica` after the run; seq 0 only marks the replica as read), and of the
run itself `fault` (`workload` is its kind, `subject` its name, `error` the details) and `leader` (`replica` leads the
workload's stream; none: unknown). Readers skip unknown kinds, as more may come. `msg_id` is the value: unique per
write, and the payload. A read without a result has seq 0. Times are seconds of one monotonic clock since the run began.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TYPES = frozenset({"invoke", "ok", "fail", "info"})


@dataclass(slots=True, frozen=True)
class Event:
    """One line of a history."""

    type: str
    op: int
    workload: str
    f: str
    client: str = ""
    subject: str = ""
    msg_id: str = ""
    seq: int = 0
    expect: int = -1
    count: int = 0
    replica: str = ""
    t0: float = 0.0
    t1: float = math.inf
    """inf: no known end."""
    error: str = ""
    wish: str = ""
    bound: float = -1.0
    """Seconds; -1: none."""
    applied: int = -1
    """A sequence; -1: not told."""
    age: float = -1.0
    """Seconds; -1: not told."""

    def to_json(self) -> str:
        row = {name: value for name in _FIELDS if (value := getattr(self, name)) != _DEFAULTS.get(name)}
        return json.dumps(row, separators=(",", ":"))


_FIELDS = [field.name for field in dataclasses.fields(Event)]
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Event)}


def load(lines: Iterable[str]) -> list[Event]:
    """Parses events. Raises ValueError (TypeError for unknown fields) with the line's number."""
    events = []
    for number, line in enumerate(lines, 1):
        try:
            event = Event(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"line {number} is no event: {error}") from error
        if event.type not in TYPES:
            raise ValueError(f"line {number}: type {event.type!r}")
        events.append(event)
    return events


def operations(events: Iterable[Event]) -> Iterator[Event]:
    """Yields one event per operation: its completion, or `info` without an end."""
    begun: dict[int, Event] = {}
    for event in events:
        if event.type == "invoke":
            begun[event.op] = event
        else:
            begun.pop(event.op, None)
            yield event
    for event in begun.values():
        yield dataclasses.replace(event, type="info", t1=math.inf)


@dataclass(slots=True, frozen=True)
class Finding:
    """`kind`: lost, skipped, duplicated, redelivered, double cas, stale, phantom, moved, reordered, shared key, gap,
    diverged, broken batch, wrong value, own write, wrong age, refused, outage, kept leading, moved leader, minority
    ack, expired, kept, fired early, not fired, unannounced, false alarm, died, or unhealed: the cluster did not
    recover."""

    kind: str
    workload: str
    text: str
    t: float = 0.0
    """Seconds since the run began; 0 if it has no time."""
    msg_id: str = ""
    seq: int = 0
    replica: str = ""
