"""`make bench`: jetcluster and nats-server (fsync before ack) in turns, in one run, on one disk -> docs/benchmarks.md.

    python -m bench page [--rounds 3] [--seconds 3] [--part features] [--only nats-server] [--out FILE] [--json FILE]

Every round starts a fresh three-node cluster of one server, runs all loads on it and stops it; then it is the other's
turn. Each figure is the median over the rounds. Without nats-server the page has one column and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from bench import loads
from bench.features import Features, comebacks, many_subjects
from bench.report import Figures, write_page
from bench.result import CpuWatch, percentile
from testkit.client import ClientError, create_stream
from testkit.harness import TOP, HarnessError, Node, ProcessCluster, eventually, find_server, resident

console = Console(stderr=True)
SIZE = 128
WINDOW = 500
GETS = 256
IDLE_STREAMS = 200
SMALL, LARGE = 100_000, 500_000


def fdatasync_p50(folder: Path, rounds: int = 200) -> float:
    """Milliseconds of one small append and fdatasync in `folder`, median: the floor of a synchronous durable write."""
    path = folder / "fsync-probe"
    times = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(rounds):
            os.write(fd, b"x" * 256)
            start = time.perf_counter()
            os.fdatasync(fd)
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(times)


def durable(server: str) -> str:
    """The configuration with which nats-server syncs before it acks, as jetcluster does by default."""
    return "jetstream { sync_interval: always }\n" if server == "nats-server" else ""


class Round:
    """All loads on one fresh cluster of one server."""

    def __init__(self, server: str, seconds: float, root: Path) -> None:
        self.server = server
        self.seconds = seconds
        self.root = root
        self.found: dict[str, float] = {}

    async def run(self) -> dict[str, float]:
        shutil.rmtree(self.root, ignore_errors=True)
        async with ProcessCluster(3, self.server, root=self.root, config=durable(self.server)) as nodes:
            self.found["cluster_start_s"] = max(node.ready_seconds for node in nodes.nodes)
            await self.settle(nodes)
            await self.step("r3", self.publish(nodes, "R3", 3))
            await self.step("r1", self.publish(nodes, "R1", 1))
            await self.step("gets", self.gets(nodes))
            await self.step("core", self.core(nodes))
            await self.step("create", self.create(nodes))
            await self.step("failover", self.failover(nodes))
        await self.step("cold start", self.cold_start())
        return self.found

    @staticmethod
    async def settle(nodes: ProcessCluster) -> None:
        """Until an R3 stream can be placed: a fresh nats-server answers its API before its leader sees all peers."""

        async def placed() -> bool:
            with contextlib.suppress(ClientError):
                async with await nodes[0].connect() as client:
                    await create_stream(client, "READY", ["ready"], 3)
                    await client.api("STREAM.DELETE.READY")
                    return True
            return False

        await eventually(placed, 20, "no stream of three replicas can be created", every=0.2)

    async def step(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """One load; a failure is printed and leaves its figures out instead of ending the run."""
        try:
            await asyncio.wait_for(work, 90)
        except (ClientError, HarnessError, OSError, TimeoutError, AssertionError) as error:
            console.print(f"[red]{self.server}: {name} failed: {type(error).__name__} {error}")

    async def publish(self, nodes: ProcessCluster, name: str, replicas: int) -> None:
        async with await nodes[0].connect() as client:
            await create_stream(client, name, [name.lower()], replicas)
        leader = await nodes.stream_leader(name)
        pids = {("leader" if n is leader else n.name): n.pid for n in nodes.nodes}
        tag = name.lower()
        await loads.js_publish(leader.url, tag, size=SIZE, window=WINDOW, seconds=0.5)  # warm up
        many = await loads.js_publish(
            leader.url, tag, size=SIZE, window=WINDOW, seconds=self.seconds, pids=pids
        )  # fmt: skip
        self.found[f"{tag}_async"] = many.rate
        cpu = {k: v / many.messages * 1e6 for k, v in many.cpu.items()}
        self.found[f"{tag}_cpu_leader"] = cpu.pop("leader")
        self.found[f"{tag}_cpu_client"] = cpu.pop("client")
        self.found[f"{tag}_cpu_follower"] = statistics.mean(cpu.values())
        one = await loads.js_publish(leader.url, tag, size=SIZE, window=1, seconds=min(2.0, self.seconds))
        self.found[f"{tag}_sync_p50"] = percentile(one.latencies_ms, 0.5)
        self.found[f"{tag}_sync_p99"] = percentile(one.latencies_ms, 0.99)

    async def gets(self, nodes: ProcessCluster) -> None:
        """Reads spread over the whole stream, at two sizes, the same for both servers: what fits caches, and more."""
        async with await nodes[0].connect() as client:
            await create_stream(client, "GETS", ["gets"], 3)
        leader = await nodes.stream_leader("GETS")
        await loads.js_publish(leader.url, "gets", size=SIZE, window=WINDOW, count=SMALL)
        await nodes.wait_current("GETS")
        await asyncio.sleep(2.5 if self.server == "nats-server" else 0.5)  # its followers join the group on a 2 s tick
        pids = {n.name: n.pid for n in nodes.nodes}
        one = await loads.direct_get(nodes.urls[:1], "GETS", 1, SMALL, window=1, seconds=min(2.0, self.seconds))
        self.found["get1_p50"] = percentile(one.latencies_ms, 0.5)
        self.found["get1_p99"] = percentile(one.latencies_ms, 0.99)
        for name, size in (("get256", SMALL), ("get256_large", LARGE)):
            if size > SMALL:
                await loads.js_publish(leader.url, "gets", size=SIZE, window=WINDOW, count=size - SMALL)
                await nodes.wait_current("GETS")
            many = await loads.direct_get(nodes.urls, "GETS", 1, size, window=GETS, seconds=self.seconds, pids=pids)
            self.found[f"{name}_rate"] = many.rate
            self.found[f"{name}_cpu"] = sum(v for k, v in many.cpu.items() if k != "client") / many.messages * 1e6

    async def core(self, nodes: ProcessCluster) -> None:
        result = await loads.core_pubsub(nodes[0].url, nodes[1].url, "core.load", size=SIZE, count=300_000)
        self.found["core_rate"] = result.rate

    async def create(self, nodes: ProcessCluster) -> None:
        result = await loads.create_streams(nodes[0].url, 40, 3)
        self.found["create_rate"] = result.rate
        await loads.delete_streams(nodes[0].url, [f"BENCH_C{n}" for n in range(40)])

    async def failover(self, nodes: ProcessCluster) -> None:
        leader = await nodes.stream_leader("R3")
        self.found["failover_s"] = await failover_seconds(nodes, leader)

    async def cold_start(self) -> None:
        times = []
        for at in range(3):
            root = self.root / f"cold{at}"
            async with ProcessCluster(1, self.server, root=root, config=durable(self.server)) as one:
                times.append(one[0].ready_seconds)
            shutil.rmtree(root, ignore_errors=True)
        self.found["cold_start_s"] = statistics.median(times)


class FeatureRound(Round):
    """The stream API and consumers; nats-server in its lazy default (`bench_features`)."""

    async def run(self) -> dict[str, float]:
        shutil.rmtree(self.root, ignore_errors=True)
        features = Features(self.server, self.seconds)
        async with ProcessCluster(3, self.server, root=self.root) as nodes:
            await self.settle(nodes)
            await self.step("batched gets", features.batched_gets(nodes))
            await self.step("wildcards", features.wildcards(nodes))
            await self.step("multi_last", features.multi_last(nodes))
            await self.step("atomic batches", features.atomic(nodes))
            await self.step("consumers", features.consumers(nodes))
            await self.step("key-value", features.key_value(nodes))
            await self.step("idle consumers", features.idle_consumers(nodes))
            await self.step("takeover", features.takeover(nodes))
        return features.found


async def failover_seconds(nodes: ProcessCluster, leader: Node) -> float:
    """From the leader's SIGKILL under load to the first ack of a message that was sent after it."""
    survivor = next(n for n in nodes.nodes if n is not leader)
    async with await survivor.connect() as client:
        for n in range(200):
            await client.request("r3", b"before-%d" % n)
        start = time.monotonic()  # before the kill: reaping the process takes longer than some elections
        leader.signal(signal.SIGKILL)
        while time.monotonic() - start < 30:
            try:
                reply = await client.request("r3", b"after", within=0.02)
            except TimeoutError:
                continue
            if reply.data.startswith(b'{"stream"'):
                took = time.monotonic() - start
                assert not leader.alive
                return took
            await asyncio.sleep(0.01)
    raise ClientError("no ack within 30 s of the kill")


async def idle(server: str, root: Path) -> dict[str, float]:
    """CPU share of a core and RSS of the busiest node of a cluster with 200 idle R3 streams."""
    shutil.rmtree(root, ignore_errors=True)
    async with ProcessCluster(3, server, root=root, config=durable(server)) as nodes:
        made = await loads.create_streams(nodes[0].url, IDLE_STREAMS, 3)
        await asyncio.sleep(5)
        watch = CpuWatch({n.name: n.pid for n in nodes.nodes})
        start = time.monotonic()
        await asyncio.sleep(8)
        spent = {k: v for k, v in watch.read().items() if k != "client"}
        elapsed = time.monotonic() - start
        return {
            "idle_cpu": max(spent.values()) / elapsed * 100,
            "idle_rss": max(resident(n.pid) for n in nodes.nodes) / 2**20,
            "create200_rate": made.rate,
        }


async def measure(servers: Sequence[str], rounds: int, seconds: float, folder: Path, parts: set[str]) -> Figures:
    samples: dict[str, dict[str, list[float]]] = {server: defaultdict(list) for server in servers}
    fsync = []
    load = os.getloadavg()[0]
    for at in range(rounds):
        for server in servers if at % 2 == 0 else list(reversed(servers)):
            fsync.append(fdatasync_p50(folder))
            start = time.monotonic()
            found: dict[str, float] = {}
            if "core" in parts:
                found |= await Round(server, seconds, folder / server).run()
            if "features" in parts:
                found |= await FeatureRound(server, seconds, folder / server).run()
            for key, value in found.items():
                samples[server][key].append(value)
            took = time.monotonic() - start
            show = {k: round(v[-1], 3) for k, v in samples[server].items()}
            console.print(f"round {at + 1}/{rounds} {server} ({took:.0f} s): {show}")
    for server in servers:
        if "core" in parts:
            await once(samples[server], f"idle {server}", idle(server, folder / server))
        if "features" in parts:
            work = many_subjects(server, folder / server, seconds)
            await once(samples[server], f"1M subjects {server}", work)
            await once(samples[server], f"comebacks {server}", comebacks(server, folder / server))
    return Figures(statistics.median(fsync), load, {s: dict(v) for s, v in samples.items()})


async def once(samples: dict[str, list[float]], name: str, work: Coroutine[Any, Any, dict[str, float]]) -> None:
    """A figure that is taken one time."""
    try:
        found = await asyncio.wait_for(work, 180)
    except (ClientError, HarnessError, OSError, TimeoutError, AssertionError) as error:
        console.print(f"[red]{name} failed: {type(error).__name__} {error}")
        return
    for key, value in found.items():
        samples[key].append(value)
    console.print(f"{name}: { {k: round(v, 2) for k, v in found.items()} }")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument(
        "--part",
        choices=["core", "features"],
        help="only these figures",
    )
    parser.add_argument("--only", choices=["jetcluster", "nats-server"])
    parser.add_argument("--dir", type=Path, help="where the stores go (default: .bench in the repository)")
    parser.add_argument("--out", type=Path, help="Markdown page to write")
    parser.add_argument("--json", type=Path, help="raw samples to write")


def main(args: argparse.Namespace) -> int:
    servers = [args.only] if args.only else ["nats-server", "jetcluster"]
    if not args.only and find_server("nats-server") is None:
        console.print("nats-server is not on this machine (make tools; needs Go): no peer column")
        servers = ["jetcluster"]
    parts = {args.part} if args.part else {"core", "features"}
    base = args.dir or TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=base))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(measure(servers, args.rounds, args.seconds, folder, parts))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps({"fdatasync_ms": figures.fsync_ms, "samples": figures.samples}, indent=2))
    page = write_page(figures, args.rounds, args.seconds, base)
    if args.out:
        args.out.write_text(page)
        console.print(f"written: {args.out}")
    print(page)
    return 0
