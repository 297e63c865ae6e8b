"""Sources on the wire: also for `--server nats-server`, but where it says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import read_all, wait_newest
from tests.cluster.link_client import (
    fresh,
    info,
    leaders_killed_under_load,
    publish,
    reached,
    settled,
    stored,
    upstream,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.thorough]


async def sourcing(client: Client, name: str, *sources: dict[str, Any], **config: Any) -> dict[str, Any]:
    body = {"name": name, "sources": list(sources), "allow_direct": True, **config}
    return await client.api(f"STREAM.CREATE.{name}", body)


async def wait_for(client: Client, name: str, messages: int, within: float = 25.0) -> None:
    await reached(client, name, 0, within, messages=messages)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_two_sources_and_own_messages(shared: ProcessCluster, replicas: int) -> None:
    one, two, name = fresh("A"), fresh("B"), fresh("S")
    async with await shared[0].connect() as client, await shared[2].connect() as other:
        for up in (one, two):
            await create_stream(client, up, [f"{up}.>"], replicas)
        await settled(shared, client)
        await publish(client, f"{one}.x", *(b"a%d" % n for n in range(10)))
        await client.api(f"STREAM.MSG.DELETE.{one}", {"seq": 4})
        created = await sourcing(other, name, {"name": one}, {"name": two}, subjects=[name], num_replicas=replicas)
        assert created["config"]["subjects"] == [name]
        await settled(shared, client)
        await wait_for(client, name, 9)
        await publish(client, name, b"own")
        await publish(client, f"{two}.y.z", *(b"b%d" % n for n in range(5)))
        await wait_for(client, name, 15)
        found = await stored(client, name)
        assert [m.seq for m in found] == list(range(1, 16))
        assert [m.data for m in found if m.subject == f"{one}.x"] == [b"a%d" % n for n in range(10) if n != 3]
        assert [m.data for m in found if m.subject == f"{two}.y.z"] == [b"b%d" % n for n in range(5)]
        origins = [m.source.split(" ") for m in found if m.subject == f"{one}.x"]
        assert [parts[:5] for parts in origins] == [[one, str(n), ">", ">", f"{one}.x"] for n in range(1, 11) if n != 4]
        assert [m.source for m in found if m.data == b"own"] == [""]
        shown = {entry["name"]: entry for entry in (await info(client, name))["sources"]}
        assert shown[one]["lag"] == shown[two]["lag"] == 0
        assert "error" not in shown[one] and shown[two]["active"] >= 0
        last = (await info(client, one))["state"]
        assert last["messages"] == 9


@pytest.mark.parametrize("kind", ["mirror", "sources"])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_a_consumer_of_the_users_own(shared: ProcessCluster, kind: str, retention: str) -> None:
    """ADR-60: it says where to begin and what to take, can be paused, and goes on after the reading stream."""
    up, name = fresh("A"), fresh("S")
    async with await shared[0].connect() as client:
        stream = {"name": up, "subjects": [f"{up}.*"], "retention": retention, "num_replicas": 3}
        await client.api(f"STREAM.CREATE.{up}", stream)
        for n in range(1, 7):
            await publish(client, f"{up}.{'ab'[n % 2]}", b"%d" % n)
        consumer = {
            "durable_name": "own", "ack_policy": "flow_control", "deliver_subject": f"deliver.{up}",
            "filter_subject": f"{up}.a", "flow_control": True, "idle_heartbeat": 10**9, "max_deliver": -1,
        }  # fmt: skip
        await client.api(f"CONSUMER.CREATE.{up}.own.{up}.a", {"stream_name": up, "config": consumer})
        link = {"name": up, "consumer": {"name": "own", "deliver_subject": f"deliver.{up}"}}
        body = {"name": name, "allow_direct": True, kind: link if kind == "mirror" else [link]}
        created = await client.api(f"STREAM.CREATE.{name}", body)
        shown = created["config"][kind] if kind == "mirror" else created["config"][kind][0]
        assert shown["consumer"] == link["consumer"]
        await wait_for(client, name, 3)
        for n in range(7, 11):
            await publish(client, f"{up}.{'ab'[n % 2]}", b"%d" % n)
        await wait_for(client, name, 5)
        assert [m.data for m in await stored(client, name)] == [b"2", b"4", b"6", b"8", b"10"]

        async def acknowledged() -> bool:
            state = await client.api(f"CONSUMER.INFO.{up}.own")
            return bool(state["ack_floor"]["stream_seq"] == 10) and not state["num_ack_pending"]

        await eventually(acknowledged, 20, "the consumer does not hear what was stored")
        left = (await info(client, up))["state"]["messages"]
        assert left == (10 if retention == "limits" else 5)
        await client.api(f"STREAM.DELETE.{name}")
        assert (await client.api(f"CONSUMER.INFO.{up}.own"))["name"] == "own"


async def test_filters_transforms_and_starts(shared: ProcessCluster) -> None:
    async with upstream(shared, ".*") as (client, up, name):
        for n in range(1, 10):
            await publish(client, f"{up}.{'abc'[n % 3]}", b"%d" % n)
        await sourcing(
            client,
            name,
            {"name": up, "filter_subject": f"{up}.a", "opt_start_seq": 4},
            {"name": up, "subject_transforms": [{"src": f"{up}.b", "dest": "to.b"}]},
            {"name": up, "subject_transforms": [{"src": f"{up}.c", "dest": ""}]},
            subject_transform={"src": "to.*", "dest": "then.$1"},
        )
        await wait_for(client, name, 8)
        await asyncio.sleep(0.3)
        found = await stored(client, name)
        assert [(m.data, m.subject) for m in found if m.subject.endswith(".a")] == [
            (b"6", f"{up}.a"),
            (b"9", f"{up}.a"),
        ]
        assert [(m.data, m.subject) for m in found if m.subject == "then.b"] == [
            (b"%d" % n, "then.b") for n in (1, 4, 7)
        ]
        assert [m.data for m in found if m.subject == f"{up}.c"] == [b"2", b"5", b"8"]
        by_b = next(m.source for m in found if m.subject == "then.b").split(" ")
        assert by_b[:5] == [up, "1", f"{up}.b", "to.b", f"{up}.b"]


async def test_a_source_comes_and_goes(shared: ProcessCluster) -> None:
    async with upstream(shared) as (client, up, name):
        await publish(client, up, b"1", b"2")
        created = await sourcing(client, name, {"name": up}, subjects=[name])
        await wait_for(client, name, 2)
        config = created["config"]
        without = {key: value for key, value in config.items() if key != "sources"}
        changed = await client.api(f"STREAM.UPDATE.{name}", without)
        assert "sources" not in changed
        await settled(shared, client)
        await publish(client, up, b"3", b"4")
        await publish(client, name, b"own")
        await asyncio.sleep(0.3)
        assert len(await stored(client, name)) == 3
        await client.api(f"STREAM.UPDATE.{name}", config)
        await wait_for(client, name, 5)
        assert [m.data for m in await stored(client, name)] == [b"1", b"2", b"own", b"3", b"4"]


async def test_an_upstream_created_anew_is_read_from_its_beginning(shared: ProcessCluster) -> None:
    async with upstream(shared) as (client, up, name):
        await publish(client, up, b"old1", b"old2", b"old3")
        await sourcing(client, name, {"name": up})
        await wait_for(client, name, 3)
        await client.api(f"STREAM.DELETE.{up}")
        await create_stream(client, up, [up], 1)
        await settled(shared, client)
        await publish(client, up, b"new1")
        await wait_for(client, name, 4, within=60)
        assert [m.data for m in await stored(client, name)] == [b"old1", b"old2", b"old3", b"new1"]


async def test_message_ids_of_two_sources(shared: ProcessCluster) -> None:
    one, two, name = fresh("A"), fresh("B"), fresh("S")
    async with await shared[0].connect() as client:
        for up in (one, two):
            await create_stream(client, up, [up], 1)
        await settled(shared, client)
        for up in (one, two):
            await client.request(up, b"same", headers={"Nats-Msg-Id": "same"})
            await client.request(up, up.encode(), headers={"Nats-Msg-Id": up})
        await sourcing(client, name, {"name": one}, {"name": two}, duplicate_window=60 * 10**9)
        await wait_for(client, name, 3)
        await asyncio.sleep(0.5)
        assert sorted(m.data for m in await stored(client, name)) == sorted([b"same", one.encode(), two.encode()])


@pytest.mark.parametrize("victim", ["upstream", "sourcing"])
async def test_leaders_are_killed_under_load(cluster: ProcessCluster, victim: str) -> None:
    """Every message of the upstream comes once and in order, though leaders die on the way."""
    async with await cluster[0].connect() as client:
        await create_stream(client, "UP", ["up"], 3)
        await settled(cluster, client)
        await sourcing(client, "S", {"name": "UP"}, num_replicas=3)
    ledger = await leaders_killed_under_load(cluster, "UP" if victim == "upstream" else "S")
    async with await cluster[0].connect() as client:
        last = (await info(client, "UP"))["state"]["last_seq"]
        await reached(client, "S", last, within=60)
        await asyncio.sleep(1.0)
        await wait_newest(client, "UP")
        await wait_newest(client, "S")
        theirs = await read_all(client, "UP", last=last)
        copied = await read_all(client, "S")
        assert len(ledger.acked) > 100
        assert set(ledger.acked) <= set(theirs.values())
        assert list(copied.values()) == list(theirs.values())


@pytest.mark.ours("nats-server drops what a full stream does not take")
async def test_a_full_stream_goes_on_later(shared: ProcessCluster) -> None:
    up, name = fresh("A"), fresh("S")
    async with await shared[0].connect() as client:
        await create_stream(client, up, [up], 1)
        await publish(client, up, *(b"%d" % n for n in range(10)))
        await sourcing(client, name, {"name": up}, max_msgs=4, discard="new")

        async def full() -> bool:
            found = await info(client, name)
            return found["sources"][0].get("error", {}).get("err_code") == 10077 and found["state"]["messages"] == 4

        await eventually(full, 10, "not full")
        await client.api(f"STREAM.PURGE.{name}")
        await reached(client, name, 8, within=30)
        assert [m.data for m in await stored(client, name)] == [b"4", b"5", b"6", b"7"]


async def test_a_counter_with_sources(shared: ProcessCluster) -> None:
    """ADR-49: its total is the sum of its upstreams' and of its own increments, though leaders change meanwhile, an
    upstream is purged, and messages may be lost or come again on the way."""
    ups, name = [fresh("A"), fresh("B")], fresh("S")
    sources = [{"name": up, "subject_transforms": [{"src": f"{up}.*", "dest": f"{name}.t"}]} for up in ups]
    async with await shared[0].connect() as client, await shared[2].connect() as other:

        async def count(subject: str, increment: int) -> None:
            """It counts once, as it has an id, even if its answer is lost while leaders change."""
            headers = {"Nats-Incr": str(increment), "Nats-Msg-Id": fresh("id")}
            answers: list[dict[str, Any]] = []

            async def counted() -> bool:
                with contextlib.suppress(ClientError, TimeoutError, ValueError):
                    answers.append((await other.request(subject, b"", within=2.0, headers=headers)).json())
                    return "seq" in answers[-1]
                return False

            await eventually(counted, 20, f"{subject} does not count: {answers[-1:]}", every=0.1)

        async def load(subject: str) -> None:
            for n in range(40):
                await count(subject, n - 10)
                await asyncio.sleep(0.02)

        for up in ups:
            await create_stream(client, up, [f"{up}.*"], 3, allow_msg_counter=True)
        await count(f"{ups[0]}.x", 5)
        await sourcing(
            client, name, *sources, subjects=[f"{name}.*"], num_replicas=3, allow_msg_counter=True,
            duplicate_window=60 * 10**9,
        )  # fmt: skip
        running = asyncio.gather(*(load(subject) for subject in (f"{ups[0]}.x", f"{ups[1]}.y", f"{name}.t")))
        for stream in (name, ups[0], name):
            await asyncio.sleep(0.4)
            with contextlib.suppress(ClientError, TimeoutError):
                await client.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        await running
        each = sum(range(-10, 30))
        await eventually(lambda: _says(client, name, f"{name}.t", 5 + 3 * each), 20, "not the sum")
        await client.api(f"STREAM.PURGE.{ups[1]}")
        await count(f"{ups[1]}.y", 7)
        await eventually(lambda: _says(client, name, f"{name}.t", 5 + 2 * each + 7), 20, "not the sum")
        await count(f"{name}.t", 1)
        await eventually(lambda: _says(other, name, f"{name}.t", 5 + 2 * each + 8), 20, "not the sum")
        newest = await other.request(f"$JS.API.DIRECT.GET.{name}.{name}.t", b"", within=5.0)
        seen = {ups[0]: {f"{ups[0]}.x": str(5 + each)}, ups[1]: {f"{ups[1]}.y": "7"}}
        assert json.loads(newest.get("Nats-Counter-Sources") or "") == seen


async def _says(client: Client, stream: str, subject: str, total: int) -> bool:
    with contextlib.suppress(ClientError, TimeoutError, ValueError):
        newest = await client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", within=2.0)
        return bool(newest.status == 0 and newest.json()["val"] == str(total))
    return False
