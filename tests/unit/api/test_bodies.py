"""A body that is neither empty nor a JSON object is refused by every endpoint, and nothing is done."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api import dispatch, endpoints
from jetcluster.errors import ApiError
from tests.unit.api.fake_cluster import Client

GARBLED = [
    b"\xff", b"filter=x", b'"filter":"x"}', b"{", b"}", b"{]", b'{"filter":"x"', b'{"filter":"x"}x', b"[]",
    b'[{"seq":1}]', b"1", b"null", b"true", b'"x"', b"\0", b"nan", b"{'a':1}", b'{"a":NaN}', b"//", b"{}{}",
    b"\xef\xbb\xbf{}",
]  # fmt: skip
TAKE_NO_BODY = dict.fromkeys(("STREAM.DELETE", "CONSUMER.INFO", "CONSUMER.DELETE"), 10038)
OTHER_ERROR = {"$OBJ": 11005, **TAKE_NO_BODY}
"""Endpoints that refuse it with another error: of the object service, and that there may be no body at all."""


@pytest.mark.parametrize("endpoint", endpoints.ALL, ids=lambda endpoint: endpoint.name)
async def test_a_garbled_body_is_refused_and_nothing_is_done(endpoint: endpoints.Endpoint, client: Client) -> None:
    await client.api.stop()
    dispatch.JetStreamApi(client.context, client.bus, system=True).start()
    client.cluster.rescue_meta = _each_answers  # type: ignore[attr-defined]
    assert "error" not in await client.ask("STREAM.CREATE.S", {"name": "S"})
    subject = ".".join([endpoint.name, *["S", "c"][: endpoint.args[0]]])
    before, asked = client.cluster.machine.digest, len(client.cluster.asked)
    for body in GARBLED:
        reply = await client.ask(subject, body)
        assert reply["error"]["err_code"] == OTHER_ERROR.get(endpoint.name, 10025), body
    assert client.cluster.machine.digest == before
    assert client.cluster.asked[asked:] == [], "no stream's leader was asked"


async def _each_answers(wanted: Any, by: str) -> list[dict[str, Any]]:
    assert isinstance(wanted, ApiError), "asked for nothing"
    return [{"error": wanted.to_dict()}]


async def test_blanks_are_no_body(client: Client) -> None:
    assert "error" not in await client.ask("STREAM.CREATE.S", {"name": "S"})
    client.cluster.answers["purge"] = lambda body: {"purged": 0}
    for body in (b"", b" \r\n\t", b"{}", json.dumps({}).encode()):
        assert "error" not in await client.ask("STREAM.PURGE.S", body), body
