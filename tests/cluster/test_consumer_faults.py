"""Random clients of one durable pull consumer while nodes are killed and leaders change, against a plain account.

Every client fetches, and of each message it makes one of: a confirmed ack, an ack without confirmation, a NAK, nothing
(a crash: it comes again), or it drops its connection with messages in hand. The account:

- at least once: every message whose publish was acknowledged is delivered;
- what was confirmed as acked is not delivered again (what was on its way when the confirmation came may still arrive);
- numbers of deliveries of a message only go up;
- at the end nothing is pending and the ack floor is the end of the stream.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import pytest

from testkit.client import Client, ClientError, Msg, create_stream
from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet, ack_fields
from testkit.harness import Node, ProcessCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.long, pytest.mark.thorough]

ON_ITS_WAY = 0.5
"""Seconds that a delivery sent before a confirmation may take to be read here, on a machine under load."""
BATCH = 20
CLIENTS = 4
SECONDS = 9.0
TROUBLE = (ClientError, OSError, TimeoutError, AssertionError)


class Account:
    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        """Sequence -> payload of the publishes that were acknowledged."""
        self.delivered: dict[int, int] = {}
        """Sequence -> highest number of deliveries seen."""
        self.confirmed: dict[int, float] = {}
        """Sequence -> when its ack was confirmed."""
        self.wrong: list[str] = []
        self.faults = 0

    def take(self, message: Msg, arrived: float) -> int:
        deliveries, seq, _, _ = ack_fields(message)
        if arrived - self.confirmed.get(seq, arrived) > ON_ITS_WAY:
            self.wrong.append(f"{seq} came again {arrived - self.confirmed[seq]:.2f} s after its ack was confirmed")
        if seq in self.stored and self.stored[seq] != message.data:
            self.wrong.append(f"{seq} is {message.data!r}, {self.stored[seq]!r} was stored")
        self.delivered[seq] = max(deliveries, self.delivered.get(seq, 0))
        return seq


class Timed(Inbox):
    """Knows when each message came in: one may wait here for the acks of those before it."""

    def __init__(self, client: Client) -> None:
        self.arrived: deque[float] = deque()
        super().__init__(client)

    def _take(self, msg: Msg) -> None:
        self.arrived.append(time.monotonic())
        super()._take(msg)


async def publisher(nodes: list[Node], account: Account, end: float) -> None:
    number = 0
    while time.monotonic() < end:
        try:
            async with await random.choice(nodes).connect() as client:
                while time.monotonic() < end:
                    payload = b"m%d" % number
                    number += 1
                    reply = (await client.request("s.a", payload, 2.0)).json()
                    account.stored[reply["seq"]] = payload
                    await asyncio.sleep(0.002)
        except (*TROUBLE, KeyError, ValueError):
            await asyncio.sleep(0.05)


async def consumer(nodes: list[Node], server: str, account: Account, dice: random.Random, end: float) -> None:
    """One application after the other: each ends when its connection breaks, or crashes with messages in hand."""
    while time.monotonic() < end:
        try:
            async with await dice.choice(nodes).connect() as client:
                jet = Jet(client, "S", 3, server)
                while time.monotonic() < end and dice.random() > 0.02:
                    await work(jet, account, dice)
        except TROUBLE:
            await asyncio.sleep(0.05)


async def work(jet: Jet, account: Account, dice: random.Random) -> None:
    inbox = Timed(jet.client)
    jet.pull("C", {"batch": BATCH, "expires": SECOND // 2}, inbox=inbox)
    for _ in range(BATCH):
        message, arrived = await inbox.one(1.5), inbox.arrived.popleft()
        if message.status:
            break
        seq = account.take(message, arrived)
        what = dice.random()
        if what < 0.5:
            await jet.ack(message, within=2.0)
            account.confirmed.setdefault(seq, time.monotonic())
        elif what < 0.8:
            jet.ack_soon(message)
        elif what < 0.9:
            jet.ack_soon(message, b"-NAK")
    inbox.close()


async def trouble(cluster: ProcessCluster, account: Account, dice: random.Random, end: float, *, kills: bool) -> None:
    while time.monotonic() + 2.0 < end:
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        node = dice.choice(cluster.nodes)
        what = dice.choice(("kill", "stream", "consumer") if kills else ("stream", "consumer"))
        account.faults += 1
        if what == "kill":
            node.kill9()
            await asyncio.sleep(dice.uniform(0.2, 1.0))
            await node.start()
            continue
        subject = "STREAM.LEADER.STEPDOWN.S" if what == "stream" else "CONSUMER.LEADER.STEPDOWN.S.C"
        try:
            async with await node.connect() as client:
                await client.request(f"$JS.API.{subject}", b"", 3.0)
        except TROUBLE:
            continue


@pytest.mark.parametrize(("replicas", "kills"), [(3, True), (3, False), (1, True)])
async def test_random_clients(cluster: ProcessCluster, server: str, replicas: int, kills: bool) -> None:
    if server == "nats-server" and kills:
        pytest.skip("nats-server 2.15.2 delivers messages again whose acks it confirmed before a kill -9")
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    account = Account()
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s.>"], replicas)
        await Jet(client, "S", replicas, server).consumer("C", ack_wait=400 * MILLISECOND, max_ack_pending=200)
    end = time.monotonic() + SECONDS
    await asyncio.gather(
        publisher(cluster.nodes, account, end),
        trouble(cluster, account, dice, end, kills=kills),
        *[consumer(cluster.nodes, server, account, random.Random(dice.random()), end) for _ in range(CLIENTS)],
    )
    for node in cluster.nodes:
        if not node.alive:
            await node.start()
    async with await cluster[0].connect() as client:
        jet = Jet(client, "S", replicas, server)
        last = await drained(jet, account)
        assert not account.wrong, account.wrong[:5]
        assert account.stored.keys() <= account.delivered.keys()
        assert await jet.counters("C") and (await jet.counters("C"))[3] == last
    print(f"{len(account.stored)} stored, {len(account.confirmed)} confirmed, {account.faults} faults")
    assert len(account.stored) > 100
    assert len(account.confirmed) > 50
    assert account.faults


async def drained(jet: Jet, account: Account) -> int:
    """Acks all that is left; returns the last sequence of the stream."""

    async def empty() -> bool:
        inbox = Timed(jet.client)
        jet.pull("C", {"batch": BATCH, "expires": SECOND // 2}, inbox=inbox)
        try:
            for _ in range(BATCH):
                message, arrived = await inbox.one(1.5), inbox.arrived.popleft()
                if message.status:
                    break
                account.take(message, arrived)
                await jet.ack(message, within=2.0)
        except TROUBLE:
            return False
        _, _, _, floor, ack_pending, _, pending = await jet.counters("C")
        state = (await jet.client.api("STREAM.INFO.S"))["state"]
        return (ack_pending, pending, floor) == (0, 0, state["last_seq"])

    await eventually(empty, 40, "everything is acked")
    return int((await jet.client.api("STREAM.INFO.S"))["state"]["last_seq"])


def test_the_account_can_fail() -> None:
    account = Account()
    account.stored[7] = b"m"
    account.confirmed[7] = time.monotonic() - 2 * ON_ITS_WAY
    account.take(Msg(b"s.a", b"$JS.ACK.S.C.2.7.9.1.0", b"", b"x"), time.monotonic())
    assert len(account.wrong) == 2
