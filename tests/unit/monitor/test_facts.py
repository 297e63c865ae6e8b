"""Facts of a running server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.load import load_text
from jetcluster.health.node_health import Aspect
from jetcluster.monitor.facts import config_facts, server_facts, stream_facts
from jetcluster.server.server import Server
from testkit.twins.time import ManualTime
from tests.unit.monitor import fake_node

SECOND = 10**9
NOW = 1000 * SECOND
SYSTEM = "S { users: [{user: s, password: t}] }"
USER = "A { users: [{user: a, password: b}] }"


async def test_a_member_of_a_cluster(node: Any) -> None:
    engine = node.jetstream.jetstream
    del engine.network.mesh.peers["CCCCCCCC"]
    engine.network.raft.health.watch(Aspect.LOOP, lambda: "stands")
    engine.network.raft.health.look()
    found = server_facts(node)
    assert (found.name, found.peer, found.quorum) == ("n1", "AAAAAAAA", 2)
    assert (found.members, found.linked) == (("n1", "n2", "n3"), ("n2",))
    assert [one.name for one in found.absent] == ["n3"]
    assert [(aspect, reason) for aspect, reason, _ in found.troubles] == [("loop", "stands")]
    assert (found.leads, found.replicated, found.reserved_storage) == (1, 1, 1000)


async def test_a_server_without_jetstream(server: Server) -> None:
    found = server_facts(fake_node.node(server, ManualTime()))
    assert (found.jetstream, found.clustered, found.members) == (False, False, ())
    assert found.descriptors >= 0


async def test_a_stream_at_its_leader_and_elsewhere(node: Any) -> None:
    engine = node.jetstream.jetstream
    replica = engine.replicas[7]
    replica.mirrors.links.info = lambda: {
        "mirror": {"name": "U", "lag": 3, "active": -1, "error": {"description": "no"}}
    }
    found = stream_facts(engine, replica)
    assert (found.leader, found.leading, found.present, found.quorum) == ("n1", True, 3, 2)
    assert [(one.name, one.lag, one.linked) for one in found.replicas] == [("n2", 0, True), ("n3", 0, True)]
    assert [(one.name, one.silent, one.error, one.mirror) for one in found.upstreams] == [("U", -1.0, "no", True)]
    replica.leading = False
    replica.group.leader = None
    found = stream_facts(engine, replica)
    assert (found.leader, found.replicas, found.upstreams) == ("", (), ())


async def test_a_state_that_is_being_fetched(node: Any) -> None:
    engine = node.jetstream.jetstream
    pull = SimpleNamespace(gid=7, compared=300, size=900, peer="BBBBBBBB", stalled=False)
    engine.network.catchup.progress = lambda: [(pull, 1.5)]
    engine.replicas[7].installing = True
    found = stream_facts(engine, engine.replicas[7]).catch_up
    assert found == (300, 900, 1.5, "n2", False)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {"users": False, "tls": False, "open_to": "0.0.0.0", "system_user": False}),
        ("host: 127.0.0.1", {"users": False, "tls": False, "system_user": False}),
        ("authorization { token: x }", {"tls": False, "open_to": "0.0.0.0", "system_user": False}),
        (f"host: ::1, accounts {{ {USER}, {SYSTEM} }}, system_account: S", {"tls": False}),
        (f"host: ::1, accounts {{ {USER} }}, no_auth_user: a", {"users": False, "tls": False, "system_user": False}),
        ("host: ::1, cluster { name: c, port: 6222, trusted_network: true }", {
            "users": False, "tls": False, "system_user": False, "clustered": True, "routes_secret": False,
            "routes_tls": False, "trusted_network": True}),
    ],
)  # fmt: skip
def test_a_configuration(text: str, changed: dict[str, Any]) -> None:
    options, _ = load_text(text, "test.conf", {})
    found = config_facts(options, login=Authenticator(options).required)
    for name in ("users", "tls", "open_to", "system_user", "clustered", "trusted_network"):
        assert getattr(found, name) == changed.get(name, getattr(type(found)(), name)), name
    if found.clustered:
        assert (found.routes_secret, found.routes_tls) == (False, False)
