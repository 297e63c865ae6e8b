"""The delay from a publish to a row in a streaming query's hands, and how much of it is Spark's.

    python -m bench spark_latency [--probes 60] [--out FILE]

One message at a time, at a moment that has nothing to do with the query's triggers. It has arrived when `foreachBatch`
has it as a Python row. The same query on a Python source that reads a local file of a few bytes is the floor: what
Spark needs for a micro-batch of one row, whatever it comes from. The two take turns, query after query, so that
neither has the JVM to itself when its code is compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from bench.scenarios.spark import in_one_thread, spark_session
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ServerOptions, ask
from testkit.harness import TOP, ProcessCluster

STREAM: Final = "LATENCY"
TURNS: Final = 4
"""Queries on each source, in turns; the first of each compiles the JVM's code and does not count."""
WARM: Final = 3
"""Probes of each query that do not count."""
GIVEN_UP: Final = 30.0
"""Seconds after which a probe that has not arrived ends the run."""


class Lines(InputPartition):
    """A range of a file's bytes."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class FileReader(DataSourceStreamReader):
    """The lines of a file that grows: a source that costs next to nothing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def initialOffset(self) -> dict[str, int]:
        return {"bytes": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"bytes": Path(self._path).stat().st_size}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Lines(start["bytes"], end["bytes"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Lines)
        text = Path(self._path).read_bytes()[partition.start : partition.end]
        return iter([(line,) for line in text.splitlines()])

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class FileSource(DataSource):
    """`format("bench_file")` with the option `file`."""

    @classmethod
    def name(cls) -> str:
        return "bench_file"

    def schema(self) -> str:
        return "data binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return FileReader(self.options["file"])


class Query:
    """A streaming query whose rows come out of a queue, each with the moment at which it was there."""

    def __init__(self, session: Any, source: str, options: dict[str, str], checkpoint: Path) -> None:
        self.arrived: queue.Queue[tuple[bytes, float]] = queue.Queue()
        rows = session.readStream.format(source).options(**options).load().select("data")
        sink = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self._query = sink.start()

    def _take(self, frame: Any, _number: int) -> None:
        for row in frame.collect():
            self.arrived.put((bytes(row.data), time.perf_counter()))

    def steps(self) -> dict[str, float]:
        """Returns the median milliseconds of each step of the micro-batches with rows, by Spark's own progress."""
        found: dict[str, list[float]] = {}
        for progress in self._query.recentProgress:
            if progress.numInputRows:
                for step, took in progress.durationMs.items():
                    found.setdefault(step, []).append(float(took))
        return {step: statistics.median(took) for step, took in found.items()}

    def stop(self) -> None:
        self._query.stop()


def probed(query: Query, send: Callable[[bytes], None], turn: int, count: int, draw: random.Random) -> list[float]:
    """Returns how many milliseconds each probe took; the first `WARM` are left out."""
    took: list[float] = []
    for number in range(count + WARM):
        time.sleep(draw.uniform(0.2, 0.5))
        text = b"%d.%d" % (turn, number)
        begun = time.perf_counter()
        send(text)
        data, moment = query.arrived.get(timeout=GIVEN_UP)
        while data != text and not data.startswith(b"%d." % turn):  # of earlier turns
            data, moment = query.arrived.get(timeout=GIVEN_UP)
        if data != text:
            raise RuntimeError(f"{data!r} arrived for {text!r}")
        took.append((moment - begun) * 1e3)
    return took[WARM:]


def pair(
    session: Any, cluster: ProcessCluster, folder: Path, probes: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    """Both sources with `TURNS` queries each, one after the other."""
    took: dict[str, list[float]] = {}
    steps: dict[str, dict[str, float]] = {}
    draw = random.Random(7)
    session.dataSource.register(FileSource)
    path = folder / "lines"
    path.touch()

    def append(text: bytes) -> None:
        with path.open("ab") as file:
            file.write(text + b"\n")

    with Connection(cluster.urls) as connection:
        acks: list[float] = []

        def publish(text: bytes) -> None:
            begun = time.perf_counter()
            connection.request(STREAM, text)
            acks.append((time.perf_counter() - begun) * 1e3)

        options = {"servers": ",".join(cluster.urls), "stream": STREAM}
        sources = (
            ("a local file of a few bytes", "bench_file", {"file": str(path)}, append),
            ("a stream with three replicas", "jetstream", options, publish),
        )
        for turn in range(TURNS):
            for name, source, chosen, send in sources if turn % 2 else sources[::-1]:
                query = Query(session, source, chosen, folder / f"{source}-{turn}")
                try:
                    found = probed(query, send, turn, -(-probes // (TURNS - 1)), draw)
                    if turn:
                        took.setdefault(name, []).extend(found)
                        steps[name] = query.steps()
                finally:
                    query.stop()
        took["of that, until the PubAck"] = acks[-len(took[sources[1][0]]) :]
    return took, steps


def text_of(took: dict[str, list[float]], steps: dict[str, dict[str, float]], load: float) -> str:
    """Markdown."""
    lines = ["| from | median | 90 % | longest |", "|---|---|---|---|"]
    for name, values in took.items():
        ordered = sorted(values)
        shown = (statistics.median(ordered), ordered[len(ordered) * 9 // 10], ordered[-1])
        lines.append(f"| {name} | " + " | ".join(f"{value:,.1f} ms" for value in shown) + " |")
    names = sorted({step for found in steps.values() for step in found})
    parts = ["| step of a micro-batch | " + " | ".join(steps) + " |", "|---|" + "---|" * len(steps)]
    parts += [
        f"| {step} | " + " | ".join(f"{found.get(step, 0):,.0f} ms" for found in steps.values()) + " |"
        for step in names
    ]
    count = len(next(iter(took.values())))
    head = f"{count} messages, one at a time; load average at the start {load:.1f} on {os.cpu_count()} cores."
    return "\n\n".join((head, "\n".join(lines), "\n".join(parts))) + "\n"


async def measure(probes: int, folder: Path) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    in_one_thread()
    async with ProcessCluster(3, root=folder / "latency-cluster") as cluster:
        made = {"name": STREAM, "num_replicas": 3, "allow_direct": True}
        servers = ServerOptions(tuple(cluster.urls))
        await asyncio.to_thread(ask, servers, lambda connection: connection.api(f"STREAM.CREATE.{STREAM}", made))
        session = await asyncio.to_thread(spark_session, folder)
        try:
            return await asyncio.to_thread(pair, session, cluster, folder, probes)
        finally:
            session.stop()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--probes", type=int, default=60)
    parser.add_argument("--out", type=Path, help="Markdown page to write")


def main(arguments: argparse.Namespace) -> None:
    load, base = os.getloadavg()[0], TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="latency-", dir=base) as folder:
        text = text_of(*asyncio.run(measure(arguments.probes, Path(folder))), load)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
