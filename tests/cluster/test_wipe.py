"""Nodes whose store is lost, whole or in part: what comes back, what must not. Replicas that come and go by order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from functools import partial

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all, steady_publisher, wait_newest

pytestmark = [pytest.mark.cluster, pytest.mark.monitored, pytest.mark.long, pytest.mark.thorough]


def routes(node: Node, *to: Node) -> None:
    """Replaces the node's --routes; none without `to`."""
    at = node.args.index("--routes")
    node.args[at : at + 2] = ["--routes", ",".join(f"nats://127.0.0.1:{n.cluster_port}" for n in to)] if to else []


async def wipe(node: Node) -> None:
    node.kill9()
    shutil.rmtree(node.store)
    await node.start()


async def names(node: Node) -> list[str]:
    async with await node.connect() as client:
        return sorted((await client.api("STREAM.NAMES", {}, within=5.0)).get("streams") or [])


async def reads_itself(node: Node, stream: str) -> bool:
    """Does the node's own replica answer Direct Get? /jsz is of one node."""
    report = await node.monitor("jsz?streams=1&config=1")
    found = [s for a in report.get("account_details", []) for s in a.get("stream_detail", []) if s["name"] == stream]
    return bool(found)


async def holds_all(cluster: ProcessCluster, node: Node, ledgers: dict[str, Ledger]) -> None:
    """Every R3 stream is 3/3, and `node` serves all that was acked, from its own replica: the others stand still."""
    for stream in ledgers:
        await cluster.wait_current(stream)
        await eventually(lambda stream=stream: reads_itself(node, stream), 20, f"{node.name} has no {stream}")
    await asyncio.sleep(0.5)  # its replicas join the group of readers
    others = [other for other in cluster.nodes if other is not node]
    with frozen(others):
        async with await node.connect() as client:
            for stream, ledger in ledgers.items():
                check_exactly_once(ledger, await read_all(client, stream, within=2.5))


async def meta_leader(cluster: ProcessCluster) -> Node:
    found: list[Node] = []

    async def known() -> bool:
        for node in cluster.nodes:
            name = (await node.monitor("jsz")).get("meta_cluster", {}).get("leader")
            if name:
                found.append(cluster.node(name))
                return True
        return False

    await eventually(known, 20, "no meta leader")
    return found[-1]


@pytest.mark.ours("what a wiped peer of nats-server does is not ours to test")
async def test_wiped_nodes_are_replaced_and_filled_again_and_again(cluster: ProcessCluster) -> None:
    """Twice the same node, then the meta leader: all replicas are whole each time, and the next failure is survived."""
    ledgers: dict[str, Ledger] = {}
    async with await cluster[0].connect() as client:
        for stream in ("S", "T"):
            await create_stream(client, stream, [stream.lower()], 3)
            payloads = [b"%s-%d" % (stream.encode(), n) for n in range(500)]
            ledgers[stream] = await publish_all(client, stream.lower(), payloads)
        await create_stream(client, "M", ["m"], 3, storage="memory")
        ledgers["M"] = await publish_all(client, "m", [b"M-%d" % n for n in range(100)])
    for round_, pick in enumerate(("third", "third", "leader", "leader")):
        victim = cluster[2] if pick == "third" else await meta_leader(cluster)
        survivor = next(node for node in cluster.nodes if node is not victim)
        began = time.monotonic()
        await wipe(victim)
        await holds_all(cluster, victim, ledgers)
        print(f"wipe {round_ + 1} ({victim.name}): whole after {time.monotonic() - began:.1f} s")
        await cluster.wait_meta()
        async with await survivor.connect() as client:
            await create_stream(client, f"N{round_}", [f"n{round_}"], 3)
            more = await publish_all(client, "s", [b"S-more-%d-%d" % (round_, n) for n in range(100)])
            ledgers["S"].acked |= more.acked
    # Nothing of the lost ids is left: any one node may go.
    cluster[0].kill9()
    await cluster.stream_leader("S", within=20)
    async with await cluster[1].connect() as client:
        more = await publish_all(client, "s", [b"S-last-%d" % n for n in range(100)])
        ledgers["S"].acked |= more.acked
        await wait_newest(client, "S")
        check_exactly_once(ledgers["S"], await read_all(client, "S"))


@pytest.mark.ours("what a wiped peer of nats-server does is not ours to test")
async def test_wiped_under_load(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
    ledger, stop = Ledger(), asyncio.Event()
    victim = await cluster.stream_leader("S")
    others = [node.url for node in cluster.nodes if node is not victim]
    task = asyncio.create_task(steady_publisher(others, "s", ledger, stop, pause=0.01))
    await asyncio.sleep(1)
    await wipe(victim)
    await cluster.wait_current("S")
    stop.set()
    await task
    await holds_all(cluster, victim, {"S": ledger})


@pytest.mark.ours("what a wiped peer of nats-server does is not ours to test")
async def test_a_stream_with_one_replica_is_not_emptied_in_silence(cluster: ProcessCluster) -> None:
    """Its only replica is gone with the store. It stays a stream without a leader until somebody deletes it."""
    homes: dict[str, str] = {}
    async with await cluster[0].connect() as client:
        for n in range(3):
            await create_stream(client, f"R{n}", [f"r{n}"], 1)
            await publish_all(client, f"r{n}", [b"one", b"two"])
            homes[f"R{n}"] = (await client.api(f"STREAM.INFO.R{n}"))["cluster"]["leader"]
    lost = next(stream for stream, home in homes.items() if home == "n3")
    await wipe(cluster[2])
    await cluster.wait_meta()

    async def replaced() -> bool:
        report = await cluster[0].monitor("jsz")
        return report.get("meta_cluster", {}).get("cluster_size") == 3

    await eventually(replaced, 20, "the meta group is not of three")
    async with await cluster[0].connect() as client:
        for stream in homes:
            if stream != lost:
                assert len(await read_all(client, stream)) == 2
        assert await names(cluster[0]) == sorted(homes)
        with contextlib.suppress(ClientError, TimeoutError):
            reply = await client.request(lost.lower(), b"three", within=3.0)
            assert b'"seq"' not in reply.data, reply.data
        await client.api(f"STREAM.DELETE.{lost}", within=10.0)
        await create_stream(client, lost, [lost.lower()], 1)
        assert len((await publish_all(client, lost.lower(), [b"new"])).acked) == 1


async def has_room_for_three(node: Node) -> bool:
    async with await node.connect() as client:
        try:
            await create_stream(client, "PROBE", ["probe"], 3)
        except ClientError as error:
            if "10005" not in str(error):
                raise
            return False
        await client.api("STREAM.DELETE.PROBE")
        return True


@pytest.mark.ours("nats-server refuses a JetStream cluster without routes")
async def test_a_wiped_seed_starts_no_second_cluster(server: str) -> None:
    """The seed has no routes, the others name it. It comes back empty while they stand still: it waits for them."""
    cluster = ProcessCluster(3, server, monitor=True)
    seed, *others = cluster.nodes
    routes(seed)
    for other in others:
        routes(other, seed)
    began = time.monotonic()
    async with cluster:
        print(f"three nodes by one seed: {time.monotonic() - began:.2f} s")
        # The first two found the cluster. Until the third is in it, the others answer the API for it.
        await eventually(lambda: has_room_for_three(seed), 10, "one is not a member", seed)
        async with await others[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            ledger = await publish_all(client, "s", [b"m-%d" % n for n in range(50)])
        seed.kill9()
        shutil.rmtree(seed.store)
        with frozen(others):
            seed.spawn()
            await seed.wait_ready()
            await asyncio.sleep(11)
            assert "JetStream waits for other nodes" in seed.log()
        await holds_all(cluster, seed, {"S": ledger})
        assert [await names(node) for node in cluster.nodes] == [["S"]] * 3
        assert seed.log().count("JetStream cluster starts") == 1


@pytest.mark.ours("jetcluster's own")
async def test_two_clusters_of_one_name_refuse_each_other(server: str) -> None:
    """Two pairs found a cluster each, then a route joins them: links are refused and say why, nothing is mixed."""
    cluster = ProcessCluster(4, server, monitor=True)
    a, b, c, d = cluster.nodes
    for node, other in ((a, b), (b, a), (c, d), (d, c)):
        routes(node, node, other)
    async with cluster:
        for node, stream in ((a, "S"), (c, "T")):
            async with await node.connect() as client:
                await create_stream(client, stream, ["s"], 1)
                await publish_all(client, "s", [stream.encode()])
        c.kill9()
        routes(c, a, c, d)
        await c.start()
        await eventually(lambda: "belongs to another JetStream cluster" in c.log(), 10, "no refusal in the log", c)
        await cluster.wait_meta()
        assert [await names(node) for node in cluster.nodes] == [["S"], ["S"], ["T"], ["T"]]
        for node, stream in ((b, "S"), (d, "T")):
            async with await node.connect() as client:
                # `c` was killed: until its streams are led again, publishes find nobody. The first of them is stored.
                await eventually(partial(_stored, client, b"more", 2), 10, f"{stream} takes no message", node)


async def _stored(client: Client, payload: bytes, seq: int) -> bool:
    return (await publish_all(client, "s", [payload])).acked == {payload: seq}


@pytest.mark.parametrize("part", ["journal", "journal files", "data", "node.json"])
@pytest.mark.ours("the store's layout is jetcluster's own")
async def test_a_store_that_lost_a_part_is_refused(cluster: ProcessCluster, part: str) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        ledger = await publish_all(client, "s", [b"m-%d" % n for n in range(50)])
    victim = cluster[2]
    victim.kill9()
    root = victim.store / "jetstream"
    if part == "node.json":
        (root / part).unlink()
    elif part == "journal files":
        for path in (root / "journal").glob("*.wal"):
            path.unlink()
    else:
        shutil.rmtree(root / part)
    victim.spawn()
    assert await victim.wait_exit(10) == 1
    last = victim.log().splitlines()[-1]
    print(last)
    assert "[FTL]" in last and "move" in last and str(root) in last
    # As the text says:
    root.rename(victim.root / "away")
    await victim.start()
    await holds_all(cluster, victim, {"S": ledger})


@pytest.mark.ours("the store's layout is jetcluster's own")
async def test_a_standalone_store_that_lost_its_journal_is_refused(single: ProcessCluster) -> None:
    node = single[0]
    async with await node.connect() as client:
        await create_stream(client, "S", ["s"], 1)
        await publish_all(client, "s", [b"m"])
    node.kill9()
    assert json.loads((node.store / "jetstream" / "node.json").read_text())["member"] is True
    shutil.rmtree(node.store / "jetstream" / "journal")
    node.spawn()
    assert await node.wait_exit(10) == 1
    assert "[FTL]" in node.log()


async def test_the_number_of_replicas_changes_under_load(cluster: ProcessCluster, server: str) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 1)
        config = (await client.api("STREAM.INFO.S"))["config"]
        ledger, stop = Ledger(), asyncio.Event()
        task = asyncio.create_task(steady_publisher([cluster[0].url], "s", ledger, stop, pause=0.01))
        for replicas in (3, 1, 3):
            await asyncio.sleep(0.5)
            answer = await client.api("STREAM.UPDATE.S", {**config, "num_replicas": replicas}, within=10.0)
            assert answer["config"]["num_replicas"] == replicas
            await cluster.wait_current("S", replicas=replicas - 1)
        stop.set()
        await task
    if server == "jetcluster":
        for node in cluster.nodes:
            await holds_all(cluster, node, {"S": ledger})
