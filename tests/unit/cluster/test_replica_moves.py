"""A server gets its share of replicas (cluster/replica_moves.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.cluster import load
from jetcluster.cluster.balancer import BalanceRules
from testkit.sim.nodes import Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.balance_support import QUIET, STEADY, advisories, leads, moves, shorten


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@virtual_time
async def test_a_new_server_gets_replicas_one_after_the_other_and_then_leaders() -> None:
    async with Cluster() as cluster:
        for number in range(12):
            await cluster.create(f"S{number}", 3 if number % 4 else 1)
            await cluster["A"].publish(f"s{number}".encode(), b"kept")
        told = advisories(cluster["A"])
        cluster.network.expected = 4
        added = cluster.add("D")
        await asyncio.sleep(STEADY - 3)
        assert not added.js.replicas, "it must have been there for a while"
        total = 9 * 3 + 3
        await cluster.until(lambda: len(added.js.replicas) >= total // 4 - 1, 400, "its share of replicas")
        await cluster.until(lambda: leads(cluster)["D"] >= 2, 3 * QUIET, "its share of leaders")
        await asyncio.sleep(60)
        held = [len(node.js.replicas) for node in cluster]
        assert sum(held) == total and max(held) - min(held) <= 1, held
        assert max(leads(cluster).values()) - min(leads(cluster).values()) <= 2, leads(cluster)
        copies = [one for one in told if one["kind"] == "replica"]
        assert copies and {one["to"] for one in copies} == {"D"}
        assert "replicas of weight" in copies[0]["why"]
        for number in range(12):
            await cluster.equal(f"S{number}")
            assert cluster.leader(f"S{number}").replica(f"S{number}").store.messages == 1
        before = len(told)
        await asyncio.sleep(60)
        assert len(told) == before, told[before:]


@virtual_time
async def test_no_replica_moves_while_a_server_is_away_or_a_placement_forbids_it() -> None:
    async with Cluster("ABCDE", tags={"A": "fast", "B": "fast", "C": "fast", "D": "fast"}) as cluster:
        for node in cluster:
            node.js.balancer.rules = lambda: BalanceRules(leaders=False, replicas=False)
        for number in range(8):
            await cluster.create(f"S{number}", 3, placement={"tags": ["fast"]})
        cluster.crash("D")
        await asyncio.sleep(10)
        home = next(iter(cluster))
        for number in range(8):
            body = {"request": f"m{number}", "account": "$G", "name": f"S{number}", "peer": "D"}
            assignment = home.js.assignment("$G", f"S{number}")
            assert assignment is not None
            if cluster.nodes["D"].me in assignment.peers:
                await home.js.meta_request("stream_peer_remove", body)
        for node in cluster:
            node.js.balancer.rules = BalanceRules
        await asyncio.sleep(QUIET)
        assert not moves(cluster)[load.REPLICAS], "a server is away"
        back = cluster.restart("D")
        back.js.balancer.rules = BalanceRules
        await cluster.until(lambda: len(back.js.replicas) == 6, 600, "a fourth of 24")
        await asyncio.sleep(QUIET)
        assert not cluster["E"].js.replicas, "it is not fast"


class Publishers:
    """One for each stream, at one node; each sends its message again after 0.4 s without an ack, as clients do."""

    def __init__(self, node: Node, streams: int, pause: float) -> None:
        self.longest = 0.0
        """Seconds from a message's first sending to its ack."""
        self.acked = 0
        self._node, self._pause = node, pause
        self.tasks = [asyncio.get_running_loop().create_task(self._publish(number)) for number in range(streams)]

    async def _publish(self, stream: int) -> None:
        subject, clock = f"s{stream}".encode(), self._node.cluster.loop
        await asyncio.sleep(self._pause * (stream % 17) / 17)
        while True:
            began = clock.time()
            while not await self._stored(subject):
                await asyncio.sleep(0.01)
            self.longest = max(self.longest, clock.time() - began)
            self.acked += 1
            await asyncio.sleep(self._pause)

    async def _stored(self, subject: bytes) -> bool:
        try:
            _, _, body = await self._node.request(subject, b"x", 0.4)
        except (NoRespondersError, TimeoutError):
            return False
        return b'"seq"' in body


async def grown_and_shrunk(streams: int, pause: float) -> float:
    """Three servers become six and three again; the longest time for which a message waited for its ack."""
    async with Cluster() as cluster:
        for number in range(streams):
            await cluster.create(f"S{number}", 1 if number % 6 == 5 else 3)
        total = sum(len(node.js.replicas) for node in cluster)
        load_of_all = Publishers(cluster["A"], streams, pause)
        for name in "DEF":
            cluster.add(name)

        def even() -> bool:
            held = [len(node.js.replicas) for node in cluster]
            led = leads(cluster).values()
            return max(held) - min(held) <= 1 and max(led) - min(led) <= 2 and sum(held) == total

        await cluster.until(even, 60.0 + 4.0 * streams, "all six carry as much")
        assert all(node.js.replicas for node in cluster)
        for name in "DEF":
            leaving = cluster[name]
            request = {"request": f"e{name}", "peer": name}
            await cluster["A"].js.meta_request("server_evacuate", request)
            await cluster.until(lambda node=leaving: not node.js.replicas, 30.0 + 2.0 * streams, f"{name} is empty")  # type: ignore[misc]
            await cluster["A"].js.meta_request("server_remove", {**request, "request": f"r{name}"})
            await cluster.stop(name)
        await cluster.until(even, 120.0, "all three carry as much")
        for task in load_of_all.tasks:
            task.cancel()
        assert load_of_all.acked > 10 * streams
        for number in range(streams):
            await cluster.equal(f"S{number}")
        print(streams, "streams:", load_of_all.acked, "acks, at most", round(load_of_all.longest, 3), "s")
        return load_of_all.longest


@virtual_time
async def test_three_servers_become_six_and_three_again_and_no_stream_is_without_acks_for_a_second() -> None:
    """On a virtual clock, so that only what the servers wait for counts, and not how slow this machine is."""
    assert await grown_and_shrunk(18, 0.5) < 1.0
