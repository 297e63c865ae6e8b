"""A RESTORE whose request is empty, as the specification has it: the archive says what the stream is like."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from jetcluster.protocol import s2
from jetcluster.protocol.stream_archive import END, MAGIC, STATE_NAME, encode
from testkit.client import Client, Msg
from tests.unit.node.rig import running

CONFIG = {
    "name": "W", "subjects": ["w.>", "v"], "description": "to be kept", "max_msgs": 100, "max_msgs_per_subject": 50,
    "max_age": 3_600_000_000_000, "allow_rollup_hdrs": True, "metadata": {"own": "1"}, "discard": "new",
}  # fmt: skip


async def ask(client: Client, subject: str, body: Any = None) -> dict[str, Any]:
    payload = b"" if body is None else json.dumps(body).encode()
    return (await client.request(f"$JS.API.{subject}", payload, 8.0)).json()


async def archived(client: Client, stream: str, within: float = 10.0) -> list[bytes]:
    got: list[bytes] = []
    done = asyncio.Event()

    def take(msg: Msg) -> None:
        if msg.data:
            got.append(msg.data)
        else:
            done.set()
        if msg.reply:
            client.publish(msg.reply.decode())

    sid = client.subscribe("deliver.here", take)
    assert "error" not in await ask(client, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": "deliver.here"})
    await asyncio.wait_for(done.wait(), within)
    client.unsubscribe(sid)
    return got


async def restored(
    client: Client, stream: str, chunks: list[bytes], body: Any = None, within: float = 8.0
) -> dict[str, Any]:
    """The answer to the last chunk, or to the one that is refused."""
    opened = await ask(client, f"STREAM.RESTORE.{stream}", body)
    for chunk in (*chunks, b""):
        answer = await client.request(opened["deliver_subject"], chunk, within)
        if answer.data:
            return answer.json()
    raise AssertionError("no answer to the end")


def without_config() -> list[bytes]:
    """The archive of a stream without its configuration, as nats-server writes it."""
    state = json.dumps({"messages": 1, "first_seq": 1, "last_seq": 1}).encode()
    entries = [
        encode(STATE_NAME, 1, 0, b"", state),
        encode(b"f.x", 1, 1, b"", b"hi"),
    ]
    content = MAGIC + b"".join(entries) + END
    return [s2.STREAM_ID + b"".join(s2.encode(content))]


async def test_the_archive_says_what_the_stream_is_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        running(tmp_path, "jetstream { store_dir: js }\n") as node,
        await Client.connect(f"nats://127.0.0.1:{node.server.port}") as client,
    ):
        made = await ask(client, "STREAM.CREATE.W", CONFIG)
        for i in range(5):
            await client.request(f"w.{i}", b"%d" % i)
        chunks = await archived(client, "W")
        assert (await ask(client, "STREAM.DELETE.W"))["success"]

        found = await restored(client, "W", chunks)
        assert "error" not in found and found["config"] == made["config"] and found["state"]["messages"] == 5
        info = await ask(client, "STREAM.INFO.W")
        assert info["config"] == made["config"]
        assert (await client.request("w.5", b"5")).json()["seq"] == 6

        # Somebody else has the subjects by now: refused, and nothing is left of the restore.
        refused = await restored(client, "AGAIN", chunks)
        assert refused["error"]["err_code"] == 10065
        assert (await ask(client, "STREAM.NAMES"))["streams"] == ["W"]

        # A request that says it itself is followed, also under another name.
        own = {"name": "OTHER", "subjects": ["o"], "description": "mine"}
        found = await restored(client, "OTHER", chunks, {"config": own, "state": {}})
        assert (found["config"]["subjects"], found["config"]["description"]) == (["o"], "mine")
        assert found["config"]["max_msgs"] == -1 and found["state"]["messages"] == 5

        # The name is that of the request; an archive of an empty stream has a configuration as well.
        assert (await ask(client, "STREAM.PURGE.W"))["success"]
        empty = await archived(client, "W")
        assert (await ask(client, "STREAM.DELETE.W"))["success"]
        found = await restored(client, "RENAMED", empty)
        assert (found["config"]["name"], found["config"]["subjects"]) == ("RENAMED", CONFIG["subjects"])
        assert found["state"]["last_seq"] == 6

        # nats-server's archives hold none: the defaults.
        found = await restored(client, "FOREIGN", without_config())
        assert (found["config"]["subjects"], found["state"]["messages"]) == (["FOREIGN"], 1)


@pytest.mark.parametrize("config", [{"subjects": 5}, {"retention": "never"}, {"num_replicas": 3}, {"subjects": ["a."]}])
async def test_a_configuration_that_cannot_be_refuses_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    state = json.dumps({"messages": 0, "config": config}).encode()
    content = MAGIC + encode(STATE_NAME, 1, 0, b"", state) + END
    async with (
        running(tmp_path, "jetstream { store_dir: js }\n") as node,
        await Client.connect(f"nats://127.0.0.1:{node.server.port}") as client,
    ):
        refused = await restored(client, "S", [s2.STREAM_ID + b"".join(s2.encode(content))])
        assert refused["error"]["err_code"] in {10025, 10052, 10074}
        assert not (await ask(client, "STREAM.NAMES")).get("streams")
