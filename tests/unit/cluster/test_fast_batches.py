"""Fast-ingest batches on replicas in one process: what a change of leader, a configuration, time and a node of an older
version do to open ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time


@contextmanager
def publisher(node: Node, gap: str = "ok", id: str = "b") -> Iterator[Publisher]:
    heard: list[dict[str, Any]] = []
    subscription = node.bus.subscribe(
        f"p.{id}.>".encode(), lambda subject, reply, headers, payload, origin: heard.append(json.loads(payload))
    )
    yield Publisher(node, f"p.{id}.5.{gap}", heard)
    node.bus.unsubscribe(subscription)


class Publisher:
    def __init__(self, node: Node, stem: str, heard: list[dict[str, Any]]) -> None:
        self.node, self.stem, self.heard = node, stem, heard

    def send(self, seq: int, operation: int | None = None) -> None:
        operation = min(seq - 1, 1) if operation is None else operation
        assert self.node.bus.publish(b"s", b"%d" % seq, f"{self.stem}.{seq}.{operation}.$FI".encode(), b"")

    async def answer(self) -> tuple[Any, ...]:
        async with asyncio.timeout(5):
            while not self.heard:
                await asyncio.sleep(0.01)
        found = self.heard.pop(0)
        if "error" in found:
            return ("error", found["error"]["err_code"])
        return tuple(found.get(key) for key in (("type", "last_seq", "seq") if "type" in found else ("seq", "count")))


def open_batches(node: Node) -> int:
    return node.services.settings.batch_quota.fast_open


@virtual_time
async def test_a_batch_is_stored_alike_on_all_replicas_through_any_node() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_batched=True)
        with publisher(cluster.followers("S")[0]) as batch:
            batch.send(1)
            assert await batch.answer() == ("ack", None, 0)
            for seq in range(2, 6):
                batch.send(seq)
            assert await batch.answer() == ("ack", None, 5)
            batch.send(6, 2)
            assert await batch.answer() == (6, 6)
        await cluster.equal("S")
        assert [node.replica("S").store.messages for node in cluster] == [6, 6, 6]
        assert not any(map(open_batches, cluster))


@virtual_time
async def test_the_next_leader_goes_on() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_batched=True)
        old = cluster.leader("S")
        new, other = cluster.followers("S")
        with publisher(other) as batch, publisher(other, "fail", "c") as strict:
            for each in (batch, strict):
                each.send(1)
                assert await each.answer() == ("ack", None, 0)
                each.send(2)
            await cluster.until(lambda: old.replica("S").store.last_seq == 4, what="all stored")
            await cluster.equal("S")
            assert old.replica("S").group.transfer(new.me)
            await cluster.until(lambda: new.replica("S").leading, what="a new leader")
            assert (open_batches(old), open_batches(new)) == (0, 2)
            for each in (batch, strict):
                while await each.answer() != ("ack", None, 2):
                    pass
                each.send(4)  # 3 is lost
                while (answer := await each.answer())[0] == "ack":
                    assert answer[2] == 2
                assert answer == ("gap", 3, 4)
            assert (await strict.answer())[1] == 2
            batch.send(5, 2)
            while (answer := await batch.answer())[0] == "ack":
                pass
            assert answer[1] == 5
        await cluster.equal("S")
        assert open_batches(new) == 0


@virtual_time
async def test_silence_switching_off_and_deleting_give_the_room_back() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_batched=True)
        leader = cluster.leader("S")
        with publisher(leader) as batch:
            batch.send(1)
            assert await batch.answer() == ("ack", None, 0)
            await asyncio.sleep(9)
            assert open_batches(leader) == 1
            await asyncio.sleep(2)
            assert open_batches(leader) == 0
            batch.send(2)
            assert await batch.answer() == ("error", 10208)
            batch.send(1)
            assert await batch.answer() == ("ack", None, 0)
            await cluster.update("S", allow_batched=False)
            assert open_batches(leader) == 0
            batch.send(2)
            assert await batch.answer() == ("error", 10205)
            await cluster.update("S", allow_batched=True)
            batch.send(1)
            assert await batch.answer() == ("ack", None, 0)
            leader.replica("S").stop()
            assert open_batches(leader) == 0
