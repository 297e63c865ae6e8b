"""All rules that a history's workloads call for, as one frame of findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from jetcluster.pipeline.rules import batches, consumers, log, mirrors, register, sequences

FINDING: Final = (
    "history string, workload string, kind string, msg_id string, seq bigint, replica string, t double, text string"
)

Rule = Callable[[DataFrame, DataFrame], list[DataFrame]]

_RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("logs", log.check),
    ("copies", sequences.check),
    ("registers", register.check),
    ("batches", batches.check),
    ("consumes", consumers.check),
    ("mirrors", mirrors.check),
)
"""What the profile says of a workload -> the rule for those."""


def findings(operations: DataFrame, profile: DataFrame, known: Sequence[Row]) -> DataFrame:
    """`known`: the rows of `profile`. Empty when no rule applies to any workload."""
    everywhere = F.broadcast(profile)
    found = [operations.sparkSession.createDataFrame([], FINDING)]
    for flag, rule in _RULES:
        if any(row[flag] for row in known):
            found += rule(operations, everywhere)
    return reduce(DataFrame.unionByName, found)
