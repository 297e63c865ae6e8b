"""The lakehouse job's figures: rows per second of a stream into Delta and Iceberg tables, and CPU per row.

    python -m bench lakehouse [--rounds 3] [--rows 400000] [--keys 20000] [--out FILE]

Servers, JVM and Python workers share one machine (bench/scenarios/spark.py). Each round lands the whole stream in
tables that are not there yet. A bucket's keys are merged into a table that has them all already, which is what a bucket
that is in use costs.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench import spark_frame
from bench.scenarios.spark import jvm_of, timed
from bench.spark_frame import create, report, standing
from bench.spent import Sample
from jetcluster.pipeline.main import run_in
from testkit.harness import ProcessCluster

STREAM: Final = "LAKE"
BUCKET: Final = "LAKEKEYS"
SCHEMA: Final = "id BIGINT NOT NULL, shop STRING, price DOUBLE, at TIMESTAMP"
LOADS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "raw into Delta": ("delta", ("--format", "raw")),
    "JSON into Delta, schema inferred": ("delta", ("--format", "json")),
    "JSON into Delta, schema declared": ("delta", ("--format", "json", "--schema", SCHEMA)),
    "JSON into Iceberg, schema declared": ("iceberg", ("--format", "json", "--schema", SCHEMA)),
    "JSON into both, schema declared": ("both", ("--format", "json", "--schema", SCHEMA)),
}
"""Name -> the tables, further words."""


def tables(lake: Path, kind: str) -> list[str]:
    """The words that name tables in this folder."""
    delta = ["--delta", f"{lake}/orders"]
    iceberg = ["--iceberg", "bench.orders", "--catalog", "type=sql"]
    iceberg += ["--catalog", f"uri=sqlite:///{lake}/catalog.db", "--catalog", f"warehouse=file://{lake}/iceberg"]
    return (delta if kind != "iceberg" else []) + (iceberg if kind != "delta" else [])


def landing(session: Any, words: Sequence[str], rows: int) -> Callable[[], None]:
    """Raises when another number of rows has landed."""

    def work() -> None:
        fields = run_in(session, "lakehouse", *words).fields
        if fields["rows"] != rows or fields["dead_letters"]:
            raise RuntimeError(f"{fields['rows']} rows and {fields['dead_letters']} dead letters of {rows} messages")

    return work


def merging(session: Any, words: Sequence[str], keys: int) -> Callable[[], None]:
    """Raises when another number of messages was merged."""

    def work() -> None:
        fields = run_in(session, "lakehouse", *words).fields
        if fields["end"] - fields["start"] != keys:
            raise RuntimeError(f"sequences {fields['start']} to {fields['end']} were merged for {keys} keys")

    return work


def written(session: Any, cluster: ProcessCluster, stream: str, subject: str, rows: int, first: int = 0) -> None:
    """Messages of about 80 bytes of JSON, by the sink; `subject` is SQL over the column `id`."""
    made = session.range(first, first + rows, 1, 2).selectExpr(
        f"{subject} AS subject",
        "to_json(named_struct('id', id, 'shop', concat('shop-', id % 97), 'price', id % 1000 / 8D,"
        " 'at', timestamp_seconds(1795900000 + id))) AS data",
    )
    options = {"servers": ",".join(cluster.urls), "stream": stream, "idempotence": "none"}
    made.write.format("jetstream").mode("append").options(**options).save()


def stream_round(
    session: Any, cluster: ProcessCluster, pids: Sequence[int], rows: int, folder: Path
) -> dict[str, Sample]:
    """Each load into tables of its own, which are removed behind it."""
    found: dict[str, Sample] = {}
    words = ["--server", ",".join(cluster.urls), "--stream", STREAM]
    for name, (kind, more) in LOADS.items():
        lake = folder / "lake"
        lake.mkdir()
        work = landing(session, [*words, *more, *tables(lake, kind)], rows)
        found[name] = timed(work, [*pids], jvm_of(session), rows)
        shutil.rmtree(lake)
    return found


def bucket_round(
    session: Any, cluster: ProcessCluster, pids: Sequence[int], keys: int, folder: Path
) -> dict[str, Sample]:
    """Every key is put anew before each merge; the first merge of a table makes it and is not counted."""
    found: dict[str, Sample] = {}
    words = ["--server", ",".join(cluster.urls), "--bucket", BUCKET]
    for kind in ("delta", "iceberg"):
        lake = folder / "lake"
        lake.mkdir()
        work = merging(session, [*words, *tables(lake, kind)], keys)
        for counted in (False, True):
            written(session, cluster, f"KV_{BUCKET}", f"concat('$KV.{BUCKET}.k', id)", keys)
            sample = timed(work, [*pids], jvm_of(session), keys)
            if counted:
                found[f"a bucket's {keys:,} keys, all put anew, into {kind.capitalize()}"] = sample
        shutil.rmtree(lake)
    return found


async def measure(rounds: int, rows: int, keys: int, folder: Path) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    async with standing(folder, "lake") as (cluster, session):
        pids = [node.pid for node in cluster.nodes]
        await create(cluster, STREAM, f"{STREAM}.>")
        await create(cluster, f"KV_{BUCKET}", f"$KV.{BUCKET}.>", max_msgs_per_subject=1)
        await asyncio.to_thread(written, session, cluster, STREAM, f"concat('{STREAM}.', id % 97)", rows)
        for _ in range(rounds):
            of_stream = await asyncio.to_thread(stream_round, session, cluster, pids, rows, folder)
            of_bucket = await asyncio.to_thread(bucket_round, session, cluster, pids, keys, folder)
            for name, sample in (of_stream | of_bucket).items():
                samples.setdefault(name, []).append(sample)
    return samples


def add_options(parser: argparse.ArgumentParser) -> None:
    spark_frame.add_options(parser)
    parser.add_argument("--keys", type=int, default=20_000)


def main(arguments: argparse.Namespace) -> None:
    what = f"{arguments.rows:,} messages of about 80 bytes of JSON, R3"
    rows, keys = arguments.rows, arguments.keys
    report(arguments, "lakehouse", what, lambda folder: measure(arguments.rounds, rows, keys, folder))
