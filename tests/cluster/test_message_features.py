"""Features of single messages on real nodes: TTLs and markers, counters, schedules, rollups, transforms, republish.
Answers and stored bytes are those of nats-server 2.15.2 (`--server nats-server` runs the same cases there)."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from datetime import UTC, datetime, timedelta

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import publish_all, read_all, wait_direct

pytestmark = pytest.mark.cluster


async def publish(client: Client, subject: str, data: bytes = b"", **headers: str) -> str:
    """The PubAck as text; `headers` with _ for -."""
    fields = {key.replace("_", "-"): value for key, value in headers.items()}
    return (await client.request(subject, data, 5.0, fields or None)).data.decode()


async def stored(client: Client, stream: str) -> list[tuple[str, str, str]]:
    """Subject, header block without its version line and end, payload."""
    state = (await client.api(f"STREAM.INFO.{stream}"))["state"]
    found = []
    for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
        try:
            message = (await client.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"]
        except ClientError:
            continue
        headers = b64decode(message.get("hdrs", "")).decode().removeprefix("NATS/1.0\r\n").strip()
        found.append((message["subject"], headers, b64decode(message.get("data", "")).decode()))
    return found


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def taken(client: Client, stream: str, subject: str) -> float:
    """Unix time at which the last message of `subject` was stored; it is waited for."""

    async def there() -> bool:
        return not (await client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")).status

    await eventually(there, 5, f"{subject} in {stream}", every=0.05)
    text = (await client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")).get("Nats-Time-Stamp")
    assert text is not None
    return datetime.fromisoformat(text.rstrip("Z")[:26].ljust(26, "0")).replace(tzinfo=UTC).timestamp()


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
def replicas(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def test_counters_rollups_transforms_republish(tidy: ProcessCluster, replicas: int) -> None:
    heard: list[tuple[str, str | None, str | None, bytes]] = []
    async with await tidy[0].connect() as client, await tidy[1].connect() as other:
        other.subscribe(
            "out.>",
            lambda m: heard.append((m.subject.decode(), m.get("Nats-Sequence"), m.get("Nats-Last-Sequence"), m.data)),
        )
        await other.flush()
        await create_stream(client, "C", ["c.>"], replicas, allow_msg_counter=True)
        await create_stream(client, "R", ["r.>"], replicas, allow_rollup_hdrs=True)
        await create_stream(
            client, "T", ["t.*"], replicas,
            subject_transform={"src": "t.*", "dest": "mapped.$1"}, republish={"src": "mapped.*", "dest": "out.$1"},
        )  # fmt: skip
        assert [await publish(client, "c.a", Nats_Incr=n) for n in ("5", "-7")] == [
            '{"stream":"C","seq":1,"val":"5"}', '{"stream":"C","seq":2,"val":"-2"}',
        ]  # fmt: skip
        assert '"err_code":10169' in (await publish(client, "c.a")).replace(" ", "")
        assert await stored(client, "C") == [
            ("c.a", "Nats-Incr: 5", '{"val":"5"}'), ("c.a", "Nats-Incr: -7", '{"val":"-2"}'),
        ]  # fmt: skip
        for subject in ("r.a", "r.b", "r.a"):
            await publish(client, subject, b"old")
        await publish(client, "r.a", b"new", Nats_Rollup="sub")
        assert [(subject, data) for subject, _, data in await stored(client, "R")] == [("r.b", "old"), ("r.a", "new")]
        for data in (b"1", b"2"):
            await publish(client, "t.x", data, User="u")
        assert await stored(client, "T") == [("mapped.x", "User: u", "1"), ("mapped.x", "User: u", "2")]
        await eventually(lambda: len(heard) == 2, 5.0, "nothing was republished")
    assert heard == [("out.x", "1", "0", b"1"), ("out.x", "2", "1", b"2")]


async def test_a_rollup_of_many_messages_has_removed_them_when_it_is_acknowledged(
    tidy: ProcessCluster, replicas: int
) -> None:
    """More of them than one command removes (`jobs.MAX_DIRECT_REMOVALS`), by a client of each server."""
    many = 9_000
    async with await tidy[0].connect() as client:
        await create_stream(client, "R", ["r.>"], replicas, allow_rollup_hdrs=True)
        ledger = await publish_all(client, "r.many", [b"%d" % number for number in range(many)])
        assert len(ledger.acked) == many
        await publish(client, "r.one", b"stays")
        ack = await publish(client, "r.many", b"all", Nats_Rollup="sub")
        assert f'"seq":{many + 2}' in ack.replace(" ", "")
        state = (await client.api("STREAM.INFO.R"))["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (2, many + 1, many + 2)
        oldest = await client.api("STREAM.MSG.GET.R", {"seq": 1, "next_by_subj": "r.many"})
        assert oldest["message"]["seq"] == many + 2
    for node in tidy.nodes if replicas == 3 else ():
        async with await node.connect() as client:
            await wait_direct(client, "R", many + 2)
            await eventually(
                lambda client=client: _has(client, "R", {many + 1, many + 2}), 20, f"{node.name} has others"
            )


async def _has(client: Client, stream: str, seqs: set[int]) -> bool:
    return (await read_all(client, stream)).keys() == seqs


async def test_ttl_markers_and_schedules_in_time(tidy: ProcessCluster, replicas: int) -> None:
    marker = "Nats-Marker-Reason: MaxAge\r\nNats-TTL: 2s\r\nNats-Rollup: sub"
    async with await tidy[0].connect() as client:
        await create_stream(client, "M", ["m.>"], replicas, subject_delete_marker_ttl=2_000_000_000)
        await create_stream(client, "S", ["s.>"], replicas, allow_msg_schedules=True, allow_msg_ttl=True)
        await publish(client, "m.a", b"1", Nats_TTL="2")
        await publish(client, "m.b", b"2")
        await publish(client, "m.b", b"3", Nats_TTL="2")
        await publish(client, "m.c", b"4", Nats_TTL="never")
        await publish(
            client, "s.x", b"later", Own="1",
            Nats_Schedule=f"@at {soon(1)}", Nats_Schedule_Target="s.out", Nats_Schedule_TTL="5m",
        )  # fmt: skip

        async def fired() -> bool:
            return [subject for subject, _, _ in await stored(client, "S")] == ["s.out"]

        await eventually(fired, 6.0, "the schedule did not fire")
        expected = "Own: 1\r\nNats-Scheduler: s.x\r\nNats-Schedule-Next: purge\r\nNats-TTL: 5m"
        assert await stored(client, "S") == [("s.out", expected, "later")]

        async def marked() -> bool:
            wanted = {("m.a", marker, ""), ("m.b", "", "2"), ("m.c", "Nats-TTL: never", "4")}
            return set(await stored(client, "M")) == wanted

        await eventually(marked, 8.0, "no marker")

        async def unmarked() -> bool:
            return [subject for subject, _, _ in await stored(client, "M")] == ["m.b", "m.c"]

        await eventually(unmarked, 8.0, "the marker did not expire")


async def direct(node: Node, stream: str, last: int) -> dict[int, bytes]:
    """Everything that this node's replica answers, once it has come to `last`."""
    async with await node.connect() as client:
        await wait_direct(client, stream, last)
        return await read_all(client, stream)


@pytest.mark.ours("asks each replica, which nats-server cannot be held to")
async def test_time_goes_on_after_the_leader_died(cluster: ProcessCluster) -> None:
    """The new leader proposes whatever the old one had not proposed yet, and only once."""
    async with await cluster[0].connect() as client:
        await create_stream(
            client, "S", ["s.>"], 3, allow_msg_schedules=True, allow_msg_ttl=True, max_age=3_600_000_000_000
        )
        for n in range(20):
            await publish(client, f"s.ttl.{n}", b"goes", Nats_TTL="3")
        await publish(client, "s.keep", b"stays", Nats_TTL="never")
        await publish(client, "s.x", b"once", Nats_Schedule=f"@at {soon(3)}", Nats_Schedule_Target="s.out")
        await publish(
            client, "s.y", b"tick", Nats_Schedule="* * * * * *", Nats_Schedule_Time_Zone="Asia/Kolkata",
            Nats_Schedule_Target="s.tick", Nats_Schedule_Rollup="sub",
        )  # fmt: skip
    leader = await cluster.stream_leader("S")
    leader.kill9()
    alive = next(node for node in cluster.nodes if node is not leader)
    start = time.monotonic()
    async with await alive.connect() as client:

        async def settled() -> bool:
            try:
                subjects = sorted(subject for subject, _, _ in await stored(client, "S"))
            except ClientError:
                return False  # no leader yet
            return subjects == ["s.keep", "s.out", "s.tick", "s.y"]

        await eventually(settled, 20.0, "expiry and schedules did not go on")
        assert time.monotonic() - start < 15
        await leader.start()
        await cluster.wait_current("S")
        tick = (await client.api("STREAM.MSG.GET.S", {"last_by_subj": "s.y"}))["message"]["seq"]
        await client.api("STREAM.MSG.DELETE.S", {"seq": tick})  # the clock stops
        await asyncio.sleep(1.2)
        last = (await client.api("STREAM.INFO.S"))["state"]["last_seq"]
        await publish(client, "s.end", b"end")
    answers = [await direct(node, "S", last + 1) for node in cluster.nodes]
    assert answers[0] == answers[1] == answers[2]
    assert sorted(answers[0].values()) == [b"end", b"once", b"stays", b"tick"]


async def test_schedules_fire_and_markers_come_in_time(tidy: ProcessCluster, server: str, replicas: int) -> None:
    """The phase of the servers' ticks does not matter. Most of a few count: the machine may be busy."""
    async with await tidy[0].connect() as client:
        await create_stream(client, "S", ["s.>"], replicas, allow_msg_schedules=True, allow_rollup_hdrs=True,
                            allow_direct=True)  # fmt: skip
        late = []
        for number in range(5):
            await asyncio.sleep(0.07 * number)
            at = datetime.now(UTC) + timedelta(seconds=0.1)
            await publish(client, f"s.x{number}", Nats_Schedule=f"@at {at.isoformat().replace('+00:00', 'Z')}",
                          Nats_Schedule_Target=f"s.to{number}")  # fmt: skip
            late.append(await taken(client, "S", f"s.to{number}") - at.timestamp())
        bound = 0.02 if server == "jetcluster" else 0.2
        assert all(seconds > -0.002 for seconds in late) and sorted(late)[2] < bound, late
        for storage in ("memory", "file"):
            name = storage.upper()
            marked = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 10_000_000_000, "max_age": 1_000_000_000}
            await create_stream(client, name, [f"{storage}.>"], replicas, storage=storage, allow_direct=True, **marked)
            ages = []
            for number in range(3):
                await asyncio.sleep(0.07 * number)
                subject = f"{storage}.{number}"
                await publish(client, subject)
                came = await taken(client, name, subject)

                async def is_marker(subject: str = subject, name: str = name) -> bool:
                    reply = await client.request(f"$JS.API.DIRECT.GET.{name}.{subject}")
                    return reply.get("Nats-Marker-Reason") == "MaxAge"

                await eventually(is_marker, 5, "the marker")
                ages.append(await taken(client, name, subject) - came)
            assert all(age >= 1.0 for age in ages), ages
            assert server != "jetcluster" or sorted(ages)[1] < 1.03, ages
