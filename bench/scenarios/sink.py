"""The Spark sink's figures: rows per second into a three-node cluster, and CPU per row, by how rows are known again.

    python -m bench sink [--rounds 3] [--rows 400000] [--out FILE]

Servers, JVM and Python workers share one machine (bench/scenarios/spark.py): the rate is what this machine gave, the
sum of CPU what one with enough cores would have to give. The rows are made by Spark itself; `noop` shows what that
costs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench import spark_frame
from bench.scenarios.spark import SIZE, jvm_of, timed
from bench.spark_frame import create, report, standing
from bench.spent import Sample
from jetcluster.client.servers import ServerOptions, ask
from testkit.harness import ProcessCluster

LOADS: Final[dict[str, tuple[dict[str, Any], dict[str, str]]]] = {
    "none": ({}, {"idempotence": "none"}),
    "msgId": ({}, {}),
    "msgId, the stream takes atomic batches": ({"allow_atomic": True}, {}),
    "fence, one task": ({"allow_atomic": True}, {"idempotence": "fence"}),
}
"""Name -> configuration of the stream, options of the sink."""


def writing(
    session: Any, cluster: ProcessCluster, stream: str, rows: int, options: dict[str, str]
) -> Callable[[], None]:
    """Writes rows of SIZE bytes; two tasks, but for the fence."""
    tasks = 1 if options.get("idempotence") == "fence" else 2
    made = session.range(0, rows, 1, tasks).selectExpr(
        f"'{stream}.lines' AS subject", f"cast(rpad(id, {SIZE}, 'x') AS binary) AS data"
    )
    if not stream:
        return lambda: made.write.format("noop").mode("overwrite").save()
    where = {"servers": ",".join(cluster.urls), "stream": stream, "jobId": "bench"}
    return lambda: made.write.format("jetstream").mode("append").options(**where, **options).save()


async def measure(rounds: int, rows: int, folder: Path) -> dict[str, list[Sample]]:
    """Every round writes each load to a stream of its own."""
    samples: dict[str, list[Sample]] = {}
    async with standing(folder, "sink") as (cluster, session):
        servers = ServerOptions(tuple(cluster.urls))
        jvm, pids = jvm_of(session), [node.pid for node in cluster.nodes]
        await asyncio.to_thread(writing(session, cluster, "", rows, {}))  # warm
        for at in range(rounds):
            for number, (name, (config, options)) in enumerate(LOADS.items()):
                stream = f"SINK{at}{number}"
                await create(cluster, stream, f"{stream}.>", **config)
                work = writing(session, cluster, stream, rows, options)
                found = await asyncio.to_thread(timed, work, pids, jvm, rows)
                samples.setdefault(name, []).append(found)
                state = await asyncio.to_thread(
                    ask, servers, lambda one, stream=stream: one.api(f"STREAM.INFO.{stream}")
                )
                if state["state"]["messages"] != rows:
                    raise RuntimeError(f"{name}: {state['state']['messages']} messages of {rows} rows")
                await asyncio.to_thread(ask, servers, lambda one, stream=stream: one.api(f"STREAM.DELETE.{stream}"))
            work = writing(session, cluster, "", rows, {})
            samples.setdefault("noop", []).append(await asyncio.to_thread(timed, work, pids, jvm, rows))
    return samples


add_options = spark_frame.add_options


def main(arguments: argparse.Namespace) -> None:
    what = f"{arguments.rows:,} rows of {SIZE} bytes, R3"
    report(arguments, "sink", what, lambda folder: measure(arguments.rounds, arguments.rows, folder))
