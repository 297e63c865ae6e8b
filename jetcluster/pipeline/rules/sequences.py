"""One sequence, one message: acked for one value, the same on all replicas, and none left out.

For streams from which nothing is deleted, so that sequences are 1, 2, 3, ... on each replica.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

_SEQUENCES: Final = """
SELECT history, workload, seq, any_value(replicas) AS replicas,
       map_from_entries(array_agg(struct(replica, struct(subject, msg_id)))
                        FILTER (WHERE f = 'stored' AND latest = op)) AS held,
       collect_set(struct(msg_id)) FILTER (WHERE f <> 'stored') AS acked, min(t1) FILTER (WHERE f <> 'stored') AS t
FROM (SELECT *, max(op) OVER (PARTITION BY history, workload, seq, f, replica) AS latest
      FROM {operations} JOIN {profile} USING (history, workload)
      WHERE copies AND seq > 0
      AND (f = 'stored' OR (f IN ('publish', 'cas') AND type = 'ok')))
GROUP BY history, workload, seq
"""

_ACKED_FOR_TWO: Final = """
SELECT history, workload, 'moved' AS kind, other.msg_id AS msg_id, seq, '' AS replica, t,
       format_string('sequence %d acked for %s and for %s', seq, get(acked, 0).msg_id, other.msg_id) AS text
FROM (SELECT *, explode(slice(acked, 2, greatest(size(acked) - 1, 0))) AS other FROM {sequences} WHERE size(acked) > 1)
"""

_COPIES: Final = """
WITH rows AS (SELECT history, workload, seq, get(replicas, 0) AS base, held[get(replicas, 0)] AS there,
                     explode(replicas) AS replica, held FROM {sequences}),
copies AS (SELECT * EXCEPT (held), held[replica] AS here,
                  lag(if(held[replica] IS NULL, NULL, seq), 1, 0) IGNORE NULLS
                  OVER (PARTITION BY history, workload, replica ORDER BY seq) AS before FROM rows),
found AS (SELECT history, workload, replica, any_value(base) AS base,
                 max(if(here IS NULL, 0, seq)) - count(here) AS missing,
                 min(before + 1) FILTER (WHERE here IS NOT NULL AND before < seq - 1) AS gap,
                 count_if(NOT (here <=> there)) AS differ, min(seq) FILTER (WHERE NOT (here <=> there)) AS first,
                 min_by(to_json(here), seq) FILTER (WHERE NOT (here <=> there)) AS here,
                 min_by(to_json(there), seq) FILTER (WHERE NOT (here <=> there)) AS there
          FROM copies GROUP BY history, workload, replica),
kinds AS (SELECT *, explode(array_compact(array(if(missing > 0, 'gap', NULL), if(differ > 0, 'diverged', NULL))))
                    AS kind FROM found)
SELECT history, workload, kind, '' AS msg_id, if(kind = 'gap', gap, first) AS seq, replica, 0D AS t,
       if(kind = 'gap', format_string('%d sequences missing on %s, the first is %d', missing, replica, gap),
          format_string('%d sequences differ, the first is %d: %s on %s, %s on %s', differ, first,
                        coalesce(there, 'nothing'), base, coalesce(here, 'nothing'), replica)) AS text
FROM kinds
"""


def check(operations: DataFrame, profile: DataFrame) -> list[DataFrame]:
    spark = operations.sparkSession
    sequences = spark.sql(_SEQUENCES, operations=operations, profile=profile)
    return [spark.sql(_ACKED_FOR_TWO, sequences=sequences), spark.sql(_COPIES, sequences=sequences)]
