"""Direct Gets at a mirror whose origin is elsewhere, that ask how fresh they must be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.mirror.origin import PROVING
from jetcluster.replica.reads import demands
from jetcluster.replica.reads.waits import MAX_SECONDS
from testkit.sim.nodes import Node
from testkit.sim.shared import virtual_time
from tests.unit.replica.edge_rig import MIRROR, Edge
from tests.unit.replica.test_demands import block, fields
from tests.unit.replica.test_mirror_host import ApiCluster, copied, mirrored, stop

GET = b"$JS.API.DIRECT.GET.UP"
OF_M = b"$JS.API.DIRECT.GET.M"


async def read(edge: Edge, node: Node, body: bytes = b"", stream: bytes = b"UP") -> tuple[bytes, dict[str, str], float]:
    """(status or payload, fields of the answer, seconds) of the newest message on `up`."""
    wanted = b'{"last_by_subj":"up"%b,"read_info":true}' % (b"," + body if body else b"")
    start = edge.cluster.loop.time()
    _, head, payload = await node.request(b"$JS.API.DIRECT.GET." + stream, wanted, 10.0)
    first = head.split(b"\r\n", 1)[0]
    return payload or first, fields(head), edge.cluster.loop.time() - start


def seconds(text: str) -> float:
    for unit, factor in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise AssertionError(text)


@virtual_time
async def test_a_mirror_tells_its_lag_and_answers_within_it() -> None:
    async with Edge() as edge:
        await asyncio.sleep(3.0)
        for node in edge.cluster:
            found, told, took = await read(edge, node)
            assert (found, told["Nats-Answered-As"], told["Nats-Applied-Sequence"]) == (b"2", "mirror", "3")
            assert seconds(told["Nats-Staleness"]) < 2.0, "all replicas know it, without a request that asks"
            found, told, took = await read(edge, node, b'"max_staleness":5000000000')
            assert found == b"2" and took < 0.01, "by what is known"
            found, told, _ = await read(edge, node, b'"max_staleness":1')
            assert found == b"2", "the origin is asked"
            assert 2 * edge.bridge.delay <= seconds(told["Nats-Staleness"]) < 0.1


@virtual_time
async def test_while_the_origin_cannot_be_reached_the_age_grows_and_older_answers_are_refused() -> None:
    async with Edge() as edge:
        await asyncio.sleep(3.0)
        edge.bridge.open = False
        cut_at = edge.cluster.loop.time()
        await edge.put(1)
        await asyncio.sleep(2.0)
        for node in edge.cluster:
            found, told, took = await read(edge, node, b'"max_staleness":60000000000')
            assert found == b"2" and took < 0.01
            since = edge.cluster.loop.time() - cut_at
            assert since - 0.1 < seconds(told["Nats-Staleness"]) < (since + 1.5) / 0.9, (
                "since the last answer, by a clock that may be slow"
            )
            found, told, took = await read(edge, node, b'"max_staleness":1000000000')
            assert found == b"NATS/1.0 503 No Leader", found
            assert took < MAX_SECONDS + 0.1 and seconds(told["Nats-Staleness"]) > 2.0
            assert (await read(edge, node))[0] == b"2", "without a wish it is answered"
        await asyncio.sleep(30.0)
        assert seconds((await read(edge, edge.cluster["A"]))[1]["Nats-Staleness"]) > 30.0
        edge.bridge.open = True
        await edge.copied(4)
        for node in edge.cluster:
            found, told, _ = await read(edge, node, b'"max_staleness":1000000000')
            assert found == b"0" and seconds(told["Nats-Staleness"]) < 1.1 / 0.9


@virtual_time
async def test_under_its_own_name_a_mirror_is_as_old_as_what_it_has_of_its_origin() -> None:
    async with Edge() as edge:
        await edge.cluster.create("F", subjects=[], mirror={**MIRROR, "filter_subject": "up"})
        await edge.cluster.all_read("F")
        await edge.cluster.until(lambda: edge.cluster.leader("F").replica("F").store.last_seq == 3)
        await edge.cluster.equal("F")
        await asyncio.sleep(3.0)
        for node in edge.cluster:
            found, told, _ = await read(edge, node, b'"max_staleness":1', b"M")
            assert found == b"2" and seconds(told["Nats-Staleness"]) < 0.1
            assert told["Nats-Answered-As"] in ("leader", "follower")
        edge.bridge.open = False
        await asyncio.sleep(5.0)
        for node in edge.cluster:
            found, told, _ = await read(edge, node, b'"max_staleness":60000000000', b"M")
            assert found == b"2" and seconds(told["Nats-Staleness"]) > 4.9
            found, told, _ = await read(edge, node, b'"max_staleness":2000000000', b"M")
            assert found == b"NATS/1.0 503 No Leader" and seconds(told["Nats-Staleness"]) > 4.9
            found, _, _ = await read(edge, node, b'"consistency":"linearizable"', b"M")
            assert found == b"2", "of its own stream"
            found, told, _ = await read(edge, node, b'"max_staleness":2000000000', b"F")
            assert found == b"2", "one with a filter has no sequence that would say it"


@virtual_time
async def test_an_answer_that_was_long_under_way_does_not_look_fresher_than_it_is() -> None:
    async with Edge() as edge:
        await asyncio.sleep(3.0)
        edge.bridge.delay = 0.6
        await asyncio.sleep(8.0)
        await edge.put(1)
        await asyncio.sleep(0.3)
        for node in edge.cluster:
            found, told, _ = await read(edge, node)
            assert found == b"2" and seconds(told["Nats-Staleness"]) >= 2 * 0.6, "since it was asked"
        await edge.copied(4)


@virtual_time
async def test_linearizable_asks_the_origin_s_leader_and_is_refused_where_that_does_not_prove() -> None:
    async with Edge() as edge:
        body = b'"consistency":"linearizable"'
        for number in range(3):
            await edge.put(1)
            for node in edge.cluster:
                found, told, _ = await read(edge, node, body)
                assert (found, told["Nats-Applied-Sequence"]) == (b"0", str(4 + number))
        edge.bridge.open = False
        found, _, took = await read(edge, edge.cluster["B"], body)
        assert found == b"NATS/1.0 503 No Leader" and took < MAX_SECONDS + 0.1
    async with Edge(keeps_headers=False) as edge:
        await asyncio.sleep(2.0)
        for node in edge.cluster:
            found, _, took = await read(edge, node, body)
            assert found == b"NATS/1.0 503 No Leader" and took < 0.01, "its word is no proof"
            found, told, _ = await read(edge, node, b'"max_staleness":1')
            assert found == b"2" and seconds(told["Nats-Staleness"]) < 0.1


@virtual_time
async def test_stream_info_says_whether_its_leader_has_proven_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ApiCluster() as cluster:
        await cluster.create("UP")
        await cluster["A"].publish(b"up", b"1")
        leader, info = await cluster.led("UP"), b"$JS.API.STREAM.INFO.UP"
        for node in cluster:
            assert "freshness" not in json.loads((await node.request(info))[2])
            found = json.loads((await node.request(info, b"", 5.0, PROVING))[2])
            own = {"answered_as": "leader", "answered_by": leader.name}
            assert 0 <= found["freshness"].pop("staleness") < 100_000_000, "since its proof began"
            assert found["freshness"] == {"applied_seq": 1, "last_message": 1, **own}
        bad = json.loads((await leader.request(info, b"", 5.0, block("Nats-Read-Consistency: best")))[2])
        assert bad["error"]["err_code"] == 10025

        async def unproven() -> bool:
            return False

        monkeypatch.setattr(leader.replica("UP"), "may_read", unproven)
        assert "error" in json.loads((await leader.request(info, b"", 10.0, PROVING))[2])
        assert "state" in json.loads((await leader.request(info))[2])


@virtual_time
@pytest.mark.parametrize("removed", ["the last ones", "all"])
async def test_messages_that_were_removed_before_they_came_are_not_waited_for(removed: str) -> None:
    """Their sequences do not come until the origin has another message."""
    async with Edge() as edge:
        edge.bridge.open = False
        await asyncio.sleep(6.0)
        await edge.put(3)
        for seq in (6, 5, 4) if removed == "the last ones" else ():
            await edge.origin.request(b"$JS.API.STREAM.MSG.DELETE.UP", b'{"seq":%d}' % seq)
        if removed == "all":
            await edge.origin.request(b"$JS.API.STREAM.PURGE.UP", b'{"seq":9}')
        edge.bridge.open = True
        await asyncio.sleep(20.0)
        for node in edge.cluster:
            for body in (b'"max_staleness":1', b'"consistency":"linearizable"'):
                found, told, _ = await read(edge, node, body)
                assert found == b"2" and seconds(told["Nats-Staleness"]) < 1.5
        await edge.put(1)
        await edge.copied(7)
        assert (await read(edge, edge.cluster["A"], b'"max_staleness":1'))[0] == b"0"


@virtual_time
async def test_the_token_of_a_session_finds_its_write_or_learns_that_it_is_not_there() -> None:
    async with Edge() as edge:
        for number in range(4, 8):
            ack = await edge.origin.publish(b"up", b"mine")
            for node in edge.cluster:
                found, told, _ = await read(edge, node, b'"min_last_seq":%d' % ack["seq"])
                assert found == b"mine" and int(told["Nats-Applied-Sequence"]) >= number
                _, _, payload = await node.request(
                    GET + b".up", b"", 5.0, block(f"Nats-Min-Last-Sequence: {ack['seq']}")
                )
                assert payload == b"mine"
        edge.bridge.open = False
        ack = await edge.origin.publish(b"up", b"late")
        for node in edge.cluster:
            found, told, took = await read(edge, node, b'"min_last_seq":%d' % ack["seq"])
            assert found == b"NATS/1.0 503 Min Last Sequence" and told["Nats-Applied-Sequence"] == "7"
            assert demands.SEQUENCE_SECONDS <= took < demands.SEQUENCE_SECONDS + 0.1
        edge.bridge.open = True
        await edge.copied(8)
        assert (await read(edge, edge.cluster["C"], b'"min_last_seq":8'))[0] == b"late"


@virtual_time
async def test_questions_are_few_whatever_is_read() -> None:
    async with Edge() as edge:
        await asyncio.sleep(2.0)
        before, began = edge.bridge.asked, edge.cluster.loop.time()
        wanted: list[Any] = []
        for _ in range(500):
            wanted += [read(edge, node, b'"max_staleness":1') for node in edge.cluster]
        answers = await asyncio.gather(*wanted)
        assert {found for found, _, _ in answers} == {b"2"}
        assert edge.cluster.loop.time() - began < 0.5 and edge.bridge.asked - before < 10
        await asyncio.sleep(10.0)
        assert edge.bridge.asked - before < 50, "a second, for three replicas"


@pytest.mark.parametrize("wrong", ["created", "error", "nothing"])
@virtual_time
async def test_an_origin_that_says_nothing_of_use_is_no_proof(wrong: str) -> None:
    async with Edge() as edge:
        await asyncio.sleep(2.0)
        if wrong == "created":
            await edge.hub.delete("UP")
            await edge.hub.create("UP", 1)
        elif wrong == "error":
            await edge.hub.delete("UP")
        else:
            await stop(edge.hub.apis)
        found, _, took = await read(edge, edge.cluster["A"], b'"max_staleness":1')
        assert found == b"NATS/1.0 503 No Leader" and took < MAX_SECONDS + 0.1


@virtual_time
async def test_a_stream_of_this_account_with_the_origin_s_name_says_nothing_of_a_mirror_s_age() -> None:
    """A hub and an edge that both have ORDERS."""
    async with Edge() as edge:
        await edge.cluster.create("UP")
        await edge.cluster.all_read("UP")
        await asyncio.sleep(2.0)
        for node in edge.cluster:
            found, told, _ = await read(edge, node, b'"max_staleness":1', b"M")
            assert found == b"2" and 2 * edge.bridge.delay <= seconds(told["Nats-Staleness"]) < 0.1, "of the hub's"
        edge.bridge.open = False
        await edge.put(1)
        await asyncio.sleep(5.0)
        for node in edge.cluster:
            assert seconds((await read(edge, node, b"", b"M"))[1]["Nats-Staleness"]) > 4.9
            found, told, _ = await read(edge, node, b'"max_staleness":1000000000', b"M")
            assert found == b"NATS/1.0 503 No Leader" and seconds(told["Nats-Staleness"]) > 4.9
            upstream = node.replica("M").reads.upstream
            assert upstream is not None and not upstream.joined, "the name is that of the stream here"


@virtual_time
async def test_the_age_of_a_mirror_is_unknown_once_its_upstream_was_created_anew() -> None:
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        await cluster.all_read("M")
        await asyncio.sleep(2.0)
        body = b'{"last_by_subj":"up","read_info":true,"consistency":"linearizable"}'
        assert all([b"unknown" not in (await node.request(OF_M, body))[1] for node in cluster])
        await cluster.delete("UP")
        await cluster.create("UP", 1)
        for wait in (0.0, 3.0):
            await asyncio.sleep(wait)
            for node in cluster:
                _, head, payload = await node.request(OF_M, body)
                assert payload == b"4" and fields(head)["Nats-Staleness"] == "unknown", "its own stream is current"
        bounded = b'{"last_by_subj":"up","max_staleness":1000000000}'
        _, head, _ = await cluster["A"].request(OF_M, bounded, 5.0)
        assert head.startswith(b"NATS/1.0 503 No Leader")


@virtual_time
async def test_an_age_that_got_too_old_while_another_proof_was_waited_for_is_looked_at_again() -> None:
    """The upstream's was young enough, and then the leader of the mirror's own stream took long."""
    for reachable in (True, False):
        async with Edge() as edge:
            await asyncio.sleep(2.0)
            leader, reader = edge.cluster.leader("M"), edge.cluster.followers("M")[0]
            edge.bridge.open = reachable
            edge.cluster.network.link(reader.me, leader.me).delay = 0.8
            found, told, took = await read(edge, reader, b'"max_staleness":1500000000', b"M")
            assert took > 0.8
            if reachable:
                assert found == b"2" and seconds(told["Nats-Staleness"]) <= max(1.5, took / 0.9)
            else:
                assert found == b"NATS/1.0 503 No Leader" and seconds(told["Nats-Staleness"]) > 1.5


async def got(node: Node, body: bytes = b"") -> dict[str, Any]:
    """The answer of MSG.GET to a request for the newest message of the mirror."""
    wanted = b'{"last_by_subj":"up","read_info":true%b}' % (b"," + body if body else b"")
    found: dict[str, Any] = json.loads((await node.request(b"$JS.API.STREAM.MSG.GET.M", wanted, 10.0))[2])
    return found


async def told_by_info(node: Node) -> float | None:
    info = json.loads((await node.request(b"$JS.API.STREAM.INFO.M", b"", 5.0, PROVING))[2])
    staleness: int | None = info["freshness"]["staleness"]
    return None if staleness is None else staleness / 1e9


@virtual_time
async def test_a_mirror_s_leader_counts_its_upstream_s_age_in_msg_get_and_info_and_keeps_to_a_bound() -> None:
    async with Edge() as edge:
        leader, other = edge.cluster.leader("M"), edge.cluster.followers("M")[0]
        await asyncio.sleep(2.0)
        answer = await got(other, b'"max_staleness":1')
        assert answer["message"]["seq"] == 3, "the origin is asked"
        assert 2 * edge.bridge.delay <= answer["freshness"]["staleness"] / 1e9 < 0.1
        edge.bridge.open = False
        await edge.put(1)
        await asyncio.sleep(5.0)
        for node in (leader, other):
            assert (await got(node))["freshness"]["staleness"] > 4.9e9
            info = await told_by_info(node)
            assert info is not None and info > 4.9
            assert (await got(node, b'"max_staleness":60000000000'))["message"]["seq"] == 3
            assert (await got(node, b'"max_staleness":2000000000'))["error"]["err_code"] == 10008
        edge.bridge.open = True
        await edge.copied(4)
        assert (await got(other, b'"max_staleness":2000000000'))["message"]["seq"] == 4
        await edge.hub.delete("UP")
        replica = leader.replica("M")
        replica.reads.own.demands.ages[1].asked.clear()
        assert await told_by_info(other) is None and (await got(other))["freshness"]["staleness"] is None
