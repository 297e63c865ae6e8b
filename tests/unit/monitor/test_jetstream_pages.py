"""/jsz and /healthz of a node in a cluster."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.restart_safety import Risk, Safety
from jetcluster.health.node_health import Aspect
from jetcluster.monitor.healthz import healthz
from jetcluster.monitor.node_source import NodeSource
from jetcluster.monitor.source import Health, NotAskedError
from jetcluster.server.server import Server
from tests.twins.time import ManualTime
from tests.unit.monitor import twins


@pytest.fixture
def node(server: Server) -> Any:
    clock = ManualTime()
    return twins.node(server, clock, twins.engine(clock))


def ask(node: Any, **query: str) -> dict[str, Any]:
    return NodeSource(node).jsz({name.replace("_", "-"): value for name, value in query.items()})


def health(node: Any, **query: str) -> Health:
    return healthz(node, {name.replace("_", "-"): value for name, value in query.items()})


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
    assert ask(node)["limits"] == NodeSource(node).varz({})["jetstream"]["limits"] == expected


async def test_the_meta_leader_knows_the_replicas(node: Any) -> None:
    meta = ask(node)["meta_cluster"]
    assert (meta["name"], meta["leader"], meta["peer"], meta["cluster_size"]) == ("c1", "n1", "AAAAAAAA", 3)
    assert meta["replicas"] == [
        {"name": "n2", "current": True, "active": 5_000_000_000, "peer": "BBBBBBBB"},
        {"name": "n3", "current": True, "active": 5_000_000_000, "peer": "CCCCCCCC"},
    ]


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


async def test_a_follower_names_the_leader(server: Server) -> None:
    clock = ManualTime()
    node = twins.node(server, clock, twins.engine(clock, leader="BBBBBBBB"))
    found = ask(node, streams="1")
    assert found["meta_cluster"]["leader"] == "n2"
    assert "replicas" not in found["meta_cluster"]
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
    engine = twins.engine(clock, leader=None)
    node = twins.node(server, clock, engine)
    engine.context.mesh.peers.pop("CCCCCCCC")
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
    node = twins.node(server, ManualTime())
    found = ask(node)
    assert found["disabled"] is True
    assert (found["streams"], found["memory"]) == (0, 0)
    assert health(node) == Health(200, {"status": "ok"})


async def test_varz_carries_the_summary(node: Any) -> None:
    found = NodeSource(node).varz({})
    assert found["jetstream"]["stats"]["storage"] == 500
    assert found["jetstream"]["meta"]["leader"] == "n1"
    assert found["cluster"]["name"] == "c1"


async def test_healthy(node: Any) -> None:
    assert health(node) == Health(200, {"status": "ok"})
    assert health(node, details="1") == Health(200, {"status": "ok"})
    assert health(node, account="$G", stream="S").status == 200


async def test_questions_about_what_does_not_exist(node: Any) -> None:
    text = 'JetStream stream "N" not found on account "$G"'
    assert health(node, account="$G", stream="N") == Health(404, {"status": "unavailable", "error": text})
    assert health(node, account="$G", stream="N", details="1") == Health(
        404,
        {"status": "error", "errors": [{"type": "STREAM", "account": "$G", "stream": "N", "error": text}]},
    )
    assert health(node, account="X").body["error"] == 'JetStream account "X" not found'
    assert health(node, stream="S") == Health(
        400, {"status": "error", "error": '"account" must not be empty when checking stream health'}
    )


async def test_no_meta_leader(server: Server) -> None:
    clock = ManualTime()
    node = twins.node(server, clock, twins.engine(clock, leader=None))
    found = health(node)
    assert found.status == 503
    assert found.body["error"] == "JetStream has not established contact with a meta leader"
    assert health(node, js_server_only="1").status == 503
    assert health(node, js_enabled_only="1").status == 200


@pytest.mark.parametrize(
    ("ill", "well", "silent", "current", "ready"),
    [
        (True, "", "", True, True),  # all of them
        (False, "", "", True, True),  # all others: nobody can be elected, and this one answers reads
        (False, "", "C", True, True),
        (False, "", "BC", True, False),  # cut off: the others may do well without it
        (True, "", "BC", True, False),
        (True, "B", "", True, False),  # another one answers instead
        (False, "B", "", True, False),  # there will be a leader in a moment
        (True, "BC", "", True, False),
        (True, "", "", False, False),  # a cold start: it does not know what there is
    ],
)
async def test_where_nobody_can_be_elected_readiness_does_without_a_meta_leader(
    server: Server, ill: bool, well: str, silent: str, current: bool, ready: bool
) -> None:
    clock = ManualTime()
    node = twins.node(server, clock, twins.engine(clock, leader=None))
    context = node.jetstream.jetstream.context
    context.meta_current = current
    context.raft.peers.others_well, context.raft.peers.silent = (
        {8 * peer for peer in well},
        {8 * peer for peer in silent},
    )
    if ill:
        context.raft.health.watch(Aspect.JOURNAL, lambda: "hangs")
        context.raft.health.look()
    assert health(node, js_server_only="1").status == (200 if ready else 503)
    assert health(node).status == health(node, js_meta_only="1").status == 503


@pytest.mark.parametrize(("aspect", "ready"), [(Aspect.CLOCK, True), (Aspect.SPACE, True), (Aspect.STORE, False)])
async def test_a_node_that_is_not_well(node: Any, aspect: Aspect, ready: bool) -> None:
    engine = node.jetstream.jetstream
    engine.context.raft.peers.others_well = {engine.meta.group.peers[1]}
    checks = engine.context.raft.health
    checks.watch(aspect, lambda: "broken")
    checks.look()
    found = health(node)
    assert (found.status, found.body["error"]) == (503, f"this server is not well: {aspect.value}: broken")
    assert health(node, js_enabled_only="1").status == 200, "to start it again would not help"
    assert health(node, js_server_only="1").status == (200 if ready else 503)
    assert health(node, startup="1").status == 200, "everything is current; it votes, whatever it lacks"


@pytest.mark.parametrize("aspect", list(Aspect))
@pytest.mark.parametrize("alone", [False, True])
async def test_what_ails_all_nodes_keeps_no_client_away(server: Server, aspect: Aspect, alone: bool) -> None:
    """A disk that they share stalls, or the only node's: the leaders stay where they are, and answer."""
    clock = ManualTime()
    node = twins.node(server, clock, twins.engine(clock, replicas=1 if alone else 3))
    raft = node.jetstream.jetstream.context.raft
    raft.peers.others_well = {"of another group"}
    raft.health.watch(aspect, lambda: "broken")
    raft.health.look()
    assert health(node, js_server_only="1") == health(node, js_meta_only="1") == Health(200, {"status": "ok"})
    assert health(node).status == 503
    node.jetstream.jetstream.meta.group = None
    assert health(node, js_server_only="1").status == 503


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda replica: setattr(replica, "failed", "boom"), "is stopped: boom"),
        (lambda replica: setattr(replica, "damaged", "bad checksum"), "has damaged data: bad checksum"),
        (lambda replica: setattr(replica, "suspect", "differs"), "is not to be trusted: differs"),
        (lambda replica: setattr(replica, "doubt", "differs"), "may be wrong: differs"),
        (lambda replica: setattr(replica, "installing", True), "is not current"),
        (lambda replica: setattr(replica.group, "commit_index", 5000), "is not current"),
        (lambda replica: setattr(replica.group, "leader", None), "has no leader"),
    ],
)
async def test_a_replica_that_is_behind_or_broken(node: Any, change: Any, text: str) -> None:
    change(node.jetstream.jetstream.replicas[7])
    found = health(node)
    assert (found.status, found.body["error"]) == (503, f"JetStream stream '$G > S' {text}")
    assert health(node, js_server_only="1").status == 200
    assert health(node, js_meta_only="1").status == 200


async def test_a_stream_that_could_not_be_started_and_data_that_belongs_to_none(node: Any) -> None:
    engine = node.jetstream.jetstream
    engine.broken = {7: (engine.replicas.pop(7).assignment, "damaged block")}
    engine.unassigned = (12,)
    found = health(node)
    assert (found.status, found.body["error"]) == (503, "JetStream stream '$G > S' cannot be started: damaged block")
    assert health(node, account="$G", stream="S").status == 503
    assert health(node, js_server_only="1").status == 200
    assert ask(node)["unassigned_streams"] == [12]


async def test_jetstream_that_is_not_up_yet(node: Any) -> None:
    node.jetstream = None
    assert health(node).body == {"status": "unavailable", "error": "JetStream not enabled"}


@pytest.mark.parametrize("risks", [0, 1, 30])
async def test_safe_to_restart_says_which_groups_need_this_node(node: Any, risks: int) -> None:
    async def check() -> Safety:
        return Safety(40, tuple(Risk("$G", f"S{n}", 2, 1) for n in range(risks)))

    node.jetstream.jetstream.restart_safety = SimpleNamespace(check=check)
    found = await NodeSource(node).healthz({"safe-to-restart": "true"})
    if not risks:
        assert (found.status, found.body) == (200, {"status": "ok", "groups": 40})
        return
    assert (found.status, found.body["unsafe"], found.body["groups"]) == (503, risks, 40)
    assert found.body["error"] == f"{risks} of 40 groups would lose their majority"
    text = "stream '$G > S0': 1 of 2 other voters connected and caught up, 2 needed"
    assert found.body["first"][0] == text and len(found.body["first"]) == min(risks, 10)
    node.jetstream.jetstream.context.meta_current = False
    assert (await NodeSource(node).healthz({"safe-to-restart": "1"})).status == 503
    assert (await NodeSource(node).healthz({})).status == 200


async def test_jsz_shows_damage_and_catch_up(node: Any) -> None:
    found = ask(node)
    assert found["scrub"] == {
        "passes": 4, "bytes": 1000, "damaged_replicas": 0, "damage_found": 3, "replicas_repaired": 2,
    }  # fmt: skip
    assert found["hashes"] == {"compared": 7, "rebuilt": 1, "undecided": ["S"]}
    assert found["catching_up"] == [
        {"stream": "S", "bytes": 300, "fetched_bytes": 200, "total_bytes": 900, "lag": 20, "seconds": 1.6},
    ]  # fmt: skip


async def test_a_node_that_looks_for_its_cluster_says_so(node: Any) -> None:
    """nats.js waits until all nodes name one leader, and takes a page without `meta_cluster` for an error."""
    node.jetstream.jetstream.meta.group = None
    assert ask(node)["meta_cluster"] == {"name": "c1", "cluster_size": 0}
