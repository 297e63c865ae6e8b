"""The meta leader balances: leaders, owners of consumers, and replicas (cluster/balancer.py)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from jetcluster.budget import Steps
from jetcluster.cluster import balancer, load
from jetcluster.cluster.load import LOAD_METHOD, MOVE_METHOD, LoadReport
from jetcluster.health.node_health import Aspect
from jetcluster.mesh.api import MeshError
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.balance_support import QUIET, REST, STEADY, advisories, all_led_by, leads, moves, owns, shorten
from tests.unit.cluster.consumers import Puller, consumer, host, owner


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@virtual_time
async def test_leaders_are_spread_a_few_at_a_time_and_each_move_is_explained() -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 12)
        told, system = advisories(cluster["B"]), advisories(cluster["C"], "$SYS")
        await asyncio.sleep(REST - 6)
        assert leads(cluster)["A"] == 12, "a stream keeps its leader for a while"
        await cluster.until(lambda: leads(cluster)["A"] < 12, QUIET, "the first move")
        await asyncio.sleep(1.0)
        assert leads(cluster)["A"] >= 12 - balancer.MOVES_PER_ROUND
        await cluster.until(lambda: set(leads(cluster).values()) == {4}, QUIET, "as many everywhere")
        assert len(told) == len(system) == 8 == moves(cluster)[load.LEADERS]
        first = told[0]
        assert first["type"].endswith("stream_balanced") and first["kind"] == "leader" and first["from"] == "A"
        assert first["why"].startswith("A leads 12 streams of weight 1200 and ")
        assert first["before"]["A"] == {"count": 12, "weight": 1200}
        assert first["after"]["A"] == {"count": 11, "weight": 1100}
        assert first["after"][first["to"]] == {"count": 1, "weight": 100}
        assert {one["account"] for one in system} == {"$G"}
        lines = [
            line for node in cluster for line in node.log.events("info") if line.startswith("for balance a leader")
        ]
        assert len(lines) == 8
        before = leads(cluster)
        await asyncio.sleep(100)
        assert leads(cluster) == before and len(told) == 8, "nothing more moves"


@virtual_time
async def test_load_counts_and_not_the_number() -> None:
    """One server leads two streams that are written to, another one ten that rest."""
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 4)

        async def busy() -> None:
            while True:
                for subject in (b"s0", b"s1"):
                    await cluster["B"].publish_again(subject, b"x" * 100)
                await asyncio.sleep(0.1)

        task = asyncio.get_running_loop().create_task(busy())
        await cluster.until(lambda: max(leads(cluster).values()) == 2, 2 * QUIET, "two went")
        await asyncio.sleep(60)
        task.cancel()
        at = [(await cluster.led(f"S{number}")).name for number in range(4)]
        assert at[0] != at[1] and {at[2], at[3]} == {"A", "B", "C"} - {at[0], at[1]}, at


@virtual_time
async def test_a_server_that_comes_back_gets_leaders_back() -> None:
    async with Cluster() as cluster:
        for number in range(9):
            await cluster.create(f"S{number}")
        await cluster.until(lambda: sum(leads(cluster).values()) == 9, what="leaders")
        cluster.crash("C")
        await cluster.until(lambda: sum(leads(cluster).values()) == 9, 30, "the others lead")
        back = cluster.restart("C")
        await asyncio.sleep(STEADY - 3)
        assert not leads(cluster)["C"], "it must have been there for a while"
        await cluster.until(lambda: leads(cluster)["C"] == 3, 2 * QUIET, "its share")
        assert set(leads(cluster).values()) == {3} and back.alive


@virtual_time
async def test_a_server_that_is_not_well_or_leaves_gets_nothing() -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 12)
        cluster["B"].server.state.lame_duck = True
        cluster["C"].raft.health.watch(Aspect.DESCRIPTORS, lambda: "it is tried")
        await asyncio.sleep(3 * QUIET)
        assert leads(cluster) == Counter({"A": 12, "B": 0, "C": 0})
        cluster["B"].server.state.lame_duck = False
        await cluster.until(lambda: leads(cluster) == Counter({"A": 6, "B": 6, "C": 0}), 2 * QUIET, "half of them")


@virtual_time
async def test_a_server_that_is_emptied_gets_no_leaders() -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)
        drained = {"request": "d", "peer": cluster["B"].me, "draining": True}
        await cluster["A"].js.meta_request("node_drain", drained)
        await cluster.until(lambda: leads(cluster) == Counter({"A": 3, "B": 0, "C": 3}), 2 * QUIET, "half of them")
        await asyncio.sleep(30)
        assert not leads(cluster)["B"] and not moves(cluster)[load.REPLICAS]


@virtual_time
async def test_a_busy_server_gets_nothing_from_one_that_is_less_busy() -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)
        cluster["B"].usage.share = 0.9
        await cluster.until(lambda: leads(cluster) == Counter({"A": 3, "B": 0, "C": 3}), 2 * QUIET, "half of them")
        await asyncio.sleep(30)
        assert not leads(cluster)["B"]
        cluster["A"].usage.share = cluster["C"].usage.share = 0.9
        await cluster.until(lambda: set(leads(cluster).values()) == {2}, 2 * QUIET, "all are alike")


@virtual_time
async def test_it_is_turned_off() -> None:
    async with Cluster() as cluster:
        for node in cluster:
            node.options.jetstream.balance_leaders = False
        await all_led_by(cluster, "A", 6)
        await asyncio.sleep(3 * QUIET)
        assert leads(cluster)["A"] == 6 and not moves(cluster)
        for node in cluster:
            node.options.jetstream.balance_leaders = True  # as a reload does it
        await cluster.until(lambda: set(leads(cluster).values()) == {2}, 2 * QUIET, "as many everywhere")


@virtual_time
async def test_consumers_are_spread_and_deliver_on() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(20):
            await cluster["A"].publish(b"s", b"%d" % number)
        for number in range(9):
            await consumer(cluster["A"], f"c{number}")
        leader = cluster.leader("S")
        target = cluster["A"] if leader is not cluster["A"] else cluster["B"]
        able = [node for node in cluster if node is not leader]
        for state in list(host(leader).table.by_cid.values()):
            if state.owner != leader.me:
                moved = [(state.cid, state.epoch, leader.me)]
                leader.replica("S").try_propose(load.encode_moves(leader.services.runtime.clock.time_ns(), moved))
        await cluster.until(lambda: owns(cluster)[leader.name] == 9, what="the leader owns all")
        told = advisories(target)
        puller = Puller(target, "S", "c0")
        await puller.ack((await puller.fetch(1))[0])
        await asyncio.sleep(REST - 6)
        assert owns(cluster)[leader.name] == 9, "each has just moved"
        await cluster.until(lambda: set(owns(cluster).values()) == {3}, 2 * QUIET, "as many everywhere")
        await cluster.until(lambda: len(told) == 6, what="all is told")
        assert {one["kind"] for one in told} == {"consumer"}
        assert all(one["consumer"].startswith("c") and one["from"] == leader.name for one in told)
        assert {one["to"] for one in told} == {node.name for node in able}
        for number in range(9):
            puller = Puller(target, "S", f"c{number}")
            first = b"1" if number == 0 else b"0"
            assert (await puller.fetch(1))[0][2] == first
            owner(cluster, f"c{number}")
        await asyncio.sleep(60)
        assert len(told) == 6


@virtual_time
async def test_push_consumers_stay() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(6):
            await consumer(cluster["A"], f"p{number}", deliver_subject=f"to.{number}", max_waiting=0)
        before = owns(cluster)
        assert max(before.values()) == 6, before
        await asyncio.sleep(2 * QUIET)
        assert owns(cluster) == before


@virtual_time
async def test_what_is_asked_is_looked_at_once_more() -> None:
    """By the stream's leader, and by who is to lead: the meta leader may be behind."""
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        gid = leader.replica("S").assignment.gid
        other = next(node for node in cluster if node is not leader)

        async def ask(node: Node, to: Node) -> dict[str, Any]:
            body = json.dumps({"gid": gid, "to": to.me}).encode()
            answer: dict[str, Any] = json.loads(await cluster["A"].mesh.call(node.me, MOVE_METHOD, body, 5.0))
            return answer

        assert not (await ask(leader, other))["moved"], "it has just begun to lead"
        await asyncio.sleep(QUIET)
        assert (await ask(other, leader))["why"] == "this server does not lead the stream for long"
        other.replica("S").damaged = "tried"
        assert (await ask(leader, other))["why"] == "its replica is not sound"
        other.replica("S").damaged = ""
        other.server.state.lame_duck = True
        assert (await ask(leader, other))["why"] == "it is leaving"
        other.server.state.lame_duck = False
        answer = await ask(leader, other)
        assert answer["moved"], answer
        await cluster.until(lambda: other.replica("S").leading, what="it leads")
        assert not (await ask(other, leader))["moved"], "not back at once"
        with pytest.raises(MeshError):
            await cluster["A"].mesh.call(leader.me, load.UNITS_METHOD, b"nothing", 5.0)


@virtual_time
async def test_a_report_says_what_a_server_carries() -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 2)
        await consumer(cluster["A"], "c", stream="S0")

        async def report() -> LoadReport:
            return LoadReport.parse(await cluster["B"].mesh.call(cluster["A"].me, LOAD_METHOD, b"", 5.0))

        first = await report()
        assert first.leads == (200, 0) and first.unknown == 2
        assert sum(weight.fixed for weight in first.owns.values()) == 100
        await asyncio.sleep(5)
        for _ in range(100):
            await cluster["B"].publish(b"s0", b"x" * 1000)
        await asyncio.sleep(2 * load.LEAST_SECONDS)
        second = await report()
        assert not second.unknown and second.leads.fixed == 200
        assert 20 < second.leads.rate < 1500, "some 20 messages per second, each of 20 and a hundredth of its bytes"
        assert second.stored > 100_000 and second.steady > first.steady and not second.leaving
        cluster["A"].server.state.lame_duck = True
        assert (await report()).leaving


@virtual_time
async def test_a_malformed_report_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)

        def lie(now: float) -> Steps[dict[str, Any]]:
            yield
            return {"leads": 5, "now": now}

        monkeypatch.setattr(cluster["B"].js.parts.load, "_measure", lie)
        await cluster.until(lambda: leads(cluster)["C"] == 3, 3 * QUIET, "half of them")
        await asyncio.sleep(QUIET)
        assert not leads(cluster)["B"]


@virtual_time
async def test_a_new_consumer_stays_for_a_while() -> None:
    """Its stream may have had its leader for long."""
    async with Cluster() as cluster:
        await cluster.create("S")
        leader = await cluster.led("S")
        await asyncio.sleep(QUIET)
        for number in range(4):
            await consumer(leader, f"c{number}")
        for state in list(host(leader).table.by_cid.values()):
            state.owner = leader.me  # as this replica has it, which is the one that is asked
        (gid,) = leader.js.replicas

        async def movable() -> list[Any]:
            found: list[Any] = json.loads(await leader.mesh.call(leader.me, load.UNITS_METHOD, b"consumer", 5.0))
            return [row for row in found if row[0] == gid]

        assert await movable() == []
        await asyncio.sleep(REST + 1)
        assert len(await movable()) == 4
