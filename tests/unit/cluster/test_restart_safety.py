"""May a node be stopped (cluster/restart_safety.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.cluster.restart_safety import ASK_SECONDS, Safety
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time


async def check(node: Node) -> Safety:
    """Within its bounds."""
    async with asyncio.timeout(2 * ASK_SECONDS):
        return await node.js.restart_safety.check()


@virtual_time
async def test_any_one_of_three_may_stop_and_then_no_other() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        await cluster.create("ALONE", 1)
        for number in range(100):
            await cluster["A"].publish(b"s", b"%d" % number + b"." * 300)
        await cluster.equal("S")
        for node in cluster:
            assert await check(node) == Safety(2, ()), node.name
        cluster.crash("C")
        await cluster.led("S")
        await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
        await asyncio.sleep(1)
        for node in cluster:
            safety = await check(node)
            assert {risk.name for risk in safety.risks} == {"S", "meta"}
            assert all((risk.voters, risk.current, risk.needed) == (2, 1, 2) for risk in safety.risks)
            assert "1 of 2 other voters connected and caught up, 2 needed" in safety.risks[0].text
        for number in range(300):
            await cluster["A"].publish(b"s", b"%d" % number + b"." * 300)
        cluster.restart("C")
        await cluster.equal("S")
        await asyncio.sleep(1)
        for node in cluster:
            assert (await check(node)).risks == (), node.name


@virtual_time
async def test_a_replica_that_lags_does_not_count_and_who_leads_is_asked() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.equal("S")
        leader = cluster.leader("S")
        one, other = cluster.followers("S")
        await asyncio.sleep(1)
        cluster.isolate(other.name)
        for number in range(300):
            await one.publish(b"s", b"%d" % number)
        safety = await check(one)
        assert "S" in {risk.name for risk in safety.risks} and not leader.replica("S").damaged
        cluster.isolate(one.name)  # nobody can be asked
        await asyncio.sleep(5)
        safety = await check(one)
        assert safety.groups == 2 and len(safety.risks) == 2
        assert any("does not answer" in risk.text for risk in safety.risks)
        cluster.heal()


@virtual_time
async def test_of_two_voters_none_may_stop() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 2)
        await asyncio.sleep(1)
        for node in cluster:
            risks = (await check(node)).risks
            assert [risk.name for risk in risks] == (["S"] if node.has("S") else [])


@pytest.mark.parametrize("it_led", [True, False])
@virtual_time
async def test_whose_replica_has_stopped_may_stop_where_the_others_wait_for_it(it_led: bool) -> None:
    """Seeds 30152 and 50427 of the simulation of complete nodes."""
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 2)
        await asyncio.sleep(1)
        leader, (follower,) = cluster.leader("S"), cluster.followers("S")
        hurt, other = (leader, follower) if it_led else (follower, leader)
        hurt.replica("S").group.fail("its state cannot be read")
        await asyncio.sleep(5)
        assert other.replica("S").leading is not it_led
        assert (await check(hurt)).risks == ()
        assert [risk.name for risk in (await check(other)).risks] == ["S"]
        cluster.crash(other.name)
        await asyncio.sleep(5)
        assert "S" in {risk.name for risk in (await check(hurt)).risks}
