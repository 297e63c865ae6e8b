"""Large clusters of workers in a simulation: forming, electing, placing, losing machines.

    python -m bench fleet [--machines 64] [--workers 8] [--streams 50000] [--live-workers 2]

The first part runs all nodes (`testkit.sim.nodes`: real mesh, Raft and JetStream, simulated network, disks and time).
They found a cluster and join it; then the leader's machine and that of another voter are lost, up to three times.
Heartbeats are five times rarer than outside and workers are fewer, because the cost of a simulated second grows with
the square of the nodes. The second part is the meta leader alone (`cluster.meta_service` on the state machine): it
places the streams on the machines, and machines are lost. Figures are of simulated time, and of this process's.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.meta_voters import MAX_VOTERS
from jetcluster.meta.machine import MetaMachine
from jetcluster.model.limits import AccountLimits
from jetcluster.model.machines import tags_of
from jetcluster.model.stream import StreamConfig
from jetcluster.raft.config import RaftConfig
from testkit.sim.nodes import ACCOUNT, NO_LIMITS, Cluster
from testkit.sim.shared import VirtualLoop
from testkit.twins.time import ManualTime

SLOWER = 5
REPLICAS = 3


class Clock:
    """Simulated seconds and those of this process, since the last look."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at = now(), time.process_time()

    def say(self, text: str) -> None:
        now = self._now(), time.process_time()
        simulated, own = now[0] - self._at[0], now[1] - self._at[1]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{text}: {simulated:.1f} s simulated, {own:.1f} s of this process, {memory} MB", flush=True)
        self._at = self._now(), time.process_time()


def slow_config() -> RaftConfig:
    """The times of Raft, so much longer that heartbeats cost less; a silence is noticed later by as much."""
    usual = RaftConfig()
    return RaftConfig(
        heartbeat=usual.heartbeat * SLOWER,
        suspect_after=usual.suspect_after * SLOWER,
        quorum_timeout=usual.quorum_timeout * SLOWER,
    )


def voters(cluster: Cluster) -> set[str]:
    """Names of the meta group's voters; empty while they change, or without a leader."""
    leader = cluster.meta_leader()
    if leader is None or leader.js.meta.group is None:
        return set()
    config = leader.js.meta.group.members_at(leader.js.meta.group.commit_index)
    return set() if config.outgoing else {node.name for node in cluster.nodes.values() if node.me in config.voters}


async def live(machines: int, workers: int) -> None:
    """The first part."""
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time)
    names = [f"m{number}-" for number in range(machines)]
    cluster = Cluster(names, workers=workers, config=slow_config())
    clock.say(f"{machines} machines of {workers} workers have started")
    await cluster.until(lambda: cluster.meta_leader() is not None, 600, "a meta leader")
    clock.say("the first meta leader")
    everybody = {node.me for node in cluster}

    def all_known() -> bool:
        leader = cluster.meta_leader()
        return leader is not None and everybody <= leader.js.meta.machine.nodes.keys()

    await cluster.until(all_known, 600, "all are members")
    assert len(voters(cluster)) == min(MAX_VOTERS, machines)
    clock.say(f"all {len(everybody)} nodes are members, {len(voters(cluster))} of them vote")
    lost: set[str] = set()
    while machines - len(lost) > MAX_VOTERS + 1 and len(lost) < 6:
        leader = cluster.meta_leader()
        assert leader is not None
        others = sorted(voters(cluster) - {leader.name})
        gone = {name.partition("-")[0] for name in (leader.name, others[0])}
        lost |= gone
        cluster.crash([node.name for node in cluster if node.name.partition("-")[0] in gone])
        await cluster.until(lambda: cluster.meta_leader() is not None, 120, "a meta leader")
        clock.say(f"{len(lost)} machines lost: a meta leader")

        def replaced(lost: set[str] = lost) -> bool:
            left = {name.partition("-")[0] for name in voters(cluster)}
            return len(left) == MAX_VOTERS and not left & lost

        await cluster.until(replaced, 120, "votes on other machines")
        clock.say(f"{len(lost)} machines lost: five machines vote again")


class Placing:
    """The meta leader's service on the state machine, whose commands are applied at once."""

    def __init__(self, machines: int, workers: int) -> None:
        self.machine = MetaMachine()
        self.names = {f"p{m:03}w{w:03}": f"m{m}" for m in range(machines) for w in range(workers)}
        self.online = set(self.names)
        self.service = MetaService(
            self.machine, clock=ManualTime(), propose=self._propose, barrier=self._barrier,
            online=lambda: self.online, cluster_name="C",
        )  # fmt: skip
        self._index = 0

    async def _propose(self, command: bytes) -> dict[str, Any]:
        self._index += 1
        return dict(self.machine.apply(self._index, 1, command)[0])

    async def _barrier(self) -> None:
        pass

    async def register(self) -> None:
        for peer, machine in self.names.items():
            tags = tags_of(machine, int(peer[-3:]))
            node = {"peer": peer, "name": peer, "tags": tags, "jetstream": True, "request": f"n{peer}"}
            await self.service.handle("node", node)

    async def create(self, number: int) -> None:
        config = {"name": f"S{number}", "subjects": [f"s.{number}"], "num_replicas": REPLICAS}
        wire = StreamConfig.model_validate(config).normalised(AccountLimits()).to_wire()
        body = {"request": f"q{number}", "account": ACCOUNT, "config": wire, "limits": NO_LIMITS}
        await self.service.handle("stream_create", body)

    def lose(self, machines: int) -> Counter[int]:
        """Takes so many further machines away; returns the streams by the number of replicas that are left."""
        there = sorted({self.names[peer] for peer in self.online})
        gone = set(there[:machines])
        self.online = {peer for peer in self.online if self.names[peer] not in gone}
        return Counter(len(self.online.intersection(a.peers)) for a in self.machine.all_assignments())

    async def heal(self) -> int:
        """Gives each stream other peers in the place of lost ones, as the leader does when lost nodes are removed."""
        moved = 0
        for assignment in list(self.machine.all_assignments()):
            found = assignment
            for peer in assignment.peers:
                if peer not in self.online:
                    peers = self.service.peers_without(found, peer)
                    await self.service.set_peers(found, peers, f"h{assignment.gid}-{peer}")
                    now = self.machine.by_gid(found.gid)
                    assert now is not None
                    found, moved = now, moved + 1
        return moved


async def place(machines: int, workers: int, streams: int) -> None:
    """The second part."""
    placing = Placing(machines, workers)
    clock = Clock(lambda: 0.0)
    await placing.register()
    clock.say(f"{len(placing.names)} nodes are registered")
    began = time.process_time()
    for number in range(streams):
        await placing.create(number)
    each = (time.process_time() - began) / streams * 1e3
    clock.say(f"{streams} streams with {REPLICAS} replicas are placed, {each:.2f} ms each")
    spread = Counter(peer for a in placing.machine.all_assignments() for peer in a.peers)
    leaders = Counter(a.leader_hint for a in placing.machine.all_assignments())
    _check(placing)
    print(f"replicas per node: {min(spread.values())} to {max(spread.values())}")
    print(f"leaders per node: {min(leaders.values())} to {max(leaders.values())}")
    left = placing.lose(1)
    assert min(left) >= REPLICAS - 1, "a machine had two replicas of a stream"
    print(f"one machine lost: streams by replicas left {dict(sorted(left.items(), reverse=True))}")
    moved = await placing.heal()
    _check(placing)
    clock.say(f"{moved} replicas have other places")
    left = placing.lose(2)
    print(f"two machines lost at once: streams by replicas left {dict(sorted(left.items(), reverse=True))}")


def _check(placing: Placing) -> None:
    for assignment in placing.machine.all_assignments():
        machines = {placing.names[peer] for peer in assignment.peers}
        assert len(machines) == REPLICAS, f"{assignment.name} has two replicas on one machine"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--streams", type=int, default=50_000)
    parser.add_argument("--live-workers", type=int, default=2, help="workers in the first part; 0: without it")


def main(arguments: argparse.Namespace) -> None:
    if arguments.live_workers:
        logging.disable()
        loop = VirtualLoop()  # type: ignore[abstract]
        loop.run(live(arguments.machines, arguments.live_workers))
    asyncio.run(place(arguments.machines, arguments.workers, arguments.streams))
