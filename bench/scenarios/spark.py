"""The Spark source's figures: rows per second from a three-node cluster into a sink that drops them, beside what the
same servers give a client that only counts bytes, both in one run. CPU-seconds are those of whole process trees.

    python -m bench spark [--rounds 3] [--out FILE]

Here servers, JVM and Python workers share one machine: the sum of their CPU is what a machine with enough cores would
have to give; the wall rate is what this one gave. So the source is measured by itself as well, with answers that come
from memory (bench/replay.py), at once or over a path to another place, whose round trip and TCP window limit
what one connection can carry.

The archive job's figure: a stream of a million messages to zstd Parquet with manifests, on the bench's own cluster
and session (bench/scenarios/spark.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import loads, replay
from bench.replay import Replay
from bench.spent import CpuTree, Sample, own_rate, table
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.pipeline.main import run_in
from testkit.harness import TOP, ProcessCluster


def archiving(session: Any, cluster: ProcessCluster, stream: str, folder: Path, messages: int) -> Callable[[], None]:
    """Archives all of the stream into an empty folder, in batches of half of it. Raises when a row is missing."""
    out = folder / "archive"

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        words = ["--server", ",".join(cluster.urls), "--stream", stream, "--out", str(out)]
        words += ["--max-per-batch", str(-(-messages // 2))]
        rows = run_in(session, "archive", *words).fields["rows"]
        if rows != messages:
            raise RuntimeError(f"{rows} rows were archived, {messages} are in the stream")

    return work


MESSAGES = 1_000_000
SIZE = 128
STREAM = "SPARK"
FILTERED = "SPARKFILTERED"
"""A stream with as many messages, of which a filter matches one of a hundred."""
APART = 400_000
"""Messages that are read from memory."""
PATHS = {
    "on this machine": replay.Path(),
    "40 ms away, 1 MiB window": replay.Path(0.04, 1 << 20),
}


def in_one_thread() -> None:
    """Spark looks Python sources up in the active session of the calling thread, so all calls have the same one."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


def spark_session(folder: Path) -> Any:
    """local[2] with the JVM's own flags: this is no test."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from jetcluster.spark.datasource import register

    builder: Any = SparkSession.builder.master("local[2]").appName("jetcluster bench")
    for key, value in {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g", "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
    }.items():  # fmt: skip
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def jvm_of(session: Any) -> int:
    """Returns the process that the session has started."""
    return int(session.sparkContext._gateway.proc.pid)


def scan(session: Any, urls: Sequence[str], partitions: int, **options: str) -> Callable[[], None]:
    frame = session.read.format("jetstream").options(
        servers=",".join(urls), stream=STREAM, minPartitions=str(partitions), maxRecordsPerPartition=str(MESSAGES),
        **options,
    ).load()  # fmt: skip
    return lambda: frame.write.format("noop").mode("overwrite").save()


def timed(work: Callable[[], None], pids: Sequence[int], jvm: int, messages: int = MESSAGES) -> Sample:
    """`pids`: of the servers."""
    servers, spark = CpuTree(*pids), CpuTree(jvm)
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    return Sample(messages / took, servers.spent() / messages * 1e6, spark.spent() / messages * 1e6)


def apart(session: Any, cluster: ProcessCluster, jvm: int, rounds: int) -> dict[str, list[Sample]]:
    """The source with answers from memory."""
    samples: dict[str, list[Sample]] = {}
    part = {"endingOffsets": str(APART + 1)}
    with Replay(cluster.urls[0]) as replay:
        for count in (1, 2):
            scan(session, [replay.url], count, **part)()  # records
        for at in range(rounds):
            for name, path in PATHS.items():
                replay.over(path)
                for count in (1, 2) if at % 2 == 0 else (2, 1):
                    found = timed(scan(session, [replay.url], count, **part), [replay.pid], jvm, APART)
                    samples.setdefault(f"{name}, {count} partition{'s'[: count - 1]}", []).append(found)
    return samples


def filtered(session: Any, cluster: ProcessCluster) -> Callable[[], None]:
    """Fills the stream FILTERED; returns the read of one of a hundred messages."""
    config = {"name": FILTERED, "subjects": [f"{FILTERED}.>"], "num_replicas": 3, "allow_direct": True}
    ask(ServerOptions(tuple(cluster.urls)), lambda one: one.api(f"STREAM.CREATE.{FILTERED}", config))
    rows = session.range(0, MESSAGES, 1, 2).selectExpr(
        f"concat('{FILTERED}.', id % 100) AS subject", f"rpad(id, {SIZE}, 'x') AS data"
    )
    where = {"servers": ",".join(cluster.urls), "stream": FILTERED}
    rows.write.format("jetstream").mode("append").options(**where, idempotence="none").save()
    read = session.read.format("jetstream").options(**where, subjects=f"{FILTERED}.7").load()
    return lambda: read.write.format("noop").mode("overwrite").save()


async def measure(rounds: int, seconds: float, folder: Path) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]]]:
    """With the cluster, and with answers from memory."""
    samples: dict[str, list[Sample]] = {}
    in_one_thread()
    async with ProcessCluster(3, root=folder / "spark-cluster") as cluster:
        config = {"name": STREAM, "subjects": ["spark"], "num_replicas": 3, "allow_direct": True}
        servers = ServerOptions(tuple(cluster.urls))
        await asyncio.to_thread(ask, servers, lambda connection: connection.api(f"STREAM.CREATE.{STREAM}", config))
        leader = await cluster.stream_leader(STREAM)
        await loads.js_publish(leader.url, "spark", size=SIZE, window=500, count=MESSAGES)
        await cluster.wait_current(STREAM)
        session = await asyncio.to_thread(spark_session, folder)
        try:
            jvm = jvm_of(session)
            urls, pids = cluster.urls, [node.pid for node in cluster.nodes]
            await asyncio.to_thread(scan(session, urls, 2))  # warm: JIT, worker processes
            few = await asyncio.to_thread(filtered, session, cluster)
            for at in range(rounds):
                for count in (1, 2) if at % 2 == 0 else (2, 1):
                    own = await own_rate(cluster, STREAM, MESSAGES, count, seconds)
                    samples.setdefault(f"Direct Get, {count} connection{'s'[: count - 1]}", []).append(own)
                    work = scan(session, urls, count)
                    found = await asyncio.to_thread(timed, work, pids, jvm)
                    samples.setdefault(f"source, {count} partition{'s'[: count - 1]}", []).append(found)
                for count in (1, 2) if at % 2 == 0 else (2, 1):
                    work = scan(session, urls, count, columns="seq,subject,data")
                    found = await asyncio.to_thread(timed, work, pids, jvm)
                    samples.setdefault(f"source, {count} partition{'s'[: count - 1]}, three columns", []).append(found)
                found = await asyncio.to_thread(timed, few, pids, jvm, MESSAGES // 100)
                samples.setdefault("source, a filter that matches 1 of 100, per row that it returns", []).append(found)
                work = archiving(session, cluster, STREAM, folder, MESSAGES)
                found = await asyncio.to_thread(timed, work, pids, jvm)
                samples.setdefault("archive to Parquet (zstd) with manifests, all columns", []).append(found)
            alone = await asyncio.to_thread(apart, session, cluster, jvm, rounds)
        finally:
            session.stop()
    return samples, alone


def page(samples: dict[str, list[Sample]], alone: dict[str, list[Sample]], load: float) -> str:
    """Markdown."""
    rounds = max(map(len, samples.values()))
    return (
        f"{MESSAGES:,} messages of {SIZE} bytes, R3, into `noop`; median of {rounds}; load average at the start "
        f"{load:.1f} on {os.cpu_count()} cores.\n\n{table(samples)}\n"
        f"The source by itself, {APART:,} of these messages, answers from memory:\n\n{table(alone)}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load without Spark")
    parser.add_argument("--out", type=Path, help="Markdown page to write")


def main(arguments: argparse.Namespace) -> None:
    load, base = os.getloadavg()[0], TOP / ".bench"
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=base) as folder:
        text = page(*asyncio.run(measure(arguments.rounds, arguments.seconds, Path(folder))), load)
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
