"""Where new streams, their leaders and consumers go: to whoever has the fewest."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any

from jetcluster.meta.machine import MetaMachine
from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.replicas import jetstreams, replicas

CONSUMERS = 4


class SpreadExam(Exam):
    name = "exam-spread"
    judges = (Exact,)
    promises = (
        "a new stream goes to the servers with the fewest replicas, and the one of them leads that leads the fewest",
        "a new pull consumer is delivered by the server that delivers the fewest of its stream",
    )

    async def check(self) -> None:
        if len(self.members) < 3 or any(self.deployment.servers[name].tags for name in self.members):
            return  # with zones, others may have to take it
        await self.examine([self._streams, self._consumers], 2)

    async def _streams(self, session: Session) -> None:
        names = [f"SPREAD{at}" for at in range(4)]
        for name in names:
            meta = self._meta()
            before = meta.all_assignments()
            held = Counter(peer for one in before for peer in one.peers)
            led = Counter(one.leader_hint for one in before)
            size = self.rng.choice([1, 3])
            await self.create(session, name, subjects=[name.lower()], num_replicas=size)
            made = next(one for one in self._meta().all_assignments() if one.name == name)
            others = [held[peer] for peer, node in meta.nodes.items() if node.jetstream and peer not in made.peers]
            most = max(held[peer] for peer in made.peers)
            self.equal(f"replicas where {name} went, at most {most}", most <= min(others, default=most), True)
            least = min(led[peer] for peer in made.peers)
            self.equal("streams that its leader led", led[made.leader_hint], least)
        for name in names:
            await self.ask(session, f"STREAM.DELETE.{name}")

    def _meta(self) -> MetaMachine:
        """The machine of the server that leads the meta group."""
        found = [
            one.meta for _, one in jetstreams(self.deployment) if one.meta.leading and one.network.cluster_name == "sim"
        ]
        return found[0].machine

    async def _consumers(self, session: Session) -> None:
        await self.create(session, "SPREAD", subjects=["spread"], num_replicas=3)
        for at in range(CONSUMERS):
            before = self._owned()
            await self.create_consumer(session, "SPREAD", f"c{at}")
            (owner,) = self._owned() - before
            self.equal(f"consumers that {owner} had", before[owner], min(before[peer] for peer in self._peers()))
        await self.ask(session, "STREAM.DELETE.SPREAD")

    def _owned(self) -> Counter[str]:
        """Consumers of the stream by their owners, as its leader knows them."""
        leader = next(one for one in replicas(self.deployment, "SPREAD").values() if one.leading)
        return Counter(state.owner for state in leader.table.by_cid.values())

    def _peers(self) -> tuple[str, ...]:
        leader: Any = next(one for one in replicas(self.deployment, "SPREAD").values() if one.leading)
        peers: tuple[str, ...] = attrgetter("assignment.peers")(leader)
        return peers
