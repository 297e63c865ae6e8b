"""The judge of interest: a server that waits until others have heard what it wants goes on once all of them have. A
client that publishes through one that has not is told that nobody is there, in a moment that is as short as the links
are fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.interest import MeshInterest
from jetcluster.monitor.view import mesh_of
from testkit.sim.deployment import Deployment
from tests.sim.cluster.reckoning import MAX_TOKENS, heard_by

if TYPE_CHECKING:
    from testkit.sim.machine import Machine

Interest = tuple[str, bytes, bytes | None, int]


class Spread:
    """It tells `deployment.failed` of a server that goes on too early."""

    def __init__(self, deployment: Deployment) -> None:
        self.looked = 0
        self._deployment = deployment
        self._waiting: list[tuple[MeshCore, set[Interest]]] = []
        """Those who wait, with what they have told and not changed since."""

    def told(self, mesh: MeshCore) -> tuple[set[Interest], list[Any]]:
        """Returns what the server has told, and the links over which it has."""
        machine = self._machine(mesh)
        found = set() if machine is None else _interests(machine)
        self._waiting.append((mesh, found))
        return found, list(mesh.links.values())

    def changes(self, mesh: MeshCore, account: str, subject: bytes, queue: bytes | None) -> None:
        """Told again, or withdrawn, an interest is on its way: those who wait no longer wait for that."""
        for other, told in self._waiting:
            if other is mesh:
                told -= {one for one in told if one[:3] == (account, subject, queue)}

    def ends(self, told: set[Interest]) -> None:
        """The wait is over, whatever has come of it."""
        self._waiting = [one for one in self._waiting if one[1] is not told]

    def goes_on(self, mesh: MeshCore, told: set[Interest], links: list[Any]) -> None:
        machine = self._machine(mesh)
        if machine is None:
            return
        for other in self._deployment.machines.values():
            node = other.node if other.ready and other is not machine else None
            theirs = None if node is None else mesh_of(node)
            if node is None or theirs is None or mesh.links.get(theirs.me.peer_id) not in links:
                continue
            link = theirs.links.get(mesh.me.peer_id)
            if link is None:
                continue
            self.looked += 1
            if missing := told - heard_by(node).get(link, set()):
                now, what = self._deployment.scheduler.now, sorted(map(str, missing))[:3]
                self._deployment.failed(
                    f"at {now:.3f}: {machine.name} goes on, and {other.name} has not heard of {what}"
                )

    def _machine(self, mesh: MeshCore) -> Machine | None:
        for machine in self._deployment.machines.values():
            if machine.ready and machine.node is not None and mesh_of(machine.node) is mesh:
                return machine
        return None


def _interests(machine: Machine) -> set[Interest]:
    found: set[Interest] = set() if machine.node is None else set(machine.node.server.accounts.interests())
    return {one for one in found if one[1].count(b".") < MAX_TOKENS}


@contextmanager
def watched(deployment: Deployment) -> Iterator[Spread]:
    """All servers are looked at meanwhile."""
    spread = Spread(deployment)
    usual: Callable[..., Any] = MeshCore.sync_interest

    async def sync_interest(self: MeshCore, timeout: float = 5.0) -> None:
        told, links = spread.told(self)
        try:
            await usual(self, timeout)
        finally:
            spread.ends(told)
        spread.goes_on(self, told, links)

    changed: Callable[..., None] = MeshInterest.interest_changed

    def interest_changed(self: MeshInterest, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        spread.changes(vars(self)["_mesh"], account, subject, queue)
        changed(self, account, subject, queue, count)

    with (
        patch.object(MeshCore, "sync_interest", sync_interest),
        patch.object(MeshInterest, "interest_changed", interest_changed),
    ):
        yield spread
