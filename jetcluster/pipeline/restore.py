"""`jetcluster pipeline restore`: an archive back into a stream.

--mode exact    a new stream with the sequences, times, header blocks and gaps of the archive, made by the server's own
                restore: all of it or nothing, read back and compared at the end
--mode fence    the messages published to a stream, in order, each once, without a limit of time; goes on where it
                was interrupted. Atomic batches leave headers of their own on the messages, gaps are closed
--mode msgid    published in parallel, in order per subject, each once within the stream's duplicate window
"""

from __future__ import annotations

import argparse
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetcluster.errors import ApiError
from jetcluster.pipeline import manifest
from jetcluster.pipeline.arguments import add_server, server_options_of, source_options
from jetcluster.pipeline.console import progress
from jetcluster.pipeline.folder import is_local, open_folder
from jetcluster.pipeline.manifest import Manifest
from jetcluster.pipeline.result import DataLoss, Result, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.pipeline.restore_rows import Totals

MODES: Final = ("exact", "fence", "msgid")
ATTEMPTS: Final = 5
NAME_TAKEN: Final = 10130
GONE_SECONDS: Final = 25.0
"""After an interrupted restore the server needs a while until its half made stream is gone."""
_ROWS_PER_TASK: Final = 50_000
_BYTES_PER_TASK: Final = 8 << 20
"""Of compressed Parquet. What a task makes is held by the driver until it is sent."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--from", dest="source", required=True, metavar="DIR", help="folder of the archive")
    parser.add_argument("--stream", help="stream to restore into (default: the archived stream's name)")
    parser.add_argument(
        "--mode", choices=MODES, default="exact", help="exact makes a new stream; fence and msgid publish"
    )
    parser.add_argument("--upto-seq", type=int, metavar="N", help="leave out what had a sequence above N")
    parser.add_argument(
        "--create", action="store_true", help="fence, msgid: create the stream as it was, if it is missing"
    )
    parser.add_argument("--replicas", type=int, metavar="N", help="of the stream that is made (default: as archived)")
    parser.add_argument("--subjects", metavar="S[,S]", help="of the stream that is made (default: as archived)")
    parser.add_argument(
        "--no-limits",
        action="store_true",
        help="of the stream that is made: none may remove old messages",
    )
    parser.add_argument(
        "--source-seq", action="store_true", help="fence, msgid: header Jc-Source-Seq holds the archived sequence"
    )
    parser.add_argument("--start-after", type=int, metavar="SEQ", help="fence: the last sequence of a stream in use")
    parser.add_argument("--no-verify", action="store_true", help="exact: do not read the new stream back")


def check(args: argparse.Namespace) -> None:
    """Before Spark is started. Raises UsageError, DataLoss."""
    if args.upto_seq is not None and args.upto_seq < 1:
        raise UsageError("--upto-seq must be 1 or more")
    if args.mode == "exact" and (args.source_seq or args.start_after is not None):
        raise UsageError("--source-seq and --start-after are for --mode fence and msgid")
    if is_local(args.source) and not manifest.load(open_folder(None, args.source)):
        raise UsageError(f"--from {args.source}: no archive there")
    with server_options_of(args).connect():
        pass


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    started = time.monotonic()
    plan = Plan(session, args)
    fields: dict[str, Any] = {
        "stream": plan.target,
        "from": plan.url,
        "mode": args.mode,
        "rows": plan.totals.rows,
        "start": plan.start,
        "end": plan.end,
        "deleted": plan.deleted,
    }
    if args.mode == "exact":
        from jetcluster.pipeline.restore_exact import restore_exact

        fields |= restore_exact(session, plan, args)
    else:
        fields |= publish(plan, args)
    fields["seconds"] = round(time.monotonic() - started, 2)
    return Result("restore", fields)


class Plan:
    """What is to be restored: the manifests, what they add up to, and the stream's configuration."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        """Raises UsageError, DataLoss."""
        folder = open_folder(session, args.source)
        found = manifest.load(folder)
        upto = args.upto_seq
        self.url = folder.url
        self.manifests = [one for one in found if upto is None or one.start <= upto]
        if not self.manifests:
            raise UsageError(f"{folder.url} holds no manifest" + (f" up to sequence {upto}" if found else ""))
        for one in self.manifests:
            held = folder.list(one.directory)
            if missing := [name for name, size in one.files.items() if held.get(name) != size]:
                raise DataLoss(f"{folder.url}/{one.directory}/{missing[0]} is missing or cut off")
        last = self.manifests[-1]
        self.stream = last.stream
        self.created = last.created
        self.target = args.stream or last.stream
        self.start = self.manifests[0].start
        self.end = last.end if upto is None else min(last.end, upto + 1)
        self.config = target_config(last.config, args, self.target, self.start)
        self._session = session
        self.totals = self._count()
        whole = last.subjects == [">"]
        self.deleted = self.end - self.start - self.totals.rows if whole else None

    def rows(self, one: Manifest) -> DataFrame:
        """Of one batch, those that are wanted, not sorted, with `place`."""
        from pyspark.sql import functions as F

        files = [f"{self.url}/{one.directory}/{name}" for name in one.files]
        if not files:
            raise DataLoss(f"{self.url}: manifest {one.number} names no files")
        found = self._session.read.parquet(*files)
        if one.end > self.end:
            found = found.where(F.col("seq") < self.end)
        return found.withColumn("place", F.xxhash64("seq", "time_ns", "digest"))

    def sorted_rows(self, one: Manifest) -> DataFrame:
        """In order of sequences, in tasks whose results fit into the driver."""
        tasks = max(1, one.rows // _ROWS_PER_TASK, sum(one.files.values()) // _BYTES_PER_TASK)
        return self.rows(one).repartitionByRange(tasks, "seq").sortWithinPartitions("seq")

    def _count(self) -> Totals:
        """By the manifests, and by the rows where a manifest is wanted in part."""
        from pyspark.sql import functions as F

        from jetcluster.pipeline.restore_rows import Totals

        self.first_time = self.last_time = None
        self.first_seq = self.last_seq = None
        totals = Totals()
        for one in self.manifests:
            found: Any = one
            if one.end > self.end:
                found = self.rows(one).agg(
                    F.count("*").alias("rows"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                    F.min("time_ns").alias("first_time"), F.max("time_ns").alias("last_time"),
                    F.bit_xor("digest").alias("digest"), F.bit_xor("place").alias("places"),
                ).first()  # fmt: skip
            totals = totals.plus(Totals(found.rows, 0, _signed(found.digest), _signed(found.places)))
            if found.rows:
                self.first_seq, self.first_time = self.first_seq or found.first_seq, self.first_time or found.first_time
                self.last_seq, self.last_time = found.last_seq, found.last_time
        return totals


def _signed(value: str | int | None) -> int:
    number = int(value, 16) if isinstance(value, str) else value or 0
    return number - (1 << 64) if number >= 1 << 63 else number


def target_config(config: dict[str, Any], args: argparse.Namespace, name: str, start: int) -> dict[str, Any]:
    """The configuration of the stream that is made: the archived one, less what ties it to other streams."""
    made = {
        key: value for key, value in config.items() if key not in ("mirror", "sources", "mirror_direct", "sealed")
    } | {"name": name}  # fmt: skip
    if args.replicas:
        made["num_replicas"] = args.replicas
    if args.subjects:
        made["subjects"] = [word.strip() for word in args.subjects.split(",") if word.strip()]
    if args.no_limits:
        made |= {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    if args.mode != "exact":
        for key in ("subject_transform", "republish"):  # the archived messages went through these before
            made.pop(key, None)
        made["first_seq"] = start
        if args.mode == "fence":
            made["allow_atomic"] = True
    return made


def publish(plan: Plan, args: argparse.Namespace) -> dict[str, Any]:
    """Writes through the sink, one batch of the archive after the other."""
    _make_sure(plan, args)
    job = f"restore.{plan.stream}.{zlib.crc32(plan.created.encode()):08x}"
    begin = _place(plan, args, job) if args.mode == "fence" else 0
    before = _messages(plan, args)
    from jetcluster.pipeline import restore_rows

    for one in plan.manifests[begin:]:
        rows = plan.rows(one)
        if args.mode == "fence":
            rows = rows.coalesce(1).sortWithinPartitions("seq")
        else:
            rows = rows.repartition("subject").sortWithinPartitions("seq")
        convert = partial(restore_rows.rows_for_sink, stream=plan.stream, source_seq=args.source_seq)
        messages = rows.mapInArrow(convert, restore_rows.SINK_SCHEMA)
        options = source_options(args) | {
            "stream": plan.target,
            "idempotence": args.mode,
            "reservedHeaders": "drop",
            "jobId": job,
            "batchId": str(one.number),
        }
        if args.mode == "fence":
            messages = messages.drop("msg_id")
            if args.start_after is not None:
                options["startAfter"] = str(args.start_after)
        messages.write.format("jetstream").mode("append").options(**options).save()
        if not args.json:
            progress(f"batch {one.number}: {one.rows} rows are in {plan.target}")
    after = _messages(plan, args)
    return {"added": after - before, "batches": len(plan.manifests) - begin}


def _make_sure(plan: Plan, args: argparse.Namespace) -> None:
    """That the stream is there. Raises UsageError."""
    from jetcluster.spark.stream_state import ask

    options = server_options_of(args)
    try:
        ask(options, lambda connection: connection.api(f"STREAM.INFO.{plan.target}"))
    except ApiError as error:
        if not error.is_stream_not_found:
            raise
        if not args.create:
            raise UsageError(f"there is no stream {plan.target}; --create makes it as it was archived") from None
        try:
            ask(options, lambda connection: connection.api(f"STREAM.CREATE.{plan.target}", plan.config))
        except ApiError as refused:
            raise UsageError(f"{plan.target} cannot be created: {refused}") from None


def _messages(plan: Plan, args: argparse.Namespace) -> int:
    from jetcluster.spark.stream_state import ask, stream_state

    return ask(server_options_of(args), lambda connection: stream_state(connection, plan.target)).messages


def _place(plan: Plan, args: argparse.Namespace, job: str) -> int:
    """Index of the first batch that is not wholly there, by the marker of the stream's last message."""
    from jetcluster.spark import fence
    from jetcluster.spark.fence_writer import read_last
    from jetcluster.spark.stream_state import ask

    last = ask(server_options_of(args), lambda connection: read_last(connection, plan.target))
    found = fence.parse(last.marker)
    if found is None or found.job != job:
        return 0  # the sink says whether that is right
    return min(found.batch, len(plan.manifests) - 1)
