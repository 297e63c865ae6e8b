"""docs/upgrade.md, followed: three servers of the commit before become servers of this one, one after another, under
load, and go back.

`JETCLUSTER_PREVIOUS` names another commit, branch or tag to begin with."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from jetcluster import native
from testkit.client import Client, ClientError, create_stream
from testkit.consumer_client import SECOND, Inbox
from testkit.harness import TOP, Node, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, check_exactly_once, load, read_all, until_acked, wait_direct
from testkit.previous import commit_before, git, unpacked

R = TypeVar("R", bound="Readers")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.cluster,
    pytest.mark.alone,
    pytest.mark.started,
    pytest.mark.timeout(300),
    pytest.mark.ours("upgrades this tree's own servers"),
]

LAME_DUCK = 'lame_duck_grace_period: "100ms"\n'
LONGEST_GAP = 5.0
"""Seconds between two acks, and between two reads, at most. Leaderships move before a server goes, so it is less by far
on a machine that has nothing else to do."""
BATCH = 500
"""Messages of a pull."""
LATEST = 1000
"""Acks among which the highest sequence is: more than are on their way at a time."""
OLD_ENOUGH = 500
"""So many acks later every replica that answers has a message, or it would have to say that it is behind."""


def sources(default: str, what: str) -> Path:
    """The sources of the commit that JETCLUSTER_PREVIOUS names, else of `default`, and their compiled loops. Skips the
    test where there is none: `what` says which."""
    asked = os.environ.get("JETCLUSTER_PREVIOUS", "")
    wanted = asked or default
    commit = git(TOP, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}") if wanted else ""
    if not commit:
        text = f"no commit {asked or what} here (an sdist, or a clone of depth 1): there is nothing to upgrade from"
        pytest.skip(text)
    return unpacked(TOP, commit).resolve()


@pytest.fixture(scope="module")
def before() -> Path:
    """The commit before."""
    return sources(commit_before(TOP), "before this one")


def leaving(client: Client) -> bool:
    """Its server has said that it is a lame duck."""
    return bool(client.info.get("ldm"))


class Readers:
    """One reader per server: each asks for acked messages by Direct Get and compares what it gets; when its server
    goes, it asks the next one."""

    def __init__(self, cluster: ProcessCluster, ledger: Ledger) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self.times: list[list[float]] = [[] for _ in cluster.nodes]
        self._stop = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for at in range(len(self.cluster.nodes)):
                group.create_task(self._read(at))

    def stop(self) -> None:
        self._stop = True

    def longest_gap(self) -> float:
        return max(b - a for times in self.times for a, b in itertools.pairwise(times))

    async def _read(self, at: int) -> None:
        rng, turn = random.Random(at), at
        while not self._stop:
            try:
                async with await Client.connect(self.cluster.urls[turn % 3], within=1.0) as client:
                    while not self._stop and not leaving(client):
                        await self._one(client, at, rng)
                turn += 1
            except (ClientError, OSError, TimeoutError):
                turn += 1
                await asyncio.sleep(0.02)

    async def _one(self, client: Client, at: int, rng: random.Random) -> None:
        known = list(self.ledger.acked.items())[:-OLD_ENOUGH]
        payload, seq = known[rng.randrange(len(known))]
        msg = await client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq, within=1.0)
        assert msg.status in (0, 503), f"acked message {seq} is answered by {msg.header!r}"
        if not msg.status:
            assert msg.data == payload, f"sequence {seq} has {msg.data!r}, acked was {payload!r}"
            self.times[at].append(time.monotonic())
        await asyncio.sleep(0.02)


class LeaderReaders(Readers):
    """One reader per server: each asks for the stream's last message with a linearizable read, by MSG.GET and by Direct
    Get, and must find everything that was acked, or read, before it asked."""

    def __init__(self, cluster: ProcessCluster, ledger: Ledger) -> None:
        super().__init__(cluster, ledger)
        self.seen = 0
        self.found = {"MSG.GET": 0, "Direct Get": 0}

    async def _one(self, client: Client, at: int, rng: random.Random) -> None:
        newest = max(self.seen, *itertools.islice(reversed(self.ledger.acked.values()), LATEST))
        if rng.random() < 0.5:
            what = "MSG.GET"
            reply = (await client.request("$JS.API.STREAM.MSG.GET.S", b'{"last_by_subj":"s"}', within=1.0)).json()
            if "error" in reply:
                return
            seq = int(reply["message"]["seq"])
        else:
            what, body = "Direct Get", b'{"last_by_subj":"s","consistency":"linearizable","read_info":true}'
            msg = await client.request("$JS.API.DIRECT.GET.S", body, within=1.0)
            if msg.status or not msg.get("Nats-Answered-As"):
                return  # refused, or by a server that knows no such wish
            seq = int(msg.get("Nats-Sequence") or 0)
        assert seq >= newest, f"{what} found {seq}, {newest} was known before"
        self.seen = max(self.seen, seq)
        self.found[what] += 1
        self.times[at].append(time.monotonic())
        await asyncio.sleep(0.01)


class Worker:
    """Pulls from the durable consumer and acks."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.seen: set[bytes] = set()

    async def run(self) -> None:
        turn = 0
        while True:
            try:
                async with await Client.connect(self.cluster.urls[turn % 3], within=1.0) as client:
                    while not leaving(client):
                        await self._pull(client)
                turn += 1
            except (ClientError, OSError, TimeoutError):
                turn += 1
                await asyncio.sleep(0.02)

    async def _pull(self, client: Client) -> None:
        inbox, left = Inbox(client), BATCH
        pull = json.dumps({"batch": BATCH, "expires": SECOND // 2}).encode()
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.W", pull, inbox.subject.encode())
        with contextlib.suppress(AssertionError):  # nothing more came, not even a status: its server is going
            while left:
                msg = await inbox.one(within=1.0)
                if msg.status == 100:
                    continue
                if msg.status:
                    break
                left -= 1
                self.seen.add(msg.data)
                client.publish(msg.reply.decode(), b"+ACK")
        inbox.close()
        await client.flush()


@contextlib.asynccontextmanager
async def reading(readers: R) -> AsyncIterator[R]:
    """Readers that run meanwhile. What one of them finds wrong is raised at the end."""
    task = asyncio.create_task(readers.run())
    try:
        yield readers
    finally:
        readers.stop()
        await asyncio.wait_for(task, 10)


@contextlib.asynccontextmanager
async def working(cluster: ProcessCluster) -> AsyncIterator[Worker]:
    worker = Worker(cluster)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def healthy(node: Node, question: str = "") -> bool:
    with contextlib.suppress(OSError):
        return (await node.monitor(f"healthz{question}")).get("status") == "ok"
    return False


async def change(cluster: ProcessCluster, node: Node, tree: Path) -> None:
    """Steps 1 to 5 of the page, for one server."""
    await eventually(lambda: healthy(node, "?safe-to-restart=true"), 20, f"{node.name} is needed", node, 0.1)
    node.signal(signal.SIGUSR2)
    assert await node.wait_exit(20) == 0
    node.env = {"PYTHONPATH": str(tree)}
    await node.start()
    await eventually(lambda: healthy(node), 20, f"{node.name} is not healthy", node, 0.1)
    await cluster.wait_current("S")
    assert runs_from(node) == tree


def runs_from(node: Node) -> Path:
    """The tree whose code the process runs, by the compiled loops that it has loaded."""
    maps = Path(f"/proc/{node.pid}/maps").read_text().splitlines()
    loops = {line.split(maxsplit=5)[5] for line in maps if "/jetcluster/native/" in line}
    if not loops and native.why_pure:
        return Path(node.env["PYTHONPATH"])
    (tree,) = {Path(path).parents[2] for path in loops}
    return tree


def level_of(tree: Path) -> str:
    code = "from jetcluster.stream.log.levels import LEVEL; print(LEVEL)"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", code]  # in that tree, for the present folder comes before PYTHONPATH
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_a_rolling_upgrade_and_back_loses_nothing(before: Path, tmp_path: Path) -> None:
    cluster = ProcessCluster(3, root=tmp_path, config=LAME_DUCK, monitor=True)
    for node in cluster.nodes:
        node.env = {"PYTHONPATH": str(before)}
    async with cluster:
        assert {runs_from(node) for node in cluster.nodes} == {before}
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
            await create_stream(client, "KV_B", ["$KV.B.>"], 3, max_msgs_per_subject=1)
            await client.request("$KV.B.key", b"value")
            # What was on its way to a connection that ended comes again after the wait for acks.
            consumer = {
                "durable_name": "W",
                "ack_policy": "explicit",
                "ack_wait": 2 * SECOND,
                "max_ack_pending": 10_000,
            }
            await client.api("CONSUMER.CREATE.S.W", {"stream_name": "S", "config": consumer})
        async with working(cluster) as worker:
            async with (
                load(cluster, pause=0.15) as ledger,
                reading(Readers(cluster, ledger)) as readers,
                reading(LeaderReaders(cluster, ledger)) as at_leader,
            ):
                for node in cluster.nodes:
                    await change(cluster, node, TOP)
                    await until_acked(ledger, 200)
                if level_of(before) == level_of(TOP):
                    for node in cluster.nodes:
                        await change(cluster, node, before)
                        await until_acked(ledger, 200)
            await eventually(lambda: worker.seen >= ledger.acked.keys(), 20, "not all is delivered")
            await eventually(partial(is_acked, cluster, ledger), 20, "what was delivered was not acked")
        await accounts(cluster, ledger, worker)
        print(f"{len(ledger.acked)} acks, longest gap {ledger.longest_gap():.2f} s; "
              f"{sum(map(len, readers.times))} reads, longest gap {readers.longest_gap():.2f} s; "
              f"linearizable {at_leader.found}, longest gap {at_leader.longest_gap():.2f} s")  # fmt: skip
        assert ledger.longest_gap() < LONGEST_GAP
        assert readers.longest_gap() < LONGEST_GAP
        assert min(at_leader.found.values()) > 20, at_leader.found


async def is_acked(cluster: ProcessCluster, ledger: Ledger) -> bool:
    """True when nearly all is: what was acked on a connection that ended comes again after the wait for acks."""
    async with await cluster[0].connect() as client:
        floor = (await client.api("CONSUMER.INFO.S.W"))["ack_floor"]["stream_seq"]
        return bool(floor > len(ledger.acked) * 0.9)


async def accounts(cluster: ProcessCluster, ledger: Ledger, worker: Worker) -> None:
    """Every replica, asked alone, has every acked message once; the consumer has delivered all; the bucket is there."""
    await cluster.wait_current("S")
    for node in cluster.nodes:
        async with await node.connect() as client:
            await wait_direct(client, "S", max(ledger.acked.values()))
            with frozen([other for other in cluster.nodes if other is not node]):
                check_exactly_once(ledger, await read_all(client, "S"))
            await wait_direct(client, "KV_B", 1)
    assert worker.seen >= ledger.acked.keys()
