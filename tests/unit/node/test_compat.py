"""`compat` of a running node, and what a reload makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jetcluster.node.node import Node
from testkit.client import Client
from tests.unit.node.rig import running

BASE = 'listen: "127.0.0.1:-1"\nserver_name: n1\n'
JETSTREAM = "jetstream { store_dir: js }\n"


async def observed(client: Client, number: int) -> dict[str, Any]:
    """All that `compat` changes, asked of the server like a client does."""

    async def ask(subject: str, body: Any = None) -> dict[str, Any]:
        return (await client.request(f"$JS.API.{subject}", json.dumps(body or {}).encode(), 8.0)).json()

    async def batch(name: str, *ids: str) -> dict[str, Any]:
        for i, msg_id in enumerate(ids, 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(i), "Nats-Msg-Id": msg_id}
            last = {"Nats-Batch-Commit": "1"} if i == len(ids) else {}
            reply = await client.request(f"s{number}", b"x", headers=headers | last)
        return reply.json()

    stream = f"S{number}"
    config = {"name": stream, "subjects": [f"s{number}"], "allow_atomic": True, "max_msgs_per_subject": 10}
    made = await ask(f"STREAM.CREATE.{stream}", config)
    consumer = await ask(f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": {"name": "c"}})
    for _ in range(2):
        await client.request(f"s{number}", b"x")
    newest = (await ask(f"STREAM.MSG.GET.{stream}", {"seq": 2}))["message"]["time"]
    found: list[int] = []
    if made["config"]["allow_direct"]:
        body = {"multi_last": [f"s{number}"], "up_to_time": newest}
        first = await client.request(f"$JS.API.DIRECT.GET.{stream}", json.dumps(body).encode())
        found = [int(first.get("Nats-Sequence") or 0)]
    twice = await batch("b1", "1", "1")
    once = await batch("b2", "1", "2")
    return {
        "ack_policy": consumer["config"]["ack_policy"],
        "allow_direct": made["config"]["allow_direct"],
        "up_to": found,
        "twice": twice["error"]["err_code"],
        "once": once.get("count") or once["error"]["err_code"],
        "missing": (await ask("STREAM.INFO.NONE"))["error"]["err_code"],
        "window": "duplicate_window_max" in (await ask("INFO"))["limits"],
    }


STOCK = {
    "ack_policy": "none", "allow_direct": True, "up_to": [2], "twice": 10201, "once": 2, "missing": 10059,
    "window": False,
}  # fmt: skip
SEEDS = {
    "ack_policy": "explicit", "allow_direct": True, "up_to": [2], "twice": 10177, "once": 10177, "missing": 10039,
    "window": True,
}  # fmt: skip


async def test_all_of_it_changes_with_a_reload(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def reload(node: Node, text: str) -> None:
        (tmp_path / "c.conf").write_text(BASE + JETSTREAM + text)
        assert node.reload("") == ""

    async with (
        running(tmp_path, JETSTREAM) as node,
        await Client.connect(f"nats://127.0.0.1:{node.server.port}") as client,
    ):
        assert await observed(client, 1) == STOCK
        reload(node, "compat: seeds")
        assert await observed(client, 2) == SEEDS
        reload(node, "compat: nats-server")
        assert await observed(client, 3) == STOCK | {"allow_direct": False, "up_to": []}
        reload(node, "compat { up_to_time: exclusive, batch_msg_id: refuse }")
        assert await observed(client, 4) == STOCK | {"up_to": [1], "twice": 10177, "once": 10177}
        (tmp_path / "c.conf").write_text(
            BASE + "jetstream { store_dir: js, limits { batch { allow_msg_id: false } } }\n"
        )
        assert node.reload("") == ""
        assert await observed(client, 5) == STOCK | {"twice": 10177, "once": 10177}, "the older field"
        (tmp_path / "c.conf").write_text(BASE + "jetstream { store_dir: js, limits { objects { max_uploads: 7 } } }\n")
        assert node.reload("") == ""
        assert node.jetstream is not None and node.jetstream.jetstream is not None
        assert node.jetstream.jetstream.services.settings.object_limits.uploads == 7
