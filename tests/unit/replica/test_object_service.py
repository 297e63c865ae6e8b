"""The object service on three nodes in one process: wiring, leader changes, and what runs beside it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.objects import uploads as uploads_module
from jetcluster.replica.reads import pages
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.object_client import API, DATA, Reader, ask, begin, bucket, digest, pieces, put


@virtual_time
@pytest.mark.parametrize(("replicas", "storage"), [(1, "file"), (1, "memory"), (3, "file")])
async def test_objects_come_and_go(replicas: int, storage: str) -> None:
    async with Cluster() as cluster:
        leader = await bucket(cluster, replicas, storage=storage)
        other = next(node for node in cluster if node is not leader)
        watched: list[dict[str, Any]] = []
        other.bus.subscribe(b"$OBJ.b.info.>", lambda s, r, h, p, o: watched.append(json.loads(p)))
        await asyncio.sleep(0.01)
        assert (await put(other, "n"))["digest"] == digest(DATA)
        reader = Reader(other)
        await reader.get()
        await cluster.until(lambda: len(reader.chunks) == 4, what="all chunks")
        assert b"".join(reader.chunks) == DATA
        assert len(reader.heads) == 1 and b"\r\nNats-Object-Size: 10240\r\n" in reader.heads[0]
        assert [info["name"] for info in (await ask(other, "list"))["objects"]] == ["o"]
        assert await ask(other, "delete", "o") == {"success": True}
        assert (await ask(other, "info", "o"))["deleted"]
        assert [info["deleted"] for info in watched] == [False, True]
        with pytest.raises(ApiError, match="11006"):
            await reader.get()
        if replicas == 3:
            await cluster.equal("OBJ_b")


@virtual_time
async def test_an_upload_survives_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power failure after half of the chunks, and the stored half is read again in small steps."""
    monkeypatch.setattr(uploads_module, "SCAN_BYTES", 3000)
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        client = next(node for node in cluster if node is not leader)
        await begin(client, "n", chunks=8)
        parts = pieces(count=8)
        for part in parts[:4]:
            assert "error" not in await client.publish(API + b"chunks.n", part)
        assert leader.replica("OBJ_b").objects.open_uploads == 1  # type: ignore[union-attr]
        cluster.crash(leader.name)
        await cluster.led("OBJ_b")
        for part in parts[4:]:
            answer = await client.publish(API + b"chunks.n", part)
        assert answer["digest"] == digest(DATA)
        cluster.restart(leader.name)
        await cluster.equal("OBJ_b")


@virtual_time
async def test_the_next_leader_ends_what_is_complete() -> None:
    """The leader is cut off between the last chunk's commit and the end of the upload."""
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        client = next(node for node in cluster if node is not leader)
        await begin(client, "n")
        for part in pieces()[:3]:
            await client.publish(API + b"chunks.n", part)
        service = leader.replica("OBJ_b").objects
        assert service is not None
        service.bucket.host.propose = lambda command, done: False
        inbox: list[bytes] = []
        client.bus.subscribe(b"inbox", lambda s, r, h, p, o: inbox.append(p))
        client.bus.publish(API + b"chunks.n", pieces()[3], b"inbox")
        stored = leader.replica("OBJ_b").store
        await cluster.until(lambda: stored.count_of(b"$OBJ.b.chunks.n") == 4, what="the last chunk stored")
        await asyncio.sleep(0.1)
        assert inbox == [], "no answer before the object is there"
        cluster.crash(leader.name)
        await cluster.led("OBJ_b")
        assert (await client.publish(API + b"chunks.n", pieces()[3]))["digest"] == digest(DATA)
        assert (await ask(client, "info", "o"))["nonce"] == "n"


@virtual_time
async def test_a_download_is_whole_when_its_object_is_replaced_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 3000)
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await put(leader, "n1")
        reader = Reader(leader)
        backlog = leader.bus.backlog
        monkeypatch.setattr(leader.bus, "backlog", lambda s: 1 << 30 if len(reader.chunks) > 1 else backlog(s))
        await reader.get()
        await cluster.until(lambda: len(reader.chunks) > 1, what="the first chunks")
        assert len(reader.chunks) < 4
        await put(leader, "n2", b"new")
        assert leader.replica("OBJ_b").store.count_of(b"$OBJ.b.chunks.n1") == 0
        monkeypatch.setattr(leader.bus, "backlog", backlog)
        await cluster.until(lambda: len(reader.chunks) == 4, what="the rest")
        assert b"".join(reader.chunks) == DATA


@virtual_time
async def test_a_bucket_that_is_deleted_and_one_that_is_none() -> None:
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await begin(leader, "n")
        await cluster.delete("OBJ_b")
        assert not leader.bus.has_interest(API + b"info.o")
        await cluster.create("OBJ_b", subjects=["x"])
        with pytest.raises(ApiError, match="bucket layout"):
            await ask(leader, "list")
        await cluster.update("OBJ_b", subjects=["$OBJ.b.>"])
        await asyncio.sleep(0.01)
        assert (await put(await cluster.led("OBJ_b"), "n"))["nonce"] == "n"
