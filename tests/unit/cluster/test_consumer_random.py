"""Random clients of consumers under random faults: every message comes at least once, and none again once its ack, or
its +TERM, was confirmed. Whole nodes in one process, in virtual time; the seed decides everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from jetcluster.errors import ApiError
from testkit.sim.nodes import Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import SECOND, Puller, ask, consumer, filled, host, state

pytestmark = pytest.mark.thorough

NAMES = ("c0", "c1")
MESSAGES = 120
FAULTS_SECONDS = 15.0
Delivery = tuple[bytes, float]
"""Ack subject, and when it came."""


class Account:
    """Deliveries and acks that the clients of one consumer know of."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.settled: dict[int, float] = {}
        """Sequence -> when its ack was confirmed."""
        self.wrong: list[tuple[int, float, float]] = []

    def came(self, seq: int, at: float) -> None:
        self.seen.add(seq)
        if at > self.settled.get(seq, at) + 0.005:  # what was under way to the client then does not count
            self.wrong.append((seq, self.settled[seq], at))


class Load:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rnd = random.Random(seed)
        self.accounts = {name: Account() for name in NAMES}
        self.over = False
        self.published = False

    def someone(self) -> Node:
        return self.rnd.choice(list(self.cluster))

    def anyone_with_it(self) -> Node:
        return next(node for node in self.cluster if node.has("S"))

    async def publish(self) -> None:
        count = 0
        while count < MESSAGES:
            try:
                count += "seq" in await self.someone().publish(b"s", b"%d" % count)
            except (NoRespondersError, TimeoutError):
                await asyncio.sleep(0.02)
            await asyncio.sleep(self.rnd.choice([0, 0.01, 0.05]))
        self.published = True

    async def answer(self, node: Node, name: str, delivery: Delivery) -> None:
        """Acknowledges, mostly."""
        account, seq = self.accounts[name], int(delivery[0].split(b".")[5])
        account.came(seq, delivery[1])
        if self.rnd.random() < 0.1:
            return
        word = self.rnd.choice([b"+ACK"] * 6 + [b"-NAK", b"+WPI", b"+TERM"])
        try:
            _, headers, _ = await node.request(delivery[0], word, 0.5)
        except (NoRespondersError, TimeoutError):
            return
        if not headers and word in (b"+ACK", b"+TERM"):
            account.settled.setdefault(seq, self.cluster.loop.time())

    async def pull(self, name: str) -> None:
        """Clients that come, pull and go, anywhere."""
        while True:
            node = self.someone()
            client = Puller(node, "S", name)
            if not client.pull(self.rnd.choice([1, 5, 20]), expires=0.4):
                await asyncio.sleep(0.05)
                continue
            await asyncio.sleep(self.rnd.choice([0.02, 0.1, 0.45]))
            for _, reply, _ in list(client.got):
                await self.answer(node, name, (reply, self.cluster.loop.time()))
            await asyncio.sleep(0.01)

    async def take_pushes(self, name: str) -> None:
        """A client that now and then moves to another node."""
        queue: list[Delivery] = []
        node: Node | None = None

        def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
            if not headers.startswith(b"NATS/1.0 100"):
                queue.append((reply, self.cluster.loop.time()))
            elif reply and node is not None:
                node.bus.publish(reply)  # flow control

        while True:
            if node is None or self.cluster[node.name] is not node or not node.alive:
                node = self.someone()
                subscription = node.bus.subscribe(b"d." + name.encode(), take)
            if not queue:
                await asyncio.sleep(0.02)
                continue
            await self.answer(node, name, queue.pop(0))
            if self.rnd.random() < 0.01:
                node.bus.unsubscribe(subscription)
                node = None
                await asyncio.sleep(self.rnd.choice([0, 1.0]))

    async def disturb(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._transfer, self._stepdown, self._crash, self._isolate, self._cut, self._flush, self._stand_still,
        ]  # fmt: skip
        while not self.over:
            await asyncio.sleep(self.rnd.uniform(0.1, 1.2))
            await self.rnd.choice(faults)()

    async def _transfer(self) -> None:
        for node in self.cluster:
            if node.has("S") and node.replica("S").leading:
                node.replica("S").group.transfer()

    async def _stepdown(self) -> None:
        try:
            await ask(self.someone(), "S", "consumer_stepdown", name=self.rnd.choice(NAMES), preferred="")
        except ApiError as error:
            assert error.code == 503, error

    async def _crash(self) -> None:
        name = self.someone().name
        self.cluster.crash(name)
        await asyncio.sleep(self.rnd.uniform(0.05, 2.0))
        self.cluster.restart(name)
        await asyncio.sleep(0.5)

    async def _isolate(self) -> None:
        self.cluster.isolate(self.someone().name)
        await asyncio.sleep(self.rnd.uniform(0.02, 3.0))
        self.cluster.heal()

    async def _cut(self) -> None:
        a, b = self.rnd.sample(list(self.cluster), 2)
        self.cluster.network.cut(a.me, b.me)
        await asyncio.sleep(self.rnd.uniform(0.001, 0.6))
        self.cluster.network.heal(a.me, b.me)

    async def _flush(self) -> None:
        await self.someone().js.flusher.flush()

    async def _stand_still(self) -> None:
        node = self.someone()
        if node.has("S"):
            node.services.runtime.pulse._at -= 2.0

    def done(self) -> bool:
        """Everything is acknowledged."""
        if not self.published or not any(node.has("S") for node in self.cluster):
            return False
        node = self.anyone_with_it()
        last = node.replica("S").store.last_seq
        return all(name in host(node).table.by_name and state(node, name).floor_sseq >= last for name in NAMES)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("push", [False, True], ids=["pull", "push"])
@pytest.mark.parametrize("replicas", [1, 3])
@virtual_time
async def test_at_least_once_and_never_again_after_the_ack(replicas: int, push: bool, seed: int) -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0, replicas)
        load = Load(cluster, seed)
        for name in NAMES:
            target = {"deliver_subject": f"d.{name}", "max_waiting": 0} if push else {}
            if push and name == "c1":
                target |= {"flow_control": True, "idle_heartbeat": SECOND // 2}
            await consumer(
                cluster["A"], name, ack_wait=SECOND, max_ack_pending=load.rnd.choice([5, 50, 1000]), **target
            )
        clients = [asyncio.ensure_future((load.take_pushes if push else load.pull)(name)) for name in NAMES]
        publisher = asyncio.ensure_future(load.publish())
        disturber = asyncio.ensure_future(load.disturb())
        await asyncio.sleep(FAULTS_SECONDS)
        load.over = True
        await disturber
        cluster.heal()
        await cluster.until(load.done, 60.0, "everything acknowledged")
        await publisher
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await cluster.equal("S")
        last = load.anyone_with_it().replica("S").store.last_seq
        for name, account in load.accounts.items():
            assert account.seen == set(range(1, last + 1)), name
            assert account.wrong == [], name
        for node in cluster:
            assert "a consumer's owner failed" not in node.log.events("error")
