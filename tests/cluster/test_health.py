"""Faults that are no crashes, on one of three nodes: it says so, others lead at once, nothing acked is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from testkit import shim
from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import load, publish_all, until_acked, wait_direct
from tests.cluster.test_crash import check_every_node
from tests.symptom_page import shown

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

RESUMED = 4.0
"""Seconds without acks that a test accepts on a loaded machine; docs/health.md has what was measured, under 2 s. These
faults last until the test ends them."""


@contextlib.asynccontextmanager
async def drilled(tmp_path: Path, fault: str) -> AsyncIterator[tuple[ProcessCluster, dict[str, Path]]]:
    """Each node fails in the way of `fault` while its file exists."""
    cluster = ProcessCluster(3, root=tmp_path / "cluster", monitor=True)
    files = {node.name: tmp_path / f"fault-{node.name}" for node in cluster.nodes}
    for node in cluster.nodes:
        node.env["JETCLUSTER_FAULTS"] = f"{fault}@{files[node.name]}"
    async with cluster:
        yield cluster, files


async def reasons(node: Node) -> str:
    return str((await node.monitor("healthz")).get("error", ""))


async def acks_come_again(client: Client, subject: str) -> float:
    """Seconds until a publisher that asks every 50 ms is answered 20 times running."""
    start, running = time.monotonic(), 0
    while running < 20:
        try:
            answer = await client.request(subject, b"probe", within=0.3)
            running = running + 1 if b'"seq"' in answer.data else 0
        except (TimeoutError, ClientError, OSError):
            running = 0
        assert time.monotonic() - start < 30
        await asyncio.sleep(0.01)
    return time.monotonic() - start - 20 * 0.01


async def leader_at_hand(cluster: ProcessCluster, stream: str, subject: str) -> tuple[Node, Node]:
    """(leader, another node) of a new stream."""
    async with await cluster[0].connect() as client:
        await create_stream(client, stream, [subject], 3)
    leader = await cluster.stream_leader(stream)
    return leader, next(node for node in cluster.nodes if node is not leader)


async def test_a_leader_whose_journal_hangs(tmp_path: Path) -> None:
    """In the system call: the writer of production must be seen to wait there."""
    library, cluster = shimmed(tmp_path)
    files = {node.name: tmp_path / f"hang-{node.name}" for node in cluster.nodes}
    for node in cluster.nodes:
        journal = node.store / "jetstream" / "journal"
        node.env |= {"LD_PRELOAD": str(library), "CHAOS_HANG": str(files[node.name]), "CHAOS_HANG_IN": str(journal)}
    async with cluster:
        leader, other = await leader_at_hand(cluster, "S", "s")
        async with load(cluster) as ledger, await other.connect() as client:
            await probe_of(cluster, client, leader)
            files[leader.name].touch()
            resumed = await acks_come_again(client, "probe")
            assert resumed < RESUMED
            shown("the-disk-hangs", await reasons(leader), leader.log())
            await asyncio.sleep(5)
            for stream in ("S", "PROBE"):
                assert (await cluster.stream_leader(stream, ask=other)) is not leader
            files[leader.name].unlink()
            await eventually(lambda: is_well(leader), 10, "it is well again")
        await check_every_node(cluster, ledger)
        assert leader.log().count("this node is not well") == 1
        assert leader.log().count("this node is well again") == 1


async def ready(node: Node) -> bool:
    return bool((await node.monitor("healthz?js-server-only=true"))["status"] == "ok")


@pytest.mark.parametrize("leads_meta", [True, False], ids=["meta-leader-first", "follower-first"])
async def test_readiness_where_all_journals_hang(tmp_path: Path, leads_meta: bool) -> None:
    """A disk that all share: clients are kept away from one whose reads stop, not from all, whose reads go on. Where
    the first one led the meta group, the others hang while one of them takes that over."""
    async with drilled(tmp_path, "journal.write=hang") as (cluster, files):
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            await publish_all(client, "s", [b"1", b"2"])
        await cluster.wait_current("S")
        meta = cluster.node((await cluster[0].monitor("jsz"))["meta_cluster"]["leader"])
        victim = meta if leads_meta else next(node for node in cluster.nodes if node is not meta)
        other = next(node for node in cluster.nodes if node is not victim)
        async with await other.connect() as client:
            if (await cluster.stream_leader("S")) is victim:
                await client.api("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": other.name}})
                await eventually(lambda: leads(cluster, "S", other), 10, "another one leads the stream")
        files[victim.name].touch()

        async def alone() -> bool:  # nothing is known of a journal that nothing is written to
            async with await other.connect() as client:
                await publish_all(client, "s", [b"more"])
            return [node for node in cluster.nodes if not await ready(node)] == [victim]

        await eventually(alone, 10, "one is not ready", victim, every=0.2)
        for node in cluster.nodes:
            files[node.name].touch()

        async def none_is_well() -> bool:
            return all([await is_well(node, False) for node in cluster.nodes])

        async with await other.connect() as client:
            client.publish("s", b"written nowhere")
            await eventually(none_is_well, 10, "all see that they are not well")

            async def all_ready() -> bool:
                return all([await ready(node) for node in cluster.nodes])

            await eventually(all_ready, 10, "all are ready")
            for node in cluster.nodes:
                async with await node.connect() as near:
                    await wait_direct(near, "S", 1)
            assert await all_ready() and await none_is_well()
            for node in cluster.nodes:
                files[node.name].unlink()
            await acks_come_again(client, "s")
            await cluster.wait_meta()
        for node in cluster.nodes:
            await eventually(lambda node=node: is_well(node), 10, "it is well again", node)
            await eventually(lambda node=node: ready(node), 10, "it is ready: the leaderships have come to rest", node)


async def test_a_follower_whose_journal_hangs(tmp_path: Path) -> None:
    """Nobody notices; clients on its node read from the others."""
    async with drilled(tmp_path, "journal.write=hang") as (cluster, files):
        leader, _ = await leader_at_hand(cluster, "S", "s")
        victim = next(node for node in cluster.nodes if node is not leader)
        async with load(cluster) as ledger, await victim.connect() as client:
            files[victim.name].touch()
            await eventually(lambda: is_well(victim, False), 10, "it sees that it is not well")
            for _ in range(50):
                ack = await client.request("s", b"", within=2.0, headers={"Nats-Rollup": "x"})
                assert b"error" in ack.data, "answered by the leader, through this node"
                answer = await client.request("$JS.API.DIRECT.GET.S", b'{"seq":1}', within=2.0)
                assert answer.data
            assert (await cluster.stream_leader("S", ask=leader)) is leader
            assert ledger.longest_gap() < RESUMED
            files[victim.name].unlink()
            await eventually(lambda: is_well(victim), 10, "it is well again")
        await check_every_node(cluster, ledger)


async def probe_of(cluster: ProcessCluster, client: Client, leader: Node) -> None:
    """A stream PROBE that `leader` leads, too, and WASTE for `flushes`."""
    await create_stream(client, "PROBE", ["probe"], 3)
    await create_stream(client, "WASTE", ["waste"], 3)
    if (await cluster.stream_leader("PROBE")) is not leader:
        await client.api("STREAM.LEADER.STEPDOWN.PROBE", {"placement": {"preferred": leader.name}})
        await eventually(lambda: leads(cluster, "PROBE", leader), 10, "the probe's leader")


async def flushes(client: Client) -> None:
    """Has all data stores flushed now, instead of some time within the next half minute: it fills their memtables."""
    big = b"." * (512 << 10)
    await asyncio.gather(*(client.request("waste", big, within=30.0) for _ in range(80)), return_exceptions=True)


@pytest.mark.parametrize("fault", ["store.write=eio", "store.flush=eio", "store.read=eio"])
async def test_a_leader_whose_data_store_fails(tmp_path: Path, fault: str) -> None:
    async with drilled(tmp_path, fault) as (cluster, files):
        leader, other = await leader_at_hand(cluster, "S", "s")
        async with load(cluster) as ledger, await other.connect() as client:
            await probe_of(cluster, client, leader)
            files[leader.name].touch()
            if fault == "store.write=eio":
                assert await acks_come_again(client, "probe") < RESUMED
            else:
                await flushes(client)
            await eventually(lambda: leads(cluster, "S", leader, False), 40, "another leader: the store is flushed")
            why = await reasons(leader)
            assert "store: " in why
            if fault == "store.write=eio":
                shown("the-data-store-fails", why, leader.log())
            await until_acked(ledger, 500)
            files[leader.name].unlink()
            await eventually(lambda: is_well(leader), 15, "it is well again")
            assert ledger.longest_gap() < RESUMED
        await check_every_node(cluster, ledger)


def shimmed(folder: Path) -> tuple[Path, ProcessCluster]:
    """The library that changes what a node gets from its system, and a cluster that is not started yet."""
    why_not = shim.why_not()
    if why_not:
        pytest.skip(why_not)
    library = shim.build(folder)
    cluster = ProcessCluster(3, root=folder / "cluster", monitor=True)
    return library, cluster


async def test_a_leader_whose_data_disk_hangs(tmp_path: Path) -> None:
    """In the kernel, where RocksDB writes and syncs its files; the journal is on another disk, so to speak. The loop
    goes on: the server serves, and says itself that it is not well."""
    library, cluster = shimmed(tmp_path)
    files = {node.name: tmp_path / f"hang-{node.name}" for node in cluster.nodes}
    for node in cluster.nodes:
        data = node.store / "jetstream" / "data"
        node.env |= {"LD_PRELOAD": str(library), "CHAOS_HANG": str(files[node.name]), "CHAOS_HANG_IN": str(data)}
    async with cluster:
        leader, other = await leader_at_hand(cluster, "S", "s")
        async with load(cluster) as ledger, await other.connect() as client, await leader.connect() as near:
            await probe_of(cluster, client, leader)
            files[leader.name].touch()
            await flushes(client)
            end, slowest = time.monotonic() + 60, 0.0
            while not await leads(cluster, "S", leader, False):
                start = time.monotonic()
                await near.request("probe", b"through it", within=5.0)
                slowest = max(slowest, time.monotonic() - start)
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            assert slowest < 2.0
            why = await reasons(leader)
            assert "store: a flush has not returned for" in why or "store: nothing could be committed for" in why
            assert await acks_come_again(client, "probe") < RESUMED
            files[leader.name].unlink()
            await eventually(lambda: is_well(leader), 15, "it is well again")
            assert ledger.longest_gap() < RESUMED
        await check_every_node(cluster, ledger)


def scheduled(seconds: float, target: str) -> dict[str, str]:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    return {"Nats-Schedule": f"@at {due.isoformat().replace('+00:00', 'Z')}", "Nats-Schedule-Target": target}


async def is_so(look: Callable[[], Awaitable[set[str]]], expected: set[str]) -> bool:
    return await look() == expected


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_a_leader_whose_clock_is_hours_off(tmp_path: Path, ahead: float) -> None:
    library, cluster = shimmed(tmp_path)
    shims = {node.name: shim.Shim(library, tmp_path / node.name) for node in cluster.nodes}
    for node in cluster.nodes:
        node.env |= shims[node.name].env
    async with cluster, await cluster[0].connect() as client:
        config = {"max_age": 3600 * 10**9, "allow_msg_ttl": True, "duplicate_window": 120 * 10**9}
        await create_stream(client, "S", ["s", "s.>"], 3, allow_msg_schedules=True, **config)
        leader = await cluster.stream_leader("S")
        for number in range(100):
            await client.request("s", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
        await client.request("s.long", b"", headers={"Nats-TTL": "3500s"})
        await client.request("s.later", b"later", headers=scheduled(3500, "s.fired.later"))
        start = time.time()
        await client.request("s.short", b"", headers={"Nats-TTL": "8s"})
        await client.request("s.soon", b"soon", headers=scheduled(8, "s.fired.soon"))
        shims[leader.name].set_clock(ahead)
        assert await acks_come_again(client, "s") < RESUMED
        await eventually(lambda: leads(cluster, "S", leader, False), 5, "another leader")
        why = await reasons(leader)
        assert "clock: the wall clock is 7200.0 s" in why
        if ahead > 0:
            shown("the-clock-is-wrong", why, leader.log())
        again = await client.request("s", b"7", headers={"Nats-Msg-Id": "7"})
        assert b'"duplicate":true' in again.data.replace(b" ", b"")

        async def left() -> set[str]:
            found = await client.api("STREAM.INFO.S", {"subjects_filter": "s.>"})
            return set(found["state"].get("subjects") or {})

        if time.time() < start + 6:
            assert await left() == {"s.long", "s.later", "s.short", "s.soon"}
        await asyncio.sleep(max(start + 7 - time.time(), 0))
        await eventually(lambda: is_so(left, {"s.long", "s.later", "s.fired.soon"}), 10, "what is due, and no more")
        assert time.time() >= start + 8
        state = (await client.api("STREAM.INFO.S"))["state"]
        assert state["first_seq"] == 1 and state["messages"] >= 120
        newest = (await client.api("STREAM.MSG.GET.S", {"seq": state["last_seq"]}))["message"]["time"]
        assert abs(seconds_of(newest) - time.time()) < 60
        shims[leader.name].set_clock(0.0)
        await eventually(lambda: is_well(leader), 10, "it is well again")


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_a_cold_start_at_which_one_clock_is_hours_off(tmp_path: Path, ahead: float) -> None:
    """The wrong one and one right one are there first: two that differ, and nothing that tells which one is right."""
    library, cluster = shimmed(tmp_path)
    first, second, late = cluster.nodes
    for node in cluster.nodes:
        node.env |= (wall := shim.Shim(library, tmp_path / node.name)).env
        wall.set_clock(ahead if node is first else 0.0)
    try:
        for node in (first, second):
            node.spawn()
        for node in (first, second):
            await node.wait_ready()
        await asyncio.sleep(1)
        await late.start()
        await cluster.wait_meta()
        async with await second.connect() as client:
            await create_stream(client, "S", ["s"], 3, max_age=3600 * 10**9)
            await acks_come_again(client, "s")
            state = (await client.api("STREAM.INFO.S"))["state"]
            assert state["messages"] >= 20
            for seq in (1, state["last_seq"]):
                stored = (await client.api("STREAM.MSG.GET.S", {"seq": seq}))["message"]["time"]
                assert abs(seconds_of(stored) - time.time()) < 60
            await eventually(lambda: is_well(first, False), 5, "the wrong one is reported")
            assert "clock: the wall clock is 7200.0 s" in await reasons(first)
            await asyncio.sleep(2)
            assert await is_well(second) and await is_well(late)
            assert (await cluster.stream_leader("S")) is not first
    finally:
        cluster.stop_all()


def seconds_of(stamp: str) -> float:
    return time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone


async def leads(cluster: ProcessCluster, stream: str, node: Node, wanted: bool = True) -> bool:
    ask = next(other for other in cluster.nodes if other is not node)
    return ((await cluster.stream_leader(stream, ask=ask)) is node) is wanted


async def is_well(node: Node, wanted: bool = True) -> bool:
    return ("not well" not in await reasons(node)) is wanted
