"""The common state of service imports: the way of a message through them, and the latency of exported services."""

from __future__ import annotations

import json

import pytest

from jetcluster.config.account_options import ExportOptions, LatencyOptions
from jetcluster.server.accounts.import_context import ImportContext, Link, describe, responder
from jetcluster.server.accounts.remote_peers import ServerOrigin
from testkit.server_rig import ServerRig
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.server.service_accounts import B
from tests.unit.server.sharing import Nodes, account, reply_of


def test_the_way_is_that_of_one_origin() -> None:
    time = ManualTime()
    context = ImportContext(time, time, SeededRng(1), server_name="n", cluster="C", system_account="$SYS")
    here, other = ServerOrigin("internal", "A"), ServerOrigin("internal", "A")
    assert context.chain_of(here) == ()
    link: Link = (("A", "s"), None, False)
    context.way = here, (link,)
    assert context.chain_of(here) == (link,) and context.chain_of(other) == ()


def test_a_metric_is_published_with_its_type() -> None:
    time = ManualTime()
    context = ImportContext(time, time, SeededRng(1), server_name="n", cluster="C", system_account="$SYS")
    told: list[tuple[bytes, bytes]] = []

    def publish(subject: bytes, payload: bytes) -> int:
        told.append((subject, payload))
        return 1

    context.publish_metric(publish, b"lat", "some.type", {"status": 200})
    ((subject, payload),) = told
    assert subject == b"lat" and json.loads(payload)["type"] == "some.type" and json.loads(payload)["status"] == 200


def test_a_client_is_described_in_full_only_when_that_is_shared() -> None:
    client = ServerRig().client().connection
    assert describe(client, share=False) == {"acc": "$G"}
    client.rtt = 0.002
    assert describe(client, share=False) == {"acc": "$G", "rtt": 2_000_000}
    assert describe(client, share=True)["host"] == "127.0.0.1" and responder(client)["kind"] == "Client"


def test_a_peer_is_no_responder_that_is_known_here() -> None:
    peer = ServerOrigin("peer", "A", "n2")
    assert responder(peer) == {} and describe(peer, share=True) == {"acc": "A"}


def measured(nodes: Nodes, frame: bytes) -> dict[str, object]:
    return dict(json.loads(frame[frame.index(b"{") :]))


def test_latency_is_sent_to_the_exporter() -> None:
    export = ExportOptions("service", "req.>", latency=LatencyOptions("lat"), response_threshold=5.0)
    nodes = Nodes(1, account("A", export), B)
    server, watcher = nodes.client("A", b"SUB req.> 1"), nodes.client("A", b"SUB lat 2")
    asker = nodes.client("B", b"SUB in 9")
    asker.send(b"PUB ask in 0", b"")
    nodes.advance(0.5)
    server.send(b"PUB %b 0" % reply_of(server.read()), b"")
    found = measured(nodes, watcher.read())
    assert (found["type"], found["status"]) == ("io.nats.server.metric.v1.service_latency", 200)
    assert found["service"] == found["total"] == 500_000_000
    assert found["requestor"] == {"acc": "B"}
    assert found["responder"]["acc"] == "A"  # type: ignore[index]
    asker.send(b"PUB ask in 0", b"")
    nodes.advance(6)
    assert measured(nodes, watcher.read())["status"] == 504
    asker.send(b"PUB ask in 0", b"", b"UNSUB 9")
    assert measured(nodes, watcher.read())["status"] == 408
    asker.send(b"PUB ask 0", b"")
    assert measured(nodes, watcher.read())["status"] == 400
    asker.send(b"SUB in 9")
    server.send(b"UNSUB 1")
    asker.send(b"PUB ask in 0", b"")
    assert measured(nodes, watcher.read())["status"] == 503


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (b"Uber-Trace-Id: 479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:1", True),
        (b"Uber-Trace-Id: 479fefe9525eddb:5adb976bfc1f95c1:479fefe9525eddb:0", False),
        (b"X-B3-Sampled: 1", True),
        (b"X-B3-Sampled: 0", False),
        (b"X-B3-TraceId: 80f198ee56343ba864fe8b2a57d3eff7", True),
        (b"B3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1", True),
        (b"B3: 80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-0", False),
        (b"B3: 0", False),
        (b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        (b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", False),
        (b"K: v", False),
    ],
)
def test_tracing_headers_ask_for_a_measurement(header: bytes, wanted: bool) -> None:
    export = ExportOptions("service", "req.>", latency=LatencyOptions("lat", 0))
    nodes = Nodes(1, account("A", export), B)
    nodes.client("A", b"SUB req.> 1")
    watcher, asker = nodes.client("A", b"SUB lat 2"), nodes.client("B")
    block = b"NATS/1.0\r\n%b\r\n\r\n" % header
    asker.send(b"HPUB ask %d %d" % (len(block), len(block) + 1), block + b"x")
    assert (b"Bad Request" in watcher.read()) == wanted
