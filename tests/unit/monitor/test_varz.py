"""/varz of a real server with real connections, and the statistics that a server sends about itself."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.system.events import SystemEvents
from jetcluster.server.server import Server
from tests.unit.monitor.system import Asker
from tests.unit.monitor.wire import TIME, Wire


async def test_varz_has_the_types_that_exporters_decode(server: Server, source: NodeSource) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"PUB foo 2\r\nhi")
    source.count_request("/varz")
    found = source.page("varz", {})
    for key in ("server_id", "server_name", "version", "go", "host", "uptime", "system_account", "http_base_path"):
        assert isinstance(found[key], str), key
    for key in (
        "proto", "port", "max_connections", "ping_interval", "ping_max", "http_port", "https_port", "max_control_line",
        "max_payload", "max_pending", "write_deadline", "mem", "cores", "gomaxprocs", "connections",
        "total_connections", "routes", "remotes", "leafnodes", "in_msgs", "out_msgs", "in_bytes", "out_bytes",
        "slow_consumers", "stale_connections", "subscriptions",
    ):  # fmt: skip
        assert isinstance(found[key], int), key
    assert isinstance(found["cpu"], float)
    assert all(TIME.fullmatch(found[key]) for key in ("start", "now", "config_load_time"))
    assert found["ping_interval"] == 120 * 10**9
    assert (found["connections"], found["in_msgs"], found["out_bytes"], found["subscriptions"]) == (1, 1, 2, 1)
    assert found["http_req_stats"] == {"/varz": 1}
    assert found["mem"] > 1_000_000
    assert found["jetstream"] == found["cluster"] == {}
    await wire.close()


async def test_varz_shows_what_waits_for_the_disk_and_which_behaviours_there_are(node: Any) -> None:
    waits = node.jetstream.disk_waits
    waits.came, waits.begun, waits.waits, waits.wait_ns, waits.max_wait_ns = 7, 5, 3, 900, 500
    varz = NodeSource(node).page("varz", {})
    assert varz["disk_io_wait_stats"] == {"waiters": 2, "waits": 3, "wait_time": 900, "max_wait_time": 500}
    assert varz["feature_flags"]["js_ack_fc_v2"] is False
    node.options.feature_flags = {"js_ack_fc_v2": True, "js_raft_delete_range": False, "other": True}
    flags = NodeSource(node).page("varz", {})["feature_flags"]
    assert len(flags) == 4 and flags["js_ack_fc_v2"] and flags["js_raft_delete_range"]
    balance = varz["jetcluster"]["balance"]
    assert balance == {"leaders": True, "replicas": True, "moved": {"leader": 2}, "last": []}
    meta = varz["jetstream"]["meta"]
    assert (meta["pending_requests"], meta["pending_infos"]) == (3, 2)
    assert varz["jetstream"]["limits"]["default_max_consumers"] == -1, "as nats-server says that there is no limit"
    node.options.jetstream.default_max_consumers = 50
    assert NodeSource(node).page("jsz", {})["limits"]["default_max_consumers"] == 50


async def test_statistics_beat(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.SERVER.*.STATSZ")
    first, second = [await system.next(), await system.next()]
    assert first[0] == f"$SYS.SERVER.{server.server_id}.STATSZ"
    assert set(first[1]) == {"server", "statsz"}
    assert second[1]["server"]["seq"] > first[1]["server"]["seq"]
