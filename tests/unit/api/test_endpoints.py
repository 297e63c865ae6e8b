"""`$JS.API.META.>`, `$JS.API.SERVER.>` and ACCOUNT.PURGE: the requests to the meta leader, and the answers.

`$JS.API.INFO` and limits of an account with tiers, as nats-server 2.15.2 shows and checks them. Requests to `$OBJ`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.api import dispatch, endpoints
from jetcluster.errors import ApiError, by_code
from jetcluster.model.limits import AccountLimits
from tests.unit.api.fake_cluster import Client
from tests.unit.api.test_consumers import Leader


def system_client(asked: list[tuple[str, dict[str, Any]]]) -> Client:
    """A client of a system account without JetStream."""
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
    monkeypatch.setattr(endpoints, "AGAIN_SECONDS", 0.0)
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


TIERS = {
    "R1": AccountLimits(max_memory=5000, max_storage=10_000, max_streams=2, max_consumers=1, replicas=1),
    "R3": AccountLimits(max_storage=3000, max_streams=1, max_ack_pending=7, storage_max_stream_bytes=2500, replicas=3),
}
LIMITS = AccountLimits(max_memory=-1, max_storage=19_000, max_streams=3, tiers=TIERS)


def tiered() -> Client:
    client = Client(limits=LIMITS)
    client.context.own_limits = client.context.limits
    return client


def error(reply: dict[str, Any]) -> int:
    found: int = reply["error"]["err_code"]
    return found


async def test_information_by_tier() -> None:
    client = tiered()
    await client.create("A", max_bytes=6000)
    await client.create("D", max_bytes=2500, num_replicas=3)
    found = await client.ask("INFO")
    assert list(found)[-1] == "tiers" and (found["streams"], found["reserved_storage"]) == (2, 8500)
    assert found["limits"] == {name: False if name == "max_bytes_required" else 0 for name in found["limits"]}
    assert found["tiers"] == {
        "R1": {
            "memory": 0, "storage": 100, "reserved_memory": 0, "reserved_storage": 6000, "streams": 1, "consumers": 3,
            "limits": TIERS["R1"].to_wire(),
        },
        "R3": {
            "memory": 0, "storage": 200, "reserved_memory": 0, "reserved_storage": 2500, "streams": 1, "consumers": 1,
            "limits": TIERS["R3"].to_wire(),
        },
    }  # fmt: skip
    # A tier that is gone while it has streams.
    client.context.limits = client.context.own_limits = lambda account: AccountLimits(tiers={"R1": TIERS["R1"]})
    gone = (await client.ask("INFO"))["tiers"]["R3"]
    assert gone["streams"] == 1 and set(gone["limits"].values()) == {0}
    assert "tiers" not in await Client().ask("INFO")


async def test_tiers_that_no_stream_can_be_in_are_shown_all_the_same() -> None:
    names = ["R", "R0", "R01", "R\u0663", "r3", "R100", "R" + "9" * 5000]
    client = Client()
    client.context.own_limits = lambda account: AccountLimits(tiers=dict.fromkeys(names, AccountLimits(max_storage=7)))
    tiers = (await client.ask("INFO"))["tiers"]
    assert {name: tier["limits"]["max_storage"] for name, tier in tiers.items() if name in names} == dict.fromkeys(
        names, 7
    )
    assert all(tiers[name]["storage"] == 0 for name in names)


async def test_streams_are_limited_by_their_tier() -> None:
    client = tiered()
    assert error(await client.create("X", num_replicas=2)) == 10120
    assert error(await client.create("X", num_replicas=7)) == 10052, "what is no number of replicas comes first"
    assert "error" not in await client.create("A", max_bytes=6000)
    assert error(await client.create("B", max_bytes=6000)) == 10047
    assert "error" not in await client.create("B", max_bytes=4000)
    assert error(await client.create("C", storage="memory")) == 10027
    assert error(await client.create("D", num_replicas=3, max_bytes=2600)) == 10122
    assert "error" not in await client.create("D", num_replicas=3, max_bytes=2500)
    assert error(await client.create("E", num_replicas=3)) == 10027
    update = {"name": "A", "subjects": ["A"], "max_bytes": 2000, "num_replicas": 3}
    assert error(await client.ask("STREAM.UPDATE.A", update)) == 10047
    assert error(await client.ask("STREAM.UPDATE.A", update | {"max_bytes": 6000})) == 10122
    assert error(await client.ask("STREAM.UPDATE.A", update | {"num_replicas": 2})) == 10120


async def test_consumers_are_limited_by_the_tier_of_their_stream() -> None:
    client = tiered()
    await client.create("A")
    await client.create("D", num_replicas=3)
    leader = Leader(client)
    for stream, most, pending in (("A", 1, 1000), ("D", 0, 7)):
        wish = {"stream_name": stream, "config": {"ack_policy": "explicit"}}
        await client.ask(f"CONSUMER.CREATE.{stream}.c", wish)
        assert (leader.last["max_consumers"], leader.last["config"]["max_ack_pending"]) == (most, pending)


async def bucket(**options: Any) -> Client:
    client = Client(**options)
    config = {"name": "OBJ_b", "subjects": ["$OBJ.b.>"]}
    assert "error" not in await client.ask("STREAM.CREATE.OBJ_b", json.dumps(config).encode())
    client.cluster.answers["object"] = lambda body: {"answer": json.dumps({"asked": body})}
    return client


@pytest.mark.parametrize("subject", ["$OBJ.b", "$JS.API.$OBJ.b", "$JS.hub.API.$OBJ.b"])
async def test_the_leader_answers(subject: str) -> None:
    client = await bucket(domain="hub")
    reply = json.loads(await client.raw(subject, b'{"name":"o","action":"delete"}'))
    asked = reply["asked"]
    assert (asked["action"], asked["name"]) == ("delete", "o")
    assert client.cluster.asked[-1][:2] == ("OBJ_b", "object")
    assert asked["revision"] > 0


@pytest.mark.parametrize(
    ("subject", "payload", "code"),
    [
        ("$OBJ.none", b"", 10059),
        ("$OBJ.none", b'{"name":"o"}', 10059),
        ("$OBJ.b", b"x", 11005),
        ("$OBJ.b", b'{"name":"o","deliver_subject":"*"}', 11007),
    ],
)
async def test_refusals_have_nothing_but_the_error(subject: str, payload: bytes, code: int) -> None:
    client = await bucket()
    reply = json.loads(await client.raw(subject, payload))
    assert list(reply) == ["error"]
    assert reply["error"]["err_code"] == code


async def test_a_get_is_answered_by_the_leader_itself() -> None:
    client = await bucket()
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        return {"answer": ""}

    client.cluster.answers["object"] = answer
    told: list[bytes] = []
    client.bus.subscribe(b"r", lambda s, r, h, p, o: told.append(p))
    client.bus.publish(b"$OBJ.b", b'{"name":"o","deliver_subject":"d"}', b"r")
    while not bodies:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert (bodies[0]["deliver"], bodies[0]["reply"]) == ("d", "r")
    assert told == []
