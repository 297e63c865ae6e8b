"""`jetcluster pipeline archive`: a stream as Parquet files, each batch with a manifest that is written last.

A batch is a range of sequences, read by Direct Gets in tasks, which write their rows to files. Then every file is read
back and compared, and the manifest is written; with it the batch exists:

    crash after      on restart
    some rows        files that no manifest names are removed; the batch is made anew
    the manifest     the next batch begins at its end; the retention guard goes there first

The manifests alone are the place where the archive goes on: there is no checkpoint, and Spark's streaming has no part
in it. One job at a time writes (`BackupLock`), so whatever no manifest names may be removed.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetcluster import faults
from jetcluster.archive import manifest
from jetcluster.archive.manifest import FILE_ROWS, ArchivedFile, Manifest
from jetcluster.archive.storage import open_archive
from jetcluster.backup.lock import BackupLock
from jetcluster.clock import SystemClock, SystemRng
from jetcluster.pipeline import archive_tasks, compaction, row_files
from jetcluster.pipeline.archive_guard import ArchiveGuard
from jetcluster.pipeline.arguments import add_server, server_options_of, source_options, stream_state_of
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.naming import named
from jetcluster.pipeline.result import DataLoss, Result, UsageError
from jetcluster.pipeline.stop import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetcluster.arrow.options import SourceOptions

BATCH_SEQUENCES: Final = 1_000_000
LOCK: Final = "_lock.json"
_EVERY: Final = re.compile(r"(\d+(?:\.\d+)?) *(ms|s|seconds?|m|minutes?|h|hours?)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--stream", required=True, help="the stream to archive; it is read, nothing is acked")
    parser.add_argument(
        "--out", required=True, metavar="URL", help="the archive: a folder, s3://bucket/path, gs://... or az://..."
    )
    parser.add_argument("--subjects", default=">", help="filters, by commas (default: all)")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until SIGINT or SIGTERM")
    parser.add_argument("--every", default="10 seconds", help="with --follow: pause between batches (%(default)s)")
    parser.add_argument("--max-per-batch", type=int, default=BATCH_SEQUENCES, help="sequences in a batch (%(default)s)")
    parser.add_argument("--rows-per-file", type=int, default=FILE_ROWS, help="at most, about (%(default)s)")
    parser.add_argument("--no-compact", action="store_true", help="do not make many small batches one")
    parser.add_argument(
        "--read-preference", default="any", help="any, leader, local, peer:SERVER or mirror:STREAM (%(default)s)"
    )
    parser.add_argument(
        "--guard", default="", metavar="CONSUMER", help="the stream's retention guard, which follows what is archived"
    )
    parser.add_argument(
        "--allow-loss", action="store_true", help="go on when messages were removed before they were archived"
    )


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError, and the errors of a connection."""
    if args.max_per_batch < 1 or args.rows_per_file < 1:
        raise UsageError("--max-per-batch and --rows-per-file must be 1 or more")
    if args.guard and args.subjects.strip() != ">":
        raise UsageError("--guard with --subjects: messages of other subjects would go without being archived")
    pause_of(args.every)
    stream_state_of(args, args.stream)


def pause_of(text: str) -> float:
    """Returns seconds. Raises UsageError."""
    match = _EVERY.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"--every {text}: a duration like '10 seconds' or '1 minute'")
    return float(match[1]) * _SECONDS["ms" if match[2] == "ms" else match[2][0]]


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Archives the stored messages, or follows the stream. The result counts the batches that this run added."""
    started = time.monotonic()
    pause = pause_of(args.every)
    archive = Archive(session, args)
    with archive.lock, Stop() as stop:
        archive.begin()
        while True:
            archive.extend(stop)
            if not args.no_compact:
                archive.compact()
            if not args.follow or stop.within(pause):
                break
    batches = archive.added
    fields: dict[str, Any] = {
        "stream": args.stream,
        "out": archive.storage.url,
        "batches": len(batches),
        "rows": sum(one.rows for one in batches),
        "bytes": sum(one.size for one in batches),
        "start": archive.start_seq,
        "end": archive.end,
        "manifests": len(archive.manifests),
        "compacted": archive.compacted,
        **({"guard": args.guard, "guard_floor": archive.guard.floor} if args.guard else {}),
        "seconds": round(time.monotonic() - started, 2),
    }
    return Result("archive", fields)


class Archive:
    """The archive of one stream, and the batches that a run adds to it."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        """Raises what `open_archive` raises."""
        self._session = session
        self._args = args
        self._subjects = sorted(word.strip() for word in args.subjects.split(",") if word.strip())
        self.storage = open_archive(args.out)
        self.lock = BackupLock(
            self.storage, SystemClock(), SystemRng(), progress, path=LOCK, work=f"archive of {args.stream}"
        )
        self.guard = ArchiveGuard(args, self.storage.url)
        self.manifests: list[Manifest] = []
        self.added: list[Manifest] = []
        self.compacted = 0
        """Batches that became part of a larger one."""
        self.start_seq = self.end = 0

    def begin(self) -> None:
        """Finds where the archive ends, and removes what a run that broke has left. Raises UsageError, DataLoss,
        NotAnArchiveError, ArchiveLossError."""
        state = stream_state_of(self._args, self._args.stream)
        self.guard.begin(state)  # before the beginning is known: from now on it stays
        state = stream_state_of(self._args, self._args.stream) if self._args.guard else state
        self.manifests = manifest.load(self.storage)
        if self.manifests:
            self._check_same(self.manifests[-1], state.created)
        self.start_seq = self.end = self.manifests[-1].end if self.manifests else max(state.first, 1)
        if self.manifests:
            self.guard.advance(self.end, state.last)
        self.storage.sweep()
        self._remove_replaced()
        self._remove_strays(f"stream={self._args.stream}", ())

    def _check_same(self, last: Manifest, created: str) -> None:
        where = self.storage.url
        if (last.stream, last.subjects) != (self._args.stream, self._subjects):
            held = f"{last.stream} with subjects {', '.join(last.subjects)}"
            raise UsageError(f"{where} holds {held}: one archive, one stream")
        if last.created != created:
            raise DataLoss(
                f"{where} holds {last.stream} as it was created at {last.created}; the one on the server was created "
                f"at {created}, and its sequences mean other messages: archive it to another folder"
            )

    def extend(self, stop: Stop) -> None:
        """Adds batches up to where the stream ends now. Raises DataLoss for an archive of more than the stream ever
        had, and what a query of it raises."""
        last = stream_state_of(self._args, self._args.stream).last
        if self.end > last + 1 and self.end > (last := self._proven_last()) + 1:
            raise DataLoss(
                f"{self.storage.url} ends at sequence {self.end - 1}, and {self._args.stream} at {last}: the stream "
                "was set back, and its next messages would count as archived; archive it to another folder"
            )
        while self.end <= last and not stop.wanted:
            self._add(min(last + 1, self.end + self._args.max_per_batch))

    def _proven_last(self) -> int:
        """Returns the stream's last sequence as a leader has it that proves that it leads."""
        from jetcluster.client.servers import ask
        from jetcluster.client.stream_state import stream_state

        question = partial(stream_state, stream=self._args.stream, linearizable=True)
        return ask(server_options_of(self._args), question).last

    def _add(self, end: int) -> None:
        from jetcluster.arrow import resolve

        options = self._source_options(end)
        extents = resolve.batch_extents(options)
        resolve.check_loss(extents)
        tasks = resolve.tasks_of(extents, options)
        work = archive_tasks.writer(options, self.storage.url, self._args.rows_per_file)
        with named(self._session, f"archive of {self._args.stream}: sequences {self.end} to {end - 1}"):
            files = archive_tasks.files_of(archive_tasks.run_tasks(self._session, tasks, work))
        self._check_written(files)
        state = stream_state_of(self._args, self._args.stream)
        target = extents[0].target
        number = self.manifests[-1].number + 1 if self.manifests else 0
        found = Manifest(
            number=number,
            since=number,
            stream=state.name,
            created=target.created,
            subjects=self._subjects,
            start=self.end,
            end=end,
            config=state.config,
            read={"preference": self._args.read_preference, "leader": target.leader, "peers": list(target.peers)},
            **manifest.totals(files),
        )
        faults.point("archive.written")
        self._commit(found)
        faults.point("archive.committed")
        self.manifests.append(found)
        self.added.append(found)
        self.end = end
        self.guard.advance(end, state.last)
        faults.point("archive.guarded")
        if not self._args.json:
            progress(f"batch {found.number}: {found.rows} rows of sequences {found.start} to {found.end - 1}")

    def _source_options(self, end: int) -> SourceOptions:
        from jetcluster.spark.options import source_options as parsed

        created = self.manifests[-1].created if self.manifests else ""
        start = {self._args.stream: {"seq": self.end, "created": created}}
        given = source_options(self._args) | {
            "stream": self._args.stream,
            "subjects": ",".join(self._subjects),
            "startingOffsets": json.dumps(start),
            "endingOffsets": str(end),
            "maxRecordsPerPartition": str(self._args.rows_per_file),
            "readPreference": self._args.read_preference,
            "failOnDataLoss": str(not self._args.allow_loss).lower(),
        }
        return parsed(given)

    def _commit(self, found: Manifest) -> None:
        self.lock.check()
        manifest.commit(self.storage, found)

    def _check_written(self, files: list[ArchivedFile]) -> None:
        """Removes what tasks that were repeated have left, and reads the others back. Raises DataLoss."""
        held: dict[str, int] = {}
        for folder in sorted({file.path.rpartition("/")[0] for file in files}):
            held |= self._remove_strays(folder, files)
        row_files.check_held(self.storage.url, [(file.rows, held.get(file.path) == file.size) for file in files])
        archive_tasks.run_tasks(self._session, files, archive_tasks.back_reader(self.storage.url))

    def _remove_strays(self, folder: str, new: list[ArchivedFile] | tuple[()]) -> dict[str, int]:
        """Removes files that no manifest names and that are not `new`. Returns the bytes of the others."""
        known = {file.path for one in self.manifests for file in one.files} | {file.path for file in new}
        held = {}
        for file in list(self.storage.list(folder)):
            if file.path in known:
                held[file.path] = file.size
            elif file.path.endswith(".parquet"):
                self.lock.check()
                self.storage.delete(file.path)
        return held

    def _remove_replaced(self) -> None:
        """Removes manifests of batches that are part of a larger one. Their files are no manifest's then."""
        counting = {(one.since, one.number) for one in self.manifests}
        for batch, file in manifest.listed(self.storage).items():
            if batch not in counting:
                self.storage.delete(file.path)

    def compact(self) -> None:
        """Makes runs of small batches one batch each (`compaction.runs`). Raises DataLoss."""
        for first, last in compaction.runs([one.rows for one in self.manifests], self._args.max_per_batch):
            self._merge(self.manifests[first : last + 1])
        # `runs` counts from the end, so what it names first does not move what it names later.

    def _merge(self, replaced: list[Manifest]) -> None:
        parts = compaction.parts(replaced, self._args.rows_per_file)
        work = archive_tasks.merger(self.storage.url, self._args.stream, self._args.rows_per_file)
        files = archive_tasks.files_of(archive_tasks.run_tasks(self._session, parts, work))
        self._check_written(files)
        found = compaction.merged(replaced, files)
        faults.point("archive.compacted")
        self._commit(found)
        at = self.manifests.index(replaced[0])
        self.manifests[at : at + len(replaced)] = [found]
        self.compacted += len(replaced)
        for one in replaced:
            for file in one.files:
                self.storage.delete(file.path)
        self._remove_replaced()
        if not self._args.json:
            progress(f"batches {found.since} to {found.number} are one of {found.rows} rows in {len(files)} files")
