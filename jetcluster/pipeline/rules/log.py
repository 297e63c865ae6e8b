"""A stream as a log: every acked write is on every replica, once, where its ack said, in real-time order.

For workloads that `publish` or `cas`. Of one value all tries count as one write, from the first start to the first ack.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jetcluster.pipeline.rules.order import SPAN, seen_before

_VALUES: Final = """
SELECT history, workload, msg_id, any_value(replicas) AS replicas, min(t0) FILTER (WHERE f <> 'stored') AS begun,
       min(t1) FILTER (WHERE f <> 'stored' AND type = 'ok') AS acked,
       array_sort(collect_set(seq) FILTER (WHERE f <> 'stored' AND type = 'ok')) AS seqs,
       bool_or(type <> 'fail') FILTER (WHERE f <> 'stored') AS maybe,
       collect_list(struct(replica, seq)) FILTER (WHERE f = 'stored') AS rows
FROM {operations} JOIN {profile} USING (history, workload)
WHERE logs AND (f IN ('publish', 'cas') OR (f = 'stored' AND seq > 0)) GROUP BY history, workload, msg_id
"""

_ACKED_TWICE: Final = """
SELECT history, workload, 'duplicated' AS kind, msg_id, get(seqs, 0) AS seq, '' AS replica, acked AS t,
       concat(msg_id, ' acked as ', array_join(cast(seqs AS array<string>), ', ')) AS text
FROM {values} WHERE size(seqs) > 1
"""

_PLACES: Final = """
WITH places AS (
    SELECT * EXCEPT (rows, replicas),
           array_sort(transform(filter(rows, row -> row.replica = v.replica), row -> row.seq)) AS places
    FROM (SELECT *, explode(replicas) AS replica FROM {values}) AS v),
kinds AS (
    SELECT *, explode(array_compact(array(
        if(size(places) > 1, 'duplicated', NULL),
        CASE WHEN size(places) > 0 AND maybe IS NULL THEN 'never sent'
             WHEN size(places) > 0 AND NOT maybe THEN 'refused' END,
        CASE WHEN size(seqs) > 0 AND size(places) = 0 THEN 'lost'
             WHEN size(seqs) > 0 AND NOT arrays_overlap(places, seqs) THEN 'moved' END))) AS why
    FROM places)
SELECT history, workload, if(why IN ('never sent', 'refused'), 'phantom', why) AS kind, msg_id,
       coalesce(get(places, 0), get(seqs, 0)) AS seq, replica, if(why IN ('lost', 'moved'), acked, 0D) AS t,
       concat(msg_id, if(size(seqs) > 0, concat(', acked as ', string(get(seqs, 0)), ','), ''), ' is ',
              if(size(places) > 0, array_join(cast(places AS array<string>), ', '), 'not'), ' on ', replica,
              if(why IN ('never sent', 'refused'), concat('; it was ', why), '')) AS text
FROM kinds
"""

_REORDERED: Final = """
SELECT history, workload, 'reordered' AS kind, msg_id, seq, '' AS replica, t0 AS t,
       format_string('%s is %d, but began after %s was acked as %d', msg_id, seq, seen.msg_id, seen.seq) AS text
FROM {swept} WHERE seen.seq > seq
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    values = spark.sql(_VALUES, operations=operations, profile=profile)
    acked = values.where("size(seqs) > 0").select(
        "history", "workload", "msg_id", F.get("seqs", 0).alias("seq"), F.col("begun").alias("t0"),
        F.col("acked").alias("t1"),
    )  # fmt: skip
    mark = F.struct(F.col("seq"), (-F.col("t1")).alias("age"), F.col("msg_id"))
    swept = seen_before(acked, ["history", "workload"], mark, SPAN)
    return [
        spark.sql(_ACKED_TWICE, values=values),
        spark.sql(_PLACES, values=values),
        spark.sql(_REORDERED, swept=swept),
    ]
