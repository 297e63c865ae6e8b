"""The judge of balance: what the meta leader moves does not bounce. Looked at while a run goes on, as `invariants.py`.

A leader or a consumer that has moved for balance rests before it does so again, whatever else happens. Once the faults
are over, none goes back and forth by the word of one meta leader: the next one does not know what that one has moved.
"""

from __future__ import annotations

from typing import Any

from jetcluster.cluster import load
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.invariants import jetstream_of

EVERY = 0.25
"""Seconds between two looks."""
QUICK = 0.4
"""Share of the time that a leader rests: clocks of machines run fast or slow."""
Key = tuple[str, str, int, str]
"""(cluster, kind, group, consumer)"""


class Moves:
    """`begin` has everything looked at from then on; what is broken is raised as Violation from the scheduler."""

    def __init__(self, deployment: Deployment) -> None:
        self.seen = 0
        """Moves of leaders and consumers."""
        self._deployment = deployment
        self._told: dict[str, tuple[Any, int]] = {}
        """By server, its balancer and how many moves of it were looked at."""
        self._times: dict[Key, float] = {}
        self._calm = False
        self._left: dict[Key, list[str]] = {}
        """The servers that it went away from since it is calm and the same server decides."""
        self._decides: dict[str, Any] = {}
        """By cluster, the balancer that moved something last."""

    def begin(self) -> None:
        self.look()
        self._deployment.scheduler.after(EVERY, self.begin)

    def calm(self) -> None:
        """No fault comes any more."""
        self._calm = True

    def look(self) -> None:
        for name, machine in self._deployment.machines.items():
            jetstream = jetstream_of(machine)
            balancer = None if jetstream is None else jetstream.balancer
            if balancer is None:  # a server that stands alone has none
                continue
            known, before = self._told.get(name, (None, 0))
            total = sum(balancer.moved.values())
            new = total - (before if known is balancer else 0)
            self._told[name] = balancer, total
            cluster = self._deployment.servers[name].cluster or name
            if new and self._decides.get(cluster) is not balancer:
                self._decides[cluster] = balancer
                self._left = {key: left for key, left in self._left.items() if key[0] != cluster}
            for move in list(balancer.last)[-new:] if new else ():
                if move.kind != load.REPLICAS:
                    self.note((cluster, move.kind, move.assignment.gid, move.consumer), move.source, move.target)

    def note(self, key: Key, source: str, target: str) -> None:
        """One move that was just made."""
        now, self.seen = self._deployment.scheduler.now, self.seen + 1
        least = load.OWNED_SECONDS if key[1] == load.CONSUMERS else load.REST_SECONDS
        rested = now - self._times.get(key, -least)
        self._times[key] = now
        if rested + EVERY < QUICK * least:
            self._broken(key, f"moves from {source} to {target} {rested:.1f} s after it has moved")
        if self._calm:
            left = self._left.setdefault(key, [])
            if left.count(target) > 1:
                self._broken(key, f"goes back to {target} again")
            left.append(source)

    def _broken(self, key: Key, why: str) -> None:
        cluster, kind, gid, consumer = key
        what = f"{kind} {consumer} of group {gid}".replace("  ", " ")
        raise Violation(f"at {self._deployment.scheduler.now:.3f}: {cluster}, for balance the {what} {why}")
