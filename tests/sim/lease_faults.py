"""Faults around leases: a leader that is cut off at the worst moments while all who believe to lead are read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from jetcluster.raft import codec
from tests.sim.limits import FAST
from tests.sim.nemesis import Nemesis

if TYPE_CHECKING:
    from tests.sim.simulation import Scenario, SimNode, Simulation

LEASE = 0.4
"""Seconds: far longer than an election takes, so that a lease that is too long shows."""


def scenario(seed: int) -> Scenario:
    """Three or five voters, no membership changes, many writes and reads."""
    from tests.sim.simulation import Scenario

    config = replace(
        FAST, lease=LEASE, longest_lease=LEASE + 0.05, quorum_timeout=1.0, link_loss_jitter=(0.001, 0.006),
        retry=(0.004, 0.01)
    )  # fmt: skip
    return Scenario(
        config=config, voters=5 if seed % 5 == 0 else 3, seconds=6.0, think=0.008, fault_every=0.8,
        drift=FAST.clock_drift, reads_every=0.01, nemesis=LeaseFaults
    )  # fmt: skip


class LeaseFaults(Nemesis):
    """Each fault ends before the next one, mostly."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._ailments = None
        self.actions = [self.isolate, self.isolate, self.forgetful, self.handed_over, self.slow_answers, self.stop]

    def strike(self) -> None:
        """In half of the runs the leader's clock is the slow one."""
        leader, drift = self._led(), self.sim.scenario.drift
        if leader is not None and self.sim.seed % 2:
            for node in self.sim.nodes.values():
                node.set_rate(1 - drift if node is leader else 1 + drift)
        super().strike()

    def _led(self) -> SimNode | None:
        node = self.sim.healed_leader(1)
        return None if node is None or node.dead or node.paused_until > self.sim.now else node

    def _block(self, name: str, others: list[str], seconds: float) -> None:
        sim = self.sim
        pairs = [sim.pair(name, other) for other in others]
        for pair in pairs:
            sim.blocked.add(pair)
            sim.disconnect(*pair)

        def mend() -> None:
            for pair in pairs:
                sim.blocked.discard(pair)
                sim.connect(*pair)

        sim.at(seconds, mend)

    def _others(self, name: str) -> list[str]:
        return [other for other in self.sim.nodes if other != name]

    def _cut_off(self, name: str) -> None:
        self.sim.log("CUT OFF", name)
        self._block(name, self._others(name), self.rng.uniform(0.5, 0.7))

    def isolate(self) -> None:
        node = self._led()
        if node is not None:
            self._cut_off(node.name)

    def forgetful(self) -> None:
        """A majority knows of a lease, and one of it is started again at once, without the leader."""
        node, sim = self._led(), self.sim
        if node is None:
            return
        others = self._others(node.name)
        rest = self.rng.sample(others, (len(others) + 1) // 2)
        kept = [other for other in others if other not in rest]
        sim.log("FORGETFUL", node.name, kept)
        self._block(node.name, rest, 1.0)

        def again() -> None:
            self._block(node.name, kept, 0.4)
            for name in kept:
                sim.crash(name)
                sim.at(0.005, sim.restart, name)

        sim.at(LEASE + 0.1, again)

    def handed_over(self) -> None:
        """The old leader hears nothing from when its successor begins."""
        node = self._led()
        if node is not None and node.raft.groups[1].transfer():
            self._on_frame(node.name, codec.TIMEOUT_NOW, lambda: self._deafen(node.name, self.rng.uniform(0.05, 0.19)))

    def slow_answers(self) -> None:
        """The answers to a request for a lease are late, and the leader is cut off when they have come."""
        node = self._led()
        if node is not None:
            self._on_frame(node.name, codec.LEASE_REQUEST, lambda: self._slow_down(node.name))

    def _slow_down(self, name: str) -> None:
        seconds = self.rng.uniform(0.2, 0.35)
        self.sim.at(0.003, self._mute, name, seconds)
        self._deafen(name, seconds)
        self.sim.at(seconds + 0.004, self._cut_off, name)

    def _deafen(self, name: str, seconds: float) -> None:
        self.sim.log("DEAFEN", name, seconds)
        for other in self._others(name):
            self.sim.stalled[(other, name)] = self.sim.now + seconds

    def _mute(self, name: str, seconds: float) -> None:
        for other in self._others(name):
            self.sim.stalled[(name, other)] = self.sim.now + seconds

    def _on_frame(self, name: str, kind: int, act: Callable[[], None]) -> None:
        """Acts once, with the next frame of this kind that the node sends."""

        def look(source: str, frame: bytes) -> None:
            if source == name and frame[1] == kind:
                self.sim.watch = None
                act()

        self.sim.watch = look

    def stop(self) -> None:
        """The leader stands still; it is read from as soon as it goes on."""
        node = self._led()
        if node is not None:
            self.sim.log("STOP", node.name)
            node.paused_until = self.sim.now + self.rng.uniform(0.2, 0.8)
            self.sim.at(node.paused_until - self.sim.now, self.sim.read_at, node)
