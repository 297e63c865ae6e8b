"""A history's workloads: which rules apply to each, and the replicas that were read. A few rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

_PROFILE: Final = """
SELECT * EXCEPT (held), flatten(collect_list(held) OVER (PARTITION BY history)) AS held FROM (
SELECT history, workload, array_sort(collect_set(replica) FILTER (WHERE f = 'stored')) AS replicas,
       bool_or(f IN ('publish', 'cas')) AS logs, bool_or(f = 'cas') AS registers, bool_or(f = 'batch') AS batches,
       bool_or(f = 'deliver') AS consumes, bool_or(f = 'drained') AS drained,
       bool_or(f IN ('publish', 'cas', 'batch', 'mirror')) AS copies, bool_or(f = 'mirror') AS mirrors,
       max_by(subject, op) FILTER (WHERE f = 'mirror') AS origin,
       collect_list(struct(t0, t1)) FILTER (WHERE f = 'fault' AND workload IN ('pause', 'link')) AS held,
       count(*) FILTER (WHERE f NOT IN ('stored', 'fault', 'leader', 'drained', 'mirror', 'damaged', 'died')) AS checked
FROM {operations} GROUP BY history, workload)
"""

_FIGURES: Final = """
SELECT count_if(answered) AS answered, coalesce(sum(size) FILTER (WHERE answered), 0) AS acked,
       count_if(asked AND NOT answered) AS unknown
FROM (SELECT bool_or(type = 'ok') AS answered, bool_or(type <> 'fail') AS asked,
             max_by(greatest(count, 1), t0) FILTER (WHERE type = 'ok') AS size
      FROM {operations} WHERE f IN ('publish', 'cas', 'batch') GROUP BY history, workload, msg_id)
"""


def profile_of(operations: DataFrame) -> DataFrame:
    """One row per history and workload. `held`: when faults of that history held bytes back, as {t0, t1}."""
    return operations.sparkSession.sql(_PROFILE, operations=operations)


def figures(operations: DataFrame) -> dict[str, int]:
    """`acked`: messages; `unknown`: writes, re-sent or not, that were never acked and not always refused."""
    row = operations.sparkSession.sql(_FIGURES, operations=operations).first()
    assert row is not None
    return {"acked": row.acked, "unknown": row.unknown}
