"""The ends of a query's streams: as fresh as the options ask for, and of one moment with `consistent=true`.

STREAM.INFO says how long a stream was at a leader that may have been deposed meanwhile, and several streams are asked
one after the other. The replicas' proofs say more: a Direct Get of a sequence that no stream has is answered with the
sequence that the replica had applied, after the wait for `min_last_seq`, `max_staleness` or the leader's confirmation.

A consistent cut. Each round asks for all ends at once, linearizably, and begins after the answers to the one before.
What a round says of a stream was its end at some moment of that round. A stream with the same end in two rounds had
this end all the time between them, so

- if no stream moved between two rounds, the ends are those of every moment between them;
- if all but one stood still from the first to the third of three rounds, the second round's end of that one belongs to
  a moment of the second round, and the others had their ends then, too.

Otherwise the rounds are repeated: while two streams move all the time, no answers prove what one had when the other
grew, and the query fails rather than guess.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jetcluster.arrow.fetch import PROOF, is_behind, refuse
from jetcluster.arrow.options import SourceOptions
from jetcluster.client.connection import Connection
from jetcluster.client.reply import NoRespondersError, Reply
from jetcluster.client.stream_state import StreamError, StreamState, is_ours, stream_state
from jetcluster.errors import JetclusterError, PassingError

ROUNDS: Final = 3
"""Rounds in a row that a proof may need."""
BURST: Final = 8
"""Rounds without a pause: the shorter they are, the likelier the streams stand still."""
PAUSE_SECONDS: Final = 0.01
POLL_SECONDS: Final = 0.05
_BEYOND: Final = (1 << 63) - 1
"""A sequence that no stream has which can be read into Spark."""

Ends = dict[str, int]
"""Stream -> its last sequence."""


class CutError(JetclusterError):
    """No moment was found at which the streams ended together, as they are written to all the time."""


class ChangedError(PassingError):
    """Answers of one moment and the next do not fit together: the stream was created anew, or a leader is behind."""


def fresh_states(link: Connection, states: Mapping[str, StreamState], options: SourceOptions) -> dict[str, StreamState]:
    """Returns the states with the ends that the options ask for. Raises StreamError, CutError, and what
    `Connection.gather` raises."""
    wishes = {name: _wishes(name, options) for name in states}
    if not any(wishes.values()):
        return dict(states)
    if not is_ours(link):
        if options.consistent or options.max_staleness is not None:
            raise StreamError("consistent and maxStaleness need jetcluster's servers: nats-server proves no end")
        return {name: _polled(link, state, options) for name, state in states.items()}

    def ask() -> Ends:
        return _patient(link, wishes, options)

    ends = consistent_ends(ask, options.cut_timeout) if options.consistent else ask()
    if options.consistent:
        for name, state in states.items():
            if ends[name] < state.last:
                raise ChangedError(f"{name} ended at {state.last} and then at {ends[name]}: it was created anew")
    return {name: state._replace(last=max(state.last, ends[name])) for name, state in states.items()}


def consistent_ends(
    ask: Callable[[], Ends],
    timeout: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ends:
    """Returns ends of one moment; `ask` makes a round. Raises CutError after `timeout` seconds, and what `ask`
    raises."""
    deadline = now() + timeout
    rounds: deque[Ends] = deque(maxlen=ROUNDS)
    count = 0
    while True:
        rounds.append(ask())
        found = proven(rounds)
        if found is not None:
            return found
        if now() > deadline:
            busy = [name for name in rounds[0] if rounds[0][name] != rounds[-1][name]]
            raise CutError(
                f"no moment was proven in {timeout:g} s (cutTimeout) at which the streams ended together: "
                f"{', '.join(sorted(busy))} grew all the time. Pause writers, or use asOfTime, which is as exact as "
                "the servers' clocks"
            )
        count += 1
        if not count % BURST:
            sleep(PAUSE_SECONDS)


def proven(rounds: Sequence[Ends]) -> Ends | None:
    """Returns the ends that the last rounds prove to be of one moment; None when they prove none."""
    last = rounds[-1]
    if len(last) == 1 or (len(rounds) > 1 and rounds[-2] == last):
        return last
    if len(rounds) < ROUNDS:
        return None
    first, second = rounds[-3], rounds[-2]
    moved = [name for name in last if first[name] != last[name]]
    return second if len(moved) <= 1 else None


def _wishes(stream: str, options: SourceOptions) -> dict[str, Any]:
    """Returns the fields of the request that the options stand for; {} for none."""
    fields: dict[str, Any] = {}
    least = options.min_last.get(stream, 0)
    if least:
        fields["min_last_seq"] = least
    if options.max_staleness is not None:
        fields["max_staleness"] = options.max_staleness
    if options.consistent:
        fields["consistency"] = "linearizable"
    return fields


def _patient(link: Connection, wishes: Mapping[str, Mapping[str, Any]], options: SourceOptions) -> Ends:
    """Makes rounds while a replica lacks the sequence of `minLastSeq`, for `replicaWait`. Raises StreamError."""
    deadline = time.monotonic() + options.replica_wait
    while True:
        answers = _round(link, wishes, options.request_timeout)
        behind = {name: end for name, end in answers.items() if is_behind(end)}
        if not behind:
            return {name: _last_of(name, end) for name, end in answers.items()}
        if time.monotonic() > deadline:
            name, end = next(iter(behind.items()))
            raise _too_short(name, int(end.get("Nats-Applied-Sequence") or 0), options)
        time.sleep(POLL_SECONDS)


def _round(link: Connection, wishes: Mapping[str, Mapping[str, Any]], timeout: float) -> dict[str, Reply]:
    gathers = {
        name: link.gather(
            f"{link.api_prefix}DIRECT.GET.{name}", json.dumps({"seq": _BEYOND, "batch": 1, **fields}).encode(), PROOF,
            timeout,
        )
        for name, fields in wishes.items()
    }  # fmt: skip
    return {name: gather.wait() for name, gather in gathers.items()}


def _last_of(stream: str, end: Reply) -> int:
    if end.status == 503 and end.description:
        raise NoRespondersError(f"{stream}: no replica proves how fresh it is ({end.status} {end.description})")
    if end.status not in (204, 404):
        refuse(end, stream)
    applied = end.get("Jc-Applied-Seq")
    if applied is None:
        raise StreamError(f"{stream}: the server that answered does not say what it has applied; it is too old")
    return int(applied)


def _polled(link: Connection, state: StreamState, options: SourceOptions) -> StreamState:
    """Waits for `minLastSeq` where the server knows no such wish."""
    deadline = time.monotonic() + options.replica_wait
    while state.last < options.min_last.get(state.name, 0):
        if time.monotonic() > deadline:
            raise _too_short(state.name, state.last, options)
        time.sleep(POLL_SECONDS)
        state = stream_state(link, state.name)
    return state


def _too_short(stream: str, last: int, options: SourceOptions) -> StreamError:
    return StreamError(
        f"{stream} ends at {last}, and minLastSeq asks for {options.min_last[stream]} "
        f"(replicaWait={options.replica_wait:g}s)"
    )
