"""A majority of the cluster is gone for good: META.RESCUE brings the meta group back on those that are left."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import HarnessError, Node, ProcessCluster, eventually
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all, wait_newest
from tests.cluster.test_membership import CONFIG, ask, system
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

RESCUE = "META.RESCUE"
TYPE = "io.nats.jetstream.api.v1.meta_rescue_response"


async def rescue(node: Node, quorum: int, expected: int) -> dict[str, dict[str, Any]]:
    """The answers of `expected` servers, by name."""
    found: list[dict[str, Any]] = []
    async with await Client.connect(system(node)) as client:
        client.subscribe("rescue.answers", lambda msg: found.append(msg.json()))
        await client.flush()
        client.publish(f"$JS.API.{RESCUE}", json.dumps({"quorum_needed": quorum}).encode(), b"rescue.answers")
        await eventually(lambda: len(found) >= expected, 15, f"{len(found)} of {expected} servers have answered")
    assert all(answer["type"] == TYPE for answer in found)
    assert len({answer["server_id"] for answer in found}) == expected
    return {answer["server"]: answer for answer in found}


def refusals(answers: dict[str, dict[str, Any]]) -> set[str]:
    assert all(answer["error"]["err_code"] == 10224 for answer in answers.values()), answers
    return {answer["error"]["description"].partition(": ")[2] for answer in answers.values()}


async def meta(node: Node) -> dict[str, Any]:
    found = (await node.monitor("jsz")).get("meta_cluster") or {}
    assert isinstance(found, dict)
    return found


async def rescued(survivors: list[Node]) -> dict[str, dict[str, Any]]:
    """Asks until the survivors have been without a leader for long enough."""
    answers: dict[str, dict[str, Any]] = {}

    async def done() -> bool:
        answers.clear()
        answers.update(await rescue(survivors[0], len(survivors), len(survivors)))
        return not any("error" in answer for answer in answers.values())

    try:
        await eventually(done, 30, "not rescued", every=0.5)
    except HarnessError as error:
        raise AssertionError(f"{error}: {answers}") from error
    return answers


async def read_whole(client: Client, stream: str) -> dict[int, bytes]:
    """Reads all messages that the leader has. It may be there before the client's node knows of anybody who answers
    reads."""

    async def answered() -> bool:
        try:
            found = await client.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}', within=2.0)
        except TimeoutError:
            return False
        return found.status != 503

    await eventually(answered, 20, f"nobody answers for {stream}", every=0.05)
    await wait_newest(client, stream)
    return await read_all(client, stream)


async def home(node: Node, stream: str) -> set[str]:
    async with await node.connect() as client:
        cluster = (await client.api(f"STREAM.INFO.{stream}"))["cluster"]
    return {cluster["leader"], *(r["name"] for r in cluster.get("replicas") or [])}


@pytest.mark.ours("nats-server lowers a quorum for five minutes instead (docs/compatibility.md)")
async def test_three_of_five_are_gone_for_good(server: str) -> None:
    async with ProcessCluster(5, server, config=CONFIG, monitor=True) as cluster:
        ledgers: dict[str, Ledger] = {}
        async with await cluster[0].connect() as client:
            for number in range(8):
                replicas = 3 if number < 6 else 1
                await create_stream(client, f"S{number}", [f"s.{number}"], replicas)
                payloads = [b"%d-%d" % (number, n) for n in range(200)]
                ledgers[f"S{number}"] = await publish_all(client, f"s.{number}", payloads)
        homes = {stream: await home(cluster[0], stream) for stream in ledgers}
        # Two that share a stream are left.
        names = sorted(homes["S0"])[:2]
        survivors = [cluster.node(name) for name in names]
        gone = [node for node in cluster.nodes if node not in survivors]
        assert refusals(await rescue(cluster[0], 2, 5)) == {"raft: leader is known"}
        for node in gone:
            node.kill9()
        told: list[dict[str, Any]] = []
        ear = await Client.connect(system(survivors[1]))
        ear.subscribe("$JS.EVENT.ADVISORY.SERVER.META_RESCUE", lambda msg: told.append(msg.json()))
        await ear.flush()
        answers = await rescued(survivors)
        assert all((a["prev_quorum"], a["new_quorum"]) == (3, 2) for a in answers.values()), answers
        await cluster.wait_meta(survivors)
        await eventually(lambda: len(told) == 2, 10, "no advisories")
        ear.close()
        assert {event["server"] for event in told} == set(names)
        assert told[0]["type"] == "io.nats.jetstream.advisory.v1.meta_rescue"
        assert sorted(told[0]["left_out"]) == sorted(node.name for node in gone)
        for node in survivors:
            assert "the meta group was rescued" in node.log()

        # What has a majority here goes on, new streams can be made, the others wait.
        async with await survivors[0].connect() as client:
            for stream, where in homes.items():
                if 2 * len(where & set(names)) > len(where):
                    await cluster.stream_leader(stream, ask=survivors[0])
                    number = int(stream[1:])
                    more = await publish_all(client, f"s.{number}", [b"more-%d-%d" % (number, n) for n in range(50)])
                    assert not more.refused and not more.unknown
                    ledgers[stream].acked |= more.acked
                    check_exactly_once(ledgers[stream], await read_whole(client, stream))
            await create_stream(client, "NEW", ["new"], 1)
            assert len((await publish_all(client, "new", [b"1", b"2"])).acked) == 2

        # The others come back with their stores, all at once: a majority, by what they know.
        for node in gone:
            node.spawn()
        for node in gone:
            assert await node.wait_exit(30) == 1
            log = node.log()
            assert "the meta group was rescued without" in log and "must not come back with it" in log
        for node in gone:
            node.spawn()
            assert await node.wait_exit(20) == 1
            assert "Can't start JetStream" in node.tail(3) and "Move " in node.tail(3)
        for node in survivors:
            assert (await meta(node))["cluster_size"] == 2

        # Empty servers of the same names take their places.
        for node in gone:
            shutil.move(node.store, node.root / "old")
            node.spawn()
        for node in gone:
            await node.wait_ready()

        async def five() -> bool:
            found = [await meta(node) for node in cluster.nodes]
            return all(f.get("cluster_size") == 5 and f.get("leader") for f in found)

        await eventually(five, 60, "the meta group is not of five", every=0.2)
        for stream, where in homes.items():
            if 2 * len(where & set(names)) > len(where):
                await cluster.wait_current(stream, 60, replicas=len(where) - 1)
                async with await gone[0].connect() as client:
                    check_exactly_once(ledgers[stream], await read_whole(client, stream))
        page = await survivors[0].monitor("jsz")
        (record,) = page["rescues"]
        assert record["survivors"] == sorted(names) and record["number"] == 1 and "s" in record["by"].split()


@pytest.mark.ours("nats-server lowers a quorum for five minutes instead (docs/compatibility.md)")
async def test_refusals(server: str) -> None:
    async with ProcessCluster(3, server, config=CONFIG, monitor=True) as cluster:
        assert refusals(await rescue(cluster[1], 2, 3)) == {"raft: leader is known"}
        for quorum in (0, 3, -1):
            why = refusals(await rescue(cluster[1], quorum, 3))
            assert why == {"raft: rescue quorum must be between 1 and current quorum"}
        cluster[2].kill9()
        await cluster.wait_meta()
        assert refusals(await rescue(cluster[0], 1, 2)) == {"raft: leader is known"}
        cluster[1].kill9()

        async def one_is_left() -> bool:
            (why,) = refusals(await rescue(cluster[0], 2, 1))
            assert "leader" in why or why == "of the voters 1 are left (n1), not 2", why
            return "are left" in why

        await eventually(one_is_left, 20, "a leader is still known", every=0.3)
        async with await cluster[0].connect() as client:  # not of the system account
            assert (await client.request(f"$JS.API.{RESCUE}", b'{"quorum_needed":1}', 3.0)).status == 503
        await cluster[1].start()
        await cluster.wait_meta()
        for node in cluster.nodes[:2]:
            assert (await meta(node))["cluster_size"] == 3


async def test_with_the_stock_tool(server: str, tool: str) -> None:
    """`nats server cluster rescue` came after 0.3.0 and asks for nats-server 2.15: a plain request does the same. What
    follows in nats-server's procedure, peer-remove of the dead, is as it says."""
    async with ProcessCluster(5, server, config=CONFIG, monitor=True) as cluster:
        cli = Cli(tool, system(cluster[0]))
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        for node in cluster.nodes[2:]:
            node.kill9()

        async def without_leader() -> bool:
            found = [await meta(node) for node in cluster.nodes[:2]]
            return not any(f.get("leader") for f in found)

        await eventually(without_leader, 30, "a leader", every=0.2)
        offline = {r["name"] for r in (await meta(cluster[0]))["replicas"] if r.get("offline") or not r["current"]}
        assert {"n3", "n4", "n5"} <= offline
        output = ""

        async def asked() -> bool:
            nonlocal output
            output = await cli("request", f"$JS.API.{RESCUE}", '{"quorum_needed": 2}', "--replies", "2")
            return "10224" not in output

        await eventually(asked, 30, "not rescued", every=1.0)
        assert output.count('"new_quorum":2') >= 1, output

        async def led() -> bool:
            return bool((await meta(cluster[0])).get("leader"))

        await eventually(led, 15, "no leader", every=0.2)
        for name in ("n3", "n4", "n5"):
            await cli("server", "cluster", "peer-remove", name, "-f")
        found: dict[str, Any] = {}

        async def two() -> bool:
            found.update(await meta(cluster[0]))
            return bool(found["cluster_size"] == 2 and len(found.get("replicas") or [0]) == 1)

        await eventually(two, 15, "not two", every=0.2)
        again = await ask(cluster[0], "SERVER.REMOVE", {"peer": "n3"})
        assert again["error"]["err_code"] == 10044
