"""Encryption at rest of a server: its whole life, from the first message to another key."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from jetcluster.sealing.keyring import Keyring
from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually

pytestmark = pytest.mark.cluster

SECRETS = (b"secret.subject", b"secret payload", b"SECRETS")


def configured(node: Node, key: str) -> None:
    text = f'jetstream {{ store_dir: "{node.root}/store"{key} }}\n'
    (node.root / "server.conf").write_text(text)
    node.args = ["-a", "127.0.0.1", "-p", str(node.port), "-c", str(node.root / "server.conf")]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # deleted meanwhile
        return b""


def readable(node: Node) -> list[str]:
    files = [path for path in (node.root / "store").rglob("*") if path.is_file()]
    return [path.name for path in files if any(text in content(path) for text in SECRETS)]


async def reload(node: Node, expect: str) -> None:
    before = len(node.log())
    node.signal(signal.SIGHUP)
    await eventually(lambda: re.search(expect, node.log()[before:]) is not None, 10, f"no {expect!r} in the log", node)


async def write(node: Node) -> None:
    client = await Client.connect(f"nats://127.0.0.1:{node.port}")
    await create_stream(client, "SECRETS", ["secret.>"], 1)
    for number in range(50):
        await client.request(f"secret.subject.{number % 5}", b"secret payload %d" % number)
    client.close()


async def write_more(node: Node, count: int) -> None:
    client = await Client.connect(f"nats://127.0.0.1:{node.port}")
    for number in range(count):
        await client.request("secret.subject.more", b"secret payload under another key %d" % number)
    client.close()


async def count(node: Node) -> int:
    client = await Client.connect(f"nats://127.0.0.1:{node.port}")
    info = await client.api("STREAM.INFO.SECRETS")
    client.close()
    return int(info["state"]["messages"])


async def test_a_store_is_encrypted_and_changes_its_key(server: str, tmp_path: Path) -> None:
    node = ProcessCluster(1, server, root=tmp_path)[0]
    configured(node, "")
    await node.start()
    try:
        await write(node)
        await node.stop()
        assert readable(node), "it is plain so far"
        Keyring.make(node.root / "store" / "jetstream", "one", "aes")  # an encryption that was cut off
        await node.start()
        assert "it stays plain, as jetstream has no key" in node.log() and await count(node) == 50
        await node.stop()
        configured(node, ", key: one, cipher: aes")
        await node.start()
        assert "The data store was not encrypted, and is now" in node.log()
        assert await count(node) == 50
        await eventually(lambda: not readable(node), 30, "something can be read on the disk", node)
        told = "The journal was not encrypted, and is now"
        await eventually(lambda: told in node.log(), 30, f"no {told!r} in the log", node)
        configured(node, ", key: two, prev_encryption_key: wrong")
        await reload(node, "jetstream key: prev_encryption_key is not the key in force")
        configured(node, ", key: two, prev_encryption_key: one")
        await reload(node, "Reloaded: JetStream encryption")
        await write_more(node, 20)
        node.kill9()
        for key, text in ((", key: one", "the configured key is not the one"), ("", "jetstream has no key")):
            configured(node, key)
            before = len(node.log())
            node.spawn()
            assert await node.wait_exit(15) == 1
            assert "is encrypted, and" in node.log()[before:] and text in node.log()[before:]
        configured(node, ", key: two")
        await node.start()
        assert await count(node) == 70 and not readable(node)
    finally:
        await node.stop()
