"""Order per key with stock nats-py: members that come, die with messages in hand and refuse them, while servers are
killed and leaders change.

Of each key one message is out at a time: a member that gets one knows that the acks of all before it went out. The test
asserts that for every delivery, and at the end that each message was delivered and the ack floor is the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from operator import attrgetter

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import ServerError

from testkit.harness import ProcessCluster, eventually
from tests.interop.keyed import CONSUMER, TROUBLE, connected, keyed, order

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.long]

KEYS = 8
MEMBERS = 5
SECONDS = 12.0


class Account:
    """Messages by key, and what was said of them."""

    def __init__(self) -> None:
        self.stored: dict[int, str] = {}
        self.said: set[int] = set()
        """An ack or a term went out, which may count."""
        self.seen: set[int] = set()
        self.wrong: list[str] = []
        self.again = 0

    def take(self, msg: Msg) -> int:
        seq = msg.metadata.sequence.stream
        key = msg.subject.split(".")[1]
        self.stored.setdefault(seq, key)
        self.again += msg.metadata.num_delivered > 1
        if seq not in self.seen and seq not in self.said:
            before = [one for one, of in self.stored.items() if of == key and one not in self.said]
            early = sorted(one for one in before if one < seq or (one > seq and one in self.seen))
            if early:
                self.wrong.append(f"{seq} of {key} came while {early} were out or before it")
        self.seen.add(seq)
        return seq


async def publish(cluster: ProcessCluster, account: Account, end: float) -> None:
    nc = await connected(cluster)
    js = nc.jetstream(timeout=2)
    number = 0
    while time.monotonic() < end:
        number += 1
        key = str(int(random.triangular(0, KEYS, 0)))
        with contextlib.suppress(*TROUBLE):
            ack = await js.publish(f"s.{key}.{number}", b"m", headers={"Nats-Msg-Id": str(number)})
            account.stored[ack.seq] = key
        await asyncio.sleep(0.005)
    await close(nc)


async def member(cluster: ProcessCluster, account: Account, dice: random.Random, end: float) -> None:
    """One application after the other; each ends without a word, with what it has in hand."""
    while time.monotonic() < end:
        nc = await connected(cluster)
        with contextlib.suppress(*TROUBLE):
            sub = await nc.jetstream(timeout=2).pull_subscribe_bind(CONSUMER, "S")
            while time.monotonic() < end and dice.random() > 0.05:
                await work(await sub.fetch(dice.choice([1, 4, 10]), timeout=0.5), account, dice)
        await close(nc)


async def close(nc: NatsClient) -> None:
    """Its `close` may raise the cancellation of its own reader, where a server has just gone, and leave its socket
    open, of which another test would be told."""
    task = asyncio.current_task()
    assert task is not None
    try:
        await nc.close()
    except asyncio.CancelledError:
        if task.cancelling():
            raise
    except TROUBLE:
        pass
    finally:
        transport = attrgetter("_transport")(nc)
        if transport is not None:
            transport.close()


async def work(messages: list[Msg], account: Account, dice: random.Random) -> None:
    for msg in messages:
        seq = account.take(msg)
        what = dice.random()
        if what < 0.1:
            await msg.nak()
        elif what < 0.15:
            await msg.nak(delay=0.2)
        elif what < 0.2:
            await msg.in_progress()
        elif what < 0.95:
            account.said.add(seq)
            await (msg.term() if what > 0.9 else msg.ack())


async def trouble(cluster: ProcessCluster, dice: random.Random, end: float) -> int:
    faults = 0
    while time.monotonic() + 2.0 < end:
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        faults += 1
        node = dice.choice(cluster.nodes)
        what = dice.choice(("kill", "STREAM.LEADER.STEPDOWN.S", "CONSUMER.LEADER.STEPDOWN.S.C"))
        if what == "kill":
            node.kill9()
            await asyncio.sleep(dice.uniform(0.2, 1.0))
            await node.start()
            continue
        with contextlib.suppress(*TROUBLE):
            nc = await nats.connect(node.url, allow_reconnect=False, connect_timeout=2)
            await nc.request(f"$JS.API.{what}", b"", timeout=3)
            await nc.close()
    return faults


async def test_members_get_the_messages_of_each_key_in_order_through_kills(
    cluster: ProcessCluster, server: str
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    account = Account()
    async with keyed(cluster, server, "S") as consumer:
        await consumer.make(order(1, "token:2"), ack_wait=0.5)
        end = time.monotonic() + SECONDS
        members = [member(cluster, account, random.Random(dice.random()), end) for _ in range(MEMBERS)]
        faults, *_ = await asyncio.gather(trouble(cluster, dice, end), publish(cluster, account, end), *members)
        assert not account.wrong, account.wrong[:5]
        sub = await consumer.js.pull_subscribe_bind(CONSUMER, "S")

        async def drained() -> bool:
            with contextlib.suppress(*TROUBLE):
                for msg in await sub.fetch(20, timeout=0.5):
                    account.said.add(account.take(msg))
                    await msg.ack()
            return await consumer.is_done()

        await eventually(drained, 60, "everything is acked")
        last = await consumer.last()
    print(f"{last} stored, {faults} faults, {account.again} redeliveries")
    assert not account.wrong, account.wrong[:5]
    assert account.stored.keys() <= account.seen, sorted(account.stored.keys() - account.seen)[:5]
    assert last > 100 and faults and account.again


def test_the_account_can_fail() -> None:
    account = Account()
    account.stored |= {1: "a", 2: "a", 3: "b"}
    for reply in ("$JS.ACK.S.C.1.2.1.1.0", "$JS.ACK.S.C.1.3.2.1.0"):
        msg = Msg(None, subject="s.a.1" if ".2.1.1." in reply else "s.b.1", reply=reply)
        account.take(msg)
    assert account.wrong == ["2 of a came while [1] were out or before it"]


async def test_the_order_is_shown_as_it_was_given_and_can_be_changed(shared: ProcessCluster, server: str) -> None:
    async with keyed(shared, server, "ORDER") as consumer:
        config = await consumer.make(order(1, "token:2"))
        nc, js = consumer.nc, consumer.js
        for number in range(3):
            await js.publish(f"order.a.{number}", b"")
        await js.publish("order.b", b"")
        sub = await js.pull_subscribe_bind(CONSUMER, "ORDER")
        first = await sub.fetch(10, timeout=1)
        assert [msg.subject for msg in first] == ["order.a.0", "order.b"]
        answer = await consumer.answer()
        assert (answer["num_pending"], answer["num_ack_pending"]) == (2, 2)
        shown = {"messages_waiting": 2, "keys_waiting": 1, "members": 1, "spilled": 0}
        assert answer["order_per_key"] == shown
        await first[0].ack_sync()
        (second,) = await sub.fetch(10, timeout=1)
        assert second.subject == "order.a.1"
        config.metadata = {}
        await js.add_consumer("ORDER", config)
        (third,) = await sub.fetch(10, timeout=1)
        assert third.subject == "order.a.2"
        fields = {"max_ack_pending_per_subject": 2, "key": "header:Id"}
        asked = {"stream_name": "ORDER", "config": {"durable_name": "F", "ack_policy": "explicit", **fields}}
        answer = json.loads((await nc.request("$JS.API.CONSUMER.CREATE.ORDER.F", json.dumps(asked).encode())).data)
        assert fields.items() <= answer["config"].items()
        for _ in range(3):
            await js.publish("order.h", b"", headers={"Id": "7"})
        sub = await js.pull_subscribe_bind("F", "ORDER")
        by_header = [msg.subject for msg in await sub.fetch(20, timeout=1)]
        assert by_header == ["order.a.0", "order.a.1", "order.a.2", "order.b", "order.h", "order.h"]
        bad = ConsumerConfig(durable_name="D", ack_policy=AckPolicy.ALL, metadata=order(1))
        with pytest.raises(ServerError, match="requires ack policy explicit"):
            await js.add_consumer("ORDER", bad)
