"""`jetcluster bench`: puts the same load on any NATS-compatible server and says what came out.

It creates and deletes its own streams, named BENCH*. typer and rich are imported here and nowhere that `serve` loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jetcluster.cli import bench_loads as loads
from jetcluster.cli.bench_result import LoadResult
from jetcluster.errors import ApiError, JetclusterError
from jetcluster.spark.connection import Connection

STREAM = "BENCH"
SUBJECT = "bench.load"
MODES = ("js-pub", "js-sync", "js-batch", "js-fast", "direct-get", "core", "create")
STORED = 50_000
"""Messages that `direct-get` reads."""

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
        results = plan.run(wanted)
    except (JetclusterError, OSError) as error:
        typer.echo(f"bench: {servers}: {error or type(error).__name__}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps([result.summary() for result in results], indent=2))
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The load of a benchmark; the fields are the options of the command."""

    urls: Sequence[str]
    replicas: int
    storage: str
    size: int
    window: int
    gets: int
    seconds: float
    streams: int
    pids: dict[str, int]

    def run(self, modes: Sequence[str]) -> list[LoadResult]:
        """Raises JetclusterError, OSError."""
        steps: dict[str, Callable[[], list[LoadResult]]] = {
            "js-pub": lambda: self._publish(self.window),
            "js-sync": lambda: self._publish(1),
            "js-batch": self._batch,
            "js-fast": self._fast,
            "direct-get": self._direct_get,
            "core": self._core,
            "create": self._create,
        }
        return [result for mode in modes for result in steps[mode]()]

    @contextmanager
    def _stream(self, **more: object) -> Iterator[Connection]:
        """A connection to the first server, which has an empty stream meanwhile."""
        with Connection(self.urls[:1], name="jetcluster-bench") as connection:
            if connection.api("STREAM.NAMES", {"subject": SUBJECT})["total"]:
                connection.api(f"STREAM.DELETE.{STREAM}")
            loads.create_stream(connection, STREAM, SUBJECT, self.replicas, self.storage, **more)
        try:
            with Connection(self.urls[:1], name="jetcluster-bench") as connection:
                yield connection
        finally:
            with Connection(self.urls[:1], name="jetcluster-bench") as connection:
                connection.api(f"STREAM.DELETE.{STREAM}")

    def _publish(self, window: int) -> list[LoadResult]:
        with self._stream() as connection:
            return [loads.publish(connection, SUBJECT, self.size, window, self.seconds, self.pids)]

    def _batch(self) -> list[LoadResult]:
        with self._stream(allow_atomic=True) as connection:
            return [loads.atomic_publish(connection, SUBJECT, self.size, self.seconds, self.pids)]

    def _fast(self) -> list[LoadResult]:
        with self._stream(allow_batched=True) as connection:
            return [loads.fast_publish(connection, SUBJECT, self.size, self.seconds, self.pids)]

    def _direct_get(self) -> list[LoadResult]:
        with self._stream() as first, ExitStack() as stack:
            loads.publish(first, SUBJECT, self.size, self.window, float("inf"), {}, limit=STORED)
            all_of_them = [stack.enter_context(Connection([url], name="jetcluster-bench")) for url in self.urls]
            return [
                loads.direct_get([first], STREAM, STORED, 1, self.seconds, self.pids),
                loads.direct_get(all_of_them, STREAM, STORED, self.gets, self.seconds, self.pids),
            ]

    def _core(self) -> list[LoadResult]:
        count = int(50_000 * self.seconds)
        with Connection(self.urls[:1]) as publisher, Connection(self.urls[-1:]) as subscriber:
            return [loads.core(publisher, subscriber, "bench.core", self.size, count, self.pids)]

    def _create(self) -> list[LoadResult]:
        names = [f"BENCH_C{n}" for n in range(self.streams)]
        with Connection(self.urls[:1], name="jetcluster-bench") as connection:
            try:
                return [loads.create_streams(connection, names, self.replicas)]
            finally:
                for name in names:
                    with suppress(ApiError):  # not made
                        connection.api(f"STREAM.DELETE.{name}")


def table(results: Sequence[LoadResult]) -> Table:
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
