"""Publishers wait at a valve that another server has closed, as long as that is so and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from jetcluster.mesh import interest
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import jetstream_of

EVERY = 0.5
"""Seconds between two looks."""
LATE = 1.0
"""Seconds within which others know that a valve is open, where nothing is wrong between them."""
UNTOLD = 2.5
"""Seconds within which they know that it is closed, also over a new link: it is said once a second."""
Place = tuple[str, str, str, bytes]
"""(who waits, whose valve it is, account, subject)"""


class Valves:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.closed = 0
        """Counts the valves of others that were found closed."""
        self._deployment = deployment
        self._since: dict[Place, float] = {}
        self._untold: dict[Place, float] = {}

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def look(self) -> None:
        now = self._deployment.scheduler.now
        wrong, untold = set(self._wrong()), set(self._unknown())
        self._since = {place: self._since.get(place, now) for place in sorted(wrong)}
        self._untold = {place: self._untold.get(place, now) for place in sorted(untold)}
        for (name, other, _, subject), since in self._untold.items():
            if now - since > UNTOLD:
                what = f"{name} does not wait for a valve of {other} at {subject.decode()}, which is closed for"
                raise Violation(f"at {now:.3f}: {what} {now - since:.1f} s")
        for (name, other, _, subject), since in self._since.items():
            if now - since > LATE:
                what = f"{name} waits for a valve of {other} at {subject.decode()}, which is open for {now - since:.1f}"
                raise Violation(f"at {now:.3f}: {what} s")

    def _wrong(self) -> Iterator[Place]:
        machines = {name: one for name, one in self._deployment.machines.items() if self._is_well(one)}
        closed = {name: set(_closed(machine)) for name, machine in machines.items()}
        peers = {jetstream_of(machine).network.me: name for name, machine in machines.items()}
        for name, machine in machines.items():
            for peer, account, subject in _known(machine):
                other = peers.get(peer)
                if other is None or not self._calm(machine, machines[other]):
                    continue
                self.closed += 1
                if (account, subject) not in closed[other]:
                    yield name, other, account, subject

    def _unknown(self) -> Iterator[Place]:
        """Closed valves that another server knows the subject of, and takes for open. It respects few of one server."""
        machines = {name: one for name, one in self._deployment.machines.items() if self._is_well(one)}
        closed = {name: found for name, machine in machines.items() if (found := set(_closed(machine)))}
        closed = {name: found for name, found in closed.items() if len(found) <= interest.MAX_CLOSED_VALVES}
        if not closed:
            return
        peers = {jetstream_of(machine).network.me: name for name, machine in machines.items()}
        for name, machine in machines.items():
            for link, account, subject, waited in _interests(machine):
                other = peers.get(link.peer_id, "")
                is_closed = (account, subject) in closed.get(other, ())
                if is_closed and not (waited or link.silent) and self._calm(machine, machines[other]):
                    yield name, other, account, subject

    def _is_well(self, machine: Machine) -> bool:
        slow = machine.clock.slowness != machine.usual_slowness or machine.is_short
        return jetstream_of(machine) is not None and not machine.paused and not slow

    def _calm(self, one: Machine, other: Machine) -> bool:
        link = self._deployment.network.link
        return link(one.host.ip, other.host.ip).is_calm and link(other.host.ip, one.host.ip).is_calm


def _known(machine: Machine) -> Iterator[tuple[str, str, bytes]]:
    """The valves of others that are closed by what a server knows: peer, account, subject."""
    for link, account, subject, closed in _interests(machine):
        if closed:
            yield link.peer_id, account, subject


def _interests(machine: Machine) -> Iterator[tuple[Any, str, bytes, bool]]:
    """Interest elsewhere in the cluster, by what a server knows: link, account, subject, and whether the valve of who
    wants it is closed."""
    for router in attrgetter("node.server.accounts")(machine):
        for peer, wants in attrgetter("_wants")(router.peers).items():
            for (subject, queue), want in wants.items():
                if queue is None and hasattr(want, "valve") and hasattr(peer, "peer_id"):
                    yield peer, router.account, subject, want.valve is not None and want.valve.closed


def _closed(machine: Machine) -> Iterator[tuple[str, bytes]]:
    """The own valves of a server that are closed: account, subject."""
    for replica in jetstream_of(machine).replicas.values():
        if replica.ingest.valve.closed:
            for subject in replica.listening.subjects:
                yield replica.assignment.account, subject
