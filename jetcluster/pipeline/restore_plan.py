"""The plan of a restore: which batches of an archive, and into a stream of what configuration."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from jetcluster.pipeline import manifest
from jetcluster.pipeline.folder import open_folder
from jetcluster.pipeline.manifest import Manifest
from jetcluster.pipeline.result import DataLoss, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.pipeline.restore_rows import RowTotals

_ROWS_PER_TASK: Final = 50_000
_BYTES_PER_TASK: Final = 8 << 20
"""Compressed Parquet of one task. The driver holds what a task makes until it is sent."""


class RestorePlan:
    """The manifests of the batches to restore, the totals of their rows, and the configuration of the stream that is
    made.

    The range is `start` to `end`, without `end`.
    """

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
        """The rows of one batch that are wanted, not sorted, with a column `place`. Raises DataLoss."""
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

    def _count(self) -> RowTotals:
        """By the manifests, and by the rows where a manifest is wanted in part."""
        from pyspark.sql import functions as F

        from jetcluster.pipeline.restore_rows import RowTotals

        self.first_time = self.last_time = None
        self.first_seq = self.last_seq = None
        totals = RowTotals()
        for one in self.manifests:
            found: Any = one
            if one.end > self.end:
                found = self.rows(one).agg(
                    F.count("*").alias("rows"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                    F.min("time_ns").alias("first_time"), F.max("time_ns").alias("last_time"),
                    F.bit_xor("digest").alias("digest"), F.bit_xor("place").alias("places"),
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
