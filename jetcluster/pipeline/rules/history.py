"""Histories as DataFrames. Their format is at the top of chaos/history.py: JSON lines, one event each.

`load` gives one row per operation: its completion, or `info` with `t1` infinite for one that never ended. Columns:
history, op, type, workload, f, client, subject, msg_id, seq, expect, count, replica, t0, t1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

TYPES: Final = ("invoke", "ok", "fail", "info")
BROKEN: Final = "_broken"

_DEFAULTS: Final[dict[str, bool | float | int | str]] = {
    "client": "", "subject": "", "msg_id": "", "replica": "", "seq": 0, "expect": -1, "count": 0, "t0": 0.0,
    "t1": float("inf"),
}  # fmt: skip
"""Of the fields that a line may leave out."""

_SCHEMA: Final = (
    "type string, op bigint, workload string, f string, client string, subject string, msg_id string, seq bigint, "
    f"expect bigint, count bigint, replica string, t0 double, t1 double, error string, {BROKEN} string"
)


class BrokenHistory(ValueError):
    """A line is no event, or there is none at all."""


def load(spark: SparkSession, files: Sequence[Path], partitions: int) -> DataFrame:
    """Each file is one `history`, named by its stem. What comes back is read and computed (`localCheckpoint`), as every
    rule begins with it, in at most so many partitions. Raises BrokenHistory."""
    events = _events(spark, files).coalesce(partitions).persist()
    try:
        bad = F.min(F.when(F.col(BROKEN).isNotNull(), F.struct("history", BROKEN)))
        found = events.agg(F.count("*").alias("lines"), bad.alias("bad")).first()
        assert found is not None
        if found.bad is not None:
            raise BrokenHistory(f"{found.bad.history}: no event: {found.bad[BROKEN][:200]}")
        if not found.lines:
            raise BrokenHistory(f"no events in {', '.join(map(str, files))}")
        return operations_of(events.drop(BROKEN)).localCheckpoint()
    finally:
        events.unpersist()


def _events(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    rows = spark.read.json(
        [str(file) for file in files], schema=_SCHEMA, mode="PERMISSIVE", columnNameOfCorruptRecord=BROKEN
    )
    name = F.url_decode(F.replace(F.col("_metadata.file_name"), F.lit("+"), F.lit("%2B")))
    rows = rows.withColumn("history", F.regexp_replace(name, r"\.jsonl$", ""))
    said = F.to_json(F.struct("type", "op", "workload", "f"))
    complete = F.col("op").isNotNull() & F.col("workload").isNotNull() & F.col("f").isNotNull()
    unknown = ~(complete & F.coalesce(F.col("type"), F.lit("")).isin(*TYPES))
    return rows.drop("error").withColumn(BROKEN, F.coalesce(BROKEN, F.when(unknown, said))).fillna(_DEFAULTS)


def operations_of(events: DataFrame) -> DataFrame:
    """One row per operation, as `operations` in chaos/history.py."""
    begun, ended = events.where("type = 'invoke'"), events.where("type <> 'invoke'")
    unfinished = begun.join(ended.select("history", "op"), ["history", "op"], "left_anti")
    unknown = unfinished.withColumns({"type": F.lit("info"), "t1": F.lit(float("inf"))})
    return ended.unionByName(unknown)
