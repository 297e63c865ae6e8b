"""/accstatz: connections of accounts."""

from __future__ import annotations

from typing import Any

from jetcluster.monitor.pages import NodeSource
from jetcluster.server.server import Server
from tests.unit.monitor.wire import Wire


async def test_accstatz_counts_open_and_closed_connections(server: Server, node: Any) -> None:
    source = NodeSource(node)
    first = await Wire.open(server, "a", b"PUB x 3\r\nabc", b"SUB y 1")
    (stat,) = source.page("accstatz", {})["account_statz"]
    assert (stat["acc"], stat["conns"], stat["received"]["bytes"], stat["num_subscriptions"]) == ("$G", 1, 3, 1)
    slow = server.clients.get(1)
    assert slow is not None
    slow.abort("Slow Consumer (Pending Bytes)")
    await first.close()
    assert source.page("accstatz", {})["account_statz"] == []
    (stat,) = source.page("accstatz", {"unused": "1", "acc": "$G"})["account_statz"]
    assert (stat["conns"], stat["received"]["bytes"], stat["slow_consumers"]) == (0, 3, 1)


async def test_accstatz_tells_routes_from_clients(server: Server, node: Any) -> None:
    wire = await Wire.open(server, "a", b"PUB x 3\r\nabc", b"SUB y 1")
    traffic = node.jetstream.mesh.traffic
    traffic.sent("$G", 10)
    traffic.sent_many("$G", [(b"a", b"", b"", b"12345"), (b"a", b"", b"NATS", b"1")])
    traffic.received("$G", 4, 40)
    traffic.received("OTHER", 9, 90)
    (stat,) = NodeSource(node).page("accstatz", {})["account_statz"]
    none = {"msgs": 0, "bytes": 0}
    of_routes = {"msgs": 3, "bytes": 20}
    assert stat["sent"] == {**of_routes, "gateways": none, "routes": of_routes, "leafs": none}
    received = {"msgs": 5, "bytes": 43, "gateways": none, "routes": {"msgs": 4, "bytes": 40}, "leafs": none}
    assert stat["received"] == received
    await wire.close()
