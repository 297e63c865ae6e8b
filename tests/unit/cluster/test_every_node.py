"""Usage of an account, as all servers together know it (cluster/every_node.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from jetcluster.cluster.every_node import EveryNode
from testkit.sim.nodes import ACCOUNT, Cluster
from testkit.sim.shared import virtual_time
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime


@virtual_time
async def test_every_replica_counts_also_those_of_servers_that_are_down() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        await cluster.create("ONE", 1)
        await cluster.create("MEM", 3, storage="memory")
        await cluster.led("MEM")
        for subject in (b"s", b"one", b"mem"):
            await cluster["A"].publish(subject, b"x" * 1000)
        await asyncio.sleep(1)
        node = cluster.leader("ONE")
        used = await node.js.used(ACCOUNT)
        sizes = {name: cluster.leader(name).replica(name).store.byte_count for name in ("S", "ONE", "MEM")}
        assert used == (3 * sizes["MEM"], 3 * sizes["S"] + sizes["ONE"], 0)
        tiers = await node.js.used_by_tier(ACCOUNT)
        down = next(other for other in cluster if other is not node)
        cluster.crash(down.name)
        for stream in ("S", "MEM"):
            await cluster.led(stream)
        await cluster.until(lambda: down.me not in node.mesh.peers, what="its link is gone")
        assert await node.js.used(ACCOUNT) == used
        assert await node.js.used_by_tier(ACCOUNT) == tiers


class Mesh:
    """Mesh of a node whose peers answer what a test wants."""

    def __init__(self, *answers: bytes) -> None:
        self.peers = {f"p{number}": None for number in range(len(answers) - 1)}
        self.me = SimpleNamespace(peer_id="me")
        self._answers = list(answers)

    def serve(self, method: str, handler: Any) -> None: ...

    async def call(self, peer: str, method: str, payload: bytes, seconds: float) -> bytes:
        return self._answers.pop()


async def test_a_word_about_usage_that_makes_no_sense_counts_for_nothing() -> None:
    answers = (b"[[3, 1, 2, 3]]", b"nonsense", b'[["a", 1, 2, 3]]', b"[[3, 1, 1, 1], [1, 5, 5, 5]]")
    mesh: Any = Mesh(*answers)
    log: Any = ListLog()
    meta: Any = SimpleNamespace(machine=SimpleNamespace(removed={}, nodes={"me": None}))
    assert await EveryNode(mesh, ManualTime(), log, meta, {}).used_by_tier(ACCOUNT) == {3: (2, 3, 4), 1: (5, 5, 5)}
    assert log.events("warning") == ["malformed usage"] * 2


@virtual_time
async def test_who_is_told_of_a_stream_finds_it_at_the_same_server() -> None:
    """Also where its replica of the meta group is behind: the stream's leader may know of it earlier."""
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        behind = cluster.followers("S")[0]
        revision = cluster.leader("S").js.meta.machine.applied_index + 1
        hearing = asyncio.get_running_loop().create_task(behind.js.heard(revision))
        await asyncio.sleep(0.1)
        assert not hearing.done()
        await cluster.create("T", 3)
        async with asyncio.timeout(0.1):
            await hearing
        began = cluster.loop.time()
        await behind.js.heard(revision + 1000)
        assert 2.0 <= cluster.loop.time() - began < 2.1, "not for ever"
