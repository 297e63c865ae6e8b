"""A replica whose state came as a snapshot leads like one that applied the log itself (`snapshot_end` of
replica/stream_replica.py): what a leader does besides taking publishes works from the new state."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import Puller, consumer, host

SECOND = 1_000_000_000
CONFIG = {
    "subjects": ["s", "plan.*", "fired"],
    "allow_msg_ttl": True,
    "allow_msg_schedules": True,
    "republish": {"src": "s", "dest": "again"},
}


async def stored(node: Node, subject: bytes, payload: bytes, *headers: bytes) -> int:
    """The sequence number of a message with headers."""
    inbox = b"_INBOX.st%d" % next(node.cluster.inboxes)
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    subscription = node.bus.subscribe(inbox, lambda _s, _r, _h, body, _o: got.done() or got.set_result(body))
    block = b"NATS/1.0\r\n%b\r\n\r\n" % b"\r\n".join(headers)
    node.bus.publish(subject, payload, inbox, block)
    ack = json.loads(await asyncio.wait_for(got, 2))
    node.bus.unsubscribe(subscription)
    return int(ack["seq"])


async def behind(cluster: Cluster) -> Node:
    """A follower that was away while everything came; it has it from a snapshot and leads now."""
    await cluster.create("S", allow_msg_ttl=False)
    away = cluster.followers("S")[0]
    other = next(node for node in cluster if node is not away)
    cluster.isolate(away.name)
    await cluster.until(lambda: any(n.replica("S").leading for n in cluster if n is not away), what="a leader")
    await cluster.update("S", ask=other.name, **CONFIG)
    await stored(other, b"s", b"short", b"Nats-TTL: 20s")
    at = datetime.fromtimestamp(cluster.loop.time_ns() / SECOND + 20, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await stored(other, b"plan.a", b"fire", b"Nats-Schedule: @at %b" % at.encode(), b"Nats-Schedule-Target: fired")
    await consumer(other, "c", filter_subject="s")
    for number in range(200):
        await other.publish(b"s", b"%d" % number)
    for node in cluster:
        if node is not away:
            await node.js.flusher.flush()  # only what is flushed may leave the log
    cluster.heal()
    await cluster.equal("S")
    assert "caught up from a snapshot" in away.log.events("info"), "the log was enough: the test shows nothing"
    leader = await cluster.led("S")
    if leader is not away:
        assert leader.replica("S").group.transfer(away.me)
    await cluster.until(lambda: away.replica("S").leading, what="it leads")
    return away


@virtual_time
async def test_messages_expire_and_schedules_fire_under_a_leader_that_came_by_snapshot() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        leader = await behind(cluster)
        store = leader.replica("S").store
        first, last = store.first_seq, store.last_seq
        await asyncio.sleep(25)
        assert leader.replica("S").leading
        assert store.first_seq > first, "the message's time is over"
        fired = [store.get(seq) for seq in range(last + 1, store.last_seq + 1)]
        assert [message.payload for message in fired if message is not None] == [b"fire"]
        await cluster.equal("S")


@virtual_time
async def test_a_leader_that_came_by_snapshot_republishes() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        leader = await behind(cluster)
        heard: list[bytes] = []
        leader.bus.subscribe(b"again", lambda _s, _r, _h, body, _o: heard.append(body))
        await leader.publish(b"s", b"new")
        await asyncio.sleep(0.1)
        assert heard == [b"new"]


@virtual_time
async def test_consumers_go_on_where_the_snapshot_came() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        leader = await behind(cluster)
        assert list(host(leader).table.by_name) == ["c"]
        puller = Puller(leader, "S", "c")
        got = await puller.fetch(5)
        assert [payload for _, _, payload in got] == [b"short", b"0", b"1", b"2", b"3"]
        for message in got:
            await puller.ack(message)
        await cluster.equal("S")
        state = host(leader).table.by_name["c"]
        assert state.floor_cseq == 5
