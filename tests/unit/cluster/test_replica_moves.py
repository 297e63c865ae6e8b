"""A server gets its share of replicas (cluster/replica_moves.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.cluster import load
from jetcluster.cluster.balancer import BalanceRules
from testkit.sim.nodes import Cluster
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
