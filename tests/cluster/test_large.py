"""Messages far above the default `max_payload`, up to what the configuration allows: one Raft entry, one mesh frame."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64decode
from pathlib import Path

import pytest

from testkit.client import create_stream
from testkit.harness import ProcessCluster, eventually
from tests.unit.node.test_restore_config import archived, restored

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.thorough]

MB = 1 << 20


@pytest.mark.parametrize("nodes", [1, 3])
async def test_messages_up_to_max_payload_are_stored(tmp_path: Path, server: str, durable: str, nodes: int) -> None:
    config = f"{durable}max_payload: 32MB\n"
    async with ProcessCluster(nodes, server, root=tmp_path / "nodes", config=config) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], nodes)
        leader = await cluster.stream_leader("S")
        asked = next((n for n in cluster.nodes if n is not leader), leader)  # so that the message crosses the mesh
        sent = {}
        async with await asked.connect() as client:
            for size in (1, 9, 20, 31):
                payload = os.urandom(size * MB)
                ack = json.loads((await client.request("s", payload, within=20.0)).data)
                assert "error" not in ack, (size, ack)
                sent[ack["seq"]] = hashlib.sha1(payload).digest()
            assert len(sent) == 4
            small = json.loads((await client.request("s", b"after", within=10.0)).data)
            assert small["seq"] == 5
        for node in cluster.nodes:
            async with await node.connect() as client:
                for seq, digest in sent.items():

                    async def there(client=client, seq=seq, digest=digest) -> bool:
                        body = json.dumps({"seq": seq}).encode()
                        msg = await client.request("$JS.API.DIRECT.GET.S", body, within=20.0)
                        return hashlib.sha1(msg.data).digest() == digest

                    await eventually(there, 20, f"{node.name}: message {seq}", node)


async def test_long_messages_are_archived_and_restored_through_another_node(
    tmp_path: Path, server: str, durable: str
) -> None:
    config = f"{durable}max_payload: 14MB\n"
    payload = os.urandom(14 * MB - 100)
    async with ProcessCluster(3, server, root=tmp_path / "nodes", config=config) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 1)
            await client.request("s", payload, within=20.0)
        leader = await cluster.stream_leader("S")
        asked = next(node for node in cluster.nodes if node is not leader)
        async with await asked.connect() as client:

            async def told() -> bool:
                answer = json.loads((await client.request("$JS.API.STREAM.MSG.GET.S", b'{"seq":1}', within=20.0)).data)
                return b64decode(answer.get("message", {}).get("data", "")) == payload

            await eventually(told, 60, "the message by MSG.GET", leader)
            chunks = await archived(client, "S")
            assert sum(map(len, chunks)) > len(payload)
            assert "error" not in json.loads((await client.request("$JS.API.STREAM.DELETE.S", within=10.0)).data)
            await restored(client, "S", chunks)
            again = await client.request("$JS.API.DIRECT.GET.S", b'{"seq":1}', within=20.0)
            assert again.data == payload
