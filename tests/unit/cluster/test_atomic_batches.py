"""Atomic batches on replicas in one process: what a change of leader, a configuration and time do to open ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testkit.sim.nodes import ACCOUNT, Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.stream.fake_store import block


async def send(node: Node, sequence: int, commit: str | None = None, batch_id: str = "b") -> Any:
    """0 for the zero-byte answer, an err_code, or the PubAck's sequence and count."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    inbox = b"_INBOX.batch%d" % next(node.cluster.inboxes)
    subscription = node.bus.subscribe(
        inbox, lambda subject, reply, headers, payload, origin: answer.set_result(payload)
    )
    fields = [f"Nats-Batch-Id: {batch_id}", f"Nats-Batch-Sequence: {sequence}"]
    fields += [f"Nats-Batch-Commit: {commit}"] if commit else []
    try:
        assert node.bus.publish(b"s", b"x", inbox, block(*fields))
        async with asyncio.timeout(2):
            payload = await answer
    finally:
        node.bus.unsubscribe(subscription)
    if not payload:
        return 0
    reply = json.loads(payload)
    return reply["error"]["err_code"] if "error" in reply else (reply["seq"], reply["count"])


def open_batches(node: Node) -> int:
    return node.services.settings.batch_quota.open


@virtual_time
async def test_a_batch_is_stored_alike_on_all_replicas() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_atomic=True)
        assert [await send(cluster["B"], n, "1" if n == 3 else None) for n in (1, 2, 3)] == [0, 0, (3, 3)]
        await cluster.equal("S")
        assert [node.replica("S").store.messages for node in cluster] == [3, 3, 3]
        assert not any(map(open_batches, cluster))


@virtual_time
async def test_a_change_of_leader_drops_what_is_staged() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_atomic=True)
        old = cluster.leader("S")
        new = cluster.followers("S")[0]
        assert await send(old, 1) == 0
        assert open_batches(old) == 1
        assert old.replica("S").group.transfer(new.me)
        await cluster.until(lambda: new.replica("S").leading, what="a new leader")
        assert open_batches(old) == 0
        assert await send(new, 2, "1") == 10176
        await cluster.equal("S")
        assert not any(node.replica("S").store.messages for node in cluster)


@virtual_time
async def test_switching_off_and_deleting_give_the_room_back() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_atomic=True)
        leader = cluster.leader("S")
        assert await send(leader, 1) == 0
        await cluster.update("S", allow_atomic=False)
        assert open_batches(leader) == 0
        assert await send(leader, 2, "1") == 10174
        await cluster.update("S", allow_atomic=True)
        assert await send(leader, 1) == 0
        leader.replica("S").stop()
        assert open_batches(leader) == 0


@virtual_time
async def test_time_abandons_a_batch_and_it_is_published_in_both_accounts() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", allow_atomic=True)
        leader = cluster.leader("S")
        events: list[tuple[str, str, dict[str, Any]]] = []

        def listen(account: str) -> None:
            for subject in (b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S", b"$JS.EVENT.ADVISORY.BATCH_ABANDONED.S"):
                leader.services.events.bus(account).subscribe(
                    subject, lambda s, r, h, payload, o: events.append((account, s.decode(), json.loads(payload)))
                )

        listen(ACCOUNT)
        listen("$SYS")
        assert await send(leader, 1) == 0
        await asyncio.sleep(9)
        assert not events
        await asyncio.sleep(1.5)
        assert await send(leader, 2, "1") == 10176
        assert [(account, event["type"].rpartition(".")[2], event.get("account")) for account, _, event in events] == [
            (ACCOUNT, "stream_batch_abandoned", None),
            (ACCOUNT, "batch_abandoned", None),
            ("$SYS", "stream_batch_abandoned", ACCOUNT),
            ("$SYS", "batch_abandoned", ACCOUNT),
        ]
        assert all((event["batch"], event["reason"]) == ("b", "timeout") for _, _, event in events)
