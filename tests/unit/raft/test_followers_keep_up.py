"""Leaders change, links break and nodes crash at random: what a leader has committed is applied soon by every live
follower with a link to it. A stall timer would hide a lost or wrong message for a second (`RaftConfig.stall`)."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import RaftError
from jetcluster.raft.core.group import Group
from tests.unit.raft.loopback import Loopback

LAG = 0.2
"""Seconds; some round trips over the slowest link take 0.07."""
SECONDS = 2.0
STEP = 0.002
FAULTS = ("transfer", "resign", "cut", "crash")
FOUND = (70, 73, 213)
"""Seeds in which a follower stood still for half a second: a beat stood for the batch that it waited for."""


class Jittery(Loopback):
    """Links keep their order but not their pace. Some frames come in the turn of a read; every refusal does."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.arrives: dict[tuple[str, str], float] = {}
        super().__init__(latency=dice.choice([0.0002, 0.001, 0.005]))

    def send(self, source: str, target: str, gid: int, frame: bytes) -> bool:
        link = self.links.get(frozenset((source, target)))
        if link is None:
            return False
        now, before = self.time.monotonic(), self.arrives.get((source, target), 0.0)
        after = max(self.latency * self.dice.uniform(0.5, 3.0), before + 1e-6 - now)
        self.arrives[source, target] = now + after
        group = self.members[target].node.groups.get(gid)
        if group is not None and (frame[1] == codec.REJECT or self.dice.random() < 0.02):
            self.time.call_later(after, group.read_index, lambda ok: None)
        self.time.call_later(after, self._deliver, link, source, target, gid, frame)
        return True

    def load(self, leader: Group) -> None:
        try:
            for _ in range(self.dice.choice([0, 1, 1, 3])):
                leader.propose(b"x" * self.dice.randrange(10, 300))
        except RaftError:
            pass  # it is handing over
        if self.dice.random() < 0.4:
            leader.read_index(lambda ok: None)

    def hit(self, fault: str, leader: Group | None) -> None:
        if fault == "cut":
            pair = self.dice.sample("ABC", 2)
            self.cut(*pair)
            self.time.call_later(self.dice.uniform(0.005, 0.4), self.connect, *pair)
        elif fault == "crash" and not any(member.dead for member in self.members.values()):
            name = self.dice.choice("ABC")
            self.crash(name, lose=False)
            self.time.call_later(self.dice.uniform(0.02, 0.6), self.come_back, name)
        elif leader is not None and fault == "transfer":
            leader.transfer(self.dice.choice([None, "A", "B", "C"]))
        elif leader is not None and fault == "resign":
            leader.resign()

    def come_back(self, name: str) -> None:
        self.restart(name).create(1, ("A", "B", "C"))
        for other in sorted(self.members.keys() - {name}):
            self.connect(name, other)


class Owed(NamedTuple):
    """The entries that a follower lacks under one leader, over one link, and since when."""

    since: float
    commit: int
    leader: tuple[str, int]
    link: int
    follower: Group


def owed(net: Loopback, leader: Group, name: str, before: Owed | None) -> Owed | None:
    link = net.links.get(frozenset((name, leader.me)))
    if link is None:
        return None
    follower = net[name].group()
    here = (leader.me, leader.term), link, follower
    if before is not None and before[2:] == here and follower.applied_index < before.commit:
        return before
    if follower.applied_index < leader.commit_index:
        return Owed(net.time.monotonic(), leader.commit_index, *here)
    return None


@pytest.mark.parametrize("seed", [*range(12), *FOUND])
def test_a_live_follower_applies_soon_what_is_committed(seed: int) -> None:
    dice = random.Random(seed)
    net = Jittery(dice)
    net.start()
    lacks: dict[str, Owed] = {}
    next_fault = start = net.time.monotonic()
    while net.time.monotonic() < start + SECONDS:
        leader = net.leader()
        if leader is not None:
            net.load(leader)
        if net.time.monotonic() >= next_fault:
            next_fault += dice.uniform(0.02, 0.5)
            net.hit(dice.choice(FAULTS), leader)
        net.run(STEP)
        leader = net.leader()
        found = {} if leader is None else {n: owed(net, leader, n, lacks.get(n)) for n in "ABC" if n != leader.me}
        lacks = {name: lack for name, lack in found.items() if lack is not None}
        for name, lack in lacks.items():
            lag = net.time.monotonic() - lack.since
            assert lag < LAG, f"{name} lacks {lack.commit} of {lack.leader}, applied {lack.follower.applied_index}"
