"""/healthz of a node in a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.meta_members import REMOVED
from jetcluster.cluster.restart_safety import Risk, Safety
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.health.node_health import Aspect
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Health
from jetcluster.server.server import Server
from testkit.twins.time import ManualTime
from tests.unit.monitor import fake_node
from tests.unit.monitor.jetstream_pages import ask, health


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
    text = '"stream" must not be empty when checking consumer health'
    assert health(node, account="$G", consumer="C", details="1") == Health(
        400, {"status": "error", "errors": [{"type": "BAD_REQUEST", "error": text}]}
    )


async def test_hubs_without_a_link_count_where_it_is_asked_for(node: Any) -> None:
    remotes = [
        LeafRemoteOptions(urls=["nats://u:secret@hub:7422", "tls://hub2"], account="A"),
        LeafRemoteOptions(urls=["nats://c:1"], account="B"),
        LeafRemoteOptions(urls=["nats://off:1"], account="C", disabled=True),
    ]
    link = SimpleNamespace(cid=1, remote=remotes[1])
    state = SimpleNamespace(options=SimpleNamespace(remotes=remotes))
    node.leafnodes = SimpleNamespace(links=[link], state=state)
    text = 'leafnode remote for account "A" (urls=["nats://u:xxxxx@hub:7422" "tls://hub2"]) is not connected'
    assert health(node).status == 200
    assert health(node, leaf_remotes_connected="1") == Health(503, {"status": "unavailable", "error": text})
    found = health(node, leaf_remotes_connected="1", details="1")
    assert found.body["errors"] == [{"type": "CONNECTION", "error": text}]
    assert health(node, leaf_remotes_connected="1", js_server_only="1").status == 503
    state.options.remotes = remotes[1:]
    assert health(node, leaf_remotes_connected="1").status == 200


async def test_no_meta_leader(server: Server) -> None:
    clock = ManualTime()
    node = fake_node.node(server, clock, fake_node.engine(clock, leader=None))
    found = health(node)
    assert found.status == 503
    assert found.body["error"] == "JetStream has not established contact with a meta leader"
    assert health(node, js_enabled_only="1").status == 200


async def test_a_new_server_is_well_once_it_gets_replicas(node: Any) -> None:
    """Else an operator who waits for it would be told that no server can take the place of the one that goes."""
    nodes = node.jetstream.jetstream.known.machine.nodes
    known = nodes.pop(node.jetstream.jetstream.network.me)
    text = "the meta leader has not registered this server yet: it gets no replicas"
    assert health(node) == Health(503, {"status": "unavailable", "error": text})
    assert health(node, js_meta_only="1").status == 503
    assert health(node, js_server_only="1").status == 200
    nodes[node.jetstream.jetstream.network.me] = known
    assert health(node).status == 200


async def test_a_meta_leader_that_is_not_followed(node: Any) -> None:
    node.jetstream.jetstream.meta.group.refused = "B lies"
    assert health(node).body["error"] == "JetStream does not follow the meta leader: B lies"
    assert health(node, js_server_only="1").status == 503


async def test_a_server_that_was_removed_says_so(server: Server) -> None:
    clock = ManualTime()
    engine = fake_node.engine(clock, leader=None)
    engine.joining.removed = REMOVED
    found = health(fake_node.node(server, clock, engine), js_server_only="1")
    assert (found.status, found.body["error"]) == (503, REMOVED)
    assert "it can come back with an empty store" in REMOVED


@pytest.mark.parametrize("current", [True, False])
async def test_readiness_is_no_matter_of_the_meta_leader(server: Server, *, current: bool) -> None:
    """A probe that followed it would find no server ready whenever the leadership moves."""
    clock = ManualTime()
    node = fake_node.node(server, clock, fake_node.engine(clock, leader=None))
    node.jetstream.jetstream.known.current = current
    assert health(node, js_server_only="1") == Health(200, {"status": "ok"})
    assert health(node).status == health(node, js_meta_only="1").status == 503
    checks = node.jetstream.jetstream.network.raft
    checks.peers.others_well = {8 * "B"}
    checks.health.watch(Aspect.STORE, lambda: "hangs")
    checks.health.look()
    assert health(node, js_server_only="1").status == 503


async def test_a_lame_duck_is_alive_and_not_ready(node: Any) -> None:
    """Clients go elsewhere; a liveness probe that failed would have it killed before they have gone."""
    node.server.state.lame_duck = True
    assert health(node).body["error"] == "server is in lame duck mode"
    assert health(node, js_server_only="1").status == 503
    assert health(node, js_enabled_only="1") == Health(200, {"status": "ok"})


@pytest.mark.parametrize(("aspect", "ready"), [(Aspect.CLOCK, True), (Aspect.SPACE, True), (Aspect.STORE, False)])
async def test_a_node_that_is_not_well(node: Any, aspect: Aspect, ready: bool) -> None:
    engine = node.jetstream.jetstream
    engine.network.raft.peers.others_well = {engine.meta.group.peers[1]}
    checks = engine.network.raft.health
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
    node = fake_node.node(server, clock, fake_node.engine(clock, replicas=1 if alone else 3))
    raft = node.jetstream.jetstream.network.raft
    raft.peers.others_well = {"of another group"}
    raft.health.watch(aspect, lambda: "broken")
    raft.health.look()
    assert health(node, js_server_only="1") == health(node, js_meta_only="1") == Health(200, {"status": "ok"})
    assert health(node).status == 503
    node.jetstream.jetstream.meta.group = None
    assert health(node, js_meta_only="1").status == 503


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda replica: setattr(replica, "failed", "boom"), "is stopped: boom"),
        (lambda replica: setattr(replica, "damaged", "bad checksum"), "has damaged data: bad checksum"),
        (lambda replica: setattr(replica, "rejected", "differs"), "is not to be trusted: differs"),
        (lambda replica: setattr(replica, "disputed", "differs"), "may be wrong: differs"),
        (lambda replica: setattr(replica, "installing", True), "is not current"),
        (lambda replica: setattr(replica.group, "commit_index", 5000), "is not current"),
        (lambda replica: setattr(replica.group, "leader", None), "has no leader"),
        (lambda replica: setattr(replica.group, "refused", "B lies"), "is not the one that others have: B lies"),
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
    node.jetstream.jetstream.known.current = False
    assert (await NodeSource(node).healthz({"safe-to-restart": "1"})).status == 503
    assert (await NodeSource(node).healthz({})).status == 200


async def test_a_node_that_looks_for_its_cluster_says_so(node: Any) -> None:
    """nats.js waits until all nodes name one leader, and takes a page without `meta_cluster` for an error."""
    node.jetstream.jetstream.meta.group = None
    assert ask(node)["meta_cluster"] == {"name": "c1", "cluster_size": 0}
