"""The operations that had ended before another one began: the one question behind "reordered" and "stale"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

SPAN: Final = 60.0
"""Seconds."""


def seen_before(operations: DataFrame, keys: Sequence[str], mark: Column, span: float | None = None) -> DataFrame:
    """`operations` with `seen`: the greatest `mark` of those with the same `keys` whose t1 is before its t0, or null. A
    mark is anything that has an order, for example a struct that begins with a sequence.

    A running maximum over starts and ends in real time, one task per key. With a `span` that is done twice, inside
    spans of so many seconds and over one row per span: for few keys with many operations.
    """
    starts = operations.withColumns({"_t": F.col("t0"), "_ends": F.lit(0), "_mark": F.lit(None).cast("void")})
    ends = operations.withColumns({"_t": F.col("t1"), "_ends": F.lit(1), "_mark": mark}).where("t1 < double('inf')")
    merged = ends.unionByName(starts)
    if span is None:
        swept = merged.withColumn("seen", F.max("_mark").over(_up_to_here(keys)))
    else:
        merged = merged.withColumn("_span", F.expr(f"try_cast(floor(try_divide(_t, {span})) AS bigint)"))
        swept = _in_two_passes(merged, keys)
    return swept.where("_ends = 0").select(*operations.columns, "seen")


def _up_to_here(keys: Sequence[str]) -> WindowSpec:
    """Starts come before ends of the same moment: what ended just then was not seen yet."""
    return Window.partitionBy(*keys).orderBy("_t", "_ends").rowsBetween(Window.unboundedPreceding, 0)


def _in_two_passes(merged: DataFrame, keys: Sequence[str]) -> DataFrame:
    before = Window.partitionBy(*keys).orderBy("_span").rowsBetween(Window.unboundedPreceding, -1)
    tops = merged.groupBy(*keys, "_span").agg(F.max("_mark").alias("_top"))
    tops = tops.select(*keys, "_span", F.max("_top").over(before).alias("_before"))
    inside = merged.withColumn("_inside", F.max("_mark").over(_up_to_here([*keys, "_span"])))
    return inside.join(F.broadcast(tops), [*keys, "_span"]).withColumn("seen", F.greatest("_inside", "_before"))
