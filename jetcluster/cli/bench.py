"""`jetcluster bench`: puts the same load on any NATS-compatible server and says what came out.

It creates and deletes its own streams, named BENCH*. typer and rich are imported here and nowhere that `serve` loads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from jetcluster.cli import bench_loads as loads
from jetcluster.cli.bench_batches import atomic_publish
from jetcluster.cli.bench_client import Client, ClientError
from jetcluster.cli.bench_fast import fast_publish
from jetcluster.cli.bench_loads import Result

STREAM = "BENCH"
SUBJECT = "bench.load"
MODES = ("js-pub", "js-sync", "js-batch", "js-fast", "direct-get", "core", "create")

app = typer.Typer(add_completion=False, help="Load a NATS-compatible server and report rates, latencies and CPU.")


@app.command()
def bench(
    servers: Annotated[str, typer.Option("--server", "-s", help="URLs, comma separated.")] = "nats://127.0.0.1:4222",
    mode: Annotated[str, typer.Option(help=f"One or more of {', '.join(MODES)}, comma separated; or all.")] = "all",
    replicas: Annotated[int, typer.Option("--replicas", "-r", min=1, max=5)] = 1,
    storage: Annotated[str, typer.Option(help="file or memory")] = "file",
    size: Annotated[int, typer.Option(min=8, help="Payload bytes.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="js-pub: publishes without their ack at any time.")] = 500,
    gets: Annotated[int, typer.Option(min=1, help="direct-get: requests in flight over all servers.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each load.")] = 3.0,
    streams: Annotated[int, typer.Option(min=1, help="create: how many.")] = 50,
    pid: Annotated[list[str] | None, typer.Option(help="name=pid of a server process whose CPU to report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Runs the loads one after the other and prints one line for each."""
    wanted = MODES if mode == "all" else tuple(mode.split(","))
    if unknown := set(wanted) - set(MODES):
        raise typer.BadParameter(f"unknown mode {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    plan = Plan(servers.split(","), replicas, storage, size, window, gets, seconds, streams, _pids(pid or []))
    try:
        results = _run(plan.run(wanted))
    except (ClientError, OSError, TimeoutError) as error:
        typer.echo(f"bench: {servers}: {error or type(error).__name__}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(loads.to_json(results))
    else:
        Console().print(table(results))


def _pids(pairs: Sequence[str]) -> dict[str, int]:
    found = {}
    for pair in pairs:
        name, _, number = pair.rpartition("=")
        if not number.isdigit():
            raise typer.BadParameter(f"--pid {pair}: expected name=pid")
        found[name or number] = int(number)
    return found


def _run(work: Coroutine[Any, Any, list[Result]]) -> list[Result]:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


class Plan:
    """What to load, and how: one method per mode."""

    def __init__(
        self, urls: Sequence[str], replicas: int, storage: str, size: int, window: int, gets: int, seconds: float,
        streams: int, pids: dict[str, int],
    ) -> None:  # fmt: skip
        self.urls = urls
        self.replicas = replicas
        self.storage = storage
        self.size = size
        self.window = window
        self.gets = gets
        self.seconds = seconds
        self.streams = streams
        self.pids = pids

    async def run(self, modes: Sequence[str]) -> list[Result]:
        steps: dict[str, Callable[[], Coroutine[Any, Any, list[Result]]]] = {
            "js-pub": self.js_pub, "js-sync": self.js_sync, "js-batch": self.js_batch, "js-fast": self.js_fast,
            "direct-get": self.direct_get, "core": self.core, "create": self.create,
        }  # fmt: skip
        results = []
        for mode in modes:
            results += await steps[mode]()
        return results

    async def fresh_stream(self, **more: object) -> None:
        async with await Client.connect(self.urls[0]) as client:
            names = await client.api("STREAM.NAMES", {"subject": SUBJECT})
            if names["total"]:
                await client.api(f"STREAM.DELETE.{STREAM}")
            await loads.create_stream(client, STREAM, [SUBJECT], self.replicas, self.storage, **more)

    async def drop_stream(self) -> None:
        await loads.delete_streams(self.urls[0], [STREAM])

    async def publish(self, window: int, count: int | None = None) -> Result:
        return await loads.js_publish(
            self.urls[0], SUBJECT, size=self.size, window=window, seconds=self.seconds, count=count, pids=self.pids
        )

    async def js_pub(self) -> list[Result]:
        await self.fresh_stream()
        try:
            return [await self.publish(self.window)]
        finally:
            await self.drop_stream()

    async def js_sync(self) -> list[Result]:
        await self.fresh_stream()
        try:
            return [await self.publish(1)]
        finally:
            await self.drop_stream()

    async def js_batch(self) -> list[Result]:
        await self.fresh_stream(allow_atomic=True)
        try:
            return [await atomic_publish(self.urls[0], SUBJECT, size=self.size, seconds=self.seconds, pids=self.pids)]
        finally:
            await self.drop_stream()

    async def js_fast(self) -> list[Result]:
        await self.fresh_stream(allow_batched=True)
        try:
            return [await fast_publish(self.urls[0], SUBJECT, size=self.size, seconds=self.seconds, pids=self.pids)]
        finally:
            await self.drop_stream()

    async def direct_get(self) -> list[Result]:
        await self.fresh_stream()
        try:
            count = 50_000
            await self.publish(self.window, count)
            one = await loads.direct_get(
                self.urls[:1], STREAM, 1, count, window=1, seconds=self.seconds, pids=self.pids
            )
            many = await loads.direct_get(
                self.urls, STREAM, 1, count, window=self.gets, seconds=self.seconds, pids=self.pids
            )
            return [one, many]
        finally:
            await self.drop_stream()

    async def core(self) -> list[Result]:
        count = int(50_000 * self.seconds)
        return [
            await loads.core_pubsub(
                self.urls[0], self.urls[-1], "bench.core", size=self.size, count=count, pids=self.pids
            )
        ]

    async def create(self) -> list[Result]:
        try:
            return [await loads.create_streams(self.urls[0], self.streams, self.replicas)]
        finally:
            await loads.delete_streams(self.urls[0], [f"BENCH_C{n}" for n in range(self.streams)])


def table(results: Sequence[Result]) -> Table:
    """Rates, latencies, and CPU microseconds per message (= CPU-seconds per million) of every watched process."""
    found = Table("load", "messages", "msgs/s", "p50 ms", "p99 ms", "CPU us/msg")
    for result in results:
        row = result.summary()
        cpu = row["cpu_s_per_million"]
        assert isinstance(cpu, dict)
        found.add_row(
            result.name, f"{result.messages:,}", f"{result.rate:,.0f}",
            "" if row["p50_ms"] is None else f"{row['p50_ms']:.3f}",
            "" if row["p99_ms"] is None else f"{row['p99_ms']:.3f}",
            " ".join(f"{name} {value:.2f}" for name, value in cpu.items()),
        )  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `bench` with `argv` (without the program's name); returns the exit code."""
    try:
        app(args=list(sys.argv[1:] if argv is None else argv), prog_name="jetcluster bench", standalone_mode=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
