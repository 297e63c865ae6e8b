"""The plan of a restore: the batches of an archive, and the configuration of the new stream.

`restore_parts` cuts the batches for tasks, `restore_rows` has what becomes of their rows.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jetcluster.archive import manifest
from jetcluster.archive.manifest import Manifest
from jetcluster.archive.storage import open_archive
from jetcluster.model import retention_guard
from jetcluster.pipeline import archive_tasks
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.restore_rows import COLUMNS, RowTotals
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RestorePlan:
    """The manifests of the batches to restore, the totals of their rows, and the new stream's configuration."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        """Raises UsageError, DataLoss, NotAnArchiveError, ArchiveLossError."""
        storage = open_archive(args.source)
        found = manifest.load(storage)
        upto = args.upto_seq
        self.url = storage.url
        self.manifests = [one for one in found if upto is None or one.start <= upto]
        if not self.manifests:
            raise UsageError(f"{self.url} holds no manifest" + (f" up to sequence {upto}" if found else ""))
        held = {file.path: file.size for file in storage.list(f"stream={found[0].stream}")}
        for file in (file for one in self.manifests for file in one.files):
            if held.get(file.path) != file.size:
                raise DataLoss(f"{self.url}/{file.path} is missing or cut off")
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
        """Returns the rows of one batch below `end`, unsorted."""
        parts = [FilePart((file,), one.start, min(one.end, self.end)) for file in one.files if file.seqs[0] < self.end]
        return archive_tasks.frame(self._session, self.url, parts, COLUMNS)

    def _count(self) -> RowTotals:
        """Counts by the manifests, and by the rows of a batch that is restored only in part."""
        from pyspark.sql import functions as F

        self.first_time = self.last_time = None
        self.first_seq = self.last_seq = None
        totals = RowTotals()
        for one in self.manifests:
            found: Any = one
            if one.end > self.end:
                found = self.rows(one).agg(
                    F.count("*").alias("rows"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                    F.min("time_ns").alias("first_time"), F.max("time_ns").alias("last_time"),
                    F.bit_xor("digest").alias("digest"),
                    F.bit_xor(F.xxhash64("seq", "time_ns", "digest")).alias("places"),
                ).first()  # fmt: skip
            totals = totals.plus(RowTotals(found.rows, 0, _signed(found.digest), _signed(found.places)))
            if found.rows:
                self.first_seq, self.first_time = self.first_seq or found.first_seq, self.first_time or found.first_time
                self.last_seq, self.last_time = found.last_seq, found.last_time
        return totals


def _signed(value: str | int | None) -> int:
    number = int(value, 16) if isinstance(value, str) else value or 0
    return number - (1 << 64) if number >= 1 << 63 else number


def target_config(config: dict[str, Any], args: argparse.Namespace, name: str, start: int) -> dict[str, Any]:
    """Returns the configuration of the new stream: the archived one without its ties to other streams."""
    made = {
        key: value for key, value in config.items()
        if key not in ("mirror", "sources", "mirror_direct", "sealed", retention_guard.FIELD)
    } | {"name": name}  # fmt: skip
    made["metadata"] = retention_guard.removed(config.get("metadata") or {})  # consumers are not archived
    if args.replicas:
        made["num_replicas"] = args.replicas
    if args.subjects:
        made["subjects"] = [word.strip() for word in args.subjects.split(",") if word.strip()]
    if args.no_limits:
        made |= {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    if args.mode != "exact":
        for key in ("subject_transform", "republish"):  # they were applied before the messages were archived
            made.pop(key, None)
        made["first_seq"] = start
        if args.mode == "fence":
            made["allow_atomic"] = True
    return made
