"""All judges that look at calls of the product, at the moment of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from testkit.sim.deployment import Deployment
from tests.sim.cluster import (
    awaited,
    decisions,
    disk_order,
    half_states,
    installs,
    link_acks,
    member_quorums,
    mistakes,
    owner_turns,
    proofs,
    read_rounds,
    recoveries,
    repeats,
    returns,
    segments,
    spread,
    wanted,
)


@contextmanager
def watched(deployment: Deployment) -> Iterator[None]:
    """They look meanwhile."""
    with ExitStack() as stack:
        for judge in (
            proofs,
            installs,
            read_rounds,
            owner_turns,
            link_acks,
            wanted,
            repeats,
            decisions,
            recoveries,
            spread,
            segments,
            awaited,
            returns,
            member_quorums,
            disk_order,
            half_states,
            mistakes,
        ):
            stack.enter_context(judge.watched(deployment))
        yield
