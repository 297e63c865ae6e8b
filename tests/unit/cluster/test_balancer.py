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


@pytest.mark.thorough
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


# ---- what other servers say, and what goes wrong


def disturb(monkeypatch: pytest.MonkeyPatch, node: Node, method: str, answer: Any) -> None:
    """Has `node` answer a question about its load with `answer(what it would answer)`."""
    usual = getattr(node.js.parts.load, method)

    def steps(*args: float) -> Steps[Any]:
        return answer((yield from usual(*args)))

    monkeypatch.setattr(node.js.parts.load, method, steps)


@virtual_time
async def test_nonsense_of_a_server_and_a_defect_end_one_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)
        nonsense: list[Any] = [[["x"]], [[1, 2, 3, 4]], 5, [None], [[float("inf"), [], 1, 1]]]
        disturb(monkeypatch, cluster["A"], "_leaders", lambda rows: nonsense.pop() if nonsense else rows)
        broken = iter(range(3))

        def breaks(*args: Any) -> bool:
            if next(broken, None) is not None:
                raise RuntimeError("tried")
            return usual(*args)

        usual = balancer.uneven
        monkeypatch.setattr(balancer, "uneven", breaks)
        await cluster.until(lambda: set(leads(cluster).values()) == {2}, 5 * QUIET, "as many everywhere")
        assert not nonsense
        warnings = [line for node in cluster for line in node.log.events("warning")]
        assert warnings.count("malformed answer to what could move") == 5
        errors = [line for node in cluster for line in node.log.events("error")]
        assert errors.count("a round of balance failed") == 3


@virtual_time
async def test_a_server_that_measures_slowly_is_relieved(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)
        budget = cluster["A"].services.runtime.budget
        start = budget.start

        def late(key: Any, *args: Any, **options: Any) -> Any:
            if key == ("balance", "load"):
                return asyncio.get_running_loop().call_later(9.0, lambda: start(key, *args, **options))
            return start(key, *args, **options)

        monkeypatch.setattr(budget, "start", late)
        await cluster.until(lambda: set(leads(cluster).values()) == {2}, 4 * QUIET, "as many everywhere")
        await asyncio.sleep(QUIET)
        assert set(leads(cluster).values()) == {2} and moves(cluster)[load.LEADERS] == 4


@virtual_time
async def test_by_an_old_report_nothing_moves_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 6)
        await cluster.until(lambda: moves(cluster)[load.LEADERS] > 0, 2 * QUIET, "the first move")
        monkeypatch.setattr(cluster["A"].js.parts.load, "_begin", lambda: None)
        await asyncio.sleep(QUIET)
        assert set(leads(cluster).values()) == {2} and moves(cluster)[load.LEADERS] == 4


@virtual_time
async def test_a_server_that_cannot_measure_has_no_old_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        await cluster.create("S")

        async def report() -> LoadReport:
            return LoadReport.parse(await cluster["B"].mesh.call(cluster["A"].me, LOAD_METHOD, b"", 5.0))

        assert (await report()).age < 0.1
        monkeypatch.setattr(cluster["A"].services.runtime.budget, "start", lambda *args, **options: None)
        await asyncio.sleep(20)
        assert 20 < (await report()).age < 21
        await asyncio.sleep(load.MAX_AGE - 20)
        with pytest.raises(MeshError, match="too busy"):
            await report()


@virtual_time
async def test_a_measurement_that_does_not_end_changes_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "REPLICAS_PER_STEP", 1)
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 2)
        await asyncio.sleep(20)
        part = cluster["A"].js.parts.load
        started = []
        monkeypatch.setattr(
            cluster["A"].services.runtime.budget, "start", lambda _key, steps, *rest, **options: started.append(steps)
        )
        await asyncio.sleep(load.LEAST_SECONDS)
        await cluster["B"].mesh.call(cluster["A"].me, LOAD_METHOD, b"", 5.0)
        before = dict(vars(part))
        assert [next(steps) for steps in started if steps.__name__ == "_measure"] == [None]
        for steps in started:
            steps.close()
        assert vars(part) == before


def with_unknown(count: int) -> Any:
    return lambda report: {**report, "unknown": count}


@virtual_time
async def test_new_streams_do_not_stop_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is new is always somewhere; a server that knows little gets nothing."""
    async with Cluster() as cluster:
        disturb(monkeypatch, cluster["B"], "_measure", with_unknown(1))
        disturb(monkeypatch, cluster["C"], "_measure", with_unknown(2))
        await all_led_by(cluster, "A", 6)
        await cluster.until(lambda: leads(cluster) == Counter({"A": 3, "B": 3, "C": 0}), 2 * QUIET, "half of them")
        await asyncio.sleep(QUIET)
        assert not leads(cluster)["C"]


def test_a_stream_of_unknown_rate_counts_as_the_others_do() -> None:
    def report(streams: int, rate: int, unknown: int) -> LoadReport:
        return LoadReport(load.Weight(100 * streams, rate), {}, unknown, 0, 0, 0, {}, 0, 60.0, False)

    assert report(10, 900, 1).led == (1000, 1000) and report(10, 900, 0).led == (1000, 900)
    assert report(1, 0, 1).led == (100, 0) and report(0, 0, 0).led == (0, 0)
    assert report(40, 0, 4).is_known and not report(40, 0, 5).is_known
    assert report(0, 0, 1).is_known and not report(3, 0, 2).is_known


@virtual_time
async def test_a_server_whose_link_flaps_gets_nothing() -> None:
    """It has been up and well for long, by its own word."""
    async with Cluster() as cluster:
        meta = cluster.meta_leader()
        assert meta is not None
        flaps, other = (node for node in cluster if node is not meta)
        await all_led_by(cluster, meta.name, 6)
        for _ in range(round(2 * QUIET / (STEADY / 2))):
            cluster.network.cut(meta.me, flaps.me)
            await asyncio.sleep(0.2)
            cluster.network.heal(meta.me, flaps.me)
            await asyncio.sleep(STEADY / 2 - 0.2)
            assert not leads(cluster)[flaps.name]
        assert leads(cluster)[other.name] == 3
        await cluster.until(lambda: leads(cluster)[flaps.name] == 2, 2 * QUIET, "its share")


@virtual_time
async def test_what_cannot_move_is_asked_for_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "LONGEST_PAUSE", 60.0)
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(6):
            await consumer(cluster["A"], f"p{number}", deliver_subject=f"to.{number}", max_waiting=0)
        await asyncio.sleep(QUIET)
        asked: list[Any] = []
        disturb(monkeypatch, cluster["A"], "_consumers", lambda rows: asked.append(rows) or rows)
        await asyncio.sleep(300)
        assert 4 <= len(asked) <= 6


@virtual_time
async def test_after_a_move_the_next_ones_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "LONGEST_PAUSE", 60.0)
    async with Cluster() as cluster:
        await all_led_by(cluster, "A", 12)
        await cluster.until(lambda: moves(cluster)[load.LEADERS] == 4, 100, "the first round, after some in vain")
        await cluster.until(lambda: moves(cluster)[load.LEADERS] == 8, 8, "the second one")


@virtual_time
async def test_no_replica_moves_by_an_old_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        for number in range(8):
            await cluster.create(f"S{number}")
        cluster.network.expected = 4
        added = cluster.add("D")
        await cluster.until(lambda: len(added.js.replicas) > 0, 60, "the first replica")
        with monkeypatch.context() as patched:
            patched.setattr(cluster["A"].js.parts.load, "_begin", lambda: None)
            await asyncio.sleep(load.MAX_AGE - 8)
            assert len(added.js.replicas) <= 3
        await cluster.until(lambda: len(added.js.replicas) >= 5, 100, "its share")
