"""The restore job's figures: rows per second of an archive into a new stream by each of its modes, and CPU per row.

    python -m bench restore [--rounds 3] [--rows 400000] [--modes exact,fence,msgid] [--out FILE]

Servers, driver, JVM and Python workers share one machine (bench/scenarios/spark.py). The stream that was restored is
not read back: that is a read of the source, which has figures of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import loads, spark_frame
from bench.scenarios.spark import SIZE, archiving, jvm_of, timed
from bench.spark_frame import create, report, standing
from bench.spent import Sample
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.pipeline.main import run_in
from testkit.harness import ProcessCluster

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
    samples: dict[str, list[Sample]] = {}
    async with standing(folder, "restore") as (cluster, session):
        await create(cluster, STREAM, f"{STREAM}.>")
        leader = await cluster.stream_leader(STREAM)
        await loads.js_publish(leader.url, f"{STREAM}.lines", size=SIZE, window=500, count=rows)
        await cluster.wait_current(STREAM)
        await asyncio.to_thread(archiving(session, cluster, STREAM, folder, rows))
        servers = ServerOptions(tuple(cluster.urls))
        await asyncio.to_thread(ask, servers, lambda one: one.api(f"STREAM.DELETE.{STREAM}"))
        for _ in range(rounds):
            for mode in modes:
                found = await asyncio.to_thread(sampled, session, cluster, mode, folder / "archive", rows)
                samples.setdefault(mode, []).append(found)
    return samples


def add_options(parser: argparse.ArgumentParser) -> None:
    spark_frame.add_options(parser)
    parser.add_argument("--modes", default=",".join(MODES))


def main(arguments: argparse.Namespace) -> None:
    what = f"{arguments.rows:,} rows of {SIZE} bytes, R3, an archive of two batches"
    modes = arguments.modes.split(",")
    report(arguments, "restore", what, lambda folder: measure(arguments.rounds, arguments.rows, modes, folder))
