"""Requests, at the moment at which their command is proposed: whoever asked still waits. A client that was refused, as
nobody led, relies on it that nothing is begun much later, and tries again: two outcomes show only where both count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from jetcluster.cluster.requests import asked_until
from jetcluster.replica.proposals import Proposals
from testkit.sim.deployment import Deployment
from testkit.sim.rafts import raft_of


class Wanted:
    """It tells `deployment.failed` of what is begun for nobody."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment

    def begins(self, group: Any, until: float) -> None:
        """A command is proposed for somebody who waits until then, by this server's clock."""
        if until == math.inf:
            return
        self.looked += 1
        late = group.now() - until
        if late > 0.0:
            what = f"a command is proposed {late:.3f} s after whoever asked has given up"
            self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {self._where(group)}: {what}")

    def _where(self, group: Any) -> str:
        for machine in self._deployment.machines.values():
            raft = raft_of(machine)
            if raft is not None and raft.groups.get(group.gid) is group:
                return f"{machine.name}, group {group.gid}"
        return f"group {group.gid}"


@contextmanager
def watched(deployment: Deployment) -> Iterator[Wanted]:
    """All commands of requests are looked at meanwhile."""
    wanted = Wanted(deployment)
    usual: Callable[..., Any] = Proposals.propose

    async def propose(self: Proposals, group: Any, command: bytes, seconds: float) -> Any:
        wanted.begins(group, asked_until())
        return await usual(self, group, command, seconds)

    with patch.object(Proposals, "propose", propose):
        yield wanted
