"""Messages far above the default `max_payload`, up to what the configuration allows: one Raft entry, one mesh frame."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from testkit.client import create_stream
from testkit.harness import ProcessCluster, eventually

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
