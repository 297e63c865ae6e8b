"""Streams whose majority is gone for good, and `jetcluster rescue`: one replica becomes the stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jetcluster.raft.api import META_GROUP
from jetcluster.raft.journal.inspection import LogView, read_journal
from testkit.client import create_stream
from testkit.harness import TOP, Node, ProcessCluster, eventually
from testkit.ledger import check_exactly_once, publish_all
from tests.cluster.test_membership import CONFIG, members
from tests.cluster.test_meta_rescue import home, read_whole, rescued
from tests.unit.node.stopped import hurt

pytestmark = [pytest.mark.cluster, pytest.mark.ours("the tool is ours"), pytest.mark.thorough]


async def tool(*words: str, data: str = "", rc: int = 0) -> str:
    """Output and errors of `jetcluster rescue`, which must end with `rc`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "jetcluster", "rescue", *words,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(data.encode()), 60)
    print(out.decode())
    assert process.returncode == rc, out.decode()
    return out.decode()


def fingerprint(store: Path) -> dict[str, tuple[str, int]]:
    """Content of every file, and the time when it was written."""
    return {
        str(path.relative_to(store)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def stores(*nodes: Node) -> list[str]:
    return [word for node in nodes for word in ("--store", str(node.store))]


async def leader(node: Node, stream: str) -> str:
    """The leader of the stream according to the node's own replica; "" if that knows of none, or if there is no
    replica."""
    page = await node.monitor("jsz?streams=1")
    details = [s for a in page.get("account_details", []) for s in a.get("stream_detail", []) if s["name"] == stream]
    return str(details[0]["cluster"].get("leader") or "") if details else ""


async def wait_led(node: Node, stream: str, wanted: bool = True) -> None:
    async def so() -> bool:
        return bool(await leader(node, stream)) == wanted

    await eventually(so, 30, f"{stream} has {'no' if wanted else 'a'} leader", node)


async def test_two_of_three_replicas_are_gone(server: str) -> None:
    async with ProcessCluster(5, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            await create_stream(client, "ONE", ["one"], 1)
            ledger = await publish_all(client, "s", [b"s-%d" % n for n in range(3000)])
        where = await home(cluster[0], "S")
        kept = await cluster.stream_leader("S")
        gone = [cluster.node(name) for name in sorted(where - {kept.name})]
        others = [node for node in cluster.nodes if node not in gone and node is not kept]
        for node in gone:
            node.kill9()
            shutil.rmtree(node.store)
        await wait_led(kept, "S", False)

        # It has to be stopped, and showing changes nothing.
        assert "in use" in await tool(*stores(kept), rc=2)
        await kept.stop()
        before = fingerprint(kept.store)
        shown = await tool(*stores(kept), "--verify")
        assert f"{kept.name}: whole; log to entry" in shown and "3000 messages" in shown
        assert all(f"{node.name}: its store is not here" in shown for node in gone)
        assert f"Keep {kept.name}" in shown and "all that was acknowledged after entry" in shown
        await tool(*stores(kept), "--keep", str(kept.store), "--stream", "A/S", "--dry-run")
        assert "not confirmed" in await tool("--keep", str(kept.store), "--stream", "A/S", data="yes\n", rc=1)
        assert "no stream A/T" in await tool("--keep", str(kept.store), "--stream", "A/T", data="A/T\n", rc=1)
        assert fingerprint(kept.store) == before

        done = await tool("--keep", str(kept.store), "--stream", "A/S", data="A/S\n")
        assert "Will be lost, or may be" in done and "done: A/S is what" in done
        assert "was rescued here already" in await tool("--keep", str(kept.store), "--stream", "A/S", "--yes", rc=1)
        record = json.loads((kept.store / "jetstream" / "rescues.json").read_text())["rescues"][0]
        assert (record["stream"], record["server"], record["told"]) == ("S", kept.name, False)
        assert sorted(record["before"]) == sorted(where) and "3000 messages" in record["state"] and record["lost"]

        await kept.start()
        await cluster.wait_meta([kept, *others])

        await wait_led(kept, "S")
        assert "a stream was rescued from a lost majority" in kept.log()
        async with await others[0].connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))
            more = await publish_all(client, "s", [b"more-%d" % n for n in range(500)])
            assert not more.refused and not more.unknown
            ledger.acked |= more.acked

        # Empty servers of the same names join, and there are three replicas again.
        for node in gone:
            await node.start()
        names = await members(cluster, "S", 90)
        assert len(names) == 3
        async with await gone[0].connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))
        others_of = [name for name in names if name != kept.name]
        kept.kill9()
        survivor = cluster.node(others_of[0])
        await cluster.stream_leader("S", 30, ask=survivor)
        async with await survivor.connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))
            assert len((await publish_all(client, "s", [b"last"])).acked) == 1


def log_of(node: Node) -> tuple[int, LogView]:
    """Log of the only stream, in the journal of a node that is down."""
    groups = read_journal(node.store / "jetstream" / "journal").groups
    ((gid, log),) = [item for item in groups.items() if item[0] != META_GROUP]
    return gid, log


async def test_all_replicas_are_damaged(server: str) -> None:
    """Nobody may lead then. The best one is chosen, and the stream goes on with exactly what that has."""
    async with ProcessCluster(3, server, config=CONFIG, monitor=True) as cluster:
        payloads = [b"%d" % n for n in range(60)]
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            for payload in payloads:  # each in a batch of its own, and what is committed is written down now and then
                assert (await publish_all(client, "s", [payload])).acked
                await asyncio.sleep(0.05)
        cluster.kill9_all()
        for node, part in zip(cluster.nodes, (0.4, 0.8, 0.6), strict=True):
            gid, log = log_of(node)
            first, last = log.found.base_index, log.found.last_index
            hurt(node.store / "jetstream", gid, first + int((last - first) * part))
        for node in cluster.nodes:
            await node.start()
        await cluster.wait_meta()
        await asyncio.sleep(3)
        assert not any([await leader(node, "S") for node in cluster.nodes])

        for node in cluster.nodes:
            await node.stop()
        shown = await tool(*stores(*cluster.nodes))
        assert shown.count("its journal is damaged: it does not vote") >= 3
        kept = cluster[1]
        assert f"Keep {kept.name}" in shown and f"what {kept.name} has and" not in shown
        line = next(line for line in shown.splitlines() if line.startswith(f"  {kept.name}: "))
        count = int(line.split(" messages")[0].rsplit(" ", 1)[1])
        assert 20 < count < 60
        done = await tool(*stores(*cluster.nodes), "--keep", str(kept.store), "--stream", "A/S", data="A/S\n")
        assert f"written to: {kept.store}/jetstream" in done
        for node in cluster.nodes:
            await node.start()
        await cluster.wait_meta()
        await wait_led(kept, "S")
        async with await cluster[0].connect() as client:
            found = await read_whole(client, "S")
            assert [found[seq] for seq in sorted(found)] == payloads[:count]
            more = await publish_all(client, "s", [b"more-%d" % n for n in range(100)])
            assert not more.refused and len(more.acked) == 100
        await cluster.wait_current("S", 60)
        kept.kill9()
        await cluster.stream_leader("S", 30, ask=cluster[0])
        async with await cluster[0].connect() as client:
            found = await read_whole(client, "S")
            assert len(found) == count + 100 and [found[s] for s in sorted(found)][:count] == payloads[:count]


async def test_a_rescue_while_the_others_run_changes_nothing(server: str) -> None:
    """The tool sees one store. What it did there is not used: the meta leader asks the other replicas."""
    async with ProcessCluster(3, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            ledger = await publish_all(client, "s", [b"s-%d" % n for n in range(500)])
        await cluster.wait_current("S")
        wrong, one = cluster.nodes[:2]
        await wrong.stop()
        await cluster.stream_leader("S", 30, ask=one)
        async with await one.connect() as client:
            ledger.acked |= (await publish_all(client, "s", [b"t-%d" % n for n in range(500)])).acked
        await tool("--keep", str(wrong.store), "--stream", "A/S", "--yes")
        await wrong.start()
        await cluster.wait_meta()
        await eventually(lambda: "the rescued replica of a stream is not used" in wrong.log(), 30, "not refused", wrong)
        assert "is led by" in wrong.log() and not await leader(wrong, "S")
        health = await wrong.monitor("healthz?details=1")
        assert "rescued replica is not used" in json.dumps(health), health
        async with await wrong.connect() as client:
            ledger.acked |= (await publish_all(client, "s", [b"u-%d" % n for n in range(500)])).acked
            check_exactly_once(ledger, await read_whole(client, "S"))
        # The way back: an empty store.
        wrong.kill9()
        shutil.rmtree(wrong.store)
        await wrong.start()
        await cluster.wait_current("S", 60)
        async with await wrong.connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))


async def test_the_meta_group_first_and_then_a_stream(server: str) -> None:
    """Three of five servers are gone. A stream that had two of its three replicas there waits, and is rescued next."""
    async with ProcessCluster(5, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            ledger = await publish_all(client, "s", [b"s-%d" % n for n in range(500)])
        await cluster.wait_current("S")
        await asyncio.sleep(
            3
        )  # only by the key of who stays does a server that was left out believe it: keys are on record
        where = await home(cluster[0], "S")
        kept = cluster.node(min(where))
        survivors = [kept, next(node for node in cluster.nodes if node.name not in where)]
        for node in cluster.nodes:
            if node not in survivors:
                node.kill9()
        await rescued(survivors)
        await cluster.wait_meta(survivors)
        await wait_led(kept, "S", False)
        await kept.stop()
        await tool("--keep", str(kept.store), "--stream", "A/S", data="A/S\n")
        await kept.start()
        await cluster.wait_meta(survivors)
        await wait_led(kept, "S")
        async with await survivors[1].connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))
            more = await publish_all(client, "s", [b"more-%d" % n for n in range(100)])
            assert not more.refused and not more.unknown
            ledger.acked |= more.acked

        # The others come back: with their stores not at all, with empty ones the stream is whole again.
        for node in cluster.nodes:
            if node not in survivors:
                node.spawn()
                assert await node.wait_exit(30) == 1
                shutil.rmtree(node.store)
                await node.start()
        assert len(await members(cluster, "S", 90)) == 3
        async with await survivors[1].connect() as client:
            check_exactly_once(ledger, await read_whole(client, "S"))
