"""One API request: what its headers ask for, and its size."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.api.request import Request, check_letters, check_target
from jetcluster.errors import ApiError
from jetcluster.protocol.bus import Origin
from testkit.twins.bus import FakeOrigin, MemBus
from tests.unit.api.fake_cluster import Client


@pytest.mark.parametrize(
    ("level", "passes"),
    [(b"0", True), (b"5", True), (b"6", False), (b"x", False), (b"-1", False), (b"0000000009", False)],
)
async def test_required_api_level(level: bytes, passes: bool) -> None:
    headers = b"NATS/1.0\r\nNats-Required-Api-Level: " + level + b"\r\n\r\n"
    reply = await Client().ask("STREAM.NAMES", headers=headers)
    if passes:
        assert "error" not in reply
    else:
        assert reply["error"]["code"] == 412
        assert reply["error"]["err_code"] == 10185
        assert (reply["total"], reply["streams"]) == (0, [])


async def test_an_oversized_body_is_refused() -> None:
    reply = await Client().ask("STREAM.CREATE.S", b'{"name":"S","description":"' + b"x" * (1 << 20) + b'"}')
    assert reply["error"]["err_code"] == 10025


class Denied(Origin):
    kind = "client"
    account = "A"

    def may_deliver_to(self, subject: bytes) -> bool:
        return not subject.startswith(b"$KV.")


def request(account: str = "A", **given: Any) -> Request:
    fields = {"reply": b"", "headers": b"", "payload": b"", "bus": MemBus(), **given}
    return Request(account=account, subject=b"$JS.API.INFO", args=(), **fields)


def test_who_has_the_server_publish() -> None:
    bus = MemBus()
    own = request(origin=Denied())
    for target, allowed in (("_INBOX.1", True), ("$KV.b.k", False), ("$SYS.x", True)):
        assert own.may_deliver_to(target) is allowed
        assert request(account="B", origin=Denied()).may_deliver_to(target), "judged by what A's account exports"
    handed_on = request(origin=FakeOrigin(), headers=b"NATS/1.0\r\nNats-Deliver-Guarded: 1\r\n\r\n", bus=bus)
    assert (handed_on.may_deliver_to("$KV.b.k"), handed_on.may_deliver_to("a")) == (False, True)
    with pytest.raises(ApiError, match="deliver subject"):
        check_target(own, "$KV.b.k")
    check_letters(own, {"dead_letter": {"subject": "dead.{subject}"}})
    for wish in (
        {"dead_letter": {"subject": "$KV.{subject}"}},
        {"metadata": {"jetcluster.dead_letter.subject": "$KV.b"}},
    ):
        with pytest.raises(ApiError, match="dead_letter subject is not permitted"):
            check_letters(own, wish)
    republish = {"republish": {"src": "a.*", "dest": "$KV.{{wildcard(1)}}"}}
    assert not own.may_republish(republish)
    assert own.may_republish(republish, republish) and own.may_republish({"republish": None})
