"""The figures of the stream API and of consumers: batched reads, atomic batches, many subjects, pulls, key-value.

Here nats-server runs with its lazy default (it acks before it fsyncs), as most people run it; jetcluster fsyncs on a
majority before it acks, as always.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import batches, consumers, loads, reads
from bench.result import cpu_seconds
from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually, resident

SIZE = 128
MESSAGES = 200_000
KEYS = 500
DURABLES = 1000
LARGE = 1_000_000
MISSED = 300_000
SUBJECTS = 1_000_000
GROUPS = 2000
"""The subjects of the large stream are `s.<group>.<n>`: 500 in each group."""

Step = Callable[["Features", ProcessCluster], Awaitable[None]]


class Features:
    """One cluster of one server; `found` is filled as the steps go."""

    def __init__(self, server: str, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.found: dict[str, float] = {}

    async def batched_gets(self, nodes: ProcessCluster) -> None:
        """One connection to one node, then one to each of three."""
        leader = await _stream(nodes, "B", ["b"], replicas=3)
        await loads.js_publish(leader.url, "b", size=SIZE, window=500, count=MESSAGES)
        await nodes.wait_current("B")
        await asyncio.sleep(2.5 if self.server == "nats-server" else 0.5)  # its followers join on a 2 s tick
        one = await reads.batched_gets([leader.url], "B", MESSAGES, seconds=self.seconds)
        three = await reads.batched_gets(nodes.urls, "B", MESSAGES, seconds=self.seconds)
        self.found["batch_1"], self.found["batch_3"] = one.rate, three.rate
        self.found["batch_scaling"] = three.rate / one.rate

    async def wildcards(self, nodes: ProcessCluster) -> None:
        leader = await _stream(nodes, "W", ["w.>"], replicas=3)
        count = 100 * KEYS
        await reads.publish_many(leader.url, lambda n: b"w.%d.%d" % (n % KEYS, n % 7), count, size=SIZE)
        await nodes.wait_current("W")
        url = leader.url
        selective = await reads.wildcard_batches([url], "W", "w.*.3", count // 2, seconds=self.seconds)
        self.found["wildcard"] = selective.rate

    async def multi_last(self, nodes: ProcessCluster) -> None:
        leader = await _stream(nodes, "M", ["m.>"], replicas=3)
        await reads.publish_many(leader.url, lambda n: b"m.%d" % (n % KEYS), 20 * KEYS, size=SIZE)
        await nodes.wait_current("M")
        found = await reads.multi_last([leader.url], "M", lambda n: b"m.*", KEYS, seconds=self.seconds)
        self.found["multi_last"] = found.rate

    async def atomic(self, nodes: ProcessCluster) -> None:
        for key, replicas, batch in (("atomic_r3", 3, 1000), ("atomic_r1", 1, 100)):
            leader = await _stream(nodes, key.upper(), [key], replicas=replicas, allow_atomic=True)
            await batches.atomic_publish(leader.url, key, batch=batch, size=SIZE, seconds=0.5)
            done = await batches.atomic_publish(leader.url, key, batch=batch, size=SIZE, seconds=self.seconds)
            self.found[key] = done.rate

    async def consumers(self, nodes: ProcessCluster) -> None:
        leader = await _stream(nodes, "C", ["c"], replicas=3)
        await loads.js_publish(leader.url, "c", size=SIZE, window=500, count=MESSAGES)
        await nodes.wait_current("C")
        self.found["ordered"] = (await consumers.ordered(leader.url, "C", MESSAGES)).rate
        self.found["fetch"] = (await consumers.fetch(leader.url, "C", MESSAGES // 2)).rate

    async def key_value(self, nodes: ProcessCluster) -> None:
        await consumers.create_bucket(nodes[0].url, 3)
        leader = await nodes.stream_leader(f"KV_{consumers.BUCKET}")
        self.found["kv_put"] = (await consumers.kv_put(leader.url, seconds=self.seconds)).rate
        self.found["kv_get"] = (await consumers.kv_get(leader.url, seconds=self.seconds)).rate

    async def idle_consumers(self, nodes: ProcessCluster) -> None:
        leader = await _stream(nodes, "I", ["i"], replicas=3)
        pids = {node.name: node.pid for node in nodes.nodes}
        idle = await consumers.idle_durables(leader.url, "I", DURABLES, pids=pids)
        spent = [value for name, value in idle.cpu.items() if name != "client"]
        self.found["idle_consumers"] = sum(spent) / idle.seconds * 100

    async def takeover(self, nodes: ProcessCluster) -> None:
        """From the SIGKILL of a pull consumer's leader, which leads the stream too, to the next message."""
        leader = await _stream(nodes, "T", ["t"], replicas=3)
        survivor = next(node for node in nodes.nodes if node is not leader)
        await loads.js_publish(leader.url, "t", size=SIZE, window=100, count=1000)
        async with await survivor.connect() as client:
            config = {"durable_name": "d", "ack_policy": "explicit"}
            made = await client.api("CONSUMER.CREATE.T.d", {"stream_name": "T", "config": config})
            owner = nodes.node(made["cluster"]["leader"])
            url = survivor if owner is not survivor else leader
        async with await url.connect() as client:
            # Every request has an inbox of its own: deliveries show the messages' subjects, not the inbox.
            assert await _next(client, "T", "d", 0, 3.0), "no message before the kill"
            start = time.monotonic()
            owner.kill9()
            asked = 1
            while not await _next(client, "T", "d", asked, 0.3):
                assert time.monotonic() - start < 30, "no message within 30 s of the kill"
                asked += 1
            self.found["takeover_s"] = time.monotonic() - start
        await owner.start()


async def many_subjects(server: str, root: Path, seconds: float) -> dict[str, float]:
    """One million subjects in one R1 stream: memory, multi_last out of them, start of the server with them."""
    shutil.rmtree(root, ignore_errors=True)
    found: dict[str, float] = {}
    async with ProcessCluster(1, server, root=root) as nodes:
        node = nodes[0]
        async with await node.connect() as client:
            await create_stream(client, "S", ["s.>"], 1)
        await reads.publish_many(node.url, lambda n: b"s.%d.%d" % (n % GROUPS, n), SUBJECTS, size=32)
        each = SUBJECTS // GROUPS
        found["subjects_rss"] = resident(node.pid) / 2**20
        got = await reads.multi_last(
            [node.url], "S", lambda n: b"s.%d.*" % (n % GROUPS), each, window=1, seconds=seconds
        )
        found["subjects_multi_last_p50"] = statistics.median(got.latencies_ms)
        await node.stop()
        await node.start()
        found["subjects_restart_s"] = node.ready_seconds
        start = time.monotonic()
        async with await node.connect() as client:
            while True:
                reply = await client.request("$JS.API.STREAM.INFO.S", b"", within=30.0)
                if b'"error"' not in reply.data:
                    break
                await asyncio.sleep(0.05)
        found["subjects_restart_s"] += time.monotonic() - start
    return found


async def comebacks(server: str, root: Path) -> dict[str, float]:
    """A follower of an R3 stream with a million messages is killed and started, then kept away while more are stored:
    until it is healthy (it answers, and its replicas are current), and how fast it catches up against how fast the
    leader took in what it lacks."""
    shutil.rmtree(root, ignore_errors=True)
    found: dict[str, float] = {}
    async with ProcessCluster(3, server, root=root, monitor=True) as nodes:
        leader = await _stream(nodes, "R", ["r"], replicas=3)
        await loads.js_publish(leader.url, "r", size=SIZE, window=500, count=LARGE)
        await nodes.wait_current("R", within=60)
        node = next(node for node in nodes.nodes if node is not leader)
        node.kill9()
        found["restart_s"] = await _healthy_again(node)
        found["restart_cpu"] = cpu_seconds(node.pid)
        await nodes.wait_current("R", within=60)
        leader = await nodes.stream_leader("R")
        node = next(node for node in nodes.nodes if node is not leader)
        node.kill9()
        taken = await loads.js_publish(leader.url, "r", size=SIZE, window=500, count=MISSED)
        await node.start()
        spent = cpu_seconds(node.pid)
        start = time.monotonic()
        await nodes.wait_current("R", within=120)
        found["catch_up"] = MISSED / (time.monotonic() - start)
        found["catch_up_ratio"] = found["catch_up"] / taken.rate
        found["catch_up_cpu"] = (cpu_seconds(node.pid) - spent) / MISSED * 1e6
    return found


async def _healthy_again(node: Node) -> float:
    """Seconds from its start until all that the node holds is current, as its own /healthz says it."""

    async def healthy() -> bool:
        with contextlib.suppress(OSError):
            return (await node.monitor("healthz")).get("status") == "ok"
        return False

    start = time.monotonic()
    await node.start()
    await eventually(healthy, 60, "not healthy", node, every=0.01)
    return time.monotonic() - start


async def _next(client: Client, stream: str, consumer: str, number: int, seconds: float) -> bool:
    """Asks for one message; True when it came."""
    inbox = f"_INBOX.takeover.{number}"
    answers: asyncio.Queue[bool] = asyncio.Queue()
    sid = client.subscribe(inbox, lambda msg: answers.put_nowait(not msg.header))
    body = b'{"batch":1,"expires":%d}' % int(seconds * 1e9)
    client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, inbox.encode())
    try:
        return await asyncio.wait_for(answers.get(), seconds + 0.1)
    except TimeoutError:
        return False
    finally:
        client.unsubscribe(sid)
        if answers.empty():
            await asyncio.sleep(0.01)


async def _stream(nodes: ProcessCluster, name: str, subjects: list[str], *, replicas: int, **config: Any) -> Node:
    """Creates it and returns its leader."""
    async with await nodes[0].connect() as client:
        await create_stream(client, name, subjects, replicas, **config)
    return await nodes.stream_leader(name)
