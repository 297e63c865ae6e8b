"""Consumers: pulls with an ack for each message, ordered push consumers, idle durables, the loss of an owner."""

from __future__ import annotations

import asyncio
import time

from bench import consumers, loads
from bench.row import LOWER, Group, Measured, Row
from bench.stand import Stand
from testkit.client import Client

MESSAGES = 300_000
DURABLES = 1000
TEXT = "300,000 messages of 128 B; overlap: the next batch is asked for before the last one has come."
R1 = Group("Consumers, R1", nodes=1, text=TEXT)
R3 = Group("Consumers, R3", nodes=3, text=TEXT)


@R1.prepares
@R3.prepares
async def prepare(stand: Stand) -> None:
    await stand.filled("C", stand.scaled(MESSAGES))


async def _pull(stand: Stand, ahead: int) -> Measured:
    count = stand.scaled(MESSAGES)
    return Measured.rate(await consumers.fetch(stand.leader("C").url, "C", count, ahead=ahead, pids=stand.pids))


async def _ordered(stand: Stand) -> Measured:
    return Measured.rate(
        await consumers.ordered(stand.leader("C").url, "C", stand.scaled(MESSAGES), pids=stand.pids)
    )  # fmt: skip


def _both(group: Group) -> None:
    replicas = f"R{group.nodes}"

    @group.measure(Row(f"{replicas} pull batch500 ack each", "msgs/s"))
    async def pull(stand: Stand) -> Measured:
        return await _pull(stand, 1)

    @group.measure(Row(f"{replicas} pull batch500 ack each overlap", "msgs/s"))
    async def overlap(stand: Stand) -> Measured:
        return await _pull(stand, 2)

    group.measure(Row(f"{replicas} ordered push", "msgs/s"))(_ordered)


_both(R1)
_both(R3)


@R3.measure(Row("idle with 1,000 durables", "% of a core, mean", LOWER), within=120)
async def idle_durables(stand: Stand) -> Measured:
    leader = await stand.stream("I")
    seconds = 8 * min(1.0, stand.seconds)
    idle = await consumers.idle_durables(leader.url, "I", stand.scaled(DURABLES), seconds=seconds, pids=stand.pids)
    spent = [value for name, value in idle.cpu.items() if name != "client"]
    return Measured(sum(spent) / len(spent) / idle.seconds * 100)


@R3.measure(
    Row("takeover kill -9 consumer's owner", "s to next message", LOWER, note="it leads the stream as well"), within=90
)
async def takeover(stand: Stand) -> Measured:
    leader = await stand.stream("T")
    survivor = stand.follower("T")
    await loads.js_publish(leader.url, "t", window=100, count=1000)
    async with await survivor.connect() as client:
        config = {"durable_name": "d", "ack_policy": "explicit"}
        made = await client.api("CONSUMER.CREATE.T.d", {"stream_name": "T", "config": config})
        owner = stand.nodes.node(made["cluster"]["leader"])
        at = survivor if owner is not survivor else leader
    async with await at.connect() as client:
        # Every request has an inbox of its own: deliveries show the messages' subjects, not the inbox.
        assert await _next(client, 0, 3.0), "no message before the kill"
        start = time.monotonic()
        owner.kill9()
        asked = 1
        while not await _next(client, asked, 0.3):
            assert time.monotonic() - start < 30, "no message within 30 s of the kill"
            asked += 1
        took = time.monotonic() - start
    await owner.start()
    return Measured(took)


async def _next(client: Client, number: int, seconds: float) -> bool:
    """Asks for one message; True when it came."""
    inbox = f"_INBOX.takeover.{number}"
    answers: asyncio.Queue[bool] = asyncio.Queue()
    sid = client.subscribe(inbox, lambda msg: answers.put_nowait(not msg.header))
    body = b'{"batch":1,"expires":%d}' % int(seconds * 1e9)
    client.publish("$JS.API.CONSUMER.MSG.NEXT.T.d", body, inbox.encode())
    try:
        return await asyncio.wait_for(answers.get(), seconds + 0.1)
    except TimeoutError:
        return False
    finally:
        client.unsubscribe(sid)
        if answers.empty():
            await asyncio.sleep(0.01)
