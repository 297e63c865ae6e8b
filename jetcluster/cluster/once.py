"""Requests that a stream's leader carries out once, however often they are repeated (`stream.apply.asked`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetcluster.clock import Clock
from jetcluster.cluster.requests import ONCE, REPEATED, UnderWayError, check_wanted
from jetcluster.errors import NOT_AVAILABLE, ApiError, by_code
from jetcluster.replica.consumer_exchange import until
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.stream.apply.asked import Outcome
from jetcluster.stream.log import commands

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

Body = dict[str, Any]

NUMBERED = frozenset(("purge", "consumer_delete", "consumer_reset", "object"))
"""Requests of `StreamRequests` that are numbered. Repeating the others changes nothing, or does no harm."""
WAIT_SECONDS = 2.0
"""Wait until the asker is told to ask again; `DEADLINE_SECONDS` is longer."""
REPEAT_WINDOW_NS = 60_000_000_000
"""Time after a request's end within which a node in doubt may ask again; leaders' clocks may differ by a part of it."""


def number_of(replica: StreamReplica, body: Body, now: int) -> int:
    """Returns the request's number. Raises ApiError 503 for a repeated one whose outcome may have been forgotten."""
    request = int(body[ONCE])
    if body.get(REPEATED):
        asked = replica.machine.asked
        if asked.get(request) is None and asked.may_have_forgotten(now - REPEAT_WINDOW_NS):
            raise by_code(NOT_AVAILABLE)
    return request


async def carry_out(replica: StreamReplica, command: bytes, body: Body, clock: Clock) -> int:
    """Returns the outcome of `command`, carried out unless this replica has applied it before. Raises ApiError for a
    refusal; RaftError, OutcomeUnknownError, and UnderWayError when it takes longer."""
    request = number_of(replica, body, clock.time_ns())
    asked = replica.machine.asked
    known = asked.get(request)
    if known is None:
        check_wanted(clock)
        try:
            result = await replica.propose(commands.named(command, request), WAIT_SECONDS)
        except OutcomeUnknownError:
            known = asked.get(request)
            if known is None or not replica.leading:
                raise
        else:
            if isinstance(result, ApiError):
                raise result
            return int(result)
    elif known.open:
        await until(lambda: not _is_open(asked.get(request)) or not replica.leading, clock, WAIT_SECONDS)
        known = asked.get(request)
    if known is None or not replica.leading:
        raise OutcomeUnknownError("leadership lost")
    if known.open:
        raise UnderWayError(replica.machine.job_steps)
    return known.result


def _is_open(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.open
