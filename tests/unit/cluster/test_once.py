"""Requests that are asked again, as their answer was lost with a leader, are carried out once (cluster/once.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.cluster.requests import NO_PROGRESS_SECONDS
from jetcluster.errors import ApiError
from jetcluster.store import slices
from jetcluster.stream.apply import asked
from jetcluster.stream.log import commands
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster import object_client
from tests.unit.cluster.consumers import Puller, consumer
from tests.unit.cluster.test_jobs import SMALL, filled
from tests.unit.cluster.test_stream_requests import ask

AGAIN: dict[str, Any] = {"once": 7, "repeated": True}


@virtual_time
@pytest.mark.parametrize("body", [{}, {"filter": "s.>"}, {"keep": 3}, {"filter": "*.*", "keep": 3}, {"seq": 99}])
async def test_a_purge(body: dict[str, Any]) -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        first = await ask(cluster["B"], "purge", once=7, **body)
        assert first == {"purged": 10 - body.get("keep", 0)}
        seq = (await cluster["A"].publish(b"s.late"))["seq"]
        for node in cluster:
            assert await ask(node, "purge", **AGAIN, **body) == first
        assert cluster.leader("S").replica("S").store.contains(seq)
        other = await ask(cluster["B"], "purge", **body)
        assert other["purged"] == (0 if body.get("seq") == seq else 1), "another request"


@virtual_time
async def test_a_consumer_that_was_created_after_the_deletion_stays() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        await consumer(cluster["A"], "c")
        assert await ask(cluster["B"], "consumer_delete", name="c", once=7) == {}
        await consumer(cluster["A"], "c")
        assert await ask(cluster["B"], "consumer_delete", name="c", **AGAIN) == {}
        assert (await ask(cluster["B"], "consumer_info", name="c"))["name"] == "c"


@virtual_time
async def test_acks_after_a_reset_stay() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 10)
        await consumer(cluster["A"], "c")
        first = await ask(cluster["B"], "consumer_reset", name="c", seq=1, once=7)
        puller = Puller(cluster["A"], "S", "c")
        for message in await puller.fetch(2):
            await puller.ack(message)
        again = await ask(cluster["B"], "consumer_reset", name="c", seq=1, **AGAIN)
        assert again["reset_seq"] == first["reset_seq"]
        info = await ask(cluster["B"], "consumer_info", name="c")
        assert info["ack_floor"]["stream_seq"] == 2


@virtual_time
async def test_an_object_that_was_put_after_the_deletion_stays() -> None:
    async with Cluster() as cluster:
        leader = await object_client.bucket(cluster)
        await object_client.put(leader, "n1")
        assert await object_client.ask(leader, "delete", "o", once=7) == {"success": True}
        await object_client.put(leader, "n2")
        assert await object_client.ask(leader, "delete", "o", **AGAIN) == {"success": True}
        info = await object_client.ask(leader, "info", "o")
        assert info["nonce"] == "n2" and not info.get("deleted")
        assert await object_client.ask(leader, "delete", "o", once=8) == {"success": True}


@virtual_time
async def test_what_may_have_been_forgotten_is_refused_instead_of_carried_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asked, "MAX_ENDED", 3)
    async with Cluster() as cluster:
        await filled(cluster, 10)
        await ask(cluster["B"], "purge", once=7)
        for _ in range(3):
            await ask(cluster["B"], "purge", filter="nothing")
        await cluster["A"].publish(b"s.late")
        with pytest.raises(ApiError, match="10008"):
            await ask(cluster["B"], "purge", **AGAIN)
        assert cluster.leader("S").replica("S").store.messages == 1
        await asyncio.sleep(61)
        assert await ask(cluster["B"], "purge", once=9, repeated=True) == {"purged": 1}, "nobody can mean another one"


@virtual_time
async def test_a_purge_that_takes_long_is_answered_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "STEP", SMALL)
    async with Cluster() as cluster:
        await filled(cluster, 60)
        for node in cluster:
            slow(node.replica("S").duties, 1.0)
        before = cluster.loop.time()
        purging = asyncio.get_running_loop().create_task(ask(cluster["B"], "purge", filter="s.*"))
        await asyncio.sleep(10)
        assert (await cluster["C"].publish(b"s.late"))["seq"] == 61
        assert await purging == {"purged": 60}
        assert cluster.loop.time() - before > 20
        assert cluster.leader("S").replica("S").store.messages == 1


@virtual_time
async def test_a_client_that_gave_up_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "STEP", SMALL)
    async with Cluster() as cluster:
        await filled(cluster, 60)
        for node in cluster:
            slow(node.replica("S").duties, 1.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await ask(cluster["B"], "purge", filter="s.*")
        await cluster["C"].publish(b"s.late")
        again = await ask(cluster["C"], "purge", filter="s.*")
        replica = cluster.leader("S").replica("S")
        assert again["purged"] > 0 and not replica.store.messages and not replica.machine.jobs


@virtual_time
async def test_a_purge_that_does_not_get_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "STEP", SMALL)
    async with Cluster() as cluster:
        await filled(cluster, 60)
        for node in cluster:
            slow(node.replica("S").duties, 3600.0)
        before = cluster.loop.time()
        with pytest.raises(ApiError, match="10008"):
            await ask(cluster["B"], "purge", filter="s.*")
        assert NO_PROGRESS_SECONDS <= cluster.loop.time() - before < NO_PROGRESS_SECONDS + 5


def slow(duties: Any, seconds: float) -> None:
    """A piece takes its leader so long. Nobody but the end of a piece, or `tick`, asks for the next one."""
    propose, waiting = duties._propose, []

    def later(command: bytes) -> bool:
        if command[0] != commands.CONTINUE:
            return bool(propose(command))
        waiting.append(asyncio.get_running_loop().call_later(seconds, propose, command))
        return True

    duties._propose = later
