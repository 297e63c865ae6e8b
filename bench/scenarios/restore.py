"""The restore job's figures: rows per second of an archive into a new stream by each of its modes, and CPU per row.

    python -m bench restore [--rounds 3] [--rows 400000] [--modes exact,fence,msgid] [--out FILE]

Servers, driver, JVM and Python workers share one machine (bench/scenarios/spark.py). The stream that was restored is
not read back: that is a read of the source, which has figures of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import loads
from bench.scenarios.spark import SIZE, archiving, in_one_thread, jvm_of, spark_session, timed
from bench.spent import Sample, table
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.pipeline.main import run_in
from testkit.harness import TOP, ProcessCluster

STREAM: Final = "KEPT"
MODES: Final = {"exact": ["--no-verify"], "fence": ["--create"], "msgid": ["--create"]}
"""Mode -> further words."""


def restoring(session: Any, cluster: ProcessCluster, mode: str, archive: Path) -> Callable[[], None]:
    words = ["--server", ",".join(cluster.urls), "--from", str(archive), "--mode", mode, *MODES[mode]]

    def work() -> None:
        run_in(session, "restore", *words)

    return work


def sampled(session: Any, cluster: ProcessCluster, mode: str, archive: Path, rows: int) -> Sample:
    """The driver's own CPU is counted as Spark's."""
    before = sum(os.times()[:2])
    found = timed(
        restoring(session, cluster, mode, archive), [node.pid for node in cluster.nodes], jvm_of(session), rows
    )
    own = (sum(os.times()[:2]) - before) / rows * 1e6
    servers = ServerOptions(tuple(cluster.urls))
    held = ask(servers, lambda one: one.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]
    if held != rows:
        raise RuntimeError(f"{mode}: {held} messages of {rows} rows")
    ask(servers, lambda one: one.api(f"STREAM.DELETE.{STREAM}"))
    return found._replace(client=found.client + own)


async def measure(rounds: int, rows: int, modes: list[str], folder: Path) -> dict[str, list[Sample]]:
    in_one_thread()
    samples: dict[str, list[Sample]] = {}
    async with ProcessCluster(3, root=folder / "restore-cluster") as cluster:
        config = {"name": STREAM, "subjects": [f"{STREAM}.>"], "num_replicas": 3, "allow_direct": True}
        servers = ServerOptions(tuple(cluster.urls))
        await asyncio.to_thread(ask, servers, lambda one: one.api(f"STREAM.CREATE.{STREAM}", config))
        leader = await cluster.stream_leader(STREAM)
        await loads.js_publish(leader.url, f"{STREAM}.lines", size=SIZE, window=500, count=rows)
        await cluster.wait_current(STREAM)
        session = await asyncio.to_thread(spark_session, folder)
        try:
            await asyncio.to_thread(archiving(session, cluster, STREAM, folder, rows))
            await asyncio.to_thread(ask, servers, lambda one: one.api(f"STREAM.DELETE.{STREAM}"))
            for _ in range(rounds):
                for mode in modes:
                    found = await asyncio.to_thread(sampled, session, cluster, mode, folder / "archive", rows)
                    samples.setdefault(mode, []).append(found)
        finally:
            session.stop()
    return samples


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--out", type=Path, help="Markdown page to write")


def main(arguments: argparse.Namespace) -> None:
    load, base = os.getloadavg()[0], TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="restore-", dir=base) as folder:
        samples = asyncio.run(measure(arguments.rounds, arguments.rows, arguments.modes.split(","), Path(folder)))
    text = (
        f"{arguments.rows:,} rows of {SIZE} bytes, R3, an archive of two batches; median of {arguments.rounds}; load "
        f"average at the start {load:.1f} on {os.cpu_count()} cores.\n\n{table(samples, what='rows')}"
    )
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
