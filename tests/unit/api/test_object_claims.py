from __future__ import annotations

import json

from tests.unit.api.fake_cluster import Client

Got = list[tuple[bytes, bytes, bytes]]


async def client_with(*buckets: str) -> Client:
    client = Client()
    for bucket in buckets:
        config = {"name": f"OBJ_{bucket}", "subjects": [f"$OBJ.{bucket}.>"]}
        reply = await client.ask(f"STREAM.CREATE.OBJ_{bucket}", json.dumps(config).encode())
        assert "error" not in reply, reply
    return client


def listen(client: Client, subject: bytes) -> Got:
    got: Got = []
    client.bus.subscribe(subject, lambda s, r, h, p, o: got.append((s, r, h or p)))
    return got


async def test_metadata_goes_to_the_service_and_not_to_watchers() -> None:
    client = await client_with("b")
    watchers, service = listen(client, b"$OBJ.b.>"), listen(client, b"$JS.API.$OBJ.b.>")
    for kind in (b"info", b"delete", b"upload"):
        client.bus.publish_as_client(b"$OBJ.b.%b.a.b" % kind, b"x", b"r")
        assert service.pop() == (b"$JS.API.$OBJ.b.%b.a.b" % kind, b"r", b"x")
    assert watchers == []
    client.bus.publish_as_client(b"$OBJ.b.chunks.n", b"x", b"r")
    assert watchers == [(b"$OBJ.b.chunks.n", b"r", b"x")]


async def test_a_bucket_without_a_leader_has_no_responders() -> None:
    client = await client_with("b")
    watchers, told = listen(client, b"$OBJ.b.>"), listen(client, b"r")
    client.bus.publish_as_client(b"$OBJ.b.info.o", b"x", b"r")
    client.bus.publish_as_client(b"$OBJ.b.info.o", b"x")
    assert told == [(b"r", b"", b"NATS/1.0 503\r\n\r\n")]
    assert watchers == [], "nobody takes it for an object"


async def test_what_is_no_bucket_is_left_alone() -> None:
    client = await client_with("b")
    others = listen(client, b"$OBJ.c.>")
    client.bus.publish_as_client(b"$OBJ.c.info.o", b"x", b"r")
    assert others == [(b"$OBJ.c.info.o", b"r", b"x")]


async def test_stopping() -> None:
    client = await client_with("b")
    await client.api.stop()
    watchers = listen(client, b"$OBJ.b.>")
    client.bus.publish_as_client(b"$OBJ.b.info.o", b"x", b"r")
    assert len(watchers) == 1
