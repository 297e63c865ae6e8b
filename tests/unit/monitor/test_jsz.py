"""/jsz of a node in a cluster, and consumers on it, of whole nodes in one process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.monitor.jsz import account_detail, consumer_count, each_consumer
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Health, NotAskedError
from jetcluster.server.server import Server
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from testkit.twins.time import ManualTime
from tests.unit.cluster.consumers import Puller, consumer, filled, owned_by
from tests.unit.monitor import fake_node
from tests.unit.monitor.jetstream_pages import ask, health


async def test_jsz_begins_with_this_node(node: Any) -> None:
    found = ask(node)
    assert (found["memory"], found["storage"], found["reserved_storage"]) == (0, 500, 1000)
    assert (found["accounts"], found["ha_assets"]) == (1, 2)
    assert (found["streams"], found["streams_leader"], found["consumers"]) == (1, 1, 0)
    assert (found["messages"], found["bytes"], found["total"], found["object_uploads"]) == (5, 500, 1, 2)
    assert found["api"]["total"] == 9
    assert found["config"]["sync_always"] is True
    assert (found["config"]["store_dir"], found["config"]["domain"]) == ("/data/jetstream", "hub")
    assert (found["config"]["max_memory"], found["config"]["max_storage"]) == (1 << 30, 1 << 40)
    assert "account_details" not in found


async def test_configured_limits(node: Any) -> None:
    assert ask(node)["limits"] == {"default_max_consumers": -1}
    node.options.jetstream.max_batch_timeout, node.options.jetstream.max_ha_assets = 1.5, 20
    expected = {"max_ha_assets": 20, "max_batch_timeout": 1_500_000_000, "default_max_consumers": -1}
    assert ask(node)["limits"] == NodeSource(node).page("varz", {})["jetstream"]["limits"] == expected


async def test_the_meta_leader_knows_the_replicas(node: Any) -> None:
    meta = ask(node)["meta_cluster"]
    assert (meta["name"], meta["leader"], meta["peer"], meta["cluster_size"]) == ("c1", "n1", "AAAAAAAA", 3)
    assert meta["replicas"] == [
        {"name": "n2", "current": True, "active": 5_000_000_000, "peer": "BBBBBBBB"},
        {"name": "n3", "current": True, "active": 5_000_000_000, "peer": "CCCCCCCC"},
    ]


async def test_streams_of_which_no_server_tells(node: Any) -> None:
    engine = node.jetstream.jetstream
    names = {"AAAAAAAA": "n1", "BBBBBBBB": "n2", "CCCCCCCC": "n3"}
    away = {f"AWAY{number:02}": ("CCCCCCCC",) for number in range(25)}
    engine.meta.machine = fake_node.placed(names, S=("AAAAAAAA",), GONE=("former",), **away)
    meta = ask(node)["meta_cluster"]
    assert meta["lost"] == {"streams": 1, "first": [{"account": "$G", "name": "GONE", "servers": []}]}
    assert "away" not in meta
    del engine.network.mesh.peers["CCCCCCCC"]
    for query, named in (({}, 20), ({"streams": "1"}, 25)):
        found = ask(node, **query)["meta_cluster"]["away"]
        assert (found["streams"], len(found["first"])) == (25, named)
        assert found["first"][-1] == {"account": "$G", "name": f"AWAY{named - 1:02}", "servers": ["n3"]}
    engine.meta.group.leader = None
    assert ask(node)["meta_cluster"]["away"]["streams"] == 25, "any may tell while nobody leads"
    engine.meta.group.leader = "BBBBBBBB"
    assert "away" not in ask(node)["meta_cluster"]


async def test_streams_in_detail(node: Any) -> None:
    found = ask(node, streams="1", config="1", raft="1")
    account = found["account_details"][0]
    assert (account["name"], account["storage"]) == ("$G", 500)
    stream = account["stream_detail"][0]
    assert stream["name"] == "S"
    assert stream["created"] == "2023-11-14T22:13:20Z"
    assert stream["config"]["subjects"] == ["s.>"]
    assert stream["state"]["messages"] == 5
    assert stream["stream_raft_group"].startswith("S-R3F-")
    assert stream["cluster"]["leader"] == "n1"
    assert [replica["name"] for replica in stream["cluster"]["replicas"]] == ["n2", "n3"]
    assert "config" not in ask(node, streams="1")["account_details"][0]["stream_detail"][0]
    assert "stream_detail" not in ask(node, accounts="1")["account_details"][0]
    assert "account_details" not in ask(node, acc="nobody")
    assert "account_details" not in ask(node, accounts="1", offset="1")
    assert ask(node, acc="$G", offset="1", limit="1")["account_details"][0]["name"] == "$G", "pages are of all"
    for alone in ({"config": "1"}, {"direct_consumers": "1"}):
        assert "account_details" not in ask(node, **alone)
        assert "stream_detail" not in ask(node, acc="$G", **alone)["account_details"][0]


async def test_streams_come_in_pages_over_all_accounts(node: Any) -> None:
    (replica,) = node.jetstream.jetstream.replicas.values()
    for gid, account, name in ((8, "$G", "T"), (9, "$G", "R"), (10, "B", "A"), (11, "C", "A")):
        other = SimpleNamespace(
            **{**vars(replica), "assignment": replace(replica.assignment, gid=gid, account=account, name=name)}
        )
        other.leading = gid != 9
        node.jetstream.jetstream.replicas[gid] = other

    def pages(limit: int, **query: str) -> list[list[str]]:
        seen = []
        for offset in range(0, 6, limit):
            found = ask(node, streams="1", stream_offset=str(offset), stream_limit=str(limit), **query)
            listed = [
                one["id"] + "/" + stream["name"]
                for one in found.get("account_details", ())
                for stream in one["stream_detail"]
            ]
            seen.append([str(found["stream_total"]), *listed])
        return seen

    assert pages(2) == [["5", "$G/R", "$G/S"], ["5", "$G/T", "B/A"], ["5", "C/A"]]
    assert pages(4, stream_leader_only="1") == [["4", "$G/S", "$G/T", "B/A", "C/A"], ["4"]]
    assert pages(3, acc="$G") == [["3", "$G/R", "$G/S", "$G/T"], ["3"]]
    assert ask(node, acc="$G", streams="1", stream_limit="1")["account_details"][0]["storage"] == 1500, (
        "of all its streams"
    )
    assert "stream_total" not in ask(node, streams="1") and "stream_total" not in ask(node, stream_limit="1")


async def test_an_account_without_streams_is_shown_with_zeros(node: Any) -> None:
    node.jetstream.apis["E"] = SimpleNamespace(
        counters=SimpleNamespace(total=3, errors=1), waiting=node.jetstream.apis["$G"].waiting
    )
    found = ask(node, accounts="1")
    assert [account["name"] for account in found["account_details"]] == ["$G", "E"] and found["total"] == 2
    (empty,) = ask(node, acc="E", streams="1")["account_details"]
    assert (empty["storage"], empty["reserved_storage"], empty["api"]["total"]) == (0, 0, 3)
    assert "stream_detail" not in empty
    assert at_once(account_detail(node, "E", {"streams": "1"})) == empty


async def test_a_follower_names_the_leader(server: Server) -> None:
    clock = ManualTime()
    node = fake_node.node(server, clock, fake_node.engine(clock, leader="BBBBBBBB"))
    found = ask(node, streams="1")
    assert found["meta_cluster"]["leader"] == "n2"
    others = found["meta_cluster"]["replicas"]
    assert [(one["name"], one["current"]) for one in others] == [("n2", True), ("n3", True)], (
        "as nats-server's followers"
    )
    assert not any("lag" in one or "offline" in one for one in others)
    assert "streams_leader" not in found
    cluster = found["account_details"][0]["stream_detail"][0]["cluster"]
    assert cluster["leader"] == "n2"
    assert "replicas" not in cluster
    assert "stream_detail" not in ask(node, streams="1", stream_leader_only="1")["account_details"][0]
    with pytest.raises(NotAskedError, match="not leader"):
        ask(node, leader_only="1")


async def test_without_a_leader_everybody_shows_who_is_left(server: Server) -> None:
    """For whoever has to bring the others back, or to rescue the cluster without them."""
    clock = ManualTime()
    engine = fake_node.engine(clock, leader=None)
    node = fake_node.node(server, clock, engine)
    engine.network.mesh.peers.pop("CCCCCCCC")
    meta = ask(node)["meta_cluster"]
    assert "leader" not in meta and (meta["cluster_size"], meta["quorum_needed"]) == (3, 2)
    assert [(r["name"], r["current"], r.get("offline", False)) for r in meta["replicas"]] == [
        ("n1", True, False), ("n2", True, False), ("n3", False, True),
    ]  # fmt: skip


async def test_rescues_are_shown_for_ever_and_the_lost_until_they_are_removed(node: Any) -> None:
    engine = node.jetstream.jetstream
    machine = engine.meta.machine
    for number, (peer, name) in enumerate((("AAAAAAAA", "n1"), ("DDDDDDDD", "n4")), 1):
        command = {"kind": "node", "request": peer, "peer": peer, "name": name, "tags": [], "jetstream": True}
        machine.apply(number, 1, json.dumps(command).encode())
    rescue = {"number": 1, "at_ns": 10**18, "by": "ops", "survivors": {"AAAAAAAA": "n1"}, "lost": {"DDDDDDDD": "n4"}}
    machine.apply(3, 1, json.dumps({"kind": "rescue", "request": "r", "rescue": rescue}).encode())
    found = ask(node)
    assert found["rescues"] == [
        {"number": 1, "time": "2001-09-09T01:46:40Z", "by": "ops", "survivors": ["n1"], "left_out": ["n4"]}
    ]
    lost = next(r for r in found["meta_cluster"]["replicas"] if r["peer"] == "DDDDDDDD")
    assert lost["offline"] and found["meta_cluster"]["cluster_size"] == 3
    machine.apply(4, 1, json.dumps({"kind": "node_remove", "request": "x", "peer": "DDDDDDDD"}).encode())
    found = ask(node)
    assert found["rescues"] and "DDDDDDDD" not in [r["peer"] for r in found["meta_cluster"]["replicas"]]


async def test_without_jetstream(server: Server) -> None:
    node = fake_node.node(server, ManualTime())
    found = ask(node)
    assert found["disabled"] is True
    assert (found["streams"], found["memory"]) == (0, 0)
    assert health(node) == Health(200, {"status": "ok"})


async def test_varz_carries_the_summary(node: Any) -> None:
    found = NodeSource(node).page("varz", {})
    assert found["jetstream"]["stats"]["storage"] == 500
    assert found["jetstream"]["meta"]["leader"] == "n1"
    assert found["cluster"]["name"] == "c1"


async def test_jsz_shows_damage_and_catch_up(node: Any) -> None:
    found = ask(node)
    assert found["scrub"] == {
        "passes": 4, "bytes": 1000, "damaged_replicas": 0, "damage_found": 3, "replicas_repaired": 2,
    }  # fmt: skip
    assert found["disk"]["free"] == 1 << 30 and found["disk"]["size"] >= 0
    assert found["hashes"] == {"compared": 7, "rebuilt": 1, "undecided": ["S"]}
    assert found["catching_up"] == [
        {
            "account": "$G", "stream": "S", "bytes": 300, "fetched_bytes": 200, "total_bytes": 900, "lag": 20,
            "seconds": 1.6,
        },
    ]  # fmt: skip


async def test_replicas_have_their_lag_in_messages_and_seconds_when_it_is_asked_for(node: Any) -> None:
    plain = ask(node, streams="1")["account_details"][0]["stream_detail"][0]["cluster"]["replicas"]
    found = ask(node, streams="1", lag="1")["account_details"][0]["stream_detail"][0]["cluster"]["replicas"]
    assert all("lag_messages" not in one for one in plain)
    assert [(one["name"], one["lag_messages"] >= 0, one["lag_seconds"] >= 0) for one in found] == [
        ("n2", True, True), ("n3", True, True),
    ]  # fmt: skip


@virtual_time
async def test_every_replica_shows_its_consumers_and_only_the_owner_who_waits() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        leader = await cluster.led("S")
        for name in ("b", "a"):
            await consumer(leader, name)
        await consumer(leader, "internal", direct=True)
        home = cluster.followers("S")[0]
        await owned_by(cluster, "a", home)
        client = Puller(leader, "S", "a")
        for message in (await client.fetch(3))[:2]:
            await client.ack(message)
        client.pull(1)
        await asyncio.sleep(0.05)
        await cluster.equal("S")
        for node in cluster:
            replica = node.replica("S")
            assert consumer_count(replica) == 2
            first, second = each_consumer(node.js, replica, config=node is leader)
            assert (first["name"], second["name"]) == ("a", "b")
            assert first["ack_floor"]["stream_seq"] == 2 and first["num_ack_pending"] == 1
            assert first["num_waiting"] == (1 if node is home else 0)
            assert (first["num_pending"], second["num_pending"]) == (0, 3)
            assert first["cluster"]["leader"] == home.name
            assert ("replicas" in first["cluster"]) == (node is leader)
            assert ("config" in first) == (node is leader)
        walk = each_consumer(leader.js, leader.replica("S"), config=False)
        assert next(walk)["name"] == "a"
        leader.replica("S").consumers.table.by_name.pop("b")  # deleted meanwhile
        assert list(walk) == []
        whole = next(each_consumer(leader.js, leader.replica("S"), config=True))
        assert list(whole)[:5] == ["stream_name", "name", "created", "config", "delivered"]
        shown = whole["config"]
        assert shown["durable_name"] == "a" and not [key for key in shown if key.endswith("_ns")]
