"""/routez of a server with peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jetcluster.clock import SystemClock
from jetcluster.monitor.node_source import NodeSource
from jetcluster.server.server import Server
from tests.unit.monitor import twins


async def test_routez(server: Server) -> None:
    clock = SystemClock()
    stats = SimpleNamespace(
        rid=3, did_solicit=True, configured=True, ip="127.0.0.1", port=6222, started=clock.monotonic() - 61,
        last_activity=clock.monotonic() - 1, rtt=0.00079, in_msgs=1, out_msgs=2, in_bytes=3, out_bytes=4,
    )  # fmt: skip
    link: Any = twins.LinkTwin("BBBBBBBB", "n2", stats)
    node = twins.node(server, clock, twins.engine(clock))
    node.jetstream.mesh.links = {"BBBBBBBB": link}
    server.accounts["$G"].peers.set_interest(link, b"foo", b"q", 2)
    found = NodeSource(node).page("routez", {"subs": "1"})
    assert found["num_routes"] == 1
    route = found["routes"][0]
    assert (route["rid"], route["remote_id"], route["remote_name"]) == (3, "BBBBBBBB", "n2")
    assert (route["did_solicit"], route["is_configured"], route["pending_size"]) == (True, True, 5)
    assert (route["uptime"], route["rtt"], route["subscriptions"]) == ("1m1s", "790µs", 1)
    assert route["subscriptions_list"] == ["foo"]
    detailed = NodeSource(node).page("routez", {"subs": "detail"})["routes"][0]
    assert list(detailed)[-3:] == ["subscriptions", "subscriptions_list_detail", "compression"]
    assert detailed["subscriptions_list_detail"] == [
        {"subject": "foo", "qgroup": "q", "sid": "R $G foo q", "msgs": 0, "cid": 3},
    ]
    varz = NodeSource(node).page("varz", {})
    assert (varz["routes"], varz["in_msgs"], varz["in_client_msgs"]) == (1, 1, 0)
    assert varz["cluster"]["urls"] == ["127.0.0.1:6222"]
    assert "secret" not in str(varz)
