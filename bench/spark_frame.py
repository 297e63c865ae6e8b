"""The frame of Spark's scenarios: a cluster and a session on this machine, and a table of what was measured."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.scenarios.spark import in_one_thread, spark_session
from bench.spent import Sample, table
from jetcluster.client.servers import ServerOptions, ask
from testkit.harness import TOP, ProcessCluster


@asynccontextmanager
async def standing(folder: Path, name: str) -> AsyncIterator[tuple[ProcessCluster, Any]]:
    """Three servers and a session, which calls in `asyncio.to_thread` share."""
    in_one_thread()
    async with ProcessCluster(3, root=folder / f"{name}-cluster") as cluster:
        session = await asyncio.to_thread(spark_session, folder)
        try:
            yield cluster, session
        finally:
            session.stop()


async def create(cluster: ProcessCluster, name: str, subjects: str, **config: Any) -> None:
    """Creates a stream with three replicas."""
    made = {"name": name, "subjects": [subjects], "num_replicas": 3, "allow_direct": True, **config}
    await asyncio.to_thread(ask, ServerOptions(tuple(cluster.urls)), lambda one: one.api(f"STREAM.CREATE.{name}", made))


def report(
    arguments: argparse.Namespace,
    name: str,
    what: str,
    measure: Callable[[Path], Coroutine[Any, Any, dict[str, list[Sample]]]],
) -> None:
    """Measures in a folder of its own, and prints the table. `what` says what was measured; `arguments` has `rounds`
    and `out`."""
    load, base = os.getloadavg()[0], TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=base) as folder:
        samples = asyncio.run(measure(Path(folder)))
    text = (
        f"{what}; median of {arguments.rounds}; load average at the start {load:.1f} on {os.cpu_count()} cores.\n\n"
        f"{table(samples, what='rows')}"
    )
    if arguments.out:
        arguments.out.write_text(text)
    print(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--out", type=Path, help="Markdown page to write")
