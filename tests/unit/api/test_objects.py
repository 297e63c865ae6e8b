from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.api.fakes import Client


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
