"""Requests that a stream's leader carries out once, however often they are asked (`stream.apply.asked`)."""

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
"""Requests of `StreamRequests` that are. Done again, the others change nothing, or are as good as a moment before."""
WAIT_SECONDS = 2.0
"""Then the asker is told that the request is under way, and asks again: `requests.DEADLINE` is longer."""
LATEST = 60_000_000_000
"""Nanoseconds after the end of a request within which a node still in doubt about it asks again; clocks of leaders
may differ by a part of that."""


def number_of(replica: StreamReplica, body: Body, now: int) -> int:
    """The number to put into the request's command. Raises ApiError 503 where the request may have been carried out
    before, and nobody can know: then it is not carried out at all."""
    request = int(body[ONCE])
    if body.get(REPEATED):
        asked = replica.machine.asked
        if asked.get(request) is None and asked.may_have_forgotten(now - LATEST):
            raise by_code(NOT_AVAILABLE)
    return request


async def carry_out(replica: StreamReplica, command: bytes, body: Body, clock: Clock) -> int:
    """The outcome of `command`, which is carried out unless it was before, as far as this replica has applied. Raises
    ApiError for a refusal; RaftError, OutcomeUnknownError, and UnderWayError when it takes longer."""
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
