"""`--mode fence`: the rows of an archive, published in order by many tasks.

Each task has a part of the archive and knows how many rows come before it. It reads, checks and converts its part, then
waits until the stream's last message says that the rows before are stored, and publishes its own behind them. So the
stream itself says whose turn it is, and what was stored when something died; two attempts of a task, or a task that
counts as lost and goes on, cannot write a row twice (spark/fence.py).

A task that waits holds one of Spark's places, and Spark gives the place of a task that failed to a later one first. So
a task waits for a limited time only: then the one that failed is tried again, and the part is left to the next round.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jetcluster.client.servers import ask
from jetcluster.pipeline import restore_parts, restore_rows
from jetcluster.pipeline.archive_tasks import FilePart, run_tasks
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.naming import named
from jetcluster.spark.fence import FenceError, parse, read_last
from jetcluster.spark.message import PublishError
from jetcluster.spark.publish import ServerLink
from jetcluster.spark.rows import RowReader
from jetcluster.spark.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetcluster.pipeline.restore_plan import RestorePlan

TURN_SECONDS: Final = 10.0
"""A task gives its place up when for so long no row before its own was stored."""
MAX_IDLE_ROUNDS: Final = 3
"""Rounds of tasks in a row that may end without any row."""


class FencedPart(NamedTuple):
    """The rows of one task."""

    part: FilePart
    first: int
    """Rows before them."""
    stop: int
    """Rows up to and with them."""


@dataclass(frozen=True)
class FencedTask:
    """Publishes a part in its turn; runs in Spark's workers."""

    sink: Sink
    url: str
    stream: str
    """The stream that was archived."""
    job: str
    source_seq: bool

    def __call__(self, one: FencedPart) -> Iterator[str]:
        """Yields the number of rows that it added; nothing if its turn did not come."""
        link = ServerLink(self.sink.options.server, one.first)
        try:
            writer = self.sink.fence_writer(link, self.job, 0, first=one.first, ends=False)
            if writer.rows_stored() < one.stop:
                rows = list(self._rows(one.part))
                if not writer.await_turn(TURN_SECONDS):
                    return
                writer.write(rows)
            yield str(writer.stored)
        finally:
            link.close()

    def _rows(self, part: FilePart) -> Iterator[Any]:
        reader = RowReader(self.sink.options, self.sink.patterns)
        batches = restore_parts.in_order(self.url, part, restore_rows.COLUMNS)
        for batch in restore_rows.rows_for_sink(batches, self.stream, source_seq=self.source_seq):
            yield reader.rows(batch.drop_columns("msg_id"))


def publish(session: SparkSession, plan: RestorePlan, args: argparse.Namespace) -> dict[str, Any]:
    """Publishes the archive. Returns `added`, the number of rows that were stored meanwhile. Raises UsageError,
    FenceError, what the sink raises, and PublishError when round after round stores nothing."""
    job = f"restore.{plan.stream}.{zlib.crc32(plan.created.encode()):08x}"
    task = FencedTask(_sink(plan, args, job), plan.url, plan.stream, job, args.source_seq)
    parts = fenced(session, plan)
    count = parts[-1].stop if parts else 0
    began = stored = _stored(plan, args, job)
    idle = 0
    while left := [one for one in parts if one.stop > stored]:
        with named(session, f"{plan.stream} restored: {count - stored} rows in order"):
            run_tasks(session, left, task)
        before, stored = stored, _stored(plan, args, job)
        idle = 0 if stored > before else idle + 1
        if idle == MAX_IDLE_ROUNDS:
            raise PublishError(f"{plan.target}: no task has published anything in {idle} rounds")
        if not args.json:
            progress(f"{stored} of {count} rows are in {plan.target}")
    if stored > count:
        raise FenceError(f"{plan.target} holds {stored} rows of job {job}, and there are only {count} to restore")
    return {"added": stored - began}


def fenced(session: SparkSession, plan: RestorePlan) -> list[FencedPart]:
    """Returns the rows of tasks, in order. The number of rows before a row stays the same when batches of the archive
    are made one, and when more are archived: so an interrupted run can go on."""
    parts = restore_parts.cut(plan.manifests, plan.end)
    found: list[FencedPart] = []
    first = 0
    for part, rows in zip(parts, restore_parts.count(session, plan.url, parts), strict=True):
        if rows:
            found.append(FencedPart(part, first, first + rows))
        first += rows
    return found


def _sink(plan: RestorePlan, args: argparse.Namespace, job: str) -> Sink:
    from pyspark.sql.types import StructType

    options = source_options(args) | {
        "stream": plan.target,
        "idempotence": "fence",
        "reservedHeaders": "drop",
        "jobId": job,
    }
    if args.start_after is not None:
        options["startAfter"] = str(args.start_after)
    schema: Any = StructType.fromDDL(restore_rows.SINK_SCHEMA)
    columns = StructType([field for field in schema if field.name != "msg_id"])
    return Sink(options, columns, overwrite=False, streaming=False)


def _stored(plan: RestorePlan, args: argparse.Namespace, job: str) -> int:
    """Returns how many rows are stored according to the stream's last message; 0 if that is not this job's. Tasks look
    at it, too, and refuse a stream with messages of another writer."""
    last = ask(server_options_of(args), lambda connection: read_last(connection, plan.target))
    found = parse(last.marker)
    return found.rows if found is not None and (found.job, found.batch) == (job, 0) else 0
