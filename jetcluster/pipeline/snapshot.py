"""`jetcluster pipeline snapshot`: a key-value bucket as it was at a sequence or a time, as Parquet or JSON lines.

There is one row per key: its value then, or that it was deleted. A bucket keeps a limited number of values per key; if
the value of that moment has been replaced since, the key is `indeterminate`, never absent and never the newer value.
Keys without any message left cannot be listed: `removed` counts the messages up to that moment that are gone, and only
with 0 is a snapshot certainly the whole bucket.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetcluster.pipeline import row_files
from jetcluster.pipeline.arguments import add_server, server_options_of, source_options, stream_state_of
from jetcluster.pipeline.result import DataLoss, Result, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.arrow.planner import Subjects
    from jetcluster.client.connection import Connection
    from jetcluster.client.servers import ServerOptions
    from jetcluster.client.stream_state import StreamState

PRESENT: Final = "present"
DELETED: Final = "deleted"
INDETERMINATE: Final = "indeterminate"
COLUMNS: Final = ("key", "state", "value", "revision", "time", "op")
OPERATION: Final = "upper(coalesce(headers['KV-Operation'][0], headers['Nats-Marker-Reason'][0], 'PUT'))"
"""Spark's expression for what a message did to its key. A marker replaces a value removed by a limit or a purge."""
MAX_LOOKS: Final = 20
"""Attempts to count the stored messages while nothing is written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--bucket", required=True, help="the key-value bucket (its stream is KV_<bucket>)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--as-of-seq", type=int, metavar="N", help="after the write of this revision (default: now)")
    when.add_argument("--as-of-time", metavar="T", help="at this time, RFC 3339 or milliseconds since 1970")
    parser.add_argument("--out", required=True, metavar="URL", help="the rows: a new folder, s3://bucket/path, ...")
    parser.add_argument("--format", choices=row_files.FORMATS, default="parquet", help="(default: %(default)s)")
    parser.add_argument("--with-deleted", action="store_true", help="rows for deleted keys, too")


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError."""
    row_files.check_new(args.out)
    moment(args, stream_state_of(args, stream_of(args)))


def stream_of(args: argparse.Namespace) -> str:
    return f"KV_{args.bucket}"


def moment(args: argparse.Namespace, state: StreamState) -> int:
    """Returns the last sequence of the snapshot; 0 if nothing had been written. Raises UsageError."""
    from jetcluster.client.servers import ask
    from jetcluster.client.stream_state import seq_at_time
    from jetcluster.spark.options import OptionError, OptionReader

    if args.as_of_seq is not None:
        if not 0 < args.as_of_seq <= state.last:
            raise UsageError(f"--as-of-seq {args.as_of_seq}: the bucket has revisions 1 to {state.last}")
        return int(args.as_of_seq)
    if args.as_of_time is None:
        return state.last
    try:
        ns = OptionReader({"asOfTime": args.as_of_time}, {"asoftime": "asOfTime"}).time("asOfTime")
    except OptionError as error:
        raise UsageError(str(error)) from None
    assert ns is not None
    return ask(server_options_of(args), lambda connection: seq_at_time(connection, state, ns + 1)) - 1


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Writes the snapshot. Raises UsageError, and what reading the stream raises."""
    started = time.monotonic()
    state = stream_state_of(args, stream_of(args))
    seq = moment(args, state)
    found, removed = keys_at(session, args, state, seq)
    counts = {row.state: row["count"] for row in found.groupBy("state").count().collect()}
    wanted = found if args.with_deleted else found.where(f"state <> '{DELETED}'")
    written = write(wanted, args.out, args.format)
    found.unpersist()
    counted = sum(counts.values()) - (0 if args.with_deleted else counts.get(DELETED, 0))
    if written != counted:  # a worker died with rows that it held, and the bucket has not got them any more
        row_files.remove(args.out)
        raise DataLoss(f"{args.out} has {written} of {counted} keys: the bucket changed meanwhile; run the job again")
    fields: dict[str, Any] = {
        "bucket": args.bucket,
        "seq": seq,
        **{name: counts.get(name, 0) for name in (PRESENT, DELETED, INDETERMINATE)},
        "removed": removed,
        "complete": removed == 0,
        "out": args.out,
        "seconds": round(time.monotonic() - started, 2),
    }
    return Result("snapshot", fields)


def keys_at(
    session: SparkSession, args: argparse.Namespace, state: StreamState, seq: int
) -> tuple[DataFrame, int | None]:
    """Returns (rows of `COLUMNS`, cached; number of messages up to `seq` that are gone, None if unknown). Values are
    read before the removed messages are counted: a value replaced meanwhile is then either read or counted."""
    from pyspark.sql import functions as F

    known = values_at(session, args, state.name, seq).where("true" if seq >= state.first else "false").persist()
    known.count()
    server = server_options_of(args)
    subjects, stored = _look(server, state.name, seq)
    base = max(int(state.config.get("first_seq") or 1), 1) - 1
    removed = None if stored is None else max(seq - base - stored, 0)
    found = known.withColumn("key", key_of(F.col("subject"))).select(*COLUMNS)
    if removed == 0:  # all keys are known; further subjects are newer than `seq`
        return found, removed
    unknown = (
        names_of(session, server, state.name, subjects)
        .join(known, "subject", "left_anti")
        .withColumn("key", key_of(F.col("subject")))
    )
    missing = {"state": F.lit(INDETERMINATE)} | {
        name: F.lit(None).cast(known.schema[name].dataType) for name in COLUMNS[2:]
    }
    return found.unionByName(unknown.withColumns(missing).select(*COLUMNS)).persist(), removed


def values_at(session: SparkSession, args: argparse.Namespace, stream: str, seq: int) -> DataFrame:
    """Returns subject, state, value, revision, time and op of the keys whose last message up to `seq` is stored."""
    from pyspark.sql import functions as F

    options = source_options(args) | {
        "stream": stream, "mode": "last", "asOfSeq": str(max(seq, 1)), "columns": "subject,seq,time,headers,data",
        "failOnDataLoss": "false",
    }  # fmt: skip
    rows = session.read.format("jetstream").options(**options).load()
    op = F.expr(OPERATION)
    state = F.when(op == "PUT", PRESENT).otherwise(DELETED)
    value = F.when(op == "PUT", F.col("data"))
    return rows.select(
        "subject", state.alias("state"), value.alias("value"), F.col("seq").alias("revision"), "time", op.alias("op")
    )


def key_of(subject: Any) -> Any:
    """Returns the key of a subject. A mirrored bucket has its origin's subjects, so the bucket's name may be any."""
    from pyspark.sql import functions as F

    return F.regexp_replace(subject, r"^\$KV\.[^.]+\.", "")


def names_of(session: SparkSession, server: ServerOptions, stream: str, subjects: Subjects) -> DataFrame:
    """Returns the column `subject`; of ranges, tasks list what is stored by then, and the driver holds none of it."""
    import pyarrow as pa

    from jetcluster.arrow import listing
    from jetcluster.client.servers import ask

    if not subjects.ranges:
        return session.createDataFrame([(name,) for name in subjects.names], "subject string")
    held = subjects.ranges

    def asked(subject_filter: str, place: int) -> listing.Page:
        return ask(server, lambda connection: listing.page(connection, stream, subject_filter, place))

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for at in batch.column(0).to_pylist():
                for names in listing.within(asked, held[at]):
                    yield pa.RecordBatch.from_arrays([pa.array(names, pa.string())], ["subject"])

    return session.range(0, len(held), 1, len(held)).mapInArrow(rows, "subject string")


def _look(server: ServerOptions, stream: str, seq: int) -> tuple[Subjects, int | None]:
    """Returns (subjects stored now, number of stored messages up to `seq`)."""
    from jetcluster.arrow import listing
    from jetcluster.client.servers import ask

    def question(connection: Connection) -> tuple[Subjects, int | None]:
        stored = stored_up_to(partial(_extent, connection, stream), partial(_behind, connection, stream, seq))
        ask_page = partial(listing.page, connection, stream)
        return listing.plan(ask_page, (">",), size=listing.RANGE_SUBJECTS), stored

    return ask(server, question)


def stored_up_to(extent: Any, behind: Any) -> int | None:
    """Returns the number of messages up to a sequence: all less those after it, by `behind`; None if every attempt was
    disturbed by a write or removal, seen as a change of `extent`: (messages, last sequence)."""
    before = extent()
    for _ in range(MAX_LOOKS):
        later = behind()
        after = extent()
        if before == after and later is not None:
            return int(before[0]) - int(later)
        before = after
    return None


def _extent(connection: Connection, stream: str) -> tuple[int, int]:
    from jetcluster.client.stream_state import stream_state

    state = stream_state(connection, stream)
    return state.messages, state.last


def _behind(connection: Connection, stream: str, seq: int) -> int | None:
    """Returns the number of messages after `seq` by a replica that has all of them; None if this one has not."""
    from jetcluster.arrow.fetch import PROOF
    from jetcluster.client.stream_state import is_ours, stream_state

    state = stream_state(connection, stream)
    if state.last <= seq:
        return 0
    subject = f"{connection.api_prefix}DIRECT.GET.{stream}"
    if is_ours(connection):
        subject = f"$JS.API.DIRECT.PEER.{stream}.{state.leader}"
    elif not state.current:
        return None
    gather = connection.gather(subject, json.dumps({"seq": seq + 1, "batch": 1}).encode(), PROOF)
    end = gather.wait()
    if is_ours(connection) and int(end.get("Jc-Applied-Seq") or 0) < state.last:
        return None
    return behind_of(end.status, {"Nats-Num-Pending": end.get("Nats-Num-Pending")})


def behind_of(status: int, headers: Mapping[str, str | None]) -> int | None:
    """Returns 1 + the pending messages at the end of a batch of one, 0 for 404; None if the end has no count."""
    if status == 404:
        return 0
    pending = headers.get("Nats-Num-Pending")
    return 1 + int(pending) if status == 204 and pending is not None else None


def write(rows: DataFrame, out: str, form: str) -> int:
    """Writes the rows and returns their number. In JSON lines a value is text, or `value_base64` if it is not UTF-8.
    Raises what `row_files.write` raises."""
    from pyspark.sql import functions as F

    if form == "parquet":
        return row_files.write(rows, out)
    text = F.try_validate_utf8(F.col("value").cast("string"))
    other = F.when(F.col("value").isNotNull() & text.isNull(), F.base64("value"))
    return row_files.write(rows.withColumns({"value_base64": other, "value": text}), out, form)
