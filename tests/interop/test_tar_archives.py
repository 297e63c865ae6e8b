"""Archives of format V1, made by old versions of nats-server, restored by the stock tool, compared with the original.

The old servers are built with Go, in a folder of the user's cache where they stay.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetcluster.protocol import s2
from testkit.client import Client
from testkit.consumer_client import Jet
from testkit.harness import Node, ProcessCluster, find_server
from testkit.twins import old_archive
from testkit.twins.old_archive import File
from tests.interop.builds import build, found
from tests.interop.test_nats_cli import Cli

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.interop,
    pytest.mark.long,
    pytest.mark.usefixtures("tool"),
    pytest.mark.thorough(shared=False),  # it builds three old servers first, which takes minutes
]

MODULE = "github.com/nats-io/nats-server/v2"
SECOND = 1_000_000_000
BYTES_OF_SMALL_BLOCKS = 120_000
"""`max_bytes` of a stream for which nats-server makes blocks of 32 KB; else they have 4 MB and more."""


def old_server(version: str, scratch: Path) -> str:
    """The path of nats-server of that version. Skips the test when it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jetcluster-tests"
    path = cache / f"nats-server-{version}"
    if not path.is_file():
        go = found("go", "/usr/local/go/bin")
        scratch.mkdir()
        build([go, "mod", "init", "scratch"], scratch)
        build([go, "get", f"{MODULE}@{version}"], scratch)
        build([go, "build", "-mod=mod", "-o", "server", MODULE], scratch)
        cache.mkdir(parents=True, exist_ok=True)
        shutil.copy(scratch / "server", path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert version in told
    return str(path)


async def ask(client: Client, subject: str, body: Any = "") -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body != "" else b"")
    answer: dict[str, Any] = reply.json()
    assert "error" not in answer, answer
    return answer


async def publish(client: Client, stream: str, count: int, longer: int = 40) -> None:
    for i in range(1, count + 1):
        headers = {"Number": str(i), "Other": "x" * (i % 9)} if i % 3 == 0 else None
        ack = await client.request(f"{stream}.{i % 7}", b"m%d " % i * (1 + i % 50 * longer), headers=headers)
        assert "error" not in ack.json(), ack.json()


async def delete(client: Client, stream: str, seq: int) -> None:
    """Which may be gone by the stream's limits."""
    body = json.dumps({"seq": seq, "no_erase": seq % 2 == 0}).encode()
    await client.request(f"$JS.API.STREAM.MSG.DELETE.{stream}", body)


async def fill(client: Client, stream: str, more: dict[str, Any], longer: int = 40) -> None:
    """Some blocks; messages that are deleted, erased, purged, beyond limits and beyond those of their subjects."""
    config = {"name": stream, "subjects": [f"{stream}.>"], "max_bytes": 4 << 20, "storage": "file", **more}
    await ask(client, f"STREAM.CREATE.{stream}", {**config, "max_msgs": 900})
    await publish(client, stream, 1000, longer)
    await ask(client, f"STREAM.UPDATE.{stream}", {**config, "max_msgs": 5000})
    for seq in (150, 151, 152, 400, 600, 601, 997):
        await delete(client, stream, seq)
    await ask(client, f"STREAM.PURGE.{stream}", {"filter": f"{stream}.5", "keep": 40})
    await ask(client, f"STREAM.PURGE.{stream}", {"seq": 160})
    await publish(client, stream, 40, longer)
    for seq in (1040, 1039, 1030):
        await delete(client, stream, seq)


async def consume(client: Client, stream: str) -> None:
    """Consumers: one in the midst, one with something delivered twice, one that has had nothing, one of no acks."""
    common = {"ack_policy": "explicit", "ack_wait": 600 * SECOND}
    for name, more in (("mid", {}), ("again", {"filter_subject": f"{stream}.3", "ack_wait": SECOND}), ("new", {})):
        config = {"durable_name": name, **common, **more}
        await ask(client, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    for i in range(30):
        (msg,) = await Jet(client, stream, 1, "").fetch("mid")
        if i not in (3, 4, 17):
            await client.request(msg.reply.decode(), b"+ACK")
    jet = Jet(client, stream, 1, "")
    (msg,) = await jet.fetch("again")
    await client.request(msg.reply.decode(), b"-NAK")
    (msg,) = await jet.fetch("again")
    await client.request(msg.reply.decode(), b"-NAK")
    (msg,) = await jet.fetch("again")


async def contents(client: Client, stream: str) -> tuple[dict[str, Any], list[Any]]:
    state = (await ask(client, f"STREAM.INFO.{stream}", {"deleted_details": True}))["state"]
    if not state["last_seq"]:  # nats-server 2.12 tells of a deleted message of sequence 0
        state = {key: value for key, value in state.items() if key not in ("deleted", "num_deleted")}
    messages: list[Any] = []
    for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
        reply = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"seq": seq}).encode())
        message = reply.json().get("message")
        if message is not None:
            message.pop("headers", None)  # ours adds them decoded
        messages.append(message)
    return state, messages


async def consumers(client: Client, stream: str) -> dict[str, Any]:
    told = {}
    for name in (await ask(client, f"CONSUMER.NAMES.{stream}"))["consumers"]:
        info = await ask(client, f"CONSUMER.INFO.{stream}.{name}")
        numbers = {key: info[key] for key in ("num_ack_pending", "num_pending", "num_redelivered")}
        for key in ("delivered", "ack_floor"):
            numbers[key] = info[key]["stream_seq"], info[key]["consumer_seq"]
        told[name] = numbers
    return told


class Original:
    """Messages and consumers of an old server, and its archives."""

    def __init__(self) -> None:
        self.contents: dict[str, tuple[dict[str, Any], list[Any]]] = {}
        self.consumers: dict[str, dict[str, Any]] = {}
        self.folder = Path()


_made: dict[str, Original] = {}


async def made_by(version: str, tool: str, folders: pytest.TempPathFactory) -> Original:
    """Made once for all tests of the module."""
    if version not in _made:
        _made[version] = await making(version, tool, folders.mktemp("old"))
    return _made[version]


async def making(version: str, tool: str, folder: Path) -> Original:
    original = Original()
    original.folder = folder / "archives"
    path = old_server(version, folder / "build")
    # 2.9 has no compression, and 2.10.29 at times cannot read what it has compressed.
    compressing = {"compression": "s2"} if version.startswith("v2.12.") else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATS_SERVER", path)
        async with ProcessCluster(1, "nats-server", root=folder / "old") as old:
            client = await old[0].connect()
            await fill(client, "PLAIN", {"max_bytes": BYTES_OF_SMALL_BLOCKS}, 1)
            await fill(client, "SMALL", {"max_bytes": 10 << 20, **compressing})
            await fill(client, "KEPT", {"max_msgs_per_subject": 20})
            await ask(client, "STREAM.CREATE.GONE", {"name": "GONE", "subjects": ["GONE.>"]})
            await publish(client, "GONE", 20)
            await ask(client, "STREAM.PURGE.GONE")
            await ask(client, "STREAM.CREATE.NONE", {"name": "NONE", "subjects": ["NONE.>"]})
            await consume(client, "SMALL")
            for stream in ("PLAIN", "SMALL", "KEPT", "GONE", "NONE"):
                original.contents[stream] = await contents(client, stream)
                original.consumers[stream] = await consumers(client, stream)
                await Cli(tool, old[0].url)(
                    "stream", "backup", stream, str(original.folder / stream), "--no-progress", "--consumers"
                )
                assert (original.folder / stream / "backup.json").is_file()
            client.close()
    return original


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """Without the time of the last message, which may be gone, and without what is no matter of the messages."""
    return {key: value for key, value in state.items() if key not in ("last_ts", "consumer_count")}


async def compare(original: Original, tool: str, target: Node, *, replicas: int) -> None:
    client = await target.connect()
    for stream, (state, messages) in original.contents.items():
        arguments = ["--replicas", str(replicas)] if replicas > 1 else []
        await Cli(tool, target.url)("stream", "restore", str(original.folder / stream), "--no-progress", *arguments)
        restored, found = await contents(client, stream)
        assert comparable(restored) == comparable(state), stream
        for seq, (one, other) in enumerate(zip(found, messages, strict=True), state["first_seq"]):
            assert one == other, (stream, seq)
        assert await consumers(client, stream) == original.consumers[stream]
        info = await ask(client, f"STREAM.INFO.{stream}")
        assert info["config"]["num_replicas"] == replicas
        ack = (await client.request(f"{stream}.new", b"next")).json()
        assert ack["seq"] == state["last_seq"] + 1
    (msg,) = await Jet(client, "SMALL", 1, "").fetch("new")
    assert msg.data == original_payload(original, "SMALL")
    client.close()


def original_payload(original: Original, stream: str) -> bytes:
    first = next(message for message in original.contents[stream][1] if message is not None)
    return base64.b64decode(first.get("data") or "")


@pytest.mark.parametrize("version", ["v2.12.6", "v2.10.29", "v2.9.25"])
async def test_an_archive_of_an_old_server_is_restored(
    single: ProcessCluster, tool: str, tmp_path_factory: pytest.TempPathFactory, version: str
) -> None:
    original = await made_by(version, tool, tmp_path_factory)
    await compare(original, tool, single[0], replicas=1)


async def test_an_archive_of_an_old_server_is_restored_to_three(
    cluster: ProcessCluster, tool: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    original = await made_by("v2.12.6", tool, tmp_path_factory)
    await compare(original, tool, cluster[0], replicas=3)
    assert not any("differs" in node.log() for node in cluster.nodes)


def changed(archive: Path, folder: Path, change: Callable[[list[File]], list[File]]) -> Path:
    """Copies an archive, with other files in it."""
    shutil.copytree(archive, folder)
    frames = s2.Decoder()
    content = b"".join(frames.feed((archive / "stream.tar.s2").read_bytes()))
    files: list[File] = []
    with tarfile.open(fileobj=io.BytesIO(content)) as reader:
        for member in reader:
            file = reader.extractfile(member)
            assert file is not None
            files.append((member.name, file.read()))
    (folder / "stream.tar.s2").write_bytes(old_archive.archive(change(files)))
    return folder


def torn(files: list[File]) -> list[File]:
    """As a server makes them whose disk has lost all blocks but the first."""
    return [*files[:3], ("errors.txt", b"Could not read message block [2]: message block data missing")]


def without_index(files: list[File]) -> list[File]:
    """As with one that is older than its blocks, which counts as none."""
    left = [file for file in files if file[0] != "msgs/index.db"]
    assert len(left) == len(files) - 1
    return left


@pytest.mark.usefixtures("newest_peer")
async def test_an_archive_that_its_server_could_not_complete_is_refused(
    single: ProcessCluster, tool: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """nats-server makes a stream of what is there."""
    original = await made_by("v2.12.6", tool, tmp_path_factory)
    folder = changed(original.folder / "PLAIN", tmp_path / "torn", torn)
    told = await Cli(tool, single[0].url)("stream", "restore", str(folder), "--no-progress", rc=1)
    assert "its server could not complete the archive: Could not read message block [2]" in told
    client = await single[0].connect()
    assert not (await ask(client, "STREAM.NAMES"))["streams"]
    client.close()
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        await Cli(tool, peer[0].url)("stream", "restore", str(folder), "--no-progress")


@pytest.mark.usefixtures("newest_peer")
async def test_the_newest_nats_server_restores_the_same(
    tool: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    original = await made_by("v2.12.6", tool, tmp_path_factory)
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        await compare(original, tool, peer[0], replicas=1)


async def write_on(client: Client, stream: str) -> None:
    number = 0
    while True:
        number += 1
        await asyncio.sleep(0.002)
        ack = (await client.request(f"{stream}.{number % 50}", b"live %d " % number * 10)).json()
        if number % 4 == 0:
            await delete(client, stream, ack["seq"] - number % 300)
        if number % 500 == 0:
            await ask(client, f"STREAM.PURGE.{stream}", {"filter": f"{stream}.{number // 500 % 50}"})


@pytest.mark.usefixtures("newest_peer")
async def test_an_archive_of_a_stream_that_is_written_to_is_the_same_as_with_nats_server(
    single: ProcessCluster, tool: str, tmp_path: Path
) -> None:
    """Blocks and index are of different moments then."""
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    folders = [tmp_path / f"archive{number}" for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NATS_SERVER", old_server("v2.12.6", tmp_path / "build"))
        async with ProcessCluster(1, "nats-server", root=tmp_path / "old") as old:
            client = await old[0].connect()
            config = {
                "name": "LIVE",
                "subjects": ["LIVE.>"],
                "max_bytes": BYTES_OF_SMALL_BLOCKS,
                "max_msgs_per_subject": 60,
            }
            await ask(client, "STREAM.CREATE.LIVE", config)
            await publish(client, "LIVE", 600, 1)
            writing = asyncio.create_task(write_on(client, "LIVE"))
            for folder in folders:
                await asyncio.sleep(1)
                await Cli(tool, old[0].url)("stream", "backup", "LIVE", str(folder), "--no-progress")
            writing.cancel()
            client.close()
    folders += [changed(folder, folder.with_suffix(".changed"), without_index) for folder in folders]
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        for folder in folders:
            found = []
            for node in (peer[0], single[0]):
                client = await node.connect()
                await Cli(tool, node.url)("stream", "restore", str(folder), "--no-progress")
                state, messages = await contents(client, "LIVE")
                found.append((comparable(state), messages))
                await ask(client, "STREAM.DELETE.LIVE")
                client.close()
            assert found[1] == found[0]
            assert found[0][0]["messages"] > 100
