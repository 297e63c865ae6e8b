"""`jetcluster pipeline archive`: a stream as partitioned Parquet, each batch with a manifest that is written last.

The job is a streaming query over the source: one micro-batch is one directory and one manifest. It writes the rows,
then the manifest, then Spark's own commit, and repeats an interrupted batch under the same number:

    crash after      on restart
    the rows         the directory has no manifest: it is overwritten
    the manifest     the range is archived: the batch is skipped
    Spark's commit   nothing

The manifests define the end of the archive. A checkpoint must agree with it; without one the query begins there.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from jetcluster import faults
from jetcluster.pipeline import manifest
from jetcluster.pipeline.arguments import add_server, source_options, stream_state_of
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.folder import Folder, open_folder
from jetcluster.pipeline.manifest import Manifest
from jetcluster.pipeline.result import DataLoss, Result, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS: Final = ("seq", "subject", "time", "time_ns", "headers", "headers_raw", "subject_raw", "data", "digest")
CHECKPOINT: Final = "_checkpoint"
BATCH_SEQUENCES: Final = 1_000_000
MAX_STARTS: Final = 5
SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives the worker of a streaming source ten seconds, which a busy machine may need for the imports."""
_POLL_SECONDS: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--stream", required=True, help="the stream to archive; it is read, nothing is acked")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the archive: a path, or hdfs://, s3a://")
    parser.add_argument("--subjects", default=">", help="filters, by commas (default: all)")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until SIGINT or SIGTERM")
    parser.add_argument("--every", default="10 seconds", help="with --follow: pause between batches (%(default)s)")
    parser.add_argument("--max-per-batch", type=int, default=BATCH_SEQUENCES, help="sequences in a batch (%(default)s)")
    parser.add_argument(
        "--read-preference", default="any", help="any, leader, local, peer:SERVER or mirror:STREAM (%(default)s)"
    )
    parser.add_argument(
        "--allow-loss", action="store_true", help="go on when messages were removed before they were archived"
    )


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError, and the errors of a connection."""
    if args.max_per_batch < 1:
        raise UsageError("--max-per-batch must be 1 or more")
    stream_state_of(args, args.stream)


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Archives the stored messages, or follows the stream. The result counts the batches that this run added."""
    started = time.monotonic()
    archive = Archive(session, args)
    with _Stop() as stop:
        for attempt in range(1, MAX_STARTS + 1):
            try:
                _finish(archive.start(), stop)
                break
            except Exception as error:
                if SLOW_START not in str(error) or attempt == MAX_STARTS:
                    raise
                progress("Spark gave up on a Python worker that was slow to start; starting again")
    # Not as `archive` knows them: Spark Connect calls a copy of it, in another process.
    manifests = manifest.load(archive.folder)
    batches = manifests[archive.known :]
    fields: dict[str, Any] = {
        "stream": args.stream,
        "out": archive.folder.url,
        "batches": len(batches),
        "rows": sum(one.rows for one in batches),
        "bytes": sum(sum(one.files.values()) for one in batches),
        "start": archive.start_seq,
        "end": manifests[-1].end if manifests else archive.end,
        "manifests": len(manifests),
        "seconds": round(time.monotonic() - started, 2),
    }
    return Result("archive", fields)


def _finish(query: StreamingQuery, stop: _Stop) -> None:
    """Waits until the query has ended. Raises the error that ended it."""
    while not query.awaitTermination(_POLL_SECONDS):
        if stop.wanted:
            query.stop()


class _Stop:
    """A context in which SIGINT and SIGTERM end a job in order. Outside the main thread it has no effect."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._stop)
        return self

    def _stop(self, number: int, frame: object) -> None:
        self.wanted = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Archive:
    """The archive of one stream in one folder, and the query that extends it."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        """Raises UsageError, DataLoss."""
        self._session = session
        self._args = args
        self._state = state = stream_state_of(args, args.stream)
        self.folder: Folder = open_folder(session, args.out)
        self.manifests = manifest.load(self.folder)
        self.known = len(self.manifests)
        """Manifests that were there at the start."""
        self._subjects = sorted(word.strip() for word in args.subjects.split(",") if word.strip())
        if self.manifests:
            self._check_same(self.manifests[-1])
        self.start_seq = self.manifests[-1].end if self.manifests else max(state.first, 1)
        self.end = self.start_seq
        self._checkpoint = args.checkpoint or f"{self.folder.url}/{CHECKPOINT}"
        self._offsets = open_folder(session, self._checkpoint)

    def _check_same(self, last: Manifest) -> None:
        where = self.folder.url
        if (last.stream, last.subjects) != (self._state.name, self._subjects):
            held = f"{last.stream} with subjects {', '.join(last.subjects)}"
            raise UsageError(f"{where} holds {held}: one archive, one stream")
        if last.created != self._state.created:
            raise DataLoss(
                f"{where} holds {last.stream} as it was created at {last.created}; the one on the server was created "
                f"at {self._state.created}, and its sequences mean other messages: archive it to another folder"
            )

    def start(self) -> StreamingQuery:
        args = self._args
        start = {self._state.name: {"seq": self.end, "created": self._state.created}}
        options = source_options(args) | {
            "stream": args.stream,
            "subjects": ",".join(self._subjects),
            "columns": ",".join(COLUMNS),
            "startingOffsets": json.dumps(start),
            "maxOffsetsPerTrigger": str(args.max_per_batch),
            "readPreference": args.read_preference,
            "failOnDataLoss": str(not args.allow_loss).lower(),
        }
        rows = self._session.readStream.format("jetstream").options(**options).load()
        writer = rows.writeStream.foreachBatch(self._write).option("checkpointLocation", self._checkpoint)
        writer = writer.trigger(processingTime=args.every) if args.follow else writer.trigger(availableNow=True)
        return writer.queryName(f"archive {args.stream}").start()

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch. Spark calls it in this process."""
        begin, end = self._planned(batch_id - 1), self._planned(batch_id)
        assert end is not None, batch_id
        if begin is not None and begin > self.end:
            raise DataLoss(
                f"the checkpoint {self._checkpoint} is at {begin}, the archive {self.folder.url} ends at {self.end}: "
                "they do not belong together. Without the checkpoint the archive goes on where it ends"
            )
        if end <= self.end:
            return  # the process died between the manifest and Spark's commit
        found = self._write_rows(rows.where(f"seq >= {self.end}"), len(self.manifests), end)
        faults.point("archive.written")
        manifest.commit(self.folder, found)
        faults.point("archive.committed")
        self.manifests.append(found)
        self.end = end
        if not self._args.json:
            progress(f"batch {found.number}: {found.rows} rows of sequences {found.start} to {found.end - 1}")

    def _write_rows(self, rows: DataFrame, number: int, end: int) -> Manifest:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation("archive")
        place = F.xxhash64("seq", "time_ns", "digest")
        observed = rows.observe(
            seen,
            F.count("*").alias("rows"),
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
            F.min("time_ns").alias("first_time"),
            F.max("time_ns").alias("last_time"),
            F.bit_xor("digest").alias("digest"),
            F.bit_xor(place).alias("places"),
        )
        state = self._state
        target = manifest.directory(state.name, number)
        observed.write.mode("overwrite").parquet(f"{self.folder.url}/{target}")
        totals = seen.get
        self._check_written(target, int(totals["rows"]))
        digest, places = totals.pop("digest"), totals.pop("places")
        return Manifest(
            number=number,
            stream=state.name,
            created=state.created,
            subjects=self._subjects,
            start=self.end,
            end=end,
            digest=manifest.hexadecimal(digest),
            places=manifest.hexadecimal(places),
            files=dict(sorted(self.folder.list(target).items())),
            config=state.config,
            read={"preference": self._args.read_preference, "leader": state.leader, "peers": list(state.peers)},
            **totals,
        )

    def _check_written(self, target: str, rows: int) -> None:
        """Raises DataLoss unless the files of a batch have the rows that went through Spark: a worker that does not
        share the folder writes to one of its own, and Spark says nothing."""
        files = self.folder.list(target)
        found = self._session.read.parquet(f"{self.folder.url}/{target}").count() if files else 0
        if found != rows:
            raise DataLoss(
                f"Spark wrote {rows} rows and {self.folder.url}/{target} has {found}: --out has to be a folder that "
                "the driver and all workers share, or an object store"
            )

    def _planned(self, batch_id: int) -> int | None:
        """Returns the planned end of a micro-batch, an exclusive sequence; None for a batch without a plan."""
        try:
            text = self._offsets.read(f"offsets/{batch_id}")
        except OSError:
            return None
        return planned_end(text, self._state.name)


def planned_end(text: str, stream: str) -> int:
    """Returns the end planned by a checkpoint's file: a version, metadata and one offset, by line. Raises
    UsageError."""
    lines = text.strip().split("\n")
    if len(lines) != 3 or not re.fullmatch(r"v\d+", lines[0]):
        raise UsageError(f"a checkpoint of another kind: {text[:80]!r}")
    found = json.loads(lines[2]).get(stream)
    if found is None:
        raise UsageError(f"the checkpoint is of another stream than {stream}: {lines[2]}")
    return int(found["seq"] if isinstance(found, dict) else found)
