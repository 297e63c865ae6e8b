"""Atomic batches (ADR-50) on real nodes: answers as nats-server gives them (`--server nats-server` runs the same cases
there), and after every death of a leader, follower or client each batch is whole or absent on all replicas."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from testkit.client import Client, ClientError
from testkit.harness import HarnessError, Node, ProcessCluster, eventually
from testkit.ledger import read_all, wait_direct

pytestmark = [pytest.mark.cluster, pytest.mark.long]

Answer = int | str | dict[str, Any]
"""0: zero bytes; an err_code; a PubAck."""


def headers(batch_id: str, sequence: int, commit: str | None, more: dict[str, str] | None = None) -> dict[str, str]:
    found = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)}
    if commit is not None:
        found["Nats-Batch-Commit"] = commit
    return found | (more or {})


async def send(
    client: Client, subject: str, batch_id: str, sequence: int, commit: str | None = None, data: bytes = b"x",
    **more: str,
) -> Answer:  # fmt: skip
    """One message, as a request. `more` are headers, with _ for -."""
    extra = {key.replace("_", "-"): value for key, value in more.items()}
    msg = await client.request(subject, data, 5.0, headers(batch_id, sequence, commit, extra))
    if msg.status:
        return f"status {msg.status}"
    if not msg.data:
        return 0
    reply = msg.json()
    if "error" in reply:
        assert set(reply["error"]) == {"code", "err_code", "description"} and reply["seq"] == 0
        return int(reply["error"]["err_code"])
    return reply


async def create(client: Client, name: str, replicas: int, **config: object) -> None:
    base = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, "allow_direct": True}
    await client.api(f"STREAM.CREATE.{name}", base | {"allow_atomic": True} | config)


async def update(client: Client, name: str, **config: object) -> None:
    info = await client.api(f"STREAM.INFO.{name}")
    await client.api(f"STREAM.UPDATE.{name}", info["config"] | config)


async def state(client: Client, name: str) -> tuple[int, int]:
    """Messages, last sequence."""
    found = (await client.api(f"STREAM.INFO.{name}"))["state"]
    return found["messages"], found["last_seq"]


@pytest.fixture(params=["R1", "R3"])
async def nodes(request: pytest.FixtureRequest, server: str) -> Any:
    count = 1 if request.param == "R1" else 3
    config = 'jetstream { limits { batch { max_msgs: 20, timeout: "1s", max_inflight_per_stream: 3 } } }\n'
    async with ProcessCluster(count, server, config=config) as cluster:
        yield cluster


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_conversation(nodes: ProcessCluster, storage: str) -> None:
    """One stream after the other on the same nodes, message by message."""
    replicas = len(nodes.nodes)
    events: list[dict[str, Any]] = []
    async with await nodes[-1 % replicas].connect() as client:
        client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*", lambda msg: events.append(msg.json()))
        await create(client, "A", replicas, storage=storage)
        await eventually(lambda: _leads(client, "A"), 10, "A has no leader")
        assert [await send(client, "A.x", "b", n) for n in (1, 2)] == [0, 0]
        assert await state(client, "A") == (0, 0), "nothing is stored before the commit"
        assert await send(client, "A.x", "b", 3, "1") == {"stream": "A", "seq": 3, "batch": "b", "count": 3}
        assert await send(client, "A.x", "b", 3, "1") == 10176
        assert await send(client, "A.x", "e", 1, Foo="1", Nats_Required_Api_Level="2") == 0
        assert await send(client, "A.x", "e", 2, "eob", b"no") == {"stream": "A", "seq": 4, "batch": "e", "count": 1}
        stored = await client.request("$JS.API.DIRECT.GET.A", b'{"seq":4}')
        assert stored.header.startswith(
            b"NATS/1.0\r\nNats-Batch-Id: e\r\nNats-Batch-Sequence: 1\r\n"
            b"Foo: 1\r\nNats-Batch-Commit: 1\r\nNats-Stream: A"
        )
        assert [await send(client, "A.x", "g", n) for n in (1, 3, 4)] == [0, 10176, 10176]
        assert [await send(client, "A.x", "c", n, c) for n, c in ((1, None), (2, ""), (3, "1"))] == [0, 10200, 10176]
        assert await send(client, "A.x", "i" * 65, 1, "1") == 10179
        assert await send(client, "A.x", "l", 1, Nats_Required_Api_Level="99") == 10185
        assert await send(client, "A.x", "m", 21) == 10199
        # expectations look at the stream before the batch; a refusal takes no sequence
        last = "Nats_Expected_Last_Sequence"
        assert [await send(client, "A.x", "k", 1), await send(client, "A.x", "k", 2, "1", **{last: "5"})] == [0, 10164]
        assert [await send(client, "A.x", "k", 1, **{last: "3"}), await send(client, "A.x", "k", 2, "1")] == [0, 10071]
        assert (await send(client, "A.y", "k", 1, "1", **{last: "4"})) == {
            "stream": "A", "seq": 5, "batch": "k", "count": 1}  # fmt: skip
        # switched off and on again: what was staged is gone
        assert await send(client, "A.x", "d", 1) == 0
        await update(client, "A", allow_atomic=False)
        await eventually(lambda: _answers(client, "A.x", "q", 10174), 5, "allow_atomic stays on")
        await update(client, "A", allow_atomic=True)
        await eventually(lambda: _answers(client, "A.x", "q", 0), 5, "allow_atomic stays off")
        assert await send(client, "A.x", "d", 2, "1") == 10176
        # open batches, and how they end
        assert [await send(client, "A.x", f"o{n}", 1) for n in range(3)] == [0, 0, 10210]  # q is open
        await eventually(
            lambda: any((event["batch"], event["reason"]) == ("o1", "timeout") for event in events),
            5,
            "no advisory of a timeout",
        )
        assert await send(client, "A.x", "o1", 2, "1") == 10176
        assert await state(client, "A") == (5, 5)
        told = [(event["batch"], event["reason"]) for event in events]
        assert told == [("g", "incomplete"), ("l", "unsupported"), *told[2:]]
        assert sorted(told[2:]) == [("o0", "timeout"), ("o1", "timeout"), ("q", "timeout")]
        event = events[0]
        assert event.pop("id") and event.pop("timestamp")
        assert event == {
            "type": "io.nats.jetstream.advisory.v1.stream_batch_abandoned", "stream": "A", "batch": "g",
            "reason": "incomplete"}  # fmt: skip


async def _leads(client: Client, name: str) -> bool:
    return bool((await client.api(f"STREAM.INFO.{name}")).get("cluster", {}).get("leader"))


async def _answers(client: Client, subject: str, batch_id: str, expected: Answer) -> bool:
    return await send(client, subject, batch_id, 1) == expected


@pytest.mark.ours("nats-server has neither the event nor the option")
async def test_the_specifications_advisory_and_message_ids(server: str) -> None:
    """Two things are ours alone: the event of the seed, and `compat { batch_msg_id }`."""
    for config in ("", "compat { batch_msg_id: refuse }\n"):
        async with ProcessCluster(1, server, config=config) as nodes, await nodes[0].connect() as client:
            events: list[tuple[bytes, str]] = []
            client.subscribe("$JS.EVENT.ADVISORY.>", lambda msg, e=events: e.append((msg.subject, msg.json()["type"])))
            await create(client, "A", 1)
            answers = [await send(client, "A.x", "b", 1, "1", Nats_Msg_Id="1") for _ in range(2)]
            ack = {"stream": "A", "seq": 1, "batch": "b", "count": 1}
            assert answers == ([10177, 10177] if config else [ack, 10201])
            await send(client, "A.x", "b", 1)
            await send(client, "A.x", "b", 7)
            await client.flush()
            told = [(subject, kind) for subject, kind in events if b"BATCH" in subject]
            assert told == [
                (
                    b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.A",
                    "io.nats.jetstream.advisory.v1.stream_batch_abandoned",
                ),
                (b"$JS.EVENT.ADVISORY.BATCH_ABANDONED.A", "io.nats.jetstream.advisory.v1.batch_abandoned"),
            ]


@dataclass
class Batches:
    """Every batch that was ever begun: its size, and what its client knows."""

    sizes: dict[str, int] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    """Batch -> last sequence."""
    refused: set[str] = field(default_factory=set)
    never_committed: set[str] = field(default_factory=set)
    _names: Any = field(default_factory=itertools.count)

    def begin(self, size: int) -> str:
        name = f"b{next(self._names)}"
        self.sizes[name] = size
        return name

    def check(self, stored: dict[int, bytes]) -> None:
        """Whole or absent, in one piece and in order; what was acked is there, what was refused is not."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for seq, payload in sorted(stored.items()):
            name, _, number = payload[:32].rstrip(b".").decode().partition("/")
            found[name].append((seq, int(number)))
        for name, messages in found.items():
            first = messages[0][0]
            whole = [(first + n, n + 1) for n in range(self.sizes[name])]
            assert messages == whole, f"{name}: {len(messages)} of {self.sizes[name]} messages, {messages[:5]}"
        assert self.acked, "nothing was acked: this check would be empty"
        lost = [name for name, last in self.acked.items() if name not in found or found[name][-1][0] != last]
        assert not lost, f"acked, and lost or moved: {lost}"
        there = [name for name in self.refused | self.never_committed if name in found]
        assert not there, f"refused or never committed, and stored: {there}"


def payload(name: str, number: int, size: int) -> bytes:
    return f"{name}/{number}".encode().ljust(max(size, 32), b".")


async def publish_batch(client: Client, batches: Batches, size: int, *, bytes_each: int = 32, wait: bool = True) -> str:
    """Sends a whole batch; without `wait` returns as soon as the commit is written."""
    name = batches.begin(size)
    for n in range(1, size):
        client.publish("S.x", payload(name, n, bytes_each), b"", headers(name, n, None))
    future = client.request_soon("S.x", payload(name, size, bytes_each), headers(name, size, "1"))
    future.add_done_callback(lambda done: book(batches, name, done))
    if wait:
        with contextlib.suppress(TimeoutError, ClientError):
            async with asyncio.timeout(5):
                await asyncio.shield(future)
    else:
        await client.drain()
    return name


def book(batches: Batches, name: str, done: asyncio.Future[Any]) -> None:
    if done.cancelled() or done.exception() is not None:
        return
    msg = done.result()
    if msg.status or not msg.data:
        return
    reply = json.loads(msg.data)
    if "error" in reply:
        batches.refused.add(name)
    else:
        assert reply["count"] == batches.sizes[name] and reply["batch"] == name
        batches.acked[name] = reply["seq"]


async def check_every_node(cluster: ProcessCluster, batches: Batches) -> None:
    # A commit whose ack was lost may be stored behind the last one acked: a replica must have that too.
    last = (await cluster.wait_current("S"))["state"]["last_seq"]
    copies = []
    for node in cluster.nodes:
        async with await node.connect() as client:
            await wait_direct(client, "S", last)
            copies.append(await read_all(client, "S"))
            batches.check(copies[-1])
    assert copies[0] == copies[1] == copies[2]


async def background(cluster: ProcessCluster, batches: Batches, stop: asyncio.Event, seed: int) -> None:
    """Batches of all sizes through all nodes, whatever happens to them."""
    rng = random.Random(seed)
    while not stop.is_set():
        node = rng.choice(cluster.nodes)
        try:
            async with await node.connect(within=1.0) as client:
                for _ in range(rng.randrange(1, 6)):
                    await publish_batch(client, batches, rng.randrange(1, 40))
        except (ClientError, OSError, TimeoutError):
            await asyncio.sleep(0.05)


STAGES = ["before the commit", "right after the commit was sent", "after the ack"]


@pytest.mark.parametrize("bytes_each", [32, 300_000], ids=["one entry", "in parts"])
@pytest.mark.parametrize("victim", ["leader", "follower", "client"])
async def test_death_at_every_stage(cluster: ProcessCluster, victim: str, bytes_each: int) -> None:
    batches = Batches()
    async with await cluster[0].connect() as client:
        await create(client, "S", 3)
    stop = asyncio.Event()
    others = asyncio.create_task(background(cluster, batches, stop, 1))
    try:
        for round_, stage in enumerate(STAGES * (2 if bytes_each == 32 else 1)):
            await one_death(cluster, batches, victim, stage, round_, bytes_each)
    finally:
        stop.set()
        await others
    await check_every_node(cluster, batches)


async def one_death(
    cluster: ProcessCluster, batches: Batches, victim: str, stage: str, round_: int, bytes_each: int
) -> None:
    leader = await cluster.stream_leader("S")
    followers = [node for node in cluster.nodes if node is not leader]
    node = leader if victim == "leader" else followers[round_ % 2]
    survivor = next(n for n in followers if n is not node)
    client = await (survivor if victim != "client" else node).connect()
    staged = batches.begin(20)
    batches.never_committed.add(staged)
    for n in range(1, 15):
        client.publish("S.x", payload(staged, n, bytes_each // 10), b"", headers(staged, n, None))
    await client.flush()
    if stage != "before the commit":
        await publish_batch(client, batches, 20, bytes_each=bytes_each, wait=stage == "after the ack")
        await asyncio.sleep(random.Random(round_).uniform(0, 0.03) if stage != "after the ack" else 0)
    if victim == "client":
        client.close()
        return
    node.kill9()
    await asyncio.sleep(0.3)
    await node.start()
    await cluster.wait_current("S")
    with contextlib.suppress(ClientError, TimeoutError):
        # the batch that was staged when a leader died is unknown to the next one; nothing of it may ever show up
        answer = await send(client, "S.x", staged, 15, None, payload(staged, 15, 32))
        assert answer in ((10176, "status 503") if victim == "leader" else (0, 10176)), answer
    client.close()


async def test_the_leader_steps_aside_in_the_middle_of_a_batch(tidy: ProcessCluster) -> None:
    async with await tidy[0].connect() as client:
        await create(client, "S", 3)
        leader = await tidy.stream_leader("S")
        assert await send(client, "S.x", "b", 1) == 0
        await client.api("STREAM.LEADER.STEPDOWN.S")
        await eventually(lambda: _other_leader(tidy, leader), 15, "no other leader")

        async def unknown() -> bool:
            return await send(client, "S.x", "b", 2, "1") == 10176

        await eventually(unknown, 10, "the batch is not unknown to the new leader")
        assert await send(client, "S.x", "b", 1, "1") == {"stream": "S", "seq": 1, "batch": "b", "count": 1}


async def _other_leader(cluster: ProcessCluster, old: Node) -> bool:
    with contextlib.suppress(HarnessError):
        return await cluster.stream_leader("S", within=1.0) is not old
    return False


async def test_no_reply_shows_part_of_a_batch(tidy: ProcessCluster, server: str) -> None:
    """Readers on all three nodes during many commits: what one reply holds and announces is a multiple of a batch."""
    size = 7
    batches = Batches()
    async with await tidy[0].connect() as client:
        await create(client, "S", 3)
        await publish_batch(client, batches, size)
        for node in tidy.nodes:
            async with await node.connect() as reader:
                await wait_direct(reader, "S", size)
        deadline = time.monotonic() + 4

        async def write() -> None:
            while time.monotonic() < deadline:
                await publish_batch(client, batches, size)

        async def read(node: Node) -> int:
            replies = 0
            async with await node.connect() as reader:
                while time.monotonic() < deadline:
                    first = await reader.request("$JS.API.DIRECT.GET.S", b'{"seq":1,"batch":1}')
                    assert (int(first.get("Nats-Num-Pending") or 0) + 1) % size == 0
                    last = (await state(reader, "S"))[1]
                    if server == "jetcluster":  # nats-server's STREAM.INFO shows batches half stored
                        assert last % size == 0
                    answers = await reader.gather(
                        "$JS.API.DIRECT.GET.S", b'{"seq":%d,"batch":1000}' % (last - size + 1)
                    )
                    assert (len(answers) - 1) % size == 0
                    replies += 1
            return replies

        counts = await asyncio.gather(write(), *map(read, tidy.nodes))
    assert len(batches.acked) > 20 and all(count and count > 20 for count in counts[1:]), (len(batches.acked), counts)
