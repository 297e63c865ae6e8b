"""Consumers and key-value buckets through stock nats-py, as applications use them. R1 and R3."""

from __future__ import annotations

import asyncio
import itertools

import nats
import nats.errors
import pytest
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy
from nats.js.errors import (
    APIError,
    BadRequestError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NotFoundError,
)
from nats.js.kv import KeyValue

from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster
_numbers = itertools.count(1)


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
def replicas(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
async def js(nc: NATS) -> JetStreamContext:
    return nc.jetstream(timeout=10)


async def make_stream(js: JetStreamContext, replicas: int, **config: object) -> str:
    """Name of a new stream on `<name>.>`."""
    name = f"S{next(_numbers)}"
    for _ in range(100):
        try:
            await js.add_stream(name=name, subjects=[f"{name}.>"], num_replicas=replicas, **config)
        except APIError as error:
            if error.err_code != 10005:  # nats-server right after its start
                raise
            await asyncio.sleep(0.05)
        else:
            return name
    raise AssertionError("no stream")


async def fill(js: JetStreamContext, stream: str, count: int, subject: str = "a") -> None:
    for n in range(count):
        await js.publish(f"{stream}.{subject}", b"%d" % n)


async def test_pull_subscribe(js: JetStreamContext, replicas: int) -> None:
    stream = await make_stream(js, replicas)
    await fill(js, stream, 30)
    sub = await js.pull_subscribe(f"{stream}.a", "dur", stream=stream)
    for message in await sub.fetch(10, timeout=5):
        await message.ack()
    for message in await sub.fetch(10, timeout=5):
        await message.ack_sync()
    last = await sub.fetch(20, timeout=1)  # 10 are left: what came by the deadline
    assert [m.data for m in last] == [b"%d" % n for n in range(20, 30)]
    metadata = last[0].metadata
    assert (metadata.stream, metadata.consumer, metadata.num_delivered, metadata.num_pending) == (stream, "dur", 1, 9)
    assert (metadata.sequence.stream, metadata.sequence.consumer) == (21, 21)
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.3)
    await asyncio.sleep(0.2)  # servers may know of the request's end later than nats-py, which then has asked twice
    await last[0].nak()
    await last[1].term()
    await last[2].in_progress()
    [again] = await sub.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"20", 2)
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (9, 0, 1)
    assert info.ack_floor.stream_seq == 20
    bound = await js.pull_subscribe_bind("dur", stream)
    await js.publish(f"{stream}.a", b"more")
    assert (await bound.fetch(1, timeout=5))[0].data == b"more"
    await sub.unsubscribe()
    await js.delete_consumer(stream, "dur")
    with pytest.raises(NotFoundError):
        await js.consumer_info(stream, "dur")


async def test_pulls_with_heartbeats_from_several_nodes(shared: ProcessCluster, replicas: int) -> None:
    connections = [await nats.connect(url) for url in shared.urls]
    contexts = [connection.jetstream(timeout=10) for connection in connections]
    stream = await make_stream(contexts[0], replicas)
    subs = [await js.pull_subscribe(f"{stream}.>", "workers", stream=stream) for js in contexts]
    got: list[bytes] = []

    async def work(sub: JetStreamContext.PullSubscription) -> None:
        while len(got) < 90:
            try:
                for message in await sub.fetch(5, timeout=1, heartbeat=0.3):
                    got.append(message.data)
                    await message.ack_sync()
            except nats.errors.TimeoutError:
                continue
            except APIError as error:  # nats-py asks again with the rest of its second: maybe less than two heartbeats
                assert "heartbeat value too large" in str(error)

    async with asyncio.timeout(30):
        await asyncio.gather(fill(contexts[0], stream, 90), *(work(sub) for sub in subs))
    assert sorted(map(int, got)) == list(range(90))
    for connection in connections:
        await connection.close()


async def test_push_subscribe(js: JetStreamContext, replicas: int) -> None:
    stream = await make_stream(js, replicas)
    await fill(js, stream, 20)
    got: list[bytes] = []
    done = asyncio.Event()

    async def take(message: nats.aio.msg.Msg) -> None:
        got.append(message.data)
        if len(got) == 40:
            done.set()

    sub = await js.subscribe(f"{stream}.>", stream=stream, cb=take, durable="push", idle_heartbeat=1, flow_control=True)
    await fill(js, stream, 20)
    await asyncio.wait_for(done.wait(), 10)
    assert got == [b"%d" % n for n in range(20)] * 2
    await asyncio.sleep(0.2)
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.ack_floor.stream_seq, info.push_bound) == (0, 40, True)
    await sub.unsubscribe()
    plain = await js.subscribe(f"{stream}.>", stream=stream, deliver_policy=DeliverPolicy.LAST, manual_ack=True)
    message = await plain.next_msg(timeout=5)
    assert (message.metadata.sequence.stream, message.data) == (40, b"19")
    await message.ack()


async def test_queue_groups(shared: ProcessCluster, replicas: int) -> None:
    connections = [await nats.connect(url) for url in shared.urls]
    contexts = [connection.jetstream(timeout=10) for connection in connections]
    stream = await make_stream(contexts[0], replicas)
    got: list[list[bytes]] = [[], [], []]

    def taker(at: int):  # type: ignore[no-untyped-def]
        async def take(message: nats.aio.msg.Msg) -> None:
            got[at].append(message.data)

        return take

    for at, js in enumerate(contexts):
        await js.subscribe(f"{stream}.>", queue="workers", stream=stream, cb=taker(at))
        await connections[at].flush()
    await asyncio.sleep(0.3)
    await fill(contexts[0], stream, 90)
    async with asyncio.timeout(10):
        while sum(map(len, got)) < 90:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    assert sorted(int(data) for part in got for data in part) == list(range(90))
    assert all(got)
    for connection in connections:
        await connection.close()


async def test_ordered_consumer(js: JetStreamContext, nc: NATS, replicas: int) -> None:
    stream = await make_stream(js, replicas)
    await fill(js, stream, 100)
    sub = await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True, idle_heartbeat=0.5)
    for n in range(100):
        message = await sub.next_msg(timeout=5)
        assert (message.data, message.metadata.sequence.consumer) == (b"%d" % n, n + 1)
    first = (await sub.consumer_info()).name
    await js.delete_consumer(stream, first)  # the client finds out by missing heartbeats and makes a new one
    await fill(js, stream, 5, "later")
    for n in range(5):
        message = await sub.next_msg(timeout=10)
        assert (message.data, message.metadata.sequence.stream) == (b"%d" % n, 101 + n)
    await sub.unsubscribe()


async def test_consumer_management(js: JetStreamContext, replicas: int) -> None:
    stream = await make_stream(js, replicas)
    await fill(js, stream, 3)
    config = ConsumerConfig(
        durable_name="c", ack_policy=AckPolicy.EXPLICIT, filter_subjects=[f"{stream}.a", f"{stream}.b"],
        metadata={"k": "v"}, max_deliver=3, ack_wait=5, backoff=[1, 2], inactive_threshold=600,
    )  # fmt: skip
    created = await js.add_consumer(stream, config)
    assert (created.num_pending, created.config.backoff, created.config.ack_wait) == (3, [1.0, 2.0], 1.0)
    assert created.config.metadata is not None
    assert created.config.metadata["k"] == "v"
    assert [c.name for c in await js.consumers_info(stream)] == ["c"]
    paused = await js.pause_consumer(stream, "c", pause_until="2090-01-01T00:00:00Z")
    assert paused.paused
    assert (await js.consumer_info(stream, "c")).paused
    assert not (await js.resume_consumer(stream, "c")).paused
    with pytest.raises(BadRequestError) as info:
        await js.add_consumer(stream, ConsumerConfig(durable_name="d", filter_subject="a", filter_subjects=["b"]))
    assert info.value.err_code == 10136
    with pytest.raises(NotFoundError):
        await js.add_consumer("NONE", ConsumerConfig(durable_name="d"))
    assert await js.delete_consumer(stream, "c")


async def test_work_queue(js: JetStreamContext, replicas: int) -> None:
    stream = await make_stream(js, replicas, retention=RetentionPolicy.WORK_QUEUE)
    await fill(js, stream, 5)
    sub = await js.pull_subscribe(f"{stream}.>", "w", stream=stream)
    for message in await sub.fetch(5, timeout=5):
        await message.ack_sync()
    await asyncio.sleep(0.1)
    assert (await js.stream_info(stream)).state.messages == 0
    with pytest.raises(BadRequestError) as info:
        await js.pull_subscribe(f"{stream}.>", "other", stream=stream)
    assert info.value.err_code == 10100


# -- key-value


async def bucket(js: JetStreamContext, replicas: int, **config: object) -> KeyValue:
    for _ in range(100):
        try:
            return await js.create_key_value(bucket=f"b{next(_numbers)}", replicas=replicas, **config)
        except APIError as error:
            if error.err_code != 10005:
                raise
            await asyncio.sleep(0.05)
    raise AssertionError("no bucket")


async def values(watcher: KeyValue.KeyWatcher) -> list[tuple[str, bytes | None, str | None]]:
    """Entries that were there when the watch began: all up to its marker."""
    found = []
    while (entry := await watcher.updates(timeout=5)) is not None:
        found.append((entry.key, entry.value or None, entry.operation))
    return found


@pytest.mark.parametrize("direct", [False, True], ids=["msg_get", "direct"])
async def test_kv(js: JetStreamContext, replicas: int, direct: bool) -> None:
    kv = await bucket(js, replicas, history=5, direct=direct)
    assert await kv.put("a.b", b"1") == 1
    assert await kv.put("a.b", b"2") == 2
    entry = await kv.get("a.b")
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"2", 2)
    assert (await kv.get("a.b", revision=1)).value == b"1"
    assert await kv.create("new", b"x") == 3
    with pytest.raises(KeyWrongLastSequenceError):
        await kv.create("new", b"y")
    assert await kv.update("new", b"z", last=3) == 4
    with pytest.raises(KeyWrongLastSequenceError):
        await kv.update("new", b"w", last=3)
    assert sorted(await kv.keys()) == ["a.b", "new"]
    assert await kv.keys(filters=["a."]) == ["a.b"]
    await kv.delete("a.b")
    with pytest.raises(KeyNotFoundError):
        await kv.get("a.b")
    assert await kv.create("a.b", b"again") == 6
    assert [(e.value or None, e.operation) for e in await kv.history("a.b")] == [
        (b"1", None), (b"2", None), (None, "DEL"), (b"again", None),
    ]  # fmt: skip
    await kv.purge("a.b")
    assert [e.operation for e in await kv.history("a.b")] == ["PURGE"]
    assert await kv.keys() == ["new"]
    with pytest.raises(KeyNotFoundError):
        await kv.get("nothing")
    status = await kv.status()
    assert (status.values, status.history, status.bucket) == (3, 5, kv._name)
    assert (await js.key_value(kv._name))._stream == kv._stream
    await js.delete_key_value(kv._name)
    with pytest.raises(BucketNotFoundError):
        await js.key_value(kv._name)


async def test_kv_watches(js: JetStreamContext, replicas: int) -> None:
    kv = await bucket(js, replicas, history=3)
    everything = await kv.watchall()
    assert await values(everything) == []
    for key, value in (("t.a", b"1"), ("t.a", b"2"), ("t.b", b"3"), ("u", b"4")):
        await kv.put(key, value)
    await kv.delete("t.b")
    live = [await everything.updates(timeout=5) for _ in range(5)]
    assert [(e.key, e.value or None, e.operation) for e in live if e is not None] == [
        ("t.a", b"1", None), ("t.a", b"2", None), ("t.b", b"3", None), ("u", b"4", None), ("t.b", None, "DEL"),
    ]  # fmt: skip
    assert await values(await kv.watch("t.*")) == [("t.a", b"2", None), ("t.b", None, "DEL")]
    assert await values(await kv.watch("t.*", ignore_deletes=True)) == [("t.a", b"2", None)]
    history = await values(await kv.watch("t.>", include_history=True))
    assert history == [("t.a", b"1", None), ("t.a", b"2", None), ("t.b", b"3", None), ("t.b", None, "DEL")]
    headers = await kv.watch("u", meta_only=True)
    entry = await headers.updates(timeout=5)
    assert entry is not None
    assert (entry.key, entry.value or b"", entry.revision) == ("u", b"", 4)
    some = await kv.watch("t.*")
    await values(some)
    await kv.put("t.c", b"new")
    entry = await some.updates(timeout=5)
    assert entry is not None
    assert (entry.key, entry.value, entry.delta) == ("t.c", b"new", 0)
    await some.stop()
    await everything.stop()


async def test_kv_without_keys(js: JetStreamContext, replicas: int) -> None:
    kv = await bucket(js, replicas)
    with pytest.raises(NoKeysError):
        await kv.keys()
    with pytest.raises(NoKeysError):
        await kv.history("k")


async def test_kv_ttl_and_purge_deletes(js: JetStreamContext, replicas: int) -> None:
    kv = await bucket(js, replicas, ttl=1.5, limit_marker_ttl=3)
    await kv.put("old", b"1")
    await kv.create("own", b"2", msg_ttl=1)
    assert (await kv.get("own")).value == b"2"
    async with asyncio.timeout(8):
        while True:
            try:
                await kv.get("old")
                await asyncio.sleep(0.1)
            except KeyNotFoundError:
                break
    lasting = await bucket(js, replicas)
    await lasting.put("k", b"1")
    await lasting.put("gone", b"1")
    await lasting.delete("gone")
    assert await lasting.purge_deletes(olderthan=0)
    assert await lasting.keys() == ["k"]


async def test_many_keys(js: JetStreamContext, replicas: int) -> None:
    kv = await bucket(js, replicas)
    await asyncio.gather(*(kv.put(f"k{n}", b"%d" % n) for n in range(300)))
    assert sorted(await kv.keys(), key=lambda key: int(key[1:])) == [f"k{n}" for n in range(300)]
    watcher = await kv.watchall()
    assert len(await values(watcher)) == 300
