"""The way of a message through service imports, and who is told of it."""

from __future__ import annotations

import json

from jetcluster.server.import_context import ImportContext, Link, describe, responder
from jetcluster.server.origin import ServerOrigin
from testkit.server_rig import Bench
from testkit.twins.time import ManualTime, SeededRng


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

    context.tell(publish, b"lat", "some.type", {"status": 200})
    ((subject, payload),) = told
    assert subject == b"lat" and json.loads(payload)["type"] == "some.type" and json.loads(payload)["status"] == 200


def test_a_client_is_described_in_full_only_when_that_is_shared() -> None:
    client = Bench().client().connection
    assert describe(client, share=False) == {"acc": "$G"}
    client.rtt = 0.002
    assert describe(client, share=False) == {"acc": "$G", "rtt": 2_000_000}
    assert describe(client, share=True)["host"] == "127.0.0.1" and responder(client)["kind"] == "Client"


def test_a_peer_is_no_responder_that_is_known_here() -> None:
    peer = ServerOrigin("peer", "A", "n2")
    assert responder(peer) == {} and describe(peer, share=True) == {"acc": "A"}
