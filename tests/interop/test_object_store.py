"""The object store of stock clients (`$O.` subjects): nats-py and the `nats` tool. Also for `--server nats-server`."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client as NATS
from nats.js.api import ObjectMeta, ObjectMetaOptions
from nats.js.object_store import ObjectStore

from testkit.harness import ProcessCluster
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.interop, pytest.mark.usefixtures("tidy"), pytest.mark.thorough]


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def store(nc: NATS, request: pytest.FixtureRequest) -> ObjectStore:
    return await nc.jetstream(timeout=10).create_object_store("B", replicas=request.param)


async def test_put_get_info_delete(store: ObjectStore, nc: NATS) -> None:
    data = content(1_000_000)
    info = await store.put("a cat.jpg", data)
    assert (info.size, info.chunks, info.bucket, info.name) == (1_000_000, 8, "B", "a cat.jpg")
    assert info.digest is not None and info.digest.startswith("SHA-256=")
    found = await store.get("a cat.jpg")
    assert found.data == data
    assert found.info.digest == info.digest
    newer = content(200_000, 2)
    meta = ObjectMeta(description="newer", headers={"k": "v"}, options=ObjectMetaOptions(max_chunk_size=50_000))
    await store.put("a cat.jpg", newer, meta)
    found = await store.get("a cat.jpg")
    assert found.data == newer
    assert (found.info.chunks, found.info.description) == (4, "newer")
    state = (await nc.jetstream().stream_info("OBJ_B")).state
    assert state.messages == 5, "the older object's chunks and metadata are gone"
    await store.delete("a cat.jpg")
    assert (await store.get_info("a cat.jpg", show_deleted=True)).deleted
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await store.get("a cat.jpg")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await store.get("never was")
    assert (await nc.jetstream().stream_info("OBJ_B")).state.messages == 1


async def test_empty_object_and_files(store: ObjectStore, tmp_path: Path) -> None:
    assert (await store.put("empty", b"")).size == 0
    assert (await store.get("empty")).data == b""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content(300_000))
    with source.open("rb") as file:
        await store.put("file", file)
    with target.open("wb") as file:
        await store.get("file", writeinto=file)
    assert target.read_bytes() == source.read_bytes()


async def test_list_and_watch(store: ObjectStore) -> None:
    with pytest.raises(nats.js.errors.NotFoundError):
        await store.list()
    watcher = await store.watch(include_history=True)
    assert await asyncio.wait_for(watcher.updates(timeout=5), 5) is None
    for name in ("b", "a", "c"):
        await store.put(name, name.encode())
    await store.delete("b")
    seen = [await asyncio.wait_for(watcher.updates(timeout=5), 5) for _ in range(4)]
    assert [(info.name, bool(info.deleted)) for info in seen if info is not None] == [
        ("b", False), ("a", False), ("c", False), ("b", True),
    ]  # fmt: skip
    await watcher.stop()
    listed = await store.list(ignore_deletes=True)
    assert sorted(info.name or "" for info in listed) == ["a", "c"]


async def test_meta_update_status_and_seal(store: ObjectStore, nc: NATS) -> None:
    await store.put("old", b"content")
    await store.update_meta("old", ObjectMeta(name="old", description="described"))
    found = await store.get("old")
    assert (found.data, found.info.description) == (b"content", "described")
    status = await store.status()
    assert (status.bucket, status.sealed) == ("B", False)
    await store.seal()
    assert (await store.status()).sealed
    with pytest.raises(nats.js.errors.APIError):
        await store.put("other", b"x")
    assert (await store.get("old")).data == b"content"


async def test_survives_the_leader(cluster: ProcessCluster) -> None:
    """SIGKILL of the stream's leader while objects are read and written."""
    connection = await nats.connect(cluster.urls[0])
    store = await connection.jetstream(timeout=10).create_object_store("K", replicas=3)
    data = content(2_000_000)
    await store.put("before", data)
    name = (await connection.jetstream().stream_info("OBJ_K")).cluster.leader  # type: ignore[union-attr]
    await connection.close()
    leader = next(node for node in cluster.nodes if node.name == name)
    survivor = next(node for node in cluster.nodes if node is not leader)
    connection = await nats.connect(survivor.url)
    store = await connection.jetstream(timeout=10).object_store("K")
    leader.kill9()
    for attempt in range(50):
        try:
            await store.put("after", data)
            break
        except (nats.js.errors.Error, nats.errors.Error, TimeoutError):
            assert attempt < 49, "no leader took over"
            await asyncio.sleep(0.2)
    for name in ("before", "after"):
        assert (await store.get(name)).data == data
    await connection.close()


async def test_the_nats_tool(tidy: ProcessCluster, tmp_path: Path, tool: str) -> None:
    cli = Cli(tool, tidy.urls[0])
    source, target = tmp_path / "source.bin", tmp_path / "target.bin"
    source.write_bytes(content(700_000))
    await cli("object", "add", "T", "--replicas", "3", "--description", "tools")
    await cli("object", "put", "T", str(source), "--name", "thing", "--no-progress", "--force")
    await cli("object", "get", "T", "thing", "--output", str(target), "--no-progress", "--force")
    assert target.read_bytes() == source.read_bytes()
    assert "thing" in await cli("object", "ls", "T")
    assert "700 kB" in (await cli("object", "info", "T", "thing")) or "684 KiB" in (
        await cli("object", "info", "T", "thing")
    )
    await cli("object", "del", "T", "thing", "--force")
    await cli("object", "get", "T", "thing", "--output", str(target), "--no-progress", "--force", rc=1)
    listed = json.loads(await cli("stream", "ls", "--json", "--all"))
    assert "OBJ_T" in listed
    await cli("object", "del", "T", "--force")
    assert "OBJ_T" not in (await cli("stream", "ls", "--all"))
