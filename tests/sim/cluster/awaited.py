"""Answers that a leader awaits of a follower, at the moment at which it goes on from one probe to all the rest: that to
what it has sent, or none where the follower has everything. A leader that awaits nothing, and has sent what did not
arrive, sends that once more only when there is more to send; at the next look of `invariants.py` it mostly has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from unittest.mock import patch

from jetcluster.raft.core.peer_progress import FlowState, PeerProgress
from testkit.sim.deployment import Deployment


def forgotten(flow: PeerProgress) -> str:
    """Words for what was sent to a follower that may not have it, where nobody awaits the answer, else "". The question
    whether its log has the leader's base is none that is repeated: whoever has not says so, or its link ends."""
    known = flow.out or flow.next == flow.match + 1 or flow.state != FlowState.REPLICATE
    if known or flow.base_probed == flow.next - 1:
        return ""
    return f"{flow.next - 1} was sent to {flow.peer}, which has {flow.match}, and no answer is awaited"


class Awaited:
    """It tells `deployment.failed` of entries whose answer nobody awaits."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def goes_on(self, flow: PeerProgress) -> None:
        self.looked += 1
        if what := forgotten(flow):
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: a leader goes on: {what}")


@contextmanager
def watched(deployment: Deployment) -> Iterator[Awaited]:
    """All followers are looked at meanwhile, once the turn in which each is gone on with is over."""
    awaited = Awaited(deployment)
    usual: Callable[..., None] = attrgetter("_replicate")(PeerProgress)

    def replicate(self: PeerProgress, since: float) -> None:
        usual(self, since)
        deployment.scheduler.after(0.0, lambda: awaited.goes_on(self))

    with patch.object(PeerProgress, "_replicate", replicate):
        yield awaited
