"""Disks that fill up and journals that end in rubbish."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from pathlib import Path

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import Ledger, check_exactly_once, publish_all, read_all, steady_publisher, wait_direct

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


DISK_MIB = 384
"""An empty node allocates its journal ahead and keeps a reserve."""


async def write_until_refused(client: Client, limit: int) -> tuple[Ledger, str]:
    """Publishes 64 KiB messages until one is refused; returns what was acked and the refusal's text."""
    ledger = Ledger()
    body = os.urandom(32 << 10).hex().encode()
    for n in range(limit):
        payload = b"%d-%b" % (n, body)
        try:
            reply = await client.request("s", payload, within=5.0)
        except TimeoutError:
            return ledger, "no answer within 5 s"
        if not ledger.take(payload, reply):
            return ledger, ledger.refused[-1]
    raise AssertionError(f"{limit} messages of 64 KiB fitted on the disk")


async def test_full_disk_refuses_writes_and_keeps_reading(small_disk: Path, server: str, durable: str) -> None:
    # The ballast is freed later: a full disk that nobody mends cannot take writes again.
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (96 << 20))
    root = small_disk / "nodes"
    root.mkdir()
    async with ProcessCluster(1, server, root=root, config=durable) as single, await single[0].connect() as client:
        await create_stream(client, "S", ["s"], 1)
        ledger, refusal = await write_until_refused(client, 10_000)
        print(f"{len(ledger.acked)} messages of 64 KiB acked, then: {refusal}")
        assert len(ledger.acked) > 50
        assert '"error"' in refusal or refusal.startswith("503"), refusal
        if server == "jetcluster":
            assert any(f'"err_code":{code}' in refusal for code in (10023, 10047, 10077)), refusal
            check_exactly_once(ledger, await read_all(client, "S"))
            assert single[0].alive
        ballast.unlink()

        async def writable() -> bool:
            reply = await client.request("s", b"after", within=5.0)
            return b'"seq"' in reply.data and b'"error"' not in reply.data

        if server == "jetcluster":
            print(f"writable {await eventually(writable, 30, 'no ack after space was freed', every=0.1):.1f} s later")
            single[0].kill9()
            await single[0].start()
            await wait_direct(client := await single[0].connect(), "S", max(ledger.acked.values()))
            stored = await read_all(client, "S")
            client.close()
            lost = [s for p, s in ledger.acked.items() if stored.get(s) != p]
            assert not lost, f"{len(lost)} acked messages are gone after the restart"


def newest_journal(node: Node) -> Path:
    """The raft journal's newest segment: the file under a folder called journal or raft that was written last."""
    files = [p for p in node.store.rglob("*") if p.is_file() and {"journal", "raft"} & set(p.parent.parts)]
    assert files, f"no journal below {node.store}: {[str(p) for p in node.store.rglob('*')][:40]}"
    return max(files, key=lambda p: (p.stat().st_mtime_ns, p.name))


def last_data(path: Path) -> int:
    """The offset at which the file's zero padding begins: a segment may be allocated ahead."""
    data = path.read_bytes()
    return len(data.rstrip(b"\0"))


@pytest.mark.parametrize("damage", ["truncated", "garbled", "rubbish behind"])
@pytest.mark.ours("the journal's file layout is jetcluster's own")
async def test_torn_journal_tail_is_repaired_from_peers(cluster: ProcessCluster, damage: str) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
    leader = await cluster.stream_leader("S")
    victim = next(n for n in cluster.nodes if n is not leader)
    ledger, stop = Ledger(), asyncio.Event()
    task = asyncio.create_task(steady_publisher([leader.url], "s", ledger, stop))
    await eventually(lambda: len(ledger.acked) >= 2000, 30, "2000 acks")
    victim.kill9()
    tear(newest_journal(victim), damage)
    stop.set()
    await task
    await victim.start()
    async with await leader.connect() as client:
        ledger.acked |= (await publish_all(client, "s", [b"late-%d" % n for n in range(300)])).acked
    await cluster.wait_current("S")
    async with await victim.connect() as client:
        await wait_direct(client, "S", max(ledger.acked.values()))
        check_exactly_once(ledger, await read_all(client, "S"))


def tear(path: Path, damage: str) -> None:
    end = last_data(path)
    assert end > 200, f"{path} is almost empty"
    with path.open("r+b") as file:
        if damage == "truncated":
            file.truncate(end - 37)
        elif damage == "garbled":
            file.seek(end - 60)
            file.write(random.Random(7).randbytes(40))
        else:
            file.seek(end)
            file.write(random.Random(7).randbytes(200))


@pytest.mark.ours("the journal's file layout is jetcluster's own")
async def test_torn_tail_of_a_single_server_is_cut(single: ProcessCluster) -> None:
    """Without peers the torn record was never acked: the server must start and keep everything before it."""
    async with await single[0].connect() as client:
        await create_stream(client, "S", ["s"], 1)
        ledger = await publish_all(client, "s", [b"m-%d" % n for n in range(1000)])
    single[0].kill9()
    tear(newest_journal(single[0]), "rubbish behind")
    await single[0].start()
    async with await single[0].connect() as client:
        await wait_direct(client, "S", 1000)
        check_exactly_once(ledger, await read_all(client, "S"))
        assert len((await publish_all(client, "s", [b"more"])).acked) == 1


async def test_store_dir_that_is_a_file_is_refused(tmp_path: Path, server: str) -> None:
    target = tmp_path / "file"
    target.write_text("x")
    cluster = ProcessCluster(1, server, root=tmp_path / "nodes")
    node = cluster[0]
    node.args[node.args.index("-sd") + 1] = str(target)
    node.spawn()
    assert await node.wait_exit(10) == 1
    assert "[FTL]" in node.log() and "storage directory is not a directory" in node.log()


async def test_a_store_that_failed_once_takes_writes_again_when_the_disk_is_well() -> None:
    """A limit of file sizes stands for the disk: RocksDB's flush fails, what the journal writes does not. RocksDB takes
    nothing from then on; the server has to open it anew."""
    async with ProcessCluster(1) as cluster:
        node = cluster[0]
        client = await node.connect()
        await create_stream(client, "S", ["s"], 1)
        ledger = Ledger()
        for number in range(60):
            payload = b"%d-" % number + os.urandom(32 << 10).hex().encode()
            assert ledger.take(payload, await client.request("s", payload))
        node.kill9()
        await node.start()  # what is in the journal's older segment comes into memory, to be flushed
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (1 << 20, unlimited))
        await eventually(lambda: "the data store cannot be flushed" in node.log(), 60.0, "no flush has failed", node)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        await eventually(
            lambda: node.log().count("Server is ready") == 3, 60.0, "the server has not started again", node
        )
        client = await node.connect()
        assert ledger.take(b"new", await client.request("s", b"new"))
        check_exactly_once(ledger, await read_all(client, "S"))
