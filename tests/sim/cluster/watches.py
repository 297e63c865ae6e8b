"""All judges that look at calls of the product, at the moment of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from testkit.sim.deployment import Deployment
from tests.sim.cluster import (
    decisions,
    installs,
    link_acks,
    owner_turns,
    proofs,
    read_rounds,
    recoveries,
    repeats,
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
        ):
            stack.enter_context(judge.watched(deployment))
        yield
