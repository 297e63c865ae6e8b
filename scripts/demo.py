"""`make demo`: 336,776 real flights into a replicated stream, the leader killed half-way, every replica read back.

    python -m scripts.demo [--server nats-server] [--port 4222] [--flights N] [--keep]

Three `jetcluster serve` processes on loopback, one R3 file stream, published by stock nats-py. At half-time the
stream's leader gets SIGKILL; at three quarters it is started again. At the end each node is asked alone (the two others
are frozen with SIGSTOP, so nobody else can answer) for every message by Direct Get.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jetcluster.cli.demo.copies import DemoError, Replica, prove_alone, sequences
from jetcluster.errors import JetclusterError
from scripts import flights
from testkit.client import ClientError
from testkit.harness import HarnessError, Node, ProcessCluster, busy_ports, find_server

console = Console()
STREAM = "FLIGHTS"
CHUNK = 500
CHUNKS_IN_FLIGHT = 8
ACK_PATIENCE = 0.5
"""Seconds without an ack after which a message is sent again, with the same Nats-Msg-Id."""


@dataclass
class Ingest:
    """The publisher's own account of the flights."""

    seqs: list[int]
    """Acked sequence per flight, 0 = no ack yet."""
    acked: int = 0
    resent: int = 0
    duplicates: int = 0
    killed_at: float = 0.0
    resumed_at: float = 0.0
    """First ack of something that was sent after the kill."""
    errors: dict[str, int] = field(default_factory=dict)

    def note(self, error: BaseException) -> None:
        text = type(error).__name__
        self.errors[text] = self.errors.get(text, 0) + 1


class Publisher:
    """Feeds the flights to JetStream through nats-py in chunks, several at a time, until each one is acked."""

    def __init__(self, js: Any, subjects: list[str], payloads: list[bytes], progress: Progress) -> None:
        self.js = js
        self.subjects = subjects
        self.payloads = payloads
        self.state = Ingest([0] * len(payloads))
        self._progress = progress
        self.half = asyncio.Event()
        self.three_quarters = asyncio.Event()
        self.resumed = asyncio.Event()
        self._task = progress.add_task("publish", total=len(payloads))

    async def run(self) -> None:
        slots = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(self.payloads), CHUNK):
                await slots.acquire()
                task = group.create_task(self._chunk(list(range(start, min(start + CHUNK, len(self.payloads))))))
                task.add_done_callback(lambda _: slots.release())
                await asyncio.sleep(0)

    async def _chunk(self, missing: list[int]) -> None:
        """Returns when all are acked: what gets no ack or an error is sent again."""
        state = self.state
        batch = missing
        deadline = time.monotonic() + 60
        while missing:
            if time.monotonic() > deadline:
                raise DemoError(f"{len(missing)} flights got no ack for 60 s (errors: {state.errors})")
            sent_at = time.monotonic()
            futures = await self._send(batch)
            if futures:
                await asyncio.wait(futures.values(), timeout=ACK_PATIENCE)
            booked = {n for n in batch if self._book(n, futures.get(n), sent_at)}
            missing = [n for n in missing if n not in booked]
            if missing:
                # Nothing came back: the stream has no leader. One probe asks for the rest, instead of a storm.
                batch = missing if booked else missing[:1]
                state.resent += len(batch)
                await asyncio.sleep(0.01)

    async def _send(self, numbers: list[int]) -> dict[int, asyncio.Future[Any]]:
        futures: dict[int, asyncio.Future[Any]] = {}
        for n in numbers:
            try:
                futures[n] = await self.js.publish_async(
                    self.subjects[n], self.payloads[n], headers={"Nats-Msg-Id": f"flight-{n}"}
                )
            except Exception as error:  # noqa: BLE001 - nats-py raises many kinds while it reconnects: sent again
                self.state.note(error)
                break
        return futures

    def _book(self, number: int, future: asyncio.Future[Any] | None, sent_at: float) -> bool:
        if future is None:
            return False
        if not future.done():
            future.cancel()  # gives nats-py its slot back
            return False
        if (error := future.exception()) is not None:
            self.state.note(error)
            return False
        ack, state = future.result(), self.state
        state.seqs[number] = ack.seq
        state.acked += 1
        state.duplicates += bool(ack.duplicate)
        if state.killed_at and not state.resumed_at and sent_at > state.killed_at:
            state.resumed_at = time.monotonic()
            self.resumed.set()
        if state.acked * 2 >= len(self.payloads):
            self.half.set()
        if state.acked * 4 >= len(self.payloads) * 3:
            self.three_quarters.set()
        self._progress.update(self._task, completed=state.acked)
        return True


async def kill_and_restart(cluster: ProcessCluster, publisher: Publisher) -> Node:
    """SIGKILL of the leader at half-time, restart at three quarters; returns the node it was."""
    state = publisher.state
    await publisher.half.wait()
    leader = await cluster.stream_leader(STREAM)
    state.killed_at = time.monotonic()
    leader.kill9()
    console.print(f"  [red]SIGKILL[/red] {leader.name}, the stream's leader, after {state.acked:,} acks")
    await publisher.resumed.wait()
    new = await cluster.stream_leader(STREAM)
    console.print(f"  acks resumed {state.resumed_at - state.killed_at:.2f} s later; {new.name} leads")
    await publisher.three_quarters.wait()
    await leader.start()
    console.print(f"  {leader.name} started again after {state.acked:,} acks")
    return leader


async def ingest(cluster: ProcessCluster, subjects: list[str], payloads: list[bytes]) -> tuple[Ingest, float]:
    import nats

    async with await cluster[0].connect() as admin:
        await admin.api(
            f"STREAM.CREATE.{STREAM}",
            {"name": STREAM, "subjects": ["flights.>"], "num_replicas": 3, "storage": "file", "allow_direct": True},
        )
    leader = await cluster.stream_leader(STREAM)
    urls = [leader.url, *(n.url for n in cluster.nodes if n is not leader)]

    async def quiet(_error: Exception) -> None:
        """nats-py reports the lost connection here; the publisher re-sends, and the summary counts."""

    connection = await nats.connect(
        urls, dont_randomize=True, error_cb=quiet, reconnect_time_wait=0.05, max_reconnect_attempts=-1,
        pending_size=16 << 20, allow_reconnect=True,
    )  # fmt: skip
    try:
        with bar() as progress:
            js = connection.jetstream(publish_async_max_pending=CHUNK * (CHUNKS_IN_FLIGHT + 2))
            publisher = Publisher(js, subjects, payloads, progress)
            start = time.monotonic()
            async with asyncio.TaskGroup() as group:
                group.create_task(kill_and_restart(cluster, publisher))
                await publisher.run()
            return publisher.state, time.monotonic() - start
    finally:
        await connection.close()


async def prove(cluster: ProcessCluster, state: Ingest, payloads: list[bytes], freeze: bool) -> dict[str, float]:
    """Reads everything from each replica; returns seconds per node. Raises DemoError for anything lost or doubled."""
    await cluster.wait_current(STREAM, within=60)
    expected = sequences(state.seqs, payloads)
    replicas = [Replica(node.name, node.url, node.pid) for node in cluster.nodes]
    took: dict[str, float] = {}
    with bar() as progress:
        for replica in replicas:
            task = progress.add_task(f"read {replica.name}", total=len(payloads))
            others = [other for other in replicas if other is not replica] if freeze else []
            advance = functools.partial(progress.update, task)
            took[replica.name] = await asyncio.to_thread(
                prove_alone, replica, others, STREAM, expected, lambda count, add=advance: add(advance=count)
            )
    return took


def bar() -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console,
    )  # fmt: skip


async def demo(args: argparse.Namespace) -> None:
    began = time.monotonic()
    subjects, payloads = flights.load()
    subjects, payloads = subjects[: args.flights], payloads[: args.flights]
    console.print(f"{len(payloads):,} flights, {sum(map(len, payloads)) / 1e6:.0f} MB, read in "
                  f"{time.monotonic() - began:.1f} s")  # fmt: skip
    root = Path(tempfile.mkdtemp(prefix="jetcluster-demo-"))
    config = "jetstream { sync_interval: always }\n" if args.server == "nats-server" else ""
    try:
        async with ProcessCluster(3, args.server, root=root, config=config, base_port=args.port) as cluster:
            console.print(f"{args.server} x 3 ready in {max(n.ready_seconds for n in cluster.nodes):.2f} s: "
                          + " ".join(cluster.urls))  # fmt: skip
            state, seconds = await ingest(cluster, subjects, payloads)
            took = await prove(cluster, state, payloads, freeze=args.server == "jetcluster")
            summary(args.server, state, seconds, took, len(payloads), time.monotonic() - began)
    finally:
        if args.keep:
            console.print(f"stores and logs are kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def summary(server: str, state: Ingest, seconds: float, took: dict[str, float], total: int, whole: float) -> None:
    rate = total / seconds
    console.print(f"\n[bold]Published[/bold] {total:,} flights in {seconds:.1f} s: {rate:,.0f}/s, each acked "
                  "after fsync on a majority")  # fmt: skip
    console.print(f"[bold]Failover[/bold] {state.resumed_at - state.killed_at:.2f} s from SIGKILL to the next ack; "
                  f"{state.resent:,} sent again, {state.duplicates:,} of them were stored already")  # fmt: skip
    for name, spent in took.items():
        how = "alone, the others frozen" if server == "jetcluster" else "asked on this node"
        console.print(f"[bold]{name}[/bold] answered {total:,} reads ({how}) at {total / spent:,.0f}/s: "
                      "every acked flight exactly once")  # fmt: skip
    console.print(f"[green]OK[/green] in {whole:.0f} s")


def preflight(args: argparse.Namespace) -> None:
    """Raises DemoError with what to do about it."""
    if importlib.util.find_spec("nats") is None:
        raise DemoError("the package nats-py is missing: pip install nats-py (or: make install)")
    if find_server(args.server) is None:
        raise DemoError(f"{args.server} is not on this machine: make tools")
    if args.port and (busy := busy_ports(range(args.port, args.port + 9))):
        raise DemoError(f"port {busy[0]} on 127.0.0.1 is in use: stop what listens there, or choose another --port")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", default="jetcluster", choices=["jetcluster", "nats-server"])
    options.add_argument("--port", type=int, default=0, help="first of nine ports (default: free ones)")
    options.add_argument("--flights", type=int, default=flights.ROWS, help="only the first N")
    options.add_argument("--keep", action="store_true", help="keep stores and logs")
    args = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        preflight(args)
        asyncio.run(demo(args))
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except BaseExceptionGroup as group:
        console.print(f"[red]demo failed:[/red] {'; '.join(str(e) for e in leaves(group))}")
        return 1
    except (JetclusterError, flights.MissingData, HarnessError, ClientError, OSError, TimeoutError) as error:
        console.print(f"[red]demo failed:[/red] {error or type(error).__name__}")
        return 1
    return 0


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
