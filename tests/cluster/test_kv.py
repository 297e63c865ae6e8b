"""Key-value buckets on the wire, as nats.go and the seeds ask for them."""

from __future__ import annotations

import contextlib
import itertools
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testkit.client import Client, ClientError, Msg
from testkit.consumer_client import SECOND, Inbox, Jet, ack_fields
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster
_numbers = itertools.count(1)


class Bucket:
    def __init__(self, jet: Jet, name: str) -> None:
        self.jet = jet
        self.client = jet.client
        self.name = name
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."

    def config(self, **more: Any) -> dict[str, Any]:
        """The configuration that nats.go sends."""
        return {
            "name": self.stream, "subjects": [f"{self.prefix}>"], "retention": "limits", "max_consumers": -1,
            "max_msgs_per_subject": 1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1,
            "storage": "file", "discard": "new", "num_replicas": self.jet.replicas, "duplicate_window": 120 * SECOND,
            "allow_rollup_hdrs": True, "deny_delete": True, "deny_purge": False, "allow_direct": True,
            "mirror_direct": False, "compression": "none", **more,
        }  # fmt: skip

    async def create(self, **more: Any) -> dict[str, Any]:
        return await self.client.api(f"STREAM.CREATE.{self.stream}", self.config(**more))

    async def put(self, key: str, value: bytes, **headers: str) -> dict[str, Any]:
        fields = {name.replace("_", "-"): text for name, text in headers.items()} or None
        return (await self.client.request(self.prefix + key, value, 5.0, fields)).json()

    async def get(self, key: str) -> Msg:
        return await self.client.request(f"$JS.API.DIRECT.GET.{self.stream}.{self.prefix}{key}")

    async def watch(self, keys: str = ">", **more: Any) -> tuple[Inbox, int]:
        """Watches as nats.go does, with an ordered consumer on an inbox that was subscribed before. Returns the inbox
        and the number of entries at the beginning."""
        inbox = Inbox(self.client)
        config = {
            "deliver_subject": inbox.subject, "deliver_policy": "last_per_subject", "ack_policy": "none",
            "ack_wait": 22 * 3600 * SECOND, "max_deliver": 1, "filter_subject": self.prefix + keys,
            "replay_policy": "instant", "flow_control": True, "idle_heartbeat": 5 * SECOND, "num_replicas": 1,
            "mem_storage": True, **more,
        }  # fmt: skip
        name = f"w{next(_numbers)}"
        body = {"stream_name": self.stream, "config": {**config, "name": name}}
        created = await self.client.api(f"CONSUMER.CREATE.{self.stream}.{name}.{self.prefix}{keys}", body)
        return inbox, created["num_pending"] + created["delivered"]["consumer_seq"]


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def kv(shared: ProcessCluster, server: str, request: pytest.FixtureRequest) -> AsyncIterator[Bucket]:
    async with await shared[0].connect() as client:
        # A stream first: nats-server refuses replicas until it knows the other nodes.
        jet = await Jet.start(client, f"START{next(_numbers)}", request.param, server)
        bucket = Bucket(jet, f"b{next(_numbers)}")
        yield bucket
        for stream in (bucket.stream, jet.stream):
            with contextlib.suppress(ClientError):  # a test that was skipped has no bucket
                await client.api(f"STREAM.DELETE.{stream}")


async def test_creating_a_bucket_again(kv: Bucket) -> None:
    first = await kv.create()
    again = await kv.create()
    assert (again["created"], again["config"]) == (first["created"], first["config"])
    with pytest.raises(ClientError, match="400/10058"):
        await kv.create(max_msgs_per_subject=5)
    updated = await kv.client.api(f"STREAM.UPDATE.{kv.stream}", kv.config(max_msgs_per_subject=5))
    assert updated["config"]["max_msgs_per_subject"] == 5


async def test_create_update_and_get(kv: Bucket) -> None:
    await kv.create(max_msgs_per_subject=3)
    first = await kv.put("a.b", b"1", Nats_Expected_Last_Subject_Sequence="0")
    assert (first["stream"], first["seq"]) == (kv.stream, 1)
    error = (await kv.put("a.b", b"x", Nats_Expected_Last_Subject_Sequence="0"))["error"]
    assert (error["code"], error["err_code"]) in ((400, 10071), (400, 10164))
    assert (await kv.put("a.b", b"2", Nats_Expected_Last_Subject_Sequence="1"))["seq"] == 2
    await kv.put("other", b"3")
    got = await kv.get("a.b")
    assert (got.data, got.get("Nats-Stream"), got.get("Nats-Subject"), got.get("Nats-Sequence")) == (
        b"2", kv.stream, f"{kv.prefix}a.b", "2",
    )  # fmt: skip
    assert got.get("Nats-Time-Stamp") is not None
    by_revision = await kv.client.request(f"$JS.API.DIRECT.GET.{kv.stream}", b'{"seq":1}')
    assert by_revision.data == b"1"
    message = (await kv.client.api(f"STREAM.MSG.GET.{kv.stream}", {"last_by_subj": f"{kv.prefix}a.b"}))["message"]
    assert (message["seq"], b64decode(message["data"])) == (2, b"2")
    assert (await kv.get("missing")).status == 404
    await kv.put("a.b", b"", KV_Operation="DEL")
    deleted = await kv.get("a.b")
    assert (deleted.data, deleted.get("KV-Operation")) == (b"", "DEL")


async def test_purge(kv: Bucket) -> None:
    await kv.create(max_msgs_per_subject=5)
    for key in ("k", "k", "other", "k"):
        await kv.put(key, b"v")
    await kv.put("k", b"", KV_Operation="PURGE", Nats_Rollup="sub")
    state = (await kv.client.api(f"STREAM.INFO.{kv.stream}"))["state"]
    assert (state["messages"], state["last_seq"]) == (2, 5)
    await kv.put("k", b"again")
    await kv.put("k", b"", KV_Operation="PURGE")  # the seeds' purge has no rollup header
    state = (await kv.client.api(f"STREAM.INFO.{kv.stream}"))["state"]
    assert state["messages"] == (2 if kv.jet.ours else 4)
    assert (await kv.get("k")).get("KV-Operation") == "PURGE"


async def test_watch(kv: Bucket) -> None:
    await kv.create(max_msgs_per_subject=5)
    for key, value in (("a", b"1"), ("a", b"2"), ("b.x", b"3"), ("b.y", b"4")):
        await kv.put(key, value)
    everything, count = await kv.watch()
    assert count == 3
    initial = await everything.take(3)
    assert [(m.subject.decode().removeprefix(kv.prefix), m.data) for m in initial] == [
        ("a", b"2"), ("b.x", b"3"), ("b.y", b"4"),
    ]  # fmt: skip
    assert [ack_fields(m) for m in initial] == [(1, 2, 1, 2), (1, 3, 2, 1), (1, 4, 3, 0)]
    some, count = await kv.watch("b.*")
    assert count == 2
    await some.take(2)
    history, count = await kv.watch("a", deliver_policy="all")
    assert count == 2
    assert [m.data for m in await history.take(2)] == [b"1", b"2"]
    updates, count = await kv.watch(deliver_policy="new")
    assert count == 0
    keys, count = await kv.watch(headers_only=True)
    assert count == 3
    assert [(m.data, m.get("Nats-Msg-Size")) for m in await keys.take(3)] == [(b"", "1")] * 3
    await kv.put("b.z", b"5")
    await kv.put("a", b"", KV_Operation="DEL")
    assert [m.data for m in await updates.take(2)] == [b"5", b""]
    live = await everything.take(2)
    assert [(ack_fields(m)[2], m.get("KV-Operation")) for m in live] == [(4, None), (5, "DEL")]
    assert (await some.one()).data == b"5"
    await some.nothing(0.1)
    nothing, count = await kv.watch("none.*")
    assert count == 0
    await nothing.nothing(0.1)


async def test_many_watchers_begin_with_exactly_what_is_there(kv: Bucket) -> None:
    """While somebody writes: the count of the answer and the entries that have been there agree."""
    await kv.create()
    for n in range(40):
        await kv.put(f"k{n}", b"0")
    for n in range(20):
        kv.client.publish(f"{kv.prefix}k{n}", b"1")
        inbox, count = await kv.watch()
        messages = await inbox.take(count)
        assert count == 40
        assert ack_fields(messages[0])[2] == 1
        # `pending` of the last initial one says what has come since
        assert len({m.subject for m in messages}) + ack_fields(messages[-1])[3] >= 40


async def test_markers_of_limits_are_seen(kv: Bucket) -> None:
    await kv.create(subject_delete_marker_ttl=2 * SECOND, allow_msg_ttl=True)
    inbox, _ = await kv.watch()
    await kv.put("short", b"1", Nats_TTL="1s")
    stored, marker = await inbox.take(2, 8.0)
    assert stored.data == b"1"
    assert (marker.get("Nats-Marker-Reason"), marker.get("Nats-TTL"), marker.data) == ("MaxAge", "2s", b"")
    assert marker.subject == stored.subject


@pytest.mark.ours("nats-server has no DIRECT.GET.LAST")
async def test_the_seeds_get(kv: Bucket) -> None:
    await kv.create(max_msgs_per_subject=5)
    for value in (b"1", b"2", b"3"):
        await kv.put("a.b", value)

    async def readable() -> bool:
        return (await kv.get("a.b")).data == b"3"

    await eventually(readable, 3, "not readable")
    got = await kv.client.request(f"$JS.API.DIRECT.GET.LAST.{kv.stream}.{kv.prefix}a.b")
    assert (got.data, got.get("Nats-Sequence"), got.get("Nats-Num-Pending"), got.get("KV-Operation")) == (
        b"3", "3", "2", None,
    )  # fmt: skip
    assert (await kv.client.request(f"$JS.API.DIRECT.GET.LAST.{kv.stream}.{kv.prefix}none")).status == 404


async def test_two_clients_race_for_a_key(kv: Bucket, shared: ProcessCluster) -> None:
    """Compare and set: of two updates with one revision one wins."""
    await kv.create()
    await kv.put("counter", b"0")
    async with await Client.connect(shared.urls[2]) as other:
        theirs = Bucket(Jet(other, kv.jet.stream, kv.jet.replicas, kv.jet.server), kv.name)
        revision = 1
        for n in range(1, 11):
            futures = [
                bucket.client.request_soon(
                    kv.prefix + "counter", b"%d" % n, {"Nats-Expected-Last-Subject-Sequence": str(revision)}
                )
                for bucket in (kv, theirs)
            ]
            answers = [(await future).json() for future in futures]
            [won] = [answer["seq"] for answer in answers if "seq" in answer and "error" not in answer]
            assert won == revision + 1
            revision = won


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("history", [1, 3])
async def test_a_full_bucket_keeps_to_its_bytes_where_values_are_replaced(
    kv: Bucket, storage: str, history: int
) -> None:
    await kv.create(max_bytes=20_000, storage=storage, max_msgs_per_subject=history)
    for _ in range(history):
        assert "seq" in await kv.put("k", b"v" * (12_000 // history))
    for size in (15_000, 19_000, 75_000):
        answer = await kv.put("k", b"v" * size)
        assert (answer["error"]["err_code"], answer["error"]["description"]) == (10077, "maximum bytes exceeded")
    state = (await kv.client.api(f"STREAM.INFO.{kv.stream}"))["state"]
    assert state["messages"] == history and state["bytes"] <= 20_000
    assert "seq" in await kv.put("j", b"v")
