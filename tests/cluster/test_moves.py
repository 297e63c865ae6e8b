"""Moving a stream by its placement, on real nodes with tags; the same on nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually, frozen
from testkit.ledger import publish_all
from tests.symptom_page import shown

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


async def ask(client: Client, subject: str, body: Any = None) -> dict[str, Any]:
    """The reply, errors too."""
    try:
        return await client.api(subject, body)
    except ClientError as error:
        return {"error": str(error)}


async def peers(client: Client, stream: str) -> tuple[str, set[str]]:
    """Leader and all peers by name, or ("", set()) while nobody leads."""
    try:
        cluster = (await client.api(f"STREAM.INFO.{stream}", within=1.0))["cluster"]
    except (ClientError, TimeoutError):
        return "", set()
    leader = cluster.get("leader", "")
    return leader, {leader, *(p["name"] for p in cluster.get("replicas") or [])}


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_stream_goes_where_its_placement_says(server: str, replicas: int) -> None:
    cluster = ProcessCluster(4, server, config="#")
    for node in cluster.nodes:
        tag = "old" if node.name in ("n1", "n2") else "new"
        (node.root / "server.conf").write_text(f'server_tags: ["{tag}"]\n')
    async with cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s.>"], replicas, placement={"tags": ["old"]})
        config = (await client.api("STREAM.INFO.S"))["config"]
        assert config["placement"] == {"tags": ["old"]}
        await publish_all(client, "s.a", [b"%d" % n for n in range(500)])
        assert (await peers(client, "S"))[1] <= {"n1", "n2"}
        nowhere = await ask(client, "STREAM.UPDATE.S", {**config, "placement": {"tags": ["else"]}})
        assert "no suitable peers for placement, tags not matched ['else']" in str(nowhere["error"])
        both = await ask(
            client, "STREAM.UPDATE.S", {**config, "num_replicas": 3 - replicas, "placement": {"tags": ["new"]}}
        )
        assert "can not move and scale a stream in a single update" in str(both["error"])
        assert "stream reconfiguration not in progress" in str(await ask(client, "STREAM.CANCEL_MOVE.S"))
        moved = await client.api("STREAM.UPDATE.S", {**config, "placement": {"tags": ["new"]}})
        assert moved["config"]["placement"] == {"tags": ["new"]}

        async def there() -> bool:
            leader, found = await peers(client, "S")
            return bool(leader) and found <= {"n3", "n4"} and len(found) == replicas

        await eventually(there, 30.0, "the stream did not move", every=0.1)
        state = (await client.api("STREAM.INFO.S"))["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (500, 1, 500)
        assert (await client.request("s.b", b"next")).json()["seq"] == 501
        await asyncio.sleep(1)
        assert "stream reconfiguration not in progress" in str(await ask(client, "STREAM.CANCEL_MOVE.S"))


async def test_a_move_that_cannot_end_is_cancelled(server: str) -> None:
    cluster = ProcessCluster(5, server, config="#")
    for node in cluster.nodes:
        tag = "new" if node.name in ("n4", "n5") else "old"
        (node.root / "server.conf").write_text(f'server_tags: ["{tag}"]\n')
    async with cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 2, placement={"tags": ["old"]})
        # more than can come before n5 is stopped
        await publish_all(client, "s", [os.urandom(250_000) for _ in range(200)], window=20)
        config = (await client.api("STREAM.INFO.S"))["config"]
        before = await peers(client, "S")
        moving = {**config, "placement": {"tags": ["new"]}}
        await client.api("STREAM.UPDATE.S", moving)
        cluster.node("n5").signal(signal.SIGSTOP)

        async def under_way() -> bool:
            found = (await client.api("STREAM.INFO.S"))["cluster"].get("desired")
            return found is not None and found.get("status", {}).get("type") == "catchup"

        await eventually(under_way, 10.0, "nothing moves", every=0.1)
        desired = (await client.api("STREAM.INFO.S"))["cluster"]["desired"]
        assert {replica["name"] for replica in desired["replicas"]} == {"n4", "n5"}
        assert all(set(replica) == {"name", "peer"} for replica in desired["replicas"])
        assert desired["origin"] == {"replicas": 2, "placement": {"tags": ["old"]}}
        assert set(desired["status"]) == {"description", "type"}  # nats-server has several descriptions
        assert set(desired) == {"created", "name", "replicas", "origin", "status"}
        for other in (config, {**moving, "num_replicas": 1}):
            refused = str(await ask(client, "STREAM.UPDATE.S", other))
            assert "stream move already in progress" in refused
        if server == "jetcluster":
            shown("a-move-does-not-end", json.dumps(desired["status"]), refused)
        assert "error" not in await ask(client, "STREAM.UPDATE.S", {**moving, "description": "allowed"})
        cancelled = await client.api("STREAM.CANCEL_MOVE.S")
        assert cancelled["type"] == "io.nats.jetstream.api.v1.stream_cancel_move_response"
        assert cancelled["config"]["placement"] == {"tags": ["old"]}

        async def back() -> bool:
            return (await peers(client, "S"))[1] == before[1]

        await eventually(back, 20.0, "the stream is not back", every=0.1)
        cluster.node("n5").signal(signal.SIGCONT)
        await asyncio.sleep(2)
        info = await client.api("STREAM.INFO.S")
        assert "desired" not in info["cluster"] and info["state"]["messages"] == 200
        assert "stream reconfiguration not in progress" in str(await ask(client, "STREAM.CANCEL_MOVE.S"))
        assert (await client.request("s", b"next")).json()["seq"] == 201


async def test_another_number_of_replicas_is_desired_until_it_is_there_and_can_be_taken_back(server: str) -> None:
    async with ProcessCluster(3, server, monitor=True) as cluster, await cluster[0].connect() as first:
        await create_stream(first, "S", ["s"], 1)
        (leader,) = (await peers(first, "S"))[1]
        decides = (await cluster[0].monitor("jsz"))["meta_cluster"]["leader"]
        away = next(node for node in cluster.nodes if node.name not in (leader, decides))
        await _scales(cluster, cluster.node(leader), away)


async def _scales(cluster: ProcessCluster, home: Node, away: Node) -> None:
    leader = home.name
    async with await home.connect() as client:
        consumer = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
        await client.api("CONSUMER.CREATE.S.c", consumer)
        await publish_all(client, "s", [os.urandom(250_000) for _ in range(200)], window=20)
        config = (await client.api("STREAM.INFO.S"))["config"]

        async def told() -> dict[str, Any]:
            return (await ask(client, "STREAM.INFO.S")).get("cluster", {}).get("desired") or {}

        await client.api("STREAM.UPDATE.S", {**config, "num_replicas": 3})
        with frozen([away]):

            async def under_way() -> bool:
                return "type" in (await told()).get("status", {})

            await eventually(under_way, 10.0, "nothing is said", every=0.05)
            desired = await told()
            assert set(desired) == {"created", "name", "replicas", "origin", "status"}
            assert {replica["name"] for replica in desired["replicas"]} == {"n1", "n2", "n3"}
            assert desired["origin"] == {"replicas": 1}
            shown = (await client.api("STREAM.INFO.S"))["cluster"]
            assert shown["raft_group"].startswith("S-R3F-") and shown["leader"] == leader
            again = await client.api("STREAM.UPDATE.S", {**config, "num_replicas": 3, "description": "kept"})
            assert again["cluster"]["desired"]["origin"] == {"replicas": 1}
            moves = await ask(client, "STREAM.UPDATE.S", {**config, "num_replicas": 3, "placement": {"tags": ["new"]}})
            assert "stream reconfiguration already in progress" in str(moves["error"])
            cancelled = await client.api("STREAM.CANCEL_MOVE.S")
        assert cancelled["type"] == "io.nats.jetstream.api.v1.stream_cancel_move_response"
        assert (cancelled["config"]["num_replicas"], cancelled["config"]["description"]) == (1, "kept")

        async def single() -> bool:
            info = await ask(client, "STREAM.INFO.S")
            return info.get("cluster") == {"name": "C", "leader": leader} and info["state"]["messages"] == 200

        await eventually(single, 20.0, "the stream is not back", every=0.1)
        assert "stream reconfiguration not in progress" in str(await ask(client, "STREAM.CANCEL_MOVE.S"))
        assert (await client.request("s", b"next")).json()["seq"] == 201

        async def wanted() -> bool:
            return "error" not in await ask(client, "STREAM.UPDATE.S", {**config, "num_replicas": 3})

        await eventually(wanted, 20.0, "the server that was away is not taken", every=0.2)
        await cluster.wait_current("S")

        async def all_there() -> bool:
            return not await told()

        await eventually(all_there, 30.0, "it is still desired", every=0.1)
        reply = await client.api("STREAM.UPDATE.S", {**config, "num_replicas": 1})
        assert reply["cluster"].get("desired", {}).get("origin", {"replicas": 3}) == {"replicas": 3}  # it may be over
        await ask(client, "STREAM.CANCEL_MOVE.S")  # it may be too late
        await eventually(all_there, 30.0, "it does not end", every=0.1)
        info = await client.api("STREAM.INFO.S")
        assert info["state"]["messages"] == 201
        assert len((await peers(client, "S"))[1]) == info["config"]["num_replicas"]


async def test_another_node_takes_the_place_of_a_removed_peer(server: str) -> None:
    async with ProcessCluster(4, server) as cluster, await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        await publish_all(client, "s", [b"%d" % n for n in range(200)])
        everybody = {node.name for node in cluster.nodes}

        async def settled(*, without: str) -> bool:
            leader, found = await peers(client, "S")
            if not leader or len(found) != 3 or without in found:
                return False
            replicas = (await client.api("STREAM.INFO.S"))["cluster"]["replicas"]
            return all(replica["current"] for replica in replicas)

        for removes_leader in (False, True):
            leader, found = await peers(client, "S")
            gone = leader if removes_leader else sorted(found - {leader})[0]
            (spare,) = everybody - found
            refused = str(await ask(client, "STREAM.PEER.REMOVE.S", {"peer": spare}))
            assert "peer not a member" in refused

            async def removed(gone: str = gone) -> bool:
                reply = await ask(client, "STREAM.PEER.REMOVE.S", {"peer": gone})
                # nats-server finds no place (10075) until the node that went before has let go of its replica.
                assert server == "nats-server" or "error" not in reply, reply
                return reply.get("success") is True

            await eventually(removed, 20.0, f"{gone} cannot be removed", every=0.5)
            await eventually(lambda gone=gone: settled(without=gone), 30.0, f"{gone} is not replaced", every=0.1)
        state = (await client.api("STREAM.INFO.S"))["state"]
        assert (state["messages"], state["last_seq"]) == (200, 200)
        assert (await client.request("s", b"next")).json()["seq"] == 201
        await create_stream(client, "ALL", ["all"], 4)
        assert "peer remap failed" in str(await ask(client, "STREAM.PEER.REMOVE.ALL", {"peer": "n2"}))
        assert "bad request" in str(await ask(client, "STREAM.PEER.REMOVE.ALL", {}))


@pytest.mark.ours("nats-server says nothing until it counts the server as away, which takes seconds")
async def test_an_update_while_the_only_server_of_a_stream_is_away_changes_nothing(server: str) -> None:
    """It is refused, and stays so when the server is back."""
    async with ProcessCluster(3, server) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s.>"], 1)
            await publish_all(client, "s.a", [b"%d" % n for n in range(5)])
            config = (await client.api("STREAM.INFO.S"))["config"]
        away = await cluster.stream_leader("S")
        away.kill9()
        ask_at = next(node for node in cluster.nodes if node.alive)
        await cluster.wait_meta([ask_at])
        async with await ask_at.connect() as client:
            refused = await ask(client, "STREAM.UPDATE.S", {**config, "max_msgs": 2})
            assert "stream is offline" in str(refused["error"])
            await away.start()
            await cluster.stream_leader("S")
            info = await client.api("STREAM.INFO.S")
            assert info["config"]["max_msgs"] == -1 and info["state"]["messages"] == 5
