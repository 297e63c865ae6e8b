"""`$JS.API.META.>`, `$JS.API.SERVER.>` and ACCOUNT.PURGE: what is asked of the meta leader, and what is answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.api import dispatch, endpoints, servers
from jetcluster.errors import ApiError, by_code
from tests.unit.api.fakes import Client


def system_client(asked: list[tuple[str, dict[str, Any]]]) -> Client:
    """Of a system account without JetStream."""
    client = Client()

    async def meta_request(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append((kind, {key: value for key, value in body.items() if key != "request"}))
        if body.get("peer") == "nope":
            raise by_code(10044)
        return {"name": "n3", "assigned": 4} if kind == "server_evacuate" else {}

    client.context.cluster.meta_request = meta_request  # type: ignore[method-assign]
    client.context.cluster.clustered = True  # type: ignore[misc]
    for subscription in list(client.bus.subscriptions):
        client.bus.unsubscribe(subscription)
    client.api = dispatch.JetStreamApi(client.context, client.bus, system=True)  # type: ignore[arg-type]
    client.api.enabled = False
    client.api.start()
    return client


@pytest.mark.parametrize(
    ("subject", "body", "type", "asked"),
    [
        ("META.LEADER.STEPDOWN", b"", "meta_leader_stepdown", ("meta_stepdown", {"placement": {}})),
        ("SERVER.REMOVE", b'{"peer":"n3"}', "meta_server_remove",
         ("server_remove", {"peer": "n3", "peer_id": "", "cancel": False})),
        ("SERVER.EVACUATE", b'{"peer_id":"abc","cancel":true}', "meta_server_evacuate",
         ("server_evacuate", {"peer": "", "peer_id": "abc", "cancel": True})),
    ],
)  # fmt: skip
async def test_the_system_account_is_heard(subject: str, body: bytes, type: str, asked: tuple[str, Any]) -> None:
    assert endpoints.find(subject.split(".")) is not None
    seen: list[tuple[str, dict[str, Any]]] = []
    reply = await system_client(seen).ask(subject, body)
    assert reply["type"] == f"io.nats.jetstream.api.v1.{type}_response" and reply["success"] is True
    assert seen == [asked]
    if subject == "SERVER.EVACUATE":
        assert (reply["name"], reply["assigned"]) == ("n3", 4)


async def test_an_account_is_purged_stream_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer has said that it has begun: what passes does not end it."""
    streams = [f"S{n}" for n in range(250)]
    client = system_client([])
    monkeypatch.setattr(servers, "AGAIN_SECONDS", 0.0)
    trouble = [by_code(10008), by_code(10059), by_code(10008)]

    async def meta_request(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        assert body["account"] == "APP"
        if len(streams) < 200 and trouble:
            raise trouble.pop()
        if kind == "names":
            return {"total": len(streams), "offset": 0, "names": streams[: body["limit"]]}
        assert kind == "stream_delete" and body["request"]
        streams.remove(body["name"])
        return {"revision": 1}

    client.context.cluster.meta_request = meta_request  # type: ignore[method-assign]
    reply = await client.ask("ACCOUNT.PURGE.APP")
    assert reply == {"type": "io.nats.jetstream.api.v1.account_purge_response", "initiated": True}
    async with asyncio.timeout(5):
        while streams:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("body", "code"), [(b"", 10003), (b"{}", 10003), (b'{"peer":"nope"}', 10044)])
async def test_refusals(body: bytes, code: int) -> None:
    for subject in ("SERVER.REMOVE", "SERVER.EVACUATE"):
        reply = await system_client([]).ask(subject, body)
        assert reply["error"]["err_code"] == code


async def test_other_requests_of_the_system_account_need_jetstream_and_standalone_servers_have_no_members() -> None:
    client = system_client([])
    assert (await client.ask("STREAM.NAMES"))["error"]["err_code"] == 10039
    client.context.cluster.clustered = False  # type: ignore[misc]
    for subject in ("META.LEADER.STEPDOWN", "SERVER.REMOVE", "SERVER.EVACUATE"):
        assert (await client.ask(subject, b'{"peer":"n3"}'))["error"]["err_code"] == 10010


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b"", 10003),
        (b" { } ", 10003),
        (b"xx", 10025),
        (b'{"quorum_needed":"2"}', 10025),
        (b'{"quorum_needed":2}', 2),
        (b'{"Quorum_Needed":-1}', -1),
        (b'{"other":1}', 0),
    ],
)
async def test_every_server_answers_a_rescue(body: bytes, asked: int) -> None:
    client = system_client([])
    seen: list[tuple[Any, str]] = []

    async def rescue_meta(wanted: Any, by: str) -> list[dict[str, Any]]:
        seen.append((wanted, by))
        answer = {"error": wanted.to_dict()} if isinstance(wanted, ApiError) else {"prev_quorum": 3, "new_quorum": 2}
        return [{"server": name, "server_id": name.upper(), **answer} for name in ("n1", "n2", "n3")]

    client.context.cluster.rescue_meta = rescue_meta  # type: ignore[attr-defined]
    got: list[dict[str, Any]] = []
    inbox = b"_INBOX.all"
    client.bus.subscribe(inbox, lambda s, r, h, payload, o: got.append(json.loads(payload)))
    client.bus.publish(b"$JS.API.META.RESCUE", body, inbox)
    async with asyncio.timeout(5):
        while len(got) < 3:
            await asyncio.sleep(0)
    assert sorted(reply["server"] for reply in got) == ["n1", "n2", "n3"]
    assert {reply["type"] for reply in got} == {"io.nats.jetstream.api.v1.meta_rescue_response"}
    ((wanted, by),) = seen
    if isinstance(wanted, ApiError):
        assert wanted.err_code == asked and all(reply["error"]["err_code"] == asked for reply in got)
    else:
        assert wanted == asked and all(reply["new_quorum"] == 2 for reply in got)
    assert by == "u1"


async def test_a_rescue_is_of_clusters() -> None:
    client = system_client([])
    client.context.cluster.clustered = False  # type: ignore[misc]
    reply = await client.ask("META.RESCUE", {"quorum_needed": 1})
    assert reply["error"]["err_code"] == 10010
