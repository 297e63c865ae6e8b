"""A leaf in an account that imports and maps: its clients reach what the account reaches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from testkit.harness import find_server

from .leaf_pair import OURS, THEIRS, LeafPair

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

CONFIG = """
accounts {
  A { users: [ {user: a, password: p} ], exports: [ {service: "req.>"}, {stream: "pub.>"} ] }
  B { users: [ {user: b, password: p} ]
      imports: [ {service: {account: A, subject: "req.x"}, to: ask}
        {stream: {account: A, subject: "pub.>"}, prefix: imp} ]
      mappings { alias: real } }
}
no_auth_user: b
"""


@pytest.fixture(params=[(OURS, THEIRS)], ids=lambda kinds: "-".join(kinds))
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeafPair]:
    if find_server(THEIRS) is None and THEIRS in request.param:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    async with LeafPair(*request.param, tmp_path, hub_config=CONFIG) as found:
        yield found


async def test_imports_of_the_account_at_the_hub_serve_its_leaf(pair: LeafPair) -> None:
    exporter = await nats.connect(f"nats://a:p@127.0.0.1:{pair.hub.port}", max_reconnect_attempts=1)
    try:

        async def serve(message: nats.aio.msg.Msg) -> None:
            await message.respond(b"yes " + message.data)

        await exporter.subscribe("req.*", cb=serve)
        await exporter.flush()
        news = await pair.at_leaf.subscribe("imp.pub.>")
        mapped = await pair.at_hub.subscribe("real")
        for client in (pair.at_leaf, pair.at_hub):
            await client.flush()
        await asyncio.sleep(0.3)
        assert (await pair.at_leaf.request("ask", b"leaf", timeout=5)).data == b"yes leaf"
        await exporter.publish("pub.x", b"news")
        got = await news.next_msg(timeout=5)
        assert (got.subject, got.data) == ("imp.pub.x", b"news")
        await pair.at_leaf.publish("alias", b"mapped at the hub")
        assert (await mapped.next_msg(timeout=5)).data == b"mapped at the hub"
        await asyncio.sleep(0.1)
        assert (news.pending_msgs, mapped.pending_msgs) == (0, 0)
        with pytest.raises(nats.errors.NoRespondersError):
            await pair.at_leaf.request("req.x", b"", timeout=5)
    finally:
        await exporter.close()
