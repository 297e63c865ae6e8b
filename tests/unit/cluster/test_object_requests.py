"""Requests to buckets on the leader of the stream (cluster/stream_requests.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.cluster import stream_requests
from jetcluster.errors import ApiError
from jetcluster.replica.reads import pages
from jetcluster.store.api import DamagedError
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.object_client import Reader, ask, bucket, put


@virtual_time
async def test_limits_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await put(leader, "n")
        monkeypatch.setattr(stream_requests, "MAX_LISTS", 0)
        with pytest.raises(ApiError, match="10167"):
            await ask(leader, "list")
        leader.replica("OBJ_b").reads.answers.pages.streaming = pages.MAX_STREAMING
        with pytest.raises(ApiError, match="10167"):
            await Reader(leader).get()


@virtual_time
async def test_a_get_is_not_repeated_by_itself() -> None:
    """Its first attempt may have sent chunks."""
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await put(leader, "n")
        reader = Reader(leader)
        with pytest.raises(ApiError, match="10008"):
            await ask(leader, "get", "o", deliver="deliver", reply="head", repeated=True)
        assert reader.chunks == reader.heads == []


@virtual_time
async def test_a_leader_without_a_majority_answers_nothing() -> None:
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await put(leader, "n")
        cluster.isolate(leader.name)
        await cluster.until(
            lambda: any(n.has("OBJ_b") and n.replica("OBJ_b").leading for n in cluster if n is not leader)
        )
        newer = next(n for n in cluster if n is not leader and n.replica("OBJ_b").leading)
        await asyncio.sleep(0.01)
        await put(newer, "n2", b"new")
        with pytest.raises(ApiError, match="10008"):
            await ask(leader, "info", "o")
        cluster.heal()
        await cluster.equal("OBJ_b")
        assert (await ask(leader, "info", "o"))["nonce"] == "n2"


@virtual_time
async def test_an_unreadable_record_is_no_missing_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        leader = await bucket(cluster)
        await put(leader, "n")
        replica = leader.replica("OBJ_b")

        def damaged(*_: object) -> None:
            raise DamagedError(1, 2)

        monkeypatch.setattr(replica.store.queries, "last_by_subject", damaged)
        asker = next(node for node in cluster if node is not leader)
        with pytest.raises(ApiError, match="10008"):
            await ask(asker, "info", "o")
        assert replica.damaged
        await cluster.until(lambda: not replica.leading, what="another leader")
        await cluster.led("OBJ_b")
        assert (await ask(asker, "info", "o"))["nonce"] == "n"
